"""Model → code: every template parsed once, atoms cut out of what the router evaluates, reachability as bit sets.

The router never parses a template: `decide` works on the output of this module, cached by the playbook's digest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from noetl.core.codec import sha256_hex
from noetl.core.errors import PlaybookInvalid, Problem, TemplateFailed, TemplateInvalid
from noetl.core.expression import (
    Atom,
    AtomPlan,
    CompiledValue,
    Template,
    atoms_of,
    compile_condition,
    compile_template,
    compile_value,
)
from noetl.core.playbook.model import Action, Arc, Mode, Playbook, Rule, Step, Task
from noetl.core.playbook.parse import parse_playbook

# Fields that are templates only if they parse as one: program text legitimately contains braces.
LENIENT_FIELDS: Mapping[str, frozenset[str]] = {"python": frozenset(("code",))}
LOCAL_NAMES = frozenset(
    "output outcome event result response error iter loop frame _prev _task _attempt results input args execution_id job"
    " catalog_id parent_execution_id path version keychain env spec steps workload ctx now token range".split()
)
_FAILURE_MENTIONS = frozenset(
    (("output", "status"), ("output", "error"), ("outcome", "status"), ("outcome", "error"))
)


C = TypeVar("C")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerExpression:
    """One expression that the router evaluates, with the plan that spares it the data."""

    key: str
    template: Template
    plan: AtomPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerValue:
    """A YAML value whose templates the router evaluates: a skeleton and the expressions that fill it."""

    skeleton: object
    leaves: tuple[tuple[tuple[str | int, ...], ServerExpression], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One entry of a `set` block.  `scope` is ctx, iter, step or local; `path` the keys below it."""

    scope: str
    path: tuple[str, ...]
    value: CompiledValue
    server: ServerValue | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledArc:
    target: str
    when: ServerExpression | None
    sets: tuple[Assignment, ...]
    mentions_failure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRule:
    when: Template | None
    do: Action
    attempts: CompiledValue
    backoff: str | None
    delay: CompiledValue | None
    to: int | None
    sets: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledTask:
    label: str
    kind: str
    fields: Mapping[str, CompiledValue]
    lenient: frozenset[str]
    input: CompiledValue
    sets: tuple[Assignment, ...]
    rules: tuple[CompiledRule, ...]
    fails_unmatched: bool | None
    timeout: CompiledValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Which names a step's worker-side templates read; `everything` when that cannot be told."""

    names: frozenset[str]
    everything: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    name: str
    number: int
    tasks: tuple[CompiledTask, ...]
    is_pipeline: bool
    has_next: bool
    mode: Mode
    arcs: tuple[CompiledArc, ...]
    sets: tuple[Assignment, ...]
    atoms: tuple[Atom, ...]
    needs: Needs
    reaches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPlaybook:
    digest: str
    playbook: Playbook
    steps: Mapping[str, CompiledStep]
    expressions: Mapping[str, ServerExpression]
    warnings: tuple[Problem, ...]


def compile_playbook(text: str, *, file: str, kinds: frozenset[str]) -> CompiledPlaybook:
    """Parse, check and compile a document, or raise PlaybookInvalid."""
    parsed = parse_playbook(text, file=file, kinds=kinds)
    return _Compiler(parsed.playbook, file, list(parsed.warnings)).compile(sha256_hex(text.encode("utf-8")))


