"""Executions: start, list, look, follow, cancel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from noetl.core.errors import ExecutionClosed, HostUnavailable, RequestInvalid
from noetl.core.execution.state import Status
from noetl.core.execution.view.document import commands_of
from noetl.core.kinds import KINDS
from noetl.core.limits import EVENTS_ROWS_MAX, LIST_ROWS_MAX, REQUEST_BYTES_MAX, WAIT_SECONDS_MAX
from noetl.engine.catalog import Found
from noetl.engine.executions import Origin, StartRequest, Unserved
from noetl.engine.forking.retrying import RetryRequest
from noetl.engine.projecting.status import has_ended
from noetl.ports.catalog import is_catalog_id
from noetl.ports.projections import ShownExecution
from noetl.processes.server import models
from noetl.processes.server.bodies import answer, execution_id_of, idempotency_key_of, json_object, scripts_of
from noetl.processes.server.owners import Owner, owner_of
from noetl.processes.server.parts import ApiParts
from noetl.processes.server.problems import Refusal, finding
from noetl.processes.server.routes.documents import read_document
from noetl.processes.server.routing import PlainRoute
from noetl.processes.server.views import document_of, event_view, execution_document, row_view

STREAM_WAIT_SECONDS = 10.0
STREAM_EVENTS_AT_ONCE = 500
POSITION_MAX = 2**62
_MEMBERS = frozenset(models.StartBody.model_fields)
Wait = Annotated[float, Query(ge=0, le=WAIT_SECONDS_MAX, allow_inf_nan=False)]
Position = Annotated[int, Query(ge=0, le=POSITION_MAX)]


def router(parts: ApiParts) -> APIRouter:
    found = APIRouter(tags=["executions"])
    routes = _Routes(parts)
    for path in ("/api/executions", "/api/execute"):
        found.routes.append(
            PlainRoute(
                path,
                routes.start,
                methods=["POST"],
                status_code=201,
                name=f"start_{path.rpartition('/')[2]}",
                tags=["executions"],
                summary="Start an execution; with an Idempotency-Key at most once.",
                responses={201: {"model": models.StartedView}},
                openapi_extra={"requestBody": models.body("StartBody"), "parameters": [models.IDEMPOTENCY_KEY]},
            )
        )
    found.add_api_route("/api/executions", routes.list, responses={200: {"model": models.ExecutionsView}})
    found.add_api_route("/api/executions/{execution_id}", routes.get, responses={200: {"model": models.ExecutionView}})
    found.add_api_route(
        "/api/executions/{execution_id}/events", routes.events, responses={200: {"model": models.EventsView}}
    )
    found.add_api_route(
        "/api/executions/{execution_id}/events/stream",
        routes.stream,
        responses={200: {"content": {"text/event-stream": {}}}},
        response_class=StreamingResponse,
    )
    found.add_api_route(
        "/api/executions/{execution_id}/cancel",
        routes.cancel,
        methods=["POST"],
        status_code=202,
        responses={202: {"model": models.CancelledView}},
        openapi_extra=models.keyed(models.CancelBody, required=False),
    )
    found.add_api_route(
        "/api/executions/{execution_id}/retry",
        routes.retry,
        methods=["POST"],
        status_code=201,
        responses={201: {"model": models.RetriedView}},
        openapi_extra=models.keyed(models.RetryBody),
    )
    return found


class _Routes:
    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts
        self._service = parts.service

    async def start(self, request: Request) -> Response:
        if self._parts.only_reads:
            raise HostUnavailable("this host only reads and leaves in a moment: try again")
        body = await json_object(request)
        owner = owner_of(request)
        text, file, origin = await self._playbook(body, owner)
        payload = {} if body.get("payload") is None else body["payload"]
        if not isinstance(payload, dict):
            raise RequestInvalid("payload must be a JSON object")
        started = await self._service.start(
            StartRequest(text=text, file=file, payload=payload, idempotency_key=idempotency_key_of(request), **owner),
            origin,
        )
        warnings = [finding(one) for one in started.warnings]
        return answer({"execution_id": str(started.execution_id), "warnings": warnings}, 201)

    async def _playbook(self, body: dict[str, object], owner: Owner) -> tuple[str, str, Origin]:
        """The text of the playbook, what to call it, and where it comes from."""
        unknown = sorted(body.keys() - _MEMBERS)
        if unknown:
            raise RequestInvalid(f"unknown member {unknown[0][:80]!r}: known are {', '.join(sorted(_MEMBERS))}")
        text, file, path, catalog_id = (body.get(name) for name in ("playbook", "file", "path", "catalog_id"))
        if file is not None and not isinstance(file, str):
            raise RequestInvalid("file must be the name of the playbook's file")
        scripts = scripts_of(body.get("scripts"))
        if isinstance(text, str) and path is None and catalog_id is None:
            return text, file or "<playbook>", Origin(scripts=scripts)
        given = [one for one in (path, catalog_id) if one is not None]
        if text is not None or len(given) != 1 or not isinstance(given[0], str):
            raise RequestInvalid("give the text as playbook, or a path or catalog_id of the catalog: one of them")
        if scripts:
            raise RequestInvalid("a version of the catalog has its scripts: they cannot be given again")
        found = await self._found(path, catalog_id, body.get("version"), owner)
        asked = ("catalog", path, catalog_id, body.get("version"))
        return found.text, file or found.entry.path, Origin(entry=found.entry, asked=asked)

    async def _found(self, path: object, catalog_id: object, version: object, owner: Owner) -> Found:
        if isinstance(catalog_id, str):
            if not is_catalog_id(catalog_id) or version is not None:
                raise RequestInvalid("catalog_id must be the number of a version as text, and needs no version")
            return await self._parts.catalog.find_id(int(catalog_id), owner=owner)
        if version is not None and (not isinstance(version, int) or isinstance(version, bool)):
            raise RequestInvalid("version must be a whole number")
        return await self._parts.catalog.find(str(path), version=version, owner=owner)

    async def list(
        self,
        request: Request,
        limit: Annotated[int, Query(ge=0, le=LIST_ROWS_MAX)] = 20,
        before: str | None = None,
        status: Status | None = None,
    ) -> Response:
        """The newest executions first; the next page by `before`."""
        rows = await self._parts.status.newest(
            limit=limit,
            before=None if before is None else execution_id_of(before),
            status=None if status is None else str(status),
            **owner_of(request),
        )
        following = str(rows[-1].execution_id) if rows and len(rows) == limit else None
        return answer({"executions": [row_view(row) for row in rows], "next_before": following})

    async def get(
        self,
        request: Request,
        execution_id: str,
        wait: Literal["terminal"] | None = None,
        timeout_s: Wait = WAIT_SECONDS_MAX,
        min_position: Position = 0,
    ) -> Response:
        """One execution.  With `wait=terminal` when it has ended, with `min_position` when the answer includes that
        position; at the latest after `timeout_s`."""
        identity, owner, status = execution_id_of(execution_id), owner_of(request), self._parts.status
        if min_position:
            shown = await status.wait_position(identity, position=min_position, timeout_seconds=timeout_s, **owner)
            if shown.position < min_position:
                raise Refusal(409, "position_not_reached", f"the execution is at position {shown.position}: ask later")
        if wait is not None:
            shown = await status.wait_terminal(identity, timeout_seconds=timeout_s, **owner)
        elif not min_position:
            shown = await status.find(identity, **owner)
        document, outcome = document_of(shown), None
        if has_ended(shown.row) and document["outcome"] is not None:
            outcome = await self._service.result_of(document["outcome"]["reference"], **owner)
        return answer(execution_document(shown, document, await self._unserved(shown, document), outcome))

    async def _unserved(self, shown: ShownExecution, document: dict[str, Any]) -> Sequence[Unserved]:
        # A host that only reads has no workers, and knows nothing about those of others.
        if self._parts.only_reads or has_ended(shown.row) or not document["commands"]:
            return []
        return await self._service.unserved_commands(shown.row, document["playbook"], commands_of(document))

    async def events(
        self,
        request: Request,
        execution_id: str,
        after_position: Position = 0,
        limit: Annotated[int, Query(ge=0, le=EVENTS_ROWS_MAX)] = EVENTS_ROWS_MAX,
        wait_s: Wait = 0.0,
    ) -> Response:
        """Events behind a position, in order; with `wait_s` waits for the first one."""
        events = await self._service.events(
            execution_id_of(execution_id),
            after_position=after_position,
            limit=limit,
            wait_seconds=wait_s,
            **owner_of(request),
        )
        return answer({"events": [event_view(event) for event in events]})

    async def stream(self, request: Request, execution_id: str, after_position: Position = 0) -> Response:
        """Server-sent events: `id` is the position, so that Last-Event-ID resumes; ends after the terminal event."""
        identity, owner = execution_id_of(execution_id), owner_of(request)
        last = request.headers.get("Last-Event-ID")
        if last is not None:
            if not last.isascii() or not last.isdigit() or len(last) > 18:
                raise RequestInvalid("Last-Event-ID must be a position")
            after_position = max(after_position, int(last))
        await self._service.has_ended(identity, **owner)
        return StreamingResponse(
            self._told(identity, owner, after_position),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _told(self, execution_id: int, owner: Owner, position: int) -> AsyncIterator[bytes]:
        yield b": begin\n\n"
        while True:
            events = await self._service.events(
                execution_id,
                after_position=position,
                limit=STREAM_EVENTS_AT_ONCE,
                wait_seconds=STREAM_WAIT_SECONDS,
                **owner,
            )
            for event in events:
                position = event.position
                text = msgspec.json.encode(event_view(event))
                yield b"id: %d\nevent: %s\ndata: %s\n\n" % (position, event.event_type.encode(), text)
            if any(KINDS[event.event_type].closes for event in events):
                return
            if not events:
                if await self._service.has_ended(execution_id, **owner):
                    return
                yield b": waiting\n\n"

    async def retry(self, request: Request, execution_id: str) -> Response:
        """Start an execution that runs the items of loops again that failed or never ran; with an Idempotency-Key at
        most once."""
        if self._parts.only_reads:
            raise HostUnavailable("this host only reads and leaves in a moment: try again")
        body = await read_document(request, models.RetryBody, limit=REQUEST_BYTES_MAX)
        identity, key = execution_id_of(execution_id), idempotency_key_of(request)
        wanted = RetryRequest(execution_id=identity, step=body.step, idempotency_key=key, **owner_of(request))
        started = await self._parts.retries.failed_items(wanted)
        return answer({"execution_id": str(started.execution_id), "retry_of": str(identity)}, 201)

    async def cancel(self, request: Request, execution_id: str) -> Response:
        """Ask for the end of an execution.  Asking again changes nothing."""
        body = await read_document(request, models.CancelBody, limit=REQUEST_BYTES_MAX, default=b"{}")
        identity, owner = execution_id_of(execution_id), owner_of(request)
        try:
            state = await self._service.cancel(identity, reason=body.reason or "", **owner)
        except ExecutionClosed:
            state = await self._service.state(identity, **owner)
            if state.status is not Status.CANCELLED:
                raise
        return answer({"execution_id": str(identity), "status": str(state.status)}, 202)
