"""Errors as problem+json with stable codes."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from noetl.core.errors import (
    CredentialUnknown,
    EnvelopeInvalid,
    ExecutionUnknown,
    FrameAlreadyTerminal,
    NoetlError,
    PayloadMissing,
    PlaybookInvalid,
    PlaybookUnknown,
    Problem,
    RequestInvalid,
    ResultNotTabular,
    ResultUnknown,
    ShardUnknown,
    StageUnknown,
    Transient,
)

log = logging.getLogger("noetl.server")
MEDIA_TYPE = "application/problem+json"
VALIDATION_ERRORS_MAX = 20

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, TOO_LARGE, UNPROCESSABLE, UNAVAILABLE = 401, 403, 404, 413, 422, 503
# What an HTTP status is called when no error of ours says it better.
CODES = {
    400: "request_invalid",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    409: "conflict",
    413: "too_large",
    415: "media_type_unsupported",
    416: "range_not_satisfiable",
    422: "request_invalid",
    503: "unavailable",
}
_STATUS: tuple[tuple[type[NoetlError], int], ...] = (
    (ExecutionUnknown, NOT_FOUND),
    (CredentialUnknown, NOT_FOUND),
    (PlaybookUnknown, NOT_FOUND),
    (StageUnknown, NOT_FOUND),
    (PayloadMissing, NOT_FOUND),
    (ResultUnknown, NOT_FOUND),
    (ShardUnknown, NOT_FOUND),
    (ResultNotTabular, 406),
    (PlaybookInvalid, UNPROCESSABLE),
    (RequestInvalid, UNPROCESSABLE),
    (EnvelopeInvalid, UNPROCESSABLE),
    (Transient, UNAVAILABLE),
)


class Refusal(HTTPException):
    """A request that is refused before any error of the engine: a status, a stable code, a sentence."""

    def __init__(self, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None) -> None:
        self.code = code
        super().__init__(status, detail, headers)


def too_large(limit: int) -> Refusal:
    return Refusal(TOO_LARGE, "too_large", f"the request has more than {limit:,} bytes: hand data over by reference")


def problem(
    status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **extra: object
) -> Response:
    body = {
        "type": "about:blank",
        "title": code.replace("_", " "),
        "status": status,
        "code": code,
        "detail": _plain(detail),
        **extra,
    }
    return Response(msgspec.json.encode(body), status_code=status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def _plain(text: str) -> str:
    """A detail may quote what was sent, and what was sent may be no text at all."""
    return text.encode("utf-8", "replace").decode("utf-8")


def finding(one: Problem) -> dict[str, object]:
    """A finding about a playbook, an error or a warning: what, and where."""
    return {
        "code": one.code,
        "message": _plain(one.message),
        "file": None if one.file is None else _plain(one.file),
        "line": one.line,
        "column": one.column,
        "step": None if one.step is None else _plain(one.step),
        "field": None if one.field is None else _plain(one.field),
    }


def of_error(error: NoetlError) -> Response:
    """The answer for an error of the engine."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 409)
    if isinstance(error, PlaybookInvalid):
        return problem(status, error.code, str(error), problems=[finding(one) for one in error.problems])
    if isinstance(error, FrameAlreadyTerminal):
        return problem(status, error.code, str(error), terminal_event_id=str(error.event_id))
    return problem(status, error.code, str(error), headers=_retry_after(error) if status == UNAVAILABLE else None)


def _retry_after(error: NoetlError) -> dict[str, str]:
    """Whole seconds, as the header has them."""
    seconds = error.retry_after_seconds if isinstance(error, Transient) else None
    return {"Retry-After": str(max(1, math.ceil(seconds or 1.0)))}


def install(app: FastAPI) -> None:
    """Every way out of the application ends in a problem."""
    app.add_exception_handler(NoetlError, _on_noetl_error)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(RecursionError, _on_depth)
    app.add_exception_handler(Exception, _on_defect)


async def _on_noetl_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, NoetlError)
    return of_error(error)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = error.code if isinstance(error, Refusal) else CODES.get(error.status_code, "refused")
    detail = error.detail
    if not isinstance(error, Refusal):
        detail = {
            404: f"there is nothing at {request.url.path}",
            405: f"{request.method} is not possible at {request.url.path}",
        }.get(error.status_code, error.detail)
    headers = {**({"Retry-After": "1"} if error.status_code == UNAVAILABLE else {}), **(error.headers or {})}
    return problem(error.status_code, code, str(detail), headers=headers)


async def _on_invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = [
        {"field": _plain(".".join(str(part) for part in one["loc"])), "message": _plain(str(one["msg"]))}
        for one in error.errors()[:VALIDATION_ERRORS_MAX]
    ]
    detail = "; ".join(f"{one['field']}: {one['message']}" for one in found)
    return problem(UNPROCESSABLE, "request_invalid", detail, errors=found)


async def _on_depth(_request: Request, _error: Exception) -> Response:
    return problem(UNPROCESSABLE, "too_deep", "a value is nested too deeply to be read or shown")


async def _on_defect(_request: Request, error: Exception) -> Response:
    log.error("request failed unexpectedly", exc_info=error, extra={"event": "request.defect"})
    return problem(500, "internal", "an internal error; the server's log has the details")
