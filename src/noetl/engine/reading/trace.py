"""Where a result comes from: the results that led to it and those that it was made of, across executions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noetl.core import kinds
from noetl.core.errors import ResultUnknown
from noetl.core.event import Event
from noetl.core.execution.state import ExecutionState, StepResult
from noetl.core.limits import TRACE_DEPTH_MAX, TRACE_FRAMES_MAX, TRACE_RESULTS_MAX
from noetl.core.results.references import result_ref, stage_of
from noetl.engine.executions import ExecutionService
from noetl.engine.reading.steps import result_of
from noetl.ports.data.lineage import Frames, Lineage, Traced


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """`ref_id` is the step's own result among the `results`; a step that failed and left nothing has none, and `parent`
    and `inputs` say where it stands."""

    execution_id: int
    step: str
    run: int
    status: str
    ref_id: int | None
    parent: int | None
    inputs: Sequence[Mapping[str, Any]]
    error: Mapping[str, Any] | None
    results: Sequence[Traced]
    frames: Sequence[Frames]
    is_cut: bool


class TraceService:
    def __init__(self, *, executions: ExecutionService, lineage: Lineage) -> None:
        self._executions = executions
        self._lineage = lineage

    async def trace(
        self, execution_id: int, step: str, *, tenant_id: str, organization_id: str, run: int | None = None
    ) -> Trace:
        """Back from the result of a step's last run, or of one of its runs.  Raises ExecutionUnknown, ResultUnknown and
        ResultUnfinished."""
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        state = await self._executions.state(execution_id, **owner)
        last = result_of(state, step)
        number = last.run if run is None else run
        event = await self._ended(execution_id, f"{step}#{number}")
        if event is None and number != last.run:
            raise ResultUnknown(
                f"step {step[:100]!r} of execution {execution_id} has no result of run {number}: its last one is "
                f"of run {last.run}"
            )
        root = _root(event) if event is not None else _refused(state, step, last)
        starts = [root.ref_id] if root.ref_id is not None else [*_before(root.parent, root.inputs)]
        walk = await self._lineage.walk(starts, depth_max=TRACE_DEPTH_MAX, results_max=TRACE_RESULTS_MAX, **owner)
        is_cut = walk.is_cut or any(_goes_on(one) for one in walk.results if one.depth == TRACE_DEPTH_MAX)
        stages = [(one.ref.execution_id, stage) for one in walk.results if (stage := stage_of(one.ref)) is not None]
        frames = await self._lineage.frames(stages, frames_max=TRACE_FRAMES_MAX, **owner) if stages else []
        return Trace(
            execution_id=execution_id,
            step=step,
            run=number,
            status=root.status,
            ref_id=root.ref_id,
            parent=root.parent,
            inputs=root.inputs,
            error=root.error,
            results=walk.results,
            frames=frames,
            is_cut=is_cut,
        )

    async def _ended(self, execution_id: int, command_id: str) -> Event | None:
        """How a run of a step ended; of a loop that is the writing of its result."""
        for one in (command_id, f"{command_id}/seal"):
            event = await self._lineage.ended(execution_id, kinds.terminal_key(one))
            if event is not None:
                return event
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Root:
    status: str
    ref_id: int | None
    parent: int | None
    inputs: Sequence[Mapping[str, Any]]
    error: Mapping[str, Any] | None


def _root(event: Event) -> _Root:
    result: Any = event.result
    ref = result_ref(event)
    parent = result["parent_ref"]
    inputs: Any = event.meta.get("inputs", ())
    return _Root(
        status=result["status"],
        ref_id=None if ref is None else ref.ref_id,
        parent=None if parent is None else parent.get("ref_id"),
        inputs=inputs,
        error=result["context"].get("error"),
    )


def _refused(state: ExecutionState, step: str, result: StepResult) -> _Root:
    """Of a loop that could not begin there is no event with a result."""
    lead = state.leads.get(step)
    return _Root(status=result.status, ref_id=None, parent=lead, inputs=(), error=result.error)


def _before(parent: int | None, inputs: Iterable[Mapping[str, Any]]) -> Iterable[int]:
    if parent is not None:
        yield parent
    yield from (one["ref_id"] for one in inputs if "ref_id" in one)


def _goes_on(one: Traced) -> bool:
    return any(_before(one.ref.parent_ref_id, inputs_of(one)))


def inputs_of(one: Traced) -> Sequence[Mapping[str, Any]]:
    """What a result was made of, as its event says."""
    found: Any = (one.meta or {}).get("inputs", ())
    return list(found)
