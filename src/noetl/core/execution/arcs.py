"""What a finished step leads to: its writes, the arcs that fire, the steps they request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from noetl.core.codec import canonical_bytes
from noetl.core.errors import EnvelopeInvalid, TemplateFailed
from noetl.core.execution.evolve import write
from noetl.core.execution.state import Entry, StepResult
from noetl.core.execution.values import Scene, evaluate, evaluate_value
from noetl.core.expression import is_true
from noetl.core.limits import CONTEXT_ENTRY_BYTES_MAX, CONTEXT_INLINE_BYTES_MAX, WARNINGS_MAX
from noetl.core.playbook.compile import Assignment, CompiledArc, CompiledStep
from noetl.core.playbook.model import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
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
        self._writes: list[Mapping[str, object]] = []
        self._warnings: list[str] = []
        self._guard_error: str | None = None

    def apply(self, sets: tuple[Assignment, ...]) -> None:
        """All values of one block are evaluated before any is written."""
        block = []
        for assignment in sets:
            assert assignment.server is not None
            try:
                entry = evaluate_value(self._scene, assignment.server)
                block.append(_checked(self._scene, assignment, entry))
            except (TemplateFailed, EnvelopeInvalid) as error:
                self._warn(f"set {'.'.join(assignment.path)}: {error}")
        self._writes.extend(block)
        self._scene = replace(self._scene, variables=write(self._scene.variables, block))

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
            self._guard_error = f"arc {number} to {arc.target!r}: {error}"
            self._warn(self._guard_error)
            return False
        return True if not entry.is_inline else is_true(entry.value)

    def unmatched(self) -> Mapping[str, object] | None:
        """Nothing matched: an error of routing, or simply the end of this branch (None)."""
        if self._guard_error is not None:
            message = f"step {self._step.name!r}: no arc matched and a guard failed: {self._guard_error}"
            return {"kind": "template", "code": "routing_error", "retryable": False, "message": message}
        if self._scene.playbook.playbook.no_next_is_error:
            message = f"step {self._step.name!r}: no arc matched"
            return {"kind": "policy", "code": "routing_no_match", "retryable": False, "message": message}
        return None

    def _warn(self, message: str) -> None:
        if len(self._warnings) < WARNINGS_MAX:
            self._warnings.append(message)

    def routing(
        self, outcome: str, fired: list[int], *, error: Mapping[str, object] | None = None
    ) -> Routing:
        targets = [self._step.arcs[number].target for number in fired]
        return Routing(
            outcome=outcome,
            arcs=tuple(fired),
            targets=tuple(
                dict.fromkeys(target for target in targets if target in self._scene.playbook.steps)
            ),
            writes=tuple(self._writes),
            warnings=tuple(self._warnings),
            error=error,
            leaf=not self._step.has_next,
        )


def _checked(scene: Scene, assignment: Assignment, entry: Entry) -> dict[str, object]:
    """A write as it will be recorded; refused when it would make the context too large to carry inline."""
    if entry.is_inline:
        size = len(canonical_bytes(entry.value))
        inline = sum(len(canonical_bytes(e.value)) for e in scene.variables.values() if e.is_inline)
        if size > CONTEXT_ENTRY_BYTES_MAX and inline + size > CONTEXT_INLINE_BYTES_MAX:
            raise EnvelopeInvalid(
                f"{size} bytes do not fit: ctx may hold {CONTEXT_INLINE_BYTES_MAX} bytes inline, {inline} are used"
            )
    elif len(assignment.path) > 1:
        raise EnvelopeInvalid("a value by reference cannot be written below another key")
    return {"path": list(assignment.path), **entry.to_json()}
