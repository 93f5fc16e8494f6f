"""Evaluating the router's expressions against the state, without ever opening a payload.

An expression that cannot be evaluated from atoms and inline values raises NeedsWorker: the caller then asks
for one internal `evaluate` command and goes on from its recorded answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from noetl.core.errors import TemplateFailed
from noetl.core.execution.state import Entry, ExecutionState
from noetl.core.expression import Atom, AtomError, EventName, Template, Undefined, evaluate_atom, normalise, render
from noetl.core.playbook.compiled import CompiledPlaybook, ServerExpression, ServerValue

# Each compares equal to every synonym of its situation.
SUCCESS_NAME = "call.done"
FAILURE_NAME = "call.error"
LOOP_NAME = "loop.done"
_COMPLETING = frozenset(("output", "outcome", "result", "response", "error"))


class NeedsWorker(Exception):
    """The value of this expression depends on data that the router does not hold."""

    def __init__(self, expression: ServerExpression) -> None:
        super().__init__(expression.key)
        self.expression = expression
        self.writes: tuple[Mapping[str, object], ...] = ()


class Scene(NamedTuple):
    """What an expression is evaluated against: the state, the completing step and what workers answered."""

    state: ExecutionState
    playbook: CompiledPlaybook
    step: str
    now: str
    variables: Mapping[str, Entry]
    answers: Mapping[str, Mapping[str, object]]


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


def evaluate_value(scene: Scene, value: ServerValue, *, must_be_inline: bool = False) -> Entry:
    """A whole YAML value: one expression keeps its entry, a nested one becomes inline."""
    if len(value.leaves) == 1 and value.leaves[0][0] == () and not must_be_inline:
        return evaluate(scene, value.leaves[0][1])
    filled = value.skeleton
    for path, expression in value.leaves:
        filled = _put(filled, path, _inline_value(scene, expression))
    return Entry(filled)


def _inline_value(scene: Scene, expression: ServerExpression) -> object:
    """A value that must be part of another one.  A worker is asked once; a large answer is refused."""
    entry = evaluate(scene, expression)
    if entry.is_inline:
        return entry.value
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
    return Entry(None, reference, ())


def _atom(scene: Scene, expression: ServerExpression, atom: Atom) -> object:
    """The reported value of an atom; an Entry when it is a place in a payload, Undefined, or an AtomError."""
    step = atom.step or scene.step
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


def _unborn(atom: Atom) -> object:
    """An atom over a step that never ran: `a is not defined` has a value all the same."""
    outcome = evaluate_atom(atom, {})
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
        reserved = _reserved(scene, name)
        if reserved is not _ABSENT:
            return reserved
        if name == "ctx":
            return self._context()
        if name == "workload":
            return self._inline(state.workload, self._expression.template, "workload")
        if name in scene.variables:
            return self._value(scene.variables[name])
        if name in state.step_results or name in _COMPLETING or name == "steps":
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
        """`ctx` with its fall-backs: the workload key of that name, then a step result of that name."""
        scene = self._scene
        for mention in self._expression.template.mentions:
            if mention[0] == "ctx" and len(mention) > 1:
                key = mention[1]
                if key not in scene.variables and key not in scene.state.workload and key in scene.state.step_results:
                    raise NeedsWorker(self._expression)
        merged = {**scene.state.workload, **scene.variables}
        return self._inline(merged, self._expression.template, "ctx")

    def _inline(self, entries: Mapping[str, Entry], template: Template, root: str) -> dict[str, object]:
        keys = {mention[1] for mention in template.mentions if mention[0] == root and len(mention) > 1}
        whole = any(mention == (root,) for mention in template.mentions) or not keys
        chosen = entries if whole else {key: entries[key] for key in keys if key in entries}
        return {key: self._value(entry) for key, entry in chosen.items()}


_ABSENT = object()


def _reserved(scene: Scene, name: str) -> object:
    state = scene.state
    identity = str(state.execution_id)
    if name == "event":
        result = state.step_results.get(scene.step)
        failed = result is not None and result.status == "error"
        is_loop = scene.playbook.steps[scene.step].loop is not None
        return event_view(scene.step, has_failed=failed, is_loop=is_loop, now=scene.now)
    if name == "execution_id":
        return identity
    if name == "job":
        return {"uuid": identity, "id": identity, "execution_id": identity}
    if name == "path":
        return state.path
    if name == "parent_execution_id":
        return str(state.parent_execution_id) if state.parent_execution_id else None
    if name == "spec" and scene.playbook.playbook.spec is not None:
        return scene.playbook.playbook.spec
    if name in ("env", "iter"):
        return {}
    return _ABSENT


def event_view(step: str, *, has_failed: bool, is_loop: bool, now: str) -> dict[str, object]:
    """`event` as guards see it (dsl §3.7)."""
    name = EventName(FAILURE_NAME if has_failed else LOOP_NAME if is_loop else SUCCESS_NAME)
    return {"name": name, "step": step, "timestamp": now, "payload": None}


def _put(value: object, path: tuple[str | int, ...], leaf: object) -> object:
    if not path:
        return leaf
    if isinstance(value, dict):
        return {key: _put(child, path[1:], leaf) if key == path[0] else child for key, child in value.items()}
    assert isinstance(value, list)
    return [_put(child, path[1:], leaf) if number == path[0] else child for number, child in enumerate(value)]
