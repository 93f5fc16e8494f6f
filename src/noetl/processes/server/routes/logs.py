"""Logs: read and followed by people, written by workers."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from noetl.core.errors import EnvelopeInvalid, LeaseLost, RequestInvalid
from noetl.core.limits import (
    FACTS_BYTES_MAX,
    LOG_LINES_AT_ONCE_MAX,
    PAYLOAD_INLINE_BYTES_MAX,
    STEP_NAME_CHARS_MAX,
    WAIT_SECONDS_MAX,
)
from noetl.core.logs.lines import MILLISECONDS_MAX
from noetl.core.logs.shown import shown
from noetl.engine.logs import Cursor, LogPage, LogQuery, cursor_of
from noetl.engine.sessions.remote import RemoteSession
from noetl.ports.data.logs import LogChunk
from noetl.processes.server import models, wire
from noetl.processes.server.bodies import answer, execution_id_of
from noetl.processes.server.owners import owner_of
from noetl.processes.server.parts import ApiParts, WorkParts
from noetl.processes.server.routes.documents import read_document

TEXT = "text/plain"
FOLLOW_SECONDS = WAIT_SECONDS_MAX / 2


def router(parts: ApiParts) -> APIRouter:
    found = APIRouter(tags=["executions"])
    found.add_api_route(
        "/api/executions/{execution_id}/logs",
        _Reading(parts).get,
        responses={200: {"model": models.LogsView, "content": {TEXT: {}}}},
    )
    return found


class _Reading:
    def __init__(self, parts: ApiParts) -> None:
        self._logs = parts.logs
        self._service = parts.service

    async def get(
        self,
        request: Request,
        execution_id: str,
        *,
        step: Annotated[str | None, Query(min_length=1, max_length=STEP_NAME_CHARS_MAX)] = None,
        after: Annotated[str | None, Query(max_length=40)] = None,
        limit: Annotated[int, Query(ge=1, le=LOG_LINES_AT_ONCE_MAX)] = 1_000,
        follow: bool = False,
    ) -> Response:
        """What tools and user code said, in the order in which it became durable; the next page by `after`.  With
        `follow` waits a while for the first line that is new.  As `text/plain` it is for people, and with `follow`
        it goes on until the execution has ended."""
        if step is not None and not step.isprintable():
            raise RequestInvalid("step must be the name of a step")
        query = LogQuery(
            execution_id=execution_id_of(execution_id),
            limit=limit,
            step=step,
            after=Cursor() if after is None else cursor_of(after),
            **owner_of(request),
        )
        is_text = TEXT in request.headers.get("Accept", "")
        page = await self._page(query, waits=follow and not is_text)
        if not is_text:
            view = {"lines": page.lines, "next_after": str(page.cursor), "is_complete": page.is_complete}
            return answer(view)
        if not follow:
            return PlainTextResponse(_text(page))
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._told(query, page), media_type=f"{TEXT}; charset=utf-8", headers=headers)

    async def _page(self, query: LogQuery, *, waits: bool) -> LogPage:
        return await self._logs.page(query, self._service, wait_seconds=FOLLOW_SECONDS if waits else 0.0)

    async def _told(self, query: LogQuery, page: LogPage) -> AsyncIterator[bytes]:
        while True:
            yield _text(page).encode()
            if page.is_complete:
                return
            query = replace(query, after=page.cursor)
            page = await self._page(query, waits=True)


def _text(page: LogPage) -> str:
    return "".join(f"{shown(line)}\n" for line in page.lines)


# --- from workers -----------------------------------------------------------------------------------------------


def worker_router(work: WorkParts) -> APIRouter:
    found = APIRouter(tags=["workers"])
    found.add_api_route(
        "/api/worker/logs",
        _Writing(work).post,
        methods=["POST"],
        responses={200: {"model": models.LogChunksView}},
        openapi_extra=models.keyed(models.LogChunksBody),
    )
    return found


class _Writing:
    def __init__(self, work: WorkParts) -> None:
        self._keeper = work.keeper
        self._sink = work.logs

    async def post(self, request: Request) -> Response:
        """Chunks of logs.  They are durable when this answers; sent again they are the same.  What the session no
        longer holds is not kept."""
        body = await read_document(request, models.LogChunksBody, limit=FACTS_BYTES_MAX)
        session = self._keeper.find(wire.session_id_of(body.session_id))
        chunks = []
        for one in body.chunks:
            try:
                chunks.append(_chunk(one, session))
            except LeaseLost:
                continue
        await self._sink.write(chunks)
        return answer({"kept": len(chunks), "refused": len(body.chunks) - len(chunks)})


def _chunk(one: models.LogChunkBody, session: RemoteSession) -> LogChunk:
    """The chunk belongs to whom the command belongs to, whatever a worker says.  Raises LeaseLost."""
    text = one.execution_id
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise RequestInvalid("execution_id must be a number as text")
    message = session.message(int(text), one.command_id, one.attempt)
    if (one.content is None) == (one.reference is None):
        raise RequestInvalid("a chunk has its content, or a reference to it: one of them")
    if not 0 <= one.first_at_ms <= one.last_at_ms < MILLISECONDS_MAX:
        raise RequestInvalid("first_at_ms and last_at_ms are milliseconds since 1970, in this order")
    if one.reference is not None:
        try:
            wire.check_reference("reference", one.reference, message)
        except EnvelopeInvalid as error:
            raise RequestInvalid(str(error)) from error
    return LogChunk(
        tenant_id=message.tenant_id,
        organization_id=message.organization_id,
        execution_id=message.execution_id,
        step=str(message.body["step"]),
        command_id=message.command_id,
        attempt=message.attempt,
        seq=one.seq,
        first_at_ms=one.first_at_ms,
        last_at_ms=one.last_at_ms,
        lines=one.lines,
        size_bytes=one.bytes,
        content=None if one.content is None else _content(one.content),
        reference=one.reference,
    )


def _content(text: str) -> bytes:
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestInvalid(f"content is not base64: {error}") from error
    if not 0 < len(content) <= PAYLOAD_INLINE_BYTES_MAX:
        raise RequestInvalid(
            f"content has {len(content):,} bytes, a chunk 1 to {PAYLOAD_INLINE_BYTES_MAX:,}: put a larger one with "
            "PUT /api/payloads and name it"
        )
    return content
