"""What a finished step leads to: its writes, the arcs that fire, the steps they request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from noetl.core import limits
from noetl.core.codec import canonical_bytes
from noetl.core.errors import EnvelopeInvalid, TemplateFailed
from noetl.core.execution.state import Entry, StepResult
from noetl.core.execution.values import NeedsWorker, Scene, evaluate, evaluate_value, holds
from noetl.core.execution.writes import write
from noetl.core.limits import ERROR_MESSAGE_CHARS_MAX, WARNINGS_MAX
from noetl.core.playbook.compiled import Assignment, CompiledArc, CompiledStep, ServerValue
from noetl.core.playbook.model import Mode


class Routing(NamedTuple):
    """The decision about one step run, as it will be recorded."""

    outcome: str
    arcs: tuple[int, ...] = ()
    targets: tuple[str, ...] = ()
    writes: tuple[Mapping[str, object], ...] = ()
    warnings: tuple[str, ...] = ()
    error: Mapping[str, object] | None = None
    leaf: bool = False
    args: Mapping[str, Mapping[str, object]] = {}


SKIPPED = "skipped"


def route(scene: Scene, step: CompiledStep, result: StepResult) -> Routing:
    """Choose arcs and values for a finished step.  Raises NeedsWorker when data is needed."""
    walk = _Walk(scene, step)
    try:
        return _routed(walk, step, result)
    except NeedsWorker as need:
        # The worker must see what this walk wrote before it came to the expression.
        need.writes = walk.writes
        raise


def bypass(scene: Scene, step: CompiledStep) -> Routing:
    """Where a step leads that its guard kept from running: through its first matching arc, whatever the mode, as if it
    had succeeded and given nothing.  Its own `set` is not applied."""
    walk = _Walk(scene, step)
    try:
        fired = walk.choose(failed=False, first_only=True)
    except NeedsWorker as need:
        need.writes = walk.writes
        raise
    unmatched = walk.unmatched() if not fired and step.arcs else None
    return walk.routing(SKIPPED if unmatched is None else "failed", fired, error=unmatched)


def _routed(walk: _Walk, step: CompiledStep, result: StepResult) -> Routing:
    failed = result.status == "error"
    if not failed:
        walk.apply(step.sets)
    fired = walk.choose(failed=failed)
    if failed and not fired:
        return walk.routing("failed", fired, error=result.error or {"kind": "unknown", "message": "failed"})
    if not failed and not fired and step.has_next and step.arcs:
        unmatched = walk.unmatched()
        if unmatched is not None:
            return walk.routing("failed", fired, error=unmatched)
    return walk.routing("handled" if failed else "completed", fired)


class _Walk:
    """One pass over a step's writes and arcs, in the order of dsl §3.3."""

    def __init__(self, scene: Scene, step: CompiledStep) -> None:
        self._scene = scene
        self._step = step
        self.writes: tuple[Mapping[str, object], ...] = ()
        self._args: dict[str, dict[str, object]] = {}
        self._warnings: list[str] = []
        self._guard_error: str | None = None

    def apply(self, sets: tuple[Assignment, ...]) -> Sequence[Mapping[str, object]]:
        """All values of one block are evaluated before any is written.  Returns what is written."""
        block: list[Mapping[str, object]] = []
        variables = self._scene.variables
        for assignment in sets:
            assert assignment.server is not None
            try:
                item = self._item(assignment, assignment.server, variables)
            except (TemplateFailed, EnvelopeInvalid) as error:
                self._warn(f"set {'.'.join(assignment.path)}: {error}")
                continue
            block.append(item)
            variables = write(variables, [item])
        self.writes += tuple(block)
        self._scene = self._scene._replace(variables=variables)
        return block

    def _item(
        self, assignment: Assignment, server: ServerValue, variables: Mapping[str, Entry]
    ) -> Mapping[str, object]:
        """One write.  What has no room in the context is kept by a worker: it is recorded by reference."""
        entry = evaluate_value(self._scene, server)
        if entry.is_inline and server.kept is not None and _has_no_room(variables, assignment.path, entry):
            entry = evaluate(self._scene, server.kept)
        item: dict[str, object] = {"path": list(assignment.path)}
        return {**item, "v": entry.value} if entry.is_inline else {**item, "ref": entry.reference, "at": [*entry.path]}

    def _give(self, arc: CompiledArc) -> None:
        """The deprecated `args` of an arc: writes like any other, which the target's run also knows as `args`."""
        given: Mapping[str, Entry] = {}
        given = write(given, self.apply(arc.args))
        if given:
            known = self._args.setdefault(arc.target, {})
            known.update({name: entry.to_json() for name, entry in given.items()})

    def choose(self, *, failed: bool, first_only: bool = False) -> list[int]:
        fired = []
        for number, arc in enumerate(self._step.arcs):
            if failed and not arc.mentions_failure:
                continue
            if not self._matches(number, arc):
                continue
            self._give(arc)
            self.apply(arc.sets)
            fired.append(number)
            if first_only or self._step.mode is Mode.EXCLUSIVE:
                break
        return fired

    def _matches(self, number: int, arc: CompiledArc) -> bool:
        if arc.when is None:
            return True
        try:
            return holds(self._scene, arc.when)
        except TemplateFailed as error:
            self._guard_error = _bounded(f"arc {number} to {arc.target!r}: {error}")
            self._warn(self._guard_error)
            return False

    def unmatched(self) -> Mapping[str, object] | None:
        """Nothing matched: an error of routing, or simply the end of this branch (None)."""
        if self._guard_error is not None:
            message = f"step {self._step.name!r}: no arc matched and a guard failed: {self._guard_error}"
            return _error("template", "routing_error", message)
        if self._scene.playbook.playbook.no_next_is_error:
            message = f"step {self._step.name!r}: no arc matched"
            return _error("policy", "routing_no_match", message)
        return None

    def _warn(self, message: str) -> None:
        if len(self._warnings) < WARNINGS_MAX:
            self._warnings.append(_bounded(message))

    def routing(self, outcome: str, fired: list[int], *, error: Mapping[str, object] | None = None) -> Routing:
        targets = [self._step.arcs[number].target for number in fired]
        return Routing(
            outcome=outcome,
            arcs=tuple(fired),
            targets=tuple(dict.fromkeys(target for target in targets if target in self._scene.playbook.steps)),
            writes=self.writes,
            warnings=tuple(self._warnings),
            error=error,
            leaf=not self._step.has_next,
            args=self._args,
        )


def _error(kind: str, code: str, message: str) -> Mapping[str, object]:
    return {"kind": kind, "code": code, "retryable": False, "message": _bounded(message)}


def _bounded(message: str) -> str:
    return message[:ERROR_MESSAGE_CHARS_MAX]


def _has_no_room(variables: Mapping[str, Entry], path: tuple[str, ...], entry: Entry) -> bool:
    """Whether a value would make what the context holds inline grow beyond its bound.  A counter always has room."""
    if len(canonical_bytes(entry.value)) <= limits.CONTEXT_COUNTER_BYTES_MAX:
        return False
    after = write(variables, [{"path": path, "v": entry.value}])
    return _inline_bytes(after) > max(_inline_bytes(variables), limits.CONTEXT_INLINE_BYTES_MAX)


def _inline_bytes(variables: Mapping[str, Entry]) -> int:
    return sum(len(canonical_bytes(entry.value)) for entry in variables.values() if entry.reference is None)