class _Compiler:
    def __init__(self, playbook: Playbook, file: str, warnings: list[Problem]) -> None:
        self._playbook = playbook
        self._file = file
        self._warnings = warnings
        self._errors: list[Problem] = []
        self._expressions: dict[str, ServerExpression] = {}
        self._atoms: dict[str, dict[str, Atom]] = {step.name: {} for step in playbook.steps}
        # A name that is also a context or workload key may mean either at run time: no atom is cut for it.
        written = {key.removeprefix("ctx.").split(".")[0] for key in _set_keys(playbook)}
        self._atom_steps = frozenset(
            step.name
            for step in playbook.steps
            if step.name not in written and step.name not in playbook.workload
        )

    def compile(self, digest: str) -> CompiledPlaybook:
        reach = _reachability(self._playbook)
        drafts = [self._step(number, step) for number, step in enumerate(self._playbook.steps)]
        if self._errors:
            raise PlaybookInvalid(self._errors)
        steps = {
            step.name: CompiledStep(
                name=step.name,
                number=number,
                tasks=tasks,
                is_pipeline=step.is_pipeline,
                has_next=step.next is not None,
                mode=step.next.mode if step.next else Mode.EXCLUSIVE,
                arcs=arcs,
                sets=sets,
                atoms=tuple(self._atoms[step.name].values()),
                needs=_needs(tasks),
                reaches=reach[number],
            )
            for number, (step, tasks, arcs, sets) in enumerate(drafts)
        }
        return CompiledPlaybook(
            digest=digest,
            playbook=self._playbook,
            steps=steps,
            expressions=self._expressions,
            warnings=tuple(self._warnings),
        )

    def _step(
        self, number: int, step: Step
    ) -> tuple[Step, tuple[CompiledTask, ...], tuple[CompiledArc, ...], tuple[Assignment, ...]]:
        tasks = tuple(self._task(step, task) for task in step.tasks)
        arcs = tuple(self._arc(step, n, arc) for n, arc in enumerate(step.next.arcs if step.next else ()))
        return step, tasks, arcs, self._server_sets(step, step.set, f"{number}/set")

    # --- what the router evaluates -----------------------------------------------------------------------

    def _arc(self, step: Step, number: int, arc: Arc) -> CompiledArc:
        key = f"{step.name}/arc/{number}"
        when = None
        mentions = False
        if arc.when is not None:
            template = self._guarded(step, "when", arc.when, compile_condition)
            if template is not None:
                when = self._expression(step, f"{key}/when", template, condition=True)
                mentions = _mentions_failure(template, step.name)
        return CompiledArc(
            target=arc.step,
            when=when,
            sets=self._server_sets(step, arc.set, f"{key}/set"),
            mentions_failure=mentions,
        )

    def _server_sets(self, step: Step, block: Mapping[str, object], key: str) -> tuple[Assignment, ...]:
        assignments = []
        for name, value in block.items():
            scope, path = _target(name, bare="ctx")
            if scope != "ctx":
                message = f"step {step.name!r}: {name!r} in a step or arc set is written to ctx"
                self._warnings.append(Problem("set_scope", message, self._file, step=step.name, field=name))
            compiled = self._guarded(step, name, value, compile_value)
            if compiled is None:
                continue
            server = self._server_value(step, value, f"{step.name}/{key}/{name}")
            assignments.append(Assignment(scope="ctx", path=path, value=compiled, server=server))
        return tuple(assignments)

    def _server_value(self, step: Step, value: object, key: str) -> ServerValue:
        leaves = []
        for path, text in _texts(value, ()):
            template = compile_template(text)
            if template.kind != "literal":
                leaf_key = "/".join((key, *map(str, path)))
                leaves.append((path, self._expression(step, leaf_key, template)))
        return ServerValue(skeleton=value, leaves=tuple(leaves))

    def _expression(
        self, step: Step, key: str, template: Template, *, condition: bool = False
    ) -> ServerExpression:
        if template.uses_random:
            message = f"step {step.name!r}: the filter random is not allowed where the server evaluates"
            self._errors.append(Problem("server_random", message, self._file, step=step.name, field=key))
        plan = atoms_of(template, self._atom_steps, step.name, condition=condition)
        expression = ServerExpression(key=key, template=template, plan=plan)
        self._expressions[key] = expression
        if plan.evaluable:
            for atom in plan.atoms:
                self._atoms[atom.step or step.name][atom.key] = atom
        return expression

    # --- what the worker evaluates -----------------------------------------------------------------------

    def _task(self, step: Step, task: Task) -> CompiledTask:
        lenient = LENIENT_FIELDS.get(task.kind, frozenset())
        fields = {}
        for name, value in task.config.items():
            compiled = self._field(step, task, name, value)
            if compiled is not None:
                fields[name] = compiled
        compiled_input = self._field(step, task, "input", dict(task.input))
        return CompiledTask(
            label=task.label,
            kind=task.kind,
            fields=fields,
            lenient=lenient,
            input=compiled_input or compile_value({}),
            sets=self._worker_sets(step, task.set, bare="local"),
            rules=tuple(self._rule(step, task, rule) for rule in task.rules),
            fails_unmatched=task.fails_unmatched,
            timeout=self._field(step, task, "timeout", task.timeout),
        )

    def _field(self, step: Step, task: Task, name: str, value: object) -> CompiledValue | None:
        if value is None:
            return None
        try:
            return compile_value(value)
        except TemplateInvalid as error:
            message = f"step {step.name!r}, task {task.label!r}, field {name!r}: {error}"
            self._warnings.append(
                Problem("template_invalid", message, self._file, step=step.name, field=name)
            )
        except TemplateFailed as error:
            message = f"step {step.name!r}, task {task.label!r}, field {name!r}: {error}"
            self._errors.append(Problem(error.code, message, self._file, step=step.name, field=name))
        return _verbatim(value)

    def _worker_sets(self, step: Step, block: Mapping[str, object], *, bare: str) -> tuple[Assignment, ...]:
        assignments = []
        for name, value in block.items():
            scope, path = _target(name, bare=bare)
            compiled = self._guarded(step, name, value, compile_value)
            if compiled is not None:
                assignments.append(Assignment(scope=scope, path=path, value=compiled))
        return tuple(assignments)

    def _rule(self, step: Step, task: Task, rule: Rule) -> CompiledRule:
        labels = [other.label for other in step.tasks]
        here = labels.index(task.label)
        to = None
        if rule.to is not None:
            to = max(here - 1, 0) if rule.to in ("previous", "prev") else labels.index(rule.to)
        when = None if rule.when is None else self._guarded(step, "when", rule.when, compile_condition)
        return CompiledRule(
            when=when,
            do=rule.do,
            attempts=compile_value(rule.attempts),
            backoff=rule.backoff,
            delay=None if rule.delay is None else compile_value(rule.delay),
            to=to,
            sets=self._worker_sets(step, rule.set, bare="ctx"),
        )

    def _guarded(self, step: Step, name: str, value: Any, compile_one: Callable[[Any], C]) -> C | None:
        try:
            return compile_one(value)
        except (TemplateInvalid, TemplateFailed) as error:
            message = f"step {step.name!r}, field {name!r}: {error}"
            self._errors.append(Problem(error.code, message, self._file, step=step.name, field=name))
            return None


