"""Request bodies that are read with a bound and described by a pydantic model.

The framework would read a body of any size and quote a wrong one in its errors; a body may hold secrets."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from noetl.core.errors import RequestInvalid
from noetl.processes.server.bodies import content_of

Model = TypeVar("Model", bound=BaseModel)
FINDINGS_MAX = 20


async def read_document(request: Request, model: type[Model], *, limit: int, default: bytes = b"") -> Model:
    content = await content_of(request, limit=limit) or default
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False, include_context=False)[:FINDINGS_MAX]
        # Not chained: the text of the cause quotes what was sent.
        raise RequestInvalid("; ".join(f"{_place(one['loc'])}: {one['msg']}" for one in found)) from None


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) or "the request"


def described(model: type[BaseModel]) -> dict[str, Any]:
    """The body of a route for its OpenAPI description."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}
