"""Errors as problem+json with stable codes."""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from noetl.core.errors import (
    ExecutionUnknown,
    NoetlError,
    PlaybookInvalid,
    RequestInvalid,
    Transient,
)

log = logging.getLogger("noetl.host")
MEDIA_TYPE = "application/problem+json"


def problem(status: int, code: str, detail: str, **extra: object) -> Response:
    body = {
        "type": "about:blank",
        "title": code.replace("_", " "),
        "status": status,
        "code": code,
        "detail": detail,
    }
    return JSONResponse({**body, **extra}, status_code=status, media_type=MEDIA_TYPE)


async def on_noetl_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, NoetlError)
    if isinstance(error, PlaybookInvalid):
        found = [
            {
                "code": p.code,
                "message": p.message,
                "file": p.file,
                "line": p.line,
                "column": p.column,
                "step": p.step,
                "field": p.field,
            }
            for p in error.problems
        ]
        return problem(422, error.code, str(error), problems=found)
    if isinstance(error, ExecutionUnknown):
        return problem(404, error.code, str(error))
    if isinstance(error, RequestInvalid):
        return problem(422, error.code, str(error))
    if isinstance(error, Transient):
        response = problem(503, error.code, str(error))
        response.headers["Retry-After"] = "1"
        return response
    return problem(409, error.code, str(error))


async def on_defect(_request: Request, error: Exception) -> Response:
    log.error("request failed unexpectedly", exc_info=error, extra={"event": "request.defect"})
    return problem(500, "internal", "an internal error; the host's log has the details")