def _verbatim(value: object) -> CompiledValue:
    """A value that is no template, whatever it looks like."""
    nothing: frozenset[Any] = frozenset()
    return CompiledValue(
        source=value,
        roots=nothing,
        mentions=nothing,
        needs_child=False,
        uses_random=False,
        uses_now=False,
        _shape=value,
    )


def _set_keys(playbook: Playbook) -> Iterator[str]:
    for step in playbook.steps:
        yield from step.set
        for arc in step.next.arcs if step.next else ():
            yield from arc.set
        for task in step.tasks:
            yield from task.set
            for rule in task.rules:
                yield from rule.set


def _target(name: str, *, bare: str) -> tuple[str, tuple[str, ...]]:
    head, _, rest = name.partition(".")
    if head in ("ctx", "iter", "step") and rest:
        return head, tuple(rest.split("."))
    return bare, tuple(name.split("."))


def _texts(value: object, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _texts(child, (*path, key))
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from _texts(child, (*path, number))


def _mentions_failure(template: Template, step: str) -> bool:
    if template.roots & {"event", "error"}:
        return True
    own = {(step, "error"), (step, "status"), ("steps", step, "error"), ("steps", step, "status")}
    return any(
        path[:2] in _FAILURE_MENTIONS or path[:2] in own or path[:3] in own for path in template.mentions
    )


def _reachability(playbook: Playbook) -> list[int]:
    """For each step the bit set of steps that its arcs can lead to, over any number of arcs."""
    number_of = {step.name: number for number, step in enumerate(playbook.steps)}
    direct = [
        [number_of[arc.step] for arc in (step.next.arcs if step.next else ()) if arc.step in number_of]
        for step in playbook.steps
    ]
    reach = []
    for start in range(len(direct)):
        seen, todo = 0, list(direct[start])
        while todo:
            node = todo.pop()
            if not seen >> node & 1:
                seen |= 1 << node
                todo.extend(direct[node])
        reach.append(seen)
    return reach


def _needs(tasks: Iterable[CompiledTask]) -> Needs:
    names: set[str] = set()
    everything = False
    for task in tasks:
        for mention in _task_mentions(task):
            root = mention[0]
            if root in ("ctx", "workload", "steps"):
                if len(mention) == 1:
                    everything = True
                else:
                    names.add(mention[1])
            elif root in ("result", "response"):
                names.add(root)
            elif root not in LOCAL_NAMES:
                names.add(root)
        code = task.fields.get("code")
        if task.kind == "python" and code is not None and "context" in str(code.source):
            everything = True
    return Needs(names=frozenset(names), everything=everything)


def _task_mentions(task: CompiledTask) -> Iterator[tuple[str, ...]]:
    values = [*task.fields.values(), task.input, *(a.value for a in task.sets)]
    for rule in task.rules:
        if rule.when is not None:
            yield from _mentions(rule.when)
        values += [a.value for a in rule.sets] + [rule.attempts] + ([rule.delay] if rule.delay else [])
    if task.timeout is not None:
        values.append(task.timeout)
    for value in values:
        yield from _mentions(value)


def _mentions(value: CompiledValue | Template) -> Iterator[tuple[str, ...]]:
    seen = {mention[0] for mention in value.mentions}
    yield from value.mentions
    # A root that is read in a way no static path describes is read whole.
    yield from ((root,) for root in value.roots if root not in seen)
