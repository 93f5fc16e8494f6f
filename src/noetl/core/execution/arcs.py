"""What a finished step leads to: its writes, the arcs that fire, the steps they request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from noetl.core.codec import canonical_bytes
from noetl.core.errors import EnvelopeInvalid, TemplateFailed
from noetl.core.execution.state import Entry, StepResult
from noetl.core.execution.values import NeedsWorker, Scene, evaluate, evaluate_value
from noetl.core.execution.writes import write
from noetl.core.expression import is_true
from noetl.core.limits import CONTEXT_INLINE_BYTES_MAX, ERROR_MESSAGE_CHARS_MAX, WARNINGS_MAX
from noetl.core.playbook.compiled import Assignment, CompiledArc, CompiledStep
from noetl.core.playbook.model import Mode


class Routing(NamedTuple):
    """The decision about one step run, as it will be recorded."""

    outcome: str
    arcs: tuple[int, ...]
    targets: tuple[str, ...]
    writes: tuple[Mapping[str, object], ...]
    warnings: tuple[str, ...]
    error: Mapping[str, object] | None = None
    leaf: bool = False


def route(scene: Scene, step: CompiledStep, result: StepResult) -> Routing:
    """Choose arcs and values for a finished step.  Raises NeedsWorker when data is needed."""
    walk = _Walk(scene, step)
    try:
        return _routed(walk, step, result)
    except NeedsWorker as need:
        # The worker must see what this walk wrote before it came to the expression.
        need.writes = walk.writes
        raise


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
        self._warnings: list[str] = []
        self._guard_error: str | None = None

    def apply(self, sets: tuple[Assignment, ...]) -> None:
        """All values of one block are evaluated before any is written."""
        block: list[Mapping[str, object]] = []
        variables = self._scene.variables
        for assignment in sets:
            assert assignment.server is not None
            try:
                entry = evaluate_value(self._scene, assignment.server, must_be_inline=len(assignment.path) > 1)
                item = _recorded(variables, assignment, entry)
            except (TemplateFailed, EnvelopeInvalid) as error:
                self._warn(f"set {'.'.join(assignment.path)}: {error}")
                continue
            block.append(item)
            variables = write(variables, [item])
        self.writes += tuple(block)
        self._scene = self._scene._replace(variables=variables)

    def choose(self, *, failed: bool) -> list[int]:
        fired = []
        for number, arc in enumerate(self._step.arcs):
            if failed and not arc.mentions_failure:
                continue
            if not self._matches(number, arc):
                continue
            self.apply(arc.sets)
            fired.append(number)
            if self._step.mode is Mode.EXCLUSIVE:
                break
        return fired

    def _matches(self, number: int, arc: CompiledArc) -> bool:
        if arc.when is None:
            return True
        try:
            entry = evaluate(self._scene, arc.when)
        except TemplateFailed as error:
            self._guard_error = _bounded(f"arc {number} to {arc.target!r}: {error}")
            self._warn(self._guard_error)
            return False
        return True if not entry.is_inline else is_true(entry.value)

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
        )


def _error(kind: str, code: str, message: str) -> Mapping[str, object]:
    return {"kind": kind, "code": code, "retryable": False, "message": _bounded(message)}


def _bounded(message: str) -> str:
    return message[:ERROR_MESSAGE_CHARS_MAX]


def _recorded(variables: Mapping[str, Entry], assignment: Assignment, entry: Entry) -> dict[str, object]:
    """A write as it will be recorded; refused when the context would lose data or grow beyond its bound."""
    item: dict[str, object] = {"path": list(assignment.path)}
    if not entry.is_inline:
        return {**item, "ref": entry.reference, "at": list(entry.path)}
    name = assignment.path[0]
    held = variables.get(name)
    if len(assignment.path) > 1 and held is not None and not held.is_inline:
        raise EnvelopeInvalid(f"ctx.{name} is held by reference and cannot be changed in part; write it whole")
    item["v"] = entry.value
    before = _inline_bytes(variables)
    after = _inline_bytes(write(variables, [item]))
    if after > max(before, CONTEXT_INLINE_BYTES_MAX):
        raise EnvelopeInvalid(f"ctx would hold {after} bytes inline, the limit is {CONTEXT_INLINE_BYTES_MAX}")
    return item


def _inline_bytes(variables: Mapping[str, Entry]) -> int:
    return sum(len(canonical_bytes(entry.value)) for entry in variables.values() if entry.is_inline)
