"""Where the result of a step comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from noetl.core.results.references import Role, role_of
from noetl.engine.reading.trace import Trace, TraceService, inputs_of
from noetl.ports.data.lineage import Frames, Traced
from noetl.processes.server.bodies import answer, execution_id_of
from noetl.processes.server.owners import owner_of

RUN_MAX = 2**31 - 1
_COPIED = (
    *("status", "event_type", "step", "task", "command_id", "frame_id", "created_at", "media_type", "bytes"),
    *("row_count", "schema_digest", "uri", "sha256", "physical_address", "correlation"),
)


class InputView(BaseModel):
    """A result by its id, or the digest of a payload that no step gave."""

    ref_id: str | None = None
    sha256: str | None = None


class StoredView(BaseModel):
    sha256: str | None = None
    media_type: str | None = None
    bytes: int | None = None
    row_count: int | None = None
    store: str | None = None


class PartView(StoredView):
    name: str = Field(description="its place in the result")


class TaskRunView(BaseModel):
    model_config = ConfigDict(extra="allow")

    task: str
    ms: float
    attempt: int | None = None
    error: str | None = Field(None, description="kind of the failure")
    stored: StoredView | None = Field(None, description="where the result is, if it is stored on its own")
    parts: list[PartView] | None = Field(None, description="of a result in several parts, where each of them is")
    parts_more: int | None = Field(None, description="how many parts there are besides these")


class ResultNodeView(BaseModel):
    ref_id: str
    execution_id: str
    depth: int = Field(description="results on the shortest way to it")
    role: Role
    status: str
    event_type: str
    step: str | None
    task: str | None
    command_id: str | None
    frame_id: str | None
    created_at: str
    media_type: str | None
    bytes: int | None
    row_count: int | None
    schema_digest: str | None
    uri: str
    sha256: str
    store: str | None
    physical_address: str | None
    correlation: dict[str, Any] | None = Field(description="of a frame: loop_epoch, index, page")
    credentials: list[str] = Field(description="names of credentials that were used")
    parent_ref: str | None
    inputs: list[InputView]
    tasks: list[TaskRunView]
    duration_ms: float | None


class FramesView(BaseModel):
    """The frames of a loop that have ended, the first of them."""

    execution_id: str
    stage_id: str
    total: int
    shown: list[ResultNodeView]


class TraceView(BaseModel):
    """`results` by depth; the step's own result is the one with `ref_id`, unless it has none."""

    execution_id: str
    step: str
    run: int
    status: str
    ref_id: str | None
    parent_ref: str | None
    inputs: list[InputView]
    error: dict[str, Any] | None
    results: list[ResultNodeView]
    frames: list[FramesView]
    is_cut: bool = Field(description="there is more than these: the trace was too deep or too wide")


def router(traces: TraceService) -> APIRouter:
    found = APIRouter(tags=["results"])
    found.add_api_route(
        "/api/executions/{execution_id}/trace/{step:path}",
        _Routes(traces).get,
        name="trace",
        responses={200: {"model": TraceView}},
    )
    return found


class _Routes:
    def __init__(self, traces: TraceService) -> None:
        self._traces = traces

    async def get(
        self,
        request: Request,
        execution_id: str,
        step: str,
        run: Annotated[int | None, Query(ge=1, le=RUN_MAX, description="not the last one")] = None,
    ) -> Response:
        """The results that led to the result of a step's last run, and those that it was made of, back to the first."""
        found = await self._traces.trace(execution_id_of(execution_id), step, run=run, **owner_of(request))
        return answer(_view(found))


def _view(trace: Trace) -> dict[str, Any]:
    return {
        "execution_id": str(trace.execution_id),
        "step": trace.step,
        "run": trace.run,
        "status": trace.status,
        "ref_id": _text(trace.ref_id),
        "parent_ref": _text(trace.parent),
        "inputs": _inputs(trace.inputs),
        "error": trace.error,
        "results": [_node(one) for one in trace.results],
        "frames": [_frames(one) for one in trace.frames],
        "is_cut": trace.is_cut,
    }


def _node(one: Traced) -> dict[str, Any]:
    ref, meta = one.ref, one.meta or {}
    return {
        "ref_id": str(ref.ref_id),
        "execution_id": str(ref.execution_id),
        "depth": one.depth,
        "role": str(role_of(ref)),
        **{name: getattr(ref, name) for name in _COPIED},
        "store": ref.store_tier,
        "credentials": list(ref.auth_reference or ()),
        "parent_ref": _text(ref.parent_ref_id),
        "inputs": _inputs(inputs_of(one)),
        "tasks": list(meta.get("tasks", ())),
        "duration_ms": meta.get("duration_ms"),
    }


def _frames(one: Frames) -> dict[str, Any]:
    nodes = [_node(frame) for frame in one.shown]
    return {"execution_id": str(one.execution_id), "stage_id": one.stage_id, "total": one.total, "shown": nodes}


def _inputs(given: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    return [{name: str(value) for name, value in one.items()} for one in given]


def _text(ref_id: int | None) -> str | None:
    return None if ref_id is None else str(ref_id)
