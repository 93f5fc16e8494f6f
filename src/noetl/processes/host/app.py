"""The host's HTTP API: submit, get, list, events by position, stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from noetl.core.codec import parse_json
from noetl.core.errors import ExecutionUnknown, HostUnavailable, NoetlError, RequestInvalid
from noetl.core.event import Event, envelope
from noetl.core.execution.state import ExecutionState
from noetl.core.limits import DOCUMENT_BYTES_MAX
from noetl.engine.executions import ExecutionService, StartRequest
from noetl.ports.ledger import ExecutionRow
from noetl.processes.host.problems import on_defect, on_noetl_error

REQUEST_BYTES_MAX = 8 * DOCUMENT_BYTES_MAX
WAIT_SECONDS_MAX = 30.0
LIST_ROWS_MAX = 1_000
EVENTS_ROWS_MAX = 5_000


class HostApi:
    """The routes.  `on_stop` is called once, when a client asks the host to end."""

    def __init__(
        self,
        service: ExecutionService,
        *,
        tenant_id: str,
        organization_id: str,
        facts: Callable[[], dict[str, object]],
        on_stop: Callable[[], None],
    ) -> None:
        self._service = service
        self._owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        self._facts = facts
        self._on_stop = on_stop

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/api/health", self._health),
                Route("/api/executions", self._start, methods=["POST"]),
                Route("/api/executions", self._list),
                Route("/api/executions/{execution_id}", self._get),
                Route("/api/executions/{execution_id}/events", self._events),
                Route("/api/host/stop", self._stop, methods=["POST"]),
            ],
            exception_handlers={NoetlError: on_noetl_error, Exception: on_defect},
        )

    async def _health(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok", **self._facts()})

    async def _start(self, request: Request) -> Response:
        if self._facts()["only_reads"]:
            raise HostUnavailable("this host only reads and leaves in a moment: try again")
        body = await _body(request)
        text, file, payload = body.get("playbook"), body.get("file", "<playbook>"), body.get("payload") or {}
        if not isinstance(text, str) or not isinstance(file, str):
            raise RequestInvalid("playbook must be the text of a playbook, file its name")
        if not isinstance(payload, dict):
            raise RequestInvalid("payload must be a JSON object")
        started = await self._service.start(
            StartRequest(
                text=text,
                file=file,
                payload=payload,
                idempotency_key=request.headers.get("Idempotency-Key"),
                **self._owner,
            )
        )
        warnings = [{"code": w.code, "message": str(w)} for w in started.warnings]
        return JSONResponse({"execution_id": str(started.execution_id), "warnings": warnings}, status_code=201)

    async def _list(self, request: Request) -> Response:
        limit = int(_number(request, "limit", 20, LIST_ROWS_MAX))
        rows = await self._service.newest(limit=limit, **self._owner)
        return JSONResponse({"executions": [_row_view(row) for row in rows]})

    async def _get(self, request: Request) -> Response:
        execution_id = _execution_id(request)
        if request.query_params.get("wait") == "terminal":
            seconds = _number(request, "timeout_s", WAIT_SECONDS_MAX, WAIT_SECONDS_MAX)
            state = await self._service.wait_terminal(execution_id, timeout_seconds=seconds, **self._owner)
        else:
            state = await self._service.state(execution_id, **self._owner)
        view = _state_view(state)
        if state.is_terminal:
            view["result"] = await self._service.result(state)
        return JSONResponse(view)

    async def _events(self, request: Request) -> Response:
        events = await self._service.events(
            _execution_id(request),
            after_position=int(_number(request, "after_position", 0, 2**62)),
            limit=int(_number(request, "limit", EVENTS_ROWS_MAX, EVENTS_ROWS_MAX)),
            wait_seconds=_number(request, "wait_s", 0, WAIT_SECONDS_MAX),
            **self._owner,
        )
        return JSONResponse({"events": [_event_view(event) for event in events]})

    async def _stop(self, _request: Request) -> Response:
        self._on_stop()
        return JSONResponse({"status": "stopping"}, status_code=202)


async def _body(request: Request) -> dict[str, Any]:
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > REQUEST_BYTES_MAX:
            raise RequestInvalid(f"the request has more than {REQUEST_BYTES_MAX:,} bytes")
    try:
        body = parse_json(bytes(content))
    except (ValueError, RecursionError) as error:
        raise RequestInvalid(f"the request is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestInvalid("the request must be a JSON object")
    return body


def _execution_id(request: Request) -> int:
    text = request.path_params["execution_id"]
    if not text.isascii() or not text.isdigit() or int(text) >= 2**63:
        raise ExecutionUnknown(f"there is no execution {text!r}: an id is a number of up to 19 digits")
    return int(text)


def _number(request: Request, name: str, default: float, high: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise RequestInvalid(f"{name} must be a number, not {text!r}") from error
    if not 0 <= value <= high:
        raise RequestInvalid(f"{name} must be between 0 and {high:g}")
    return value


def _state_view(state: ExecutionState) -> dict[str, Any]:
    steps = {
        name: {
            "runs": run,
            "status": _step_status(state, name),
        }
        for name, run in state.runs.items()
    }
    error = None
    if state.failure is not None:
        error = {"step": state.failure.get("step"), **_mapping(state.failure.get("error"))}
    return {
        "execution_id": str(state.execution_id),
        "path": state.path,
        "status": str(state.status),
        "started_at": state.started_at,
        "ended_at": state.ended_at,
        "last_step": state.last_step,
        "version": state.version,
        "steps": steps,
        "error": error,
        "result": None,
    }


def _step_status(state: ExecutionState, name: str) -> str:
    command = state.commands.get(f"{name}#{state.runs[name]}")
    if command is not None:
        return str(command.status)
    result = state.step_results.get(name)
    if result is not None and result.status == "error":
        return "failed"
    return "completed" if name in state.completed_steps else "deciding"


def _row_view(row: ExecutionRow) -> dict[str, object]:
    return {
        "execution_id": str(row.execution_id),
        "path": row.path,
        "status": row.status,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "last_step": row.last_step,
    }


def _event_view(event: Event) -> dict[str, object]:
    view = envelope(event)
    for name in ("execution_id", "event_id", "causation_id", "parent_event_id", "parent_execution_id"):
        if view.get(name) is not None:
            view[name] = str(view[name])
    view |= {
        "shard_id": event.shard_id,
        "position": event.position,
        "stream_version": event.stream_version,
        "ingest_time": event.ingest_time,
    }
    return view


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, dict) else {}
