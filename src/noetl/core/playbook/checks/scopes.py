"""Which names can exist at which place of a playbook (dsl §7.3, with §4.3 and §5.1).

A scope is what one template can see.  It errs on the side of existence: what may be there in some run is known."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from noetl.core.playbook.compiling.texts import target_of
from noetl.core.playbook.model import Action, Playbook, Step, Task
from noetl.core.playbook.needs import FACTS

Parts = Mapping[str, Collection[str]]
"""By root, the keys that can stand below it, for roots of which all keys are known."""

# The keys of input are names of the fields, except where they are arguments of something with names of its own.
_PRIVATE_INPUT = frozenset(("python", "playbook"))
_EVERYWHERE = FACTS | {"workload", "ctx", "steps", "iter", "keychain", "token"}
_ENVELOPE = frozenset(("output", "outcome", "result", "response", "error"))
_OUTCOME = _ENVELOPE | {"event"}
_PIPELINE = _ENVELOPE | {"_prev", "_task", "_attempt", "results", "input", "step"}
_LOOP = frozenset(("_index", "loop_index", "_total", "loop", "frame"))
_CLAIM = frozenset(("__frame_max_rows", "__frame_policy"))
_ITER = frozenset(
    ("index", "_index", "_first", "_last", "_total", "_frame_index", "_frame_row_index", "_frame_row_count")
)
_IDENTITY = frozenset(("uuid", "id", "execution_id"))
_EVENT = frozenset(("name", "step", "timestamp", "payload"))
_FRAME = frozenset(("rows", "row_count", "index", "base_index"))
_LOOP_FACTS = frozenset(("index", "first", "last", "length", "done"))
_FANIN = frozenset(("status", "total", "succeeded", "failed", "refs"))


class Pipeline:
    """The names that the tasks of a step make, and how many tasks must have run until each is there."""

    def __init__(self, step: Step) -> None:
        # After a jump or in a second attempt, tasks have run that come later in the list.
        goes_back = any(rule.do in (Action.JUMP, Action.RETRY) for task in step.tasks for rule in task.rules)
        self.labels: dict[str, int] = {}
        self.made: dict[str, int] = {}
        for number, task in enumerate(step.tasks):
            count = 0 if goes_back else number + 1
            self.labels[task.label] = count
            for name in _scope_keys((task,), "local"):
                self.made.setdefault(name, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What one place sees beside what every place sees.

    `own` are its names, and of its pipeline those that are there when `ran` tasks have run and `made` have made theirs.
    `step` is the step that it belongs to; `is_behind_it` says that this one has run itself."""

    own: frozenset[str]
    parts: Parts
    step: Step
    is_behind_it: bool = False
    pipeline: Pipeline | None = None
    ran: int = 0
    made: int = 0

    def __contains__(self, name: str) -> bool:
        if name in self.own or self.pipeline is None:
            return name in self.own
        return self.has_label(name) or self.pipeline.made.get(name, self.made + 1) <= self.made

    def has_label(self, name: str) -> bool:
        return self.pipeline is not None and self.pipeline.labels.get(name, self.ran + 1) <= self.ran

    def names(self) -> frozenset[str]:
        """For whoever looks for something alike."""
        return self.own if self.pipeline is None else self.own | self.pipeline.labels.keys() | self.pipeline.made.keys()


class Scopes:
    """The scopes of one playbook.  `everywhere` are the names that every place sees, but for those of steps."""

    def __init__(self, playbook: Playbook) -> None:
        self.workload = playbook.workload.keys()
        self.context = frozenset(_context_names(playbook))
        self.steps = frozenset(step.name for step in playbook.steps)
        arcs = [arc for step in playbook.steps if step.next is not None for arc in step.next.arcs]
        given = {"spec"} if playbook.spec is not None else set()
        given |= {"args"} if any(arc.args for arc in arcs) else set()
        self.everywhere = _EVERYWHERE | self.workload | self.context | given
        self._parts: Parts = {"job": _IDENTITY, **({} if playbook.spec is None else {"spec": playbook.spec.keys()})}

    def of_opening(self, step: Step) -> Scope:
        """What is evaluated before a step runs: its admission, and the opening of its loop."""
        own = _OUTCOME | (_CLAIM if step.loop is not None and step.loop.cursor is not None else frozenset())
        return Scope(own=own, parts={**self._parts, "event": _EVENT, "iter": ("parent",)}, step=step)

    def of_routing(self, step: Step) -> Scope:
        """What is evaluated when a step has run: its own set, and its arcs."""
        own, parts = _OUTCOME, {**self._parts, "event": _EVENT, "iter": ("parent",)}
        if step.loop is not None:
            own, parts = own | {"fanin"}, {**parts, "fanin": _FANIN}
        return Scope(own=own, parts=parts, step=step, is_behind_it=True)

    def of_tasks(self, step: Step) -> Iterator[TaskScopes]:
        """The scopes of a step's tasks, in their order."""
        own, parts = _PIPELINE, {**self._parts, "iter": _iter_keys(step), "step": _scope_keys(step.tasks, "step")}
        if step.loop is not None:
            own = own | _LOOP | {step.loop.iterator}
            parts |= {"loop": _LOOP_FACTS, "frame": _FRAME}
        pipeline = Pipeline(step)
        for number, task in enumerate(step.tasks):
            own_input, given = own | _input_names(task), {**parts, "input": task.input}
            yield TaskScopes(
                fields=Scope(own=own_input, parts=given, step=step, pipeline=pipeline, ran=number, made=number),
                input=Scope(own=own, parts=parts, step=step, pipeline=pipeline, ran=number, made=number),
                policy=Scope(own=own, parts=given, step=step, pipeline=pipeline, ran=number + 1, made=number),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScopes:
    """`policy` is for its rules and its set, which are evaluated when it has run."""

    fields: Scope
    input: Scope
    policy: Scope


def _input_names(task: Task) -> AbstractSet[str]:
    return frozenset() if task.kind in _PRIVATE_INPUT else task.input.keys()


def _iter_keys(step: Step) -> frozenset[str]:
    """What can stand below `iter` in the tasks of a step."""
    keys = _scope_keys(step.tasks, "iter") | {"parent"}
    return keys if step.loop is None else keys | _ITER | {step.loop.iterator, f"{step.loop.iterator}_rows"}


def _scope_keys(tasks: Iterable[Task], scope: str) -> frozenset[str]:
    """The keys that tasks and their rules write to a scope of their own; a bare key of a rule is one of ctx."""
    found = []
    for task in tasks:
        found += [target_of(key, bare="local") for key in task.set]
        found += [target_of(key, bare="ctx") for rule in task.rules for key in rule.set]
    return frozenset(path[0] for where, path in found if where == scope)


def _context_names(playbook: Playbook) -> Iterator[str]:
    """The keys of ctx that anything in a playbook writes."""
    for step in playbook.steps:
        arcs = step.next.arcs if step.next is not None else ()
        for block in (step.set, *(arc.set for arc in arcs), *(arc.args for arc in arcs)):
            # A step or an arc has no scope but ctx, whatever the key says.
            yield from (target_of(key, bare="ctx")[1][0] for key in block)
        yield from _scope_keys(step.tasks, "ctx")
