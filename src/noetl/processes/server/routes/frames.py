"""Frames by request: claim, heartbeat, commit.  The reference is docs/reference/worker-protocol.md."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from noetl.core.errors import RequestInvalid
from noetl.core.limits import (
    ERROR_MESSAGE_CHARS_MAX,
    FACTS_BYTES_MAX,
    FRAME_ROWS_MAX,
    FRAME_TASKS_TOLD_MAX,
    PLACE_NAME_CHARS_MAX,
)
from noetl.core.locator.locality import DISTANCES, Place, distance_named
from noetl.engine.frames import Commit, FrameService, Wanted
from noetl.ports.session import CommandMessage
from noetl.processes.server import models, wire
from noetl.processes.server.bodies import answer, execution_id_of, idempotency_key_of
from noetl.processes.server.owners import owner_of
from noetl.processes.server.routes.documents import read_document

FRAMES_AT_ONCE_MAX = 64
Named = Annotated[str, Path(description="`<execution_id>/<id>`, percent-encoded", max_length=400)]


class FrameLocality(BaseModel):
    """Near which data a worker wants frames, and how far from theirs it takes them while somebody nearer can: `node`,
    `cluster`, `zone`, `region` or `any`."""

    model_config = ConfigDict(extra="forbid")

    prefer_node: str | None = Field(default=None, min_length=1, max_length=PLACE_NAME_CHARS_MAX)
    prefer_zone: str | None = Field(default=None, min_length=1, max_length=PLACE_NAME_CHARS_MAX)
    max_distance: str | None = Field(default=None, max_length=100)


class FrameClaimBody(BaseModel):
    """`worker_slot` and `frame_index` name the request: the same one again gets the same frames."""

    model_config = ConfigDict(extra="forbid")

    worker_id: str = Field(description="the session, as it was registered")
    requested_count: int = Field(default=1, ge=1, le=FRAMES_AT_ONCE_MAX)
    worker_slot: str | None = Field(default=None, max_length=200)
    frame_index: int | None = Field(default=None, ge=0, le=2**53)
    locality: FrameLocality = Field(default_factory=FrameLocality)


class RowRecord(BaseModel):
    index: int = Field(ge=0, le=2**53)
    record: dict[str, Any]


class FrameHeartbeatBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    worker_id: str
    attempt: int = Field(ge=1, le=1_000)
    rows: list[RowRecord] = Field(default_factory=list, max_length=FRAME_ROWS_MAX)


class FrameError(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: str = Field(min_length=1, max_length=100)
    code: str | None = Field(default=None, max_length=100)
    message: str = Field(max_length=ERROR_MESSAGE_CHARS_MAX)
    retryable: bool = False


class FrameTaskCost(BaseModel):
    """All calls of one task in a frame."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: str = Field(min_length=1, max_length=100)
    calls: int = Field(default=0, ge=0, le=10**9)
    failed: int = Field(default=0, ge=0, le=10**9)
    render_ms: float = Field(default=0.0, ge=0.0, le=1e12)
    tool_ms: float = Field(default=0.0, ge=0.0, le=1e12)
    limit_ms: float = Field(default=0.0, ge=0.0, le=1e12)


class FrameCommitBody(BaseModel):
    """`records` has one entry per row in item order, null for one that did not run; or `output_ref` says where they
    are.  With `error` the frame has failed.  `wall_ms` and `tasks`, by their names, are what it cost."""

    model_config = ConfigDict(extra="forbid")

    worker_id: str
    attempt: int = Field(ge=1, le=1_000)
    records: list[dict[str, Any] | None] | None = Field(default=None, max_length=FRAME_ROWS_MAX)
    output_ref: dict[str, Any] | None = None
    error: FrameError | None = None
    wall_ms: float = Field(default=0.0, ge=0.0, le=1e12, allow_inf_nan=False)
    tasks: dict[Annotated[str, Field(min_length=1, max_length=200)], FrameTaskCost] = Field(
        default_factory=dict, max_length=FRAME_TASKS_TOLD_MAX
    )
    wants_next: bool = False


class FramesView(BaseModel):
    frames: list[dict[str, Any]]


class FrameHeartbeatView(BaseModel):
    frame_id: str
    lease_seconds: float


class FrameCommitView(BaseModel):
    ok: bool
    next_action: dict[str, Any] | None


