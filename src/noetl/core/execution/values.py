"""Evaluating the router's expressions against the state, without ever opening a payload.

An expression that cannot be evaluated from atoms and inline values raises NeedsWorker: the caller then asks
for one internal `evaluate` command and goes on from its recorded answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from noetl.core.errors import TemplateFailed
from noetl.core.execution.state import Entry, ExecutionState
from noetl.core.expression import (
    Atom,
    AtomError,
    EventName,
    OutputView,
    Scope,
    Template,
    Undefined,
    evaluate_atom,
    is_true,
    normalise,
    render,
)
from noetl.core.playbook.compiled import CompiledPlaybook, ServerExpression, ServerValue
from noetl.core.playbook.needs import COMPLETING, FACTS

# Each compares equal to every synonym of its situation.
SUCCESS_NAME = "call.done"
FAILURE_NAME = "call.error"
LOOP_NAME = "loop.done"


class NeedsWorker(Exception):
    """The value of this expression depends on data that the router does not hold."""

    def __init__(self, expression: ServerExpression) -> None:
        super().__init__(expression.key)
        self.expression = expression
        self.writes: tuple[Mapping[str, object], ...] = ()


class Scene(NamedTuple):
    """What an expression is evaluated against: the state, the completing step and what workers answered.

    `owner` is the step that the expression belongs to.  `step`, whose outcome `output` and `event` are about, is the
    owner itself when it has run, and the step that requested it when it is about to run (None: nobody did).  One
    that was skipped is a success without a result."""

    state: ExecutionState
    playbook: CompiledPlaybook
    owner: str
    step: str | None
    now: str
    variables: Mapping[str, Entry]
    answers: Mapping[str, Mapping[str, object]]
    is_skipped: bool = False


def evaluate(scene: Scene, expression: ServerExpression) -> Entry:
    """The value of one expression.  Raises NeedsWorker or TemplateFailed."""
    answer = scene.answers.get(expression.key)
    if answer is not None:
        return _answered(expression, answer)
    plan = expression.plan
    if not plan.evaluable:
        raise NeedsWorker(expression)
    atoms: dict[str, object] = {}
    for atom in plan.atoms:
        outcome = _atom(scene, expression, atom)
        if isinstance(outcome, Entry):
            if plan.residual.path == (atom.name,):
                return outcome
            raise NeedsWorker(expression)
        atoms[atom.name] = outcome
    names = _Names(scene, expression, atoms)
    value = render(plan.residual, names, now=scene.now, strict=scene.playbook.playbook.strict_templates)
    # Plain data only: what is folded now must equal what is read back from the ledger later.
    return Entry(normalise(value))


def holds(scene: Scene, condition: ServerExpression) -> bool:
    """Whether a condition is true.  A worker answers it with a truth value; a place in a payload is a large value."""
    entry = evaluate(scene, condition)
    return is_true(entry.value) if entry.is_inline else True


def evaluate_value(scene: Scene, value: ServerValue, *, must_be_inline: bool = False) -> Entry:
    """A whole YAML value: one expression keeps its entry, a nested one becomes inline, or one payload of a worker."""
    whole = value.whole
    if whole is not None and not must_be_inline and (whole.is_hidden or whole.key in scene.answers):
        return evaluate(scene, whole)
    if len(value.leaves) == 1 and value.leaves[0][0] == () and not must_be_inline:
        return evaluate(scene, value.leaves[0][1])
    filled = value.skeleton
    for path, expression in value.leaves:
        filled = _put(filled, path, _inline_value(scene, expression, whole))
    return Entry(filled)


def _inline_value(scene: Scene, expression: ServerExpression, whole: ServerExpression | None) -> object:
    """A value that must be part of another one.  When it cannot be, a worker is asked for all of it; else it is asked
    once, and a large answer is refused."""
    entry = evaluate(scene, expression)
    if entry.is_inline:
        return entry.value
    if whole is not None:
        raise NeedsWorker(whole)
    if expression.key in scene.answers:
        raise TemplateFailed("the value is too large to be part of another one: write it to a key of its own")
    raise NeedsWorker(expression)


def _answered(expression: ServerExpression, answer: Mapping[str, object]) -> Entry:
    context: Any = answer["context"]
    if context.get("error") is not None:
        raise TemplateFailed(str(context["error"].get("message")))
    if "value" in context:
        return Entry(context["value"])
    reference: Any = answer["reference"]
    if reference is None:
        raise TemplateFailed(f"no value was computed for {expression.key}")
    return Entry(None, reference, tuple(context.get("at", ())))


def _atom(scene: Scene, expression: ServerExpression, atom: Atom) -> object:
    """The reported value of an atom; an Entry when it is a place in a payload, Undefined, or an AtomError."""
    if scene.is_skipped and not atom.step:
        return _skipped(scene, expression, atom)
    step = atom.step or str(scene.step)
    result = scene.state.step_results.get(step)
    if result is None:
        if step in scene.state.workload:
            raise NeedsWorker(expression)
        return _unborn(atom)
    outcome = result.atoms.get(atom.key)
    if outcome is None or "b" in outcome:
        raise NeedsWorker(expression)
    if "v" in outcome:
        return outcome["v"]
    if "u" in outcome:
        return Undefined(step)
    if "e" in outcome:
        return AtomError(str(outcome["e"]))
    path: Any = outcome["a"]
    if result.reference is None:
        raise NeedsWorker(expression)
    return Entry(None, result.reference, tuple(path))


def _skipped(scene: Scene, expression: ServerExpression, atom: Atom) -> object:
    """An atom over the step that was just skipped.  An earlier result of it stays readable under its name, but is not
    what this run gave: where both are read at once only a worker, which has the data, can tell."""
    if scene.step in scene.state.step_results and atom.template.roots & {scene.step, "steps"}:
        raise NeedsWorker(expression)
    return _unborn(atom, skipped_names())


def skipped_names() -> dict[str, object]:
    """The outcome of a step that was skipped, as its arcs see it: a success that gave nothing."""
    output = OutputView(status="ok")
    return {"output": output, "outcome": output, "error": None}


def _unborn(atom: Atom, names: Mapping[str, object] | None = None) -> object:
    """An atom over a step that never ran: `a is not defined` has a value all the same."""
    outcome = evaluate_atom(atom, names or {})
    if outcome[0] == "value":
        return outcome[1]
    return AtomError(outcome[1]) if outcome[0] == "error" else Undefined(atom.step)


class _Names(Mapping[str, object]):
    """The names of dsl §7.3 as the router sees them, looked up only when an expression reads them."""

    def __init__(self, scene: Scene, expression: ServerExpression, atoms: Mapping[str, object]) -> None:
        self._scene = scene
        self._expression = expression
        self._atoms = atoms

    def __getitem__(self, name: str) -> object:
        if name in self._atoms:
            return self._atoms[name]
        scene, state = self._scene, self._scene.state
        if name in COMPLETING or name == "steps":
            raise NeedsWorker(self._expression)
        reserved = _reserved(scene, name)
        if reserved is not _ABSENT:
            return reserved
        if name == "ctx":
            return self._context()
        if name == "workload":
            return self._inline(state.workload, self._expression.template, "workload")
        if name == "args" and scene.owner in state.args:
            return self._inline(state.args[scene.owner], self._expression.template, "args")
        if name in scene.variables:
            return self._value(scene.variables[name])
        if name in state.step_results:
            raise NeedsWorker(self._expression)
        if name in state.workload:
            return self._value(state.workload[name])
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        raise TypeError("names are looked up, never listed")

    def __len__(self) -> int:
        raise TypeError("names are looked up, never counted")

    def _value(self, entry: Entry) -> object:
        if not entry.is_inline:
            raise NeedsWorker(self._expression)
        return entry.value

    def _context(self) -> object:
        """`ctx` with its fall-backs: the workload key of that name, then a step result of that name.  As a value it is
        what was written to it, and nothing else."""
        scene, expression = self._scene, self._expression
        return Scope(
            _Entries(scene.variables, expression),
            _Entries(scene.state.workload, expression),
            _Entries(dict.fromkeys(scene.state.step_results), expression),
        )

    def _inline(self, entries: Mapping[str, Entry], template: Template, root: str) -> dict[str, object]:
        keys = {mention[1] for mention in template.mentions if mention[0] == root and len(mention) > 1}
        whole = any(mention == (root,) for mention in template.mentions) or not keys
        chosen = entries if whole else {key: entries[key] for key in keys if key in entries}
        return {key: self._value(entry) for key, entry in chosen.items()}


class _Entries(Mapping[str, object]):
    """Values by key, each looked at only when an expression reads it; one that is not here needs a worker."""

    def __init__(self, entries: Mapping[str, Entry | None], expression: ServerExpression) -> None:
        self._entries = entries
        self._expression = expression

    def __getitem__(self, key: str) -> object:
        entry = self._entries[key]
        if entry is None or not entry.is_inline:
            raise NeedsWorker(self._expression)
        return entry.value

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


_ABSENT = object()


def _reserved(scene: Scene, name: str) -> object:
    state = scene.state
    if name == "event":
        if scene.step is None:
            return _ABSENT
        result = state.step_results.get(scene.step)
        failed = result is not None and result.status == "error" and not scene.is_skipped
        is_loop = scene.playbook.steps[scene.step].loop is not None and not scene.is_skipped
        return event_view(scene.step, has_failed=failed, is_loop=is_loop, now=scene.now)
    if name == "spec" and scene.playbook.playbook.spec is not None:
        return scene.playbook.playbook.spec
    if name == "iter":
        return iteration(state.caller)
    return facts_of(state)[name] if name in FACTS else _ABSENT


def facts_of(state: ExecutionState) -> dict[str, object]:
    """The names that are the same for the whole execution."""
    identity = str(state.execution_id)
    return {
        "execution_id": identity,
        "job": {"uuid": identity, "id": identity, "execution_id": identity},
        "path": state.path,
        "catalog_id": state.catalog_id,
        "version": state.catalog_version,
        "parent_execution_id": str(state.parent_execution_id) if state.parent_execution_id else None,
        "env": dict(state.env),
    }


def iteration(caller: Mapping[str, object] | None) -> dict[str, object]:
    """`iter` outside loops; `iter.parent` is the iteration that started this execution, if one did."""
    return {} if caller is None else {"parent": dict(caller)}


def was_skipped(state: ExecutionState, step: str) -> bool:
    """Whether a step was skipped when it was last its turn."""
    return step in state.skipped_steps and state.skipped_steps[step] == state.runs.get(step)


def event_view(step: str, *, has_failed: bool, is_loop: bool, now: str) -> dict[str, object]:
    """`event` as guards see it (dsl §3.7), without its `payload`, which only a worker has: for the router that is
    another word for `result`."""
    name = EventName(FAILURE_NAME if has_failed else LOOP_NAME if is_loop else SUCCESS_NAME)
    return {"name": name, "step": step, "timestamp": now}


def _put(value: object, path: tuple[str | int, ...], leaf: object) -> object:
    if not path:
        return leaf
    if isinstance(value, dict):
        return {key: _put(child, path[1:], leaf) if key == path[0] else child for key, child in value.items()}
    assert isinstance(value, list)
    return [_put(child, path[1:], leaf) if number == path[0] else child for number, child in enumerate(value)]