def router(frames: FrameService, *, lease_seconds: float) -> APIRouter:
    found = APIRouter(tags=["frames"])
    routes = _Routes(frames, lease_seconds)
    for path, endpoint, body, view in (
        ("/api/stages/{stage:path}/frames/claim", routes.claim, FrameClaimBody, FramesView),
        ("/api/frames/{frame:path}/heartbeat", routes.heartbeat, FrameHeartbeatBody, FrameHeartbeatView),
        ("/api/frames/{frame:path}/commit", routes.commit, FrameCommitBody, FrameCommitView),
    ):
        found.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            responses={200: {"model": view}},
            openapi_extra=models.keyed(body),
        )
    return found


def _wanted(body: FrameClaimBody, key: str | None) -> Wanted:
    locality, word = body.locality, body.locality.max_distance
    if word is not None and word not in DISTANCES:
        raise RequestInvalid(f"locality.max_distance: there is no distance {word!r}: there are {', '.join(DISTANCES)}")
    return Wanted(
        count=body.requested_count,
        key=key,
        near=Place(node=locality.prefer_node, zone=locality.prefer_zone),
        max_distance=None if word is None else distance_named(word),
    )


class _Routes:
    def __init__(self, frames: FrameService, lease_seconds: float) -> None:
        self._frames = frames
        self._lease_seconds = lease_seconds

    async def claim(self, request: Request, stage: Named) -> Response:
        """Frames of a stage that nobody holds, for this session."""
        body = await read_document(request, FrameClaimBody, limit=FACTS_BYTES_MAX)
        execution_id, stage_id = _named(stage, "a stage")
        key = idempotency_key_of(request)
        if key is None and body.worker_slot is not None and body.frame_index is not None:
            key = f"{stage}/{body.worker_slot}/{body.frame_index}"
        messages = await self._frames.claim(
            execution_id,
            stage_id,
            session_id=wire.session_id_of(body.worker_id),
            wanted=_wanted(body, key),
            owner=owner_of(request),
        )
        return answer({"frames": [self._view(message) for message in messages]})

    async def heartbeat(self, request: Request, frame: Named) -> Response:
        """The session lives; rows that come along are made durable and will not run again."""
        body = await read_document(request, FrameHeartbeatBody, limit=FACTS_BYTES_MAX)
        execution_id, frame_id = _named(frame, "a frame")
        await self._frames.heartbeat(
            execution_id,
            frame_id,
            session_id=wire.session_id_of(body.worker_id),
            attempt=body.attempt,
            rows=[(row.index, row.record) for row in body.rows],
        )
        return answer({"frame_id": frame, "lease_seconds": self._lease_seconds})

    async def commit(self, request: Request, frame: Named) -> Response:
        """The end of a frame; with `wants_next` the answer may hold the next one."""
        body = await read_document(request, FrameCommitBody, limit=FACTS_BYTES_MAX)
        execution_id, frame_id = _named(frame, "a frame")
        if (body.records is None) == (body.output_ref is None):
            raise RequestInvalid("a commit has either records or output_ref")
        session_id = wire.session_id_of(body.worker_id)
        await self._frames.commit(
            execution_id,
            frame_id,
            session_id=session_id,
            commit=Commit(
                attempt=body.attempt,
                records=body.records,
                output_ref=body.output_ref,
                error=body.error.model_dump() if body.error is not None else None,
                wall_ms=body.wall_ms,
                tasks={name: cost.model_dump() for name, cost in body.tasks.items()},
            ),
        )
        following: dict[str, Any] | None = None
        if body.wants_next:
            messages = await self._frames.claim_next(
                execution_id, frame_id, session_id=session_id, owner=owner_of(request)
            )
            following = {"frames": [self._view(message) for message in messages]} if messages else None
        return answer({"ok": True, "next_action": following})

    def _view(self, message: CommandMessage) -> dict[str, Any]:
        """A claimed frame: what the stream says of it, and the window in the seeds' words."""
        stage: Any = message.body["stage"]
        return {
            **wire.command_view(message),
            "frame_id": f"{message.execution_id}/{message.command_id}",
            "stage_id": f"{message.execution_id}/{stage['stage_id']}",
            "cursor": {"first": stage["first"], "rows": stage["rows"]},
            "dsl_ref": {"playbook": message.body["playbook"], "step": message.body["step"]},
            "lease_seconds": self._lease_seconds,
        }


def _named(name: str, what: str) -> tuple[int, str]:
    execution_id, slash, rest = name.partition("/")
    if not slash or not rest:
        raise RequestInvalid(f"{what} is named <execution_id>/<id>, percent-encoded")
    return execution_id_of(execution_id), rest
