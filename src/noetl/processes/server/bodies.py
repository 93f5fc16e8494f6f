"""Reading requests with bounds: bodies, ids, idempotency keys; and answering with JSON."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from noetl.core.errors import ExecutionUnknown, RequestInvalid
from noetl.core.limits import (
    IDEMPOTENCY_KEY_CHARS_MAX,
    REQUEST_BYTES_MAX,
    REQUEST_DEPTH_MAX,
    SCRIPT_URI_CHARS_MAX,
    SCRIPTS_MAX,
)
from noetl.processes.server.problems import Refusal, too_large

JSON = "application/json"


def answer(document: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status_code=status, media_type=JSON)


async def content_of(request: Request, *, limit: int = REQUEST_BYTES_MAX) -> bytes:
    """The whole body, said to be JSON or not said to be anything; a larger one is refused before it is held."""
    media_type = request.headers.get("Content-Type", JSON).partition(";")[0].strip().lower()
    if media_type != JSON and not media_type.endswith("+json"):
        raise Refusal(415, "media_type_unsupported", f"send {JSON}, not {media_type[:80]!r}")
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise too_large(limit)
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def json_object(request: Request) -> dict[str, object]:
    """A body that is one JSON object; anything else is the sender's mistake."""
    try:
        body = msgspec.json.decode(await content_of(request))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestInvalid(f"the request is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestInvalid("the request must be a JSON object")
    if is_deeper(body, REQUEST_DEPTH_MAX):
        raise RequestInvalid(f"the request is nested more than {REQUEST_DEPTH_MAX} levels deep")
    return body


def is_deeper(value: object, levels: int) -> bool:
    """Whether containers are nested deeper than this; without recursion of its own."""
    layer: list[object] = [value]
    for _ in range(levels + 1):
        layer = [
            inner
            for one in layer
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not layer:
            return False
    return True


def execution_id_of(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) >= 2**63:
        raise ExecutionUnknown(f"there is no execution {text[:40]!r}: an id is a number of up to 19 digits")
    return int(text)


def scripts_of(given: object) -> dict[str, str]:
    """Texts of scripts by path, as a client sends them along with a playbook."""
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise RequestInvalid("scripts must be texts by path")
    if len(given) > SCRIPTS_MAX or any(not 0 < len(path) <= SCRIPT_URI_CHARS_MAX for path in given):
        raise RequestInvalid(
            f"scripts are at most {SCRIPTS_MAX}, each with a path of 1 to {SCRIPT_URI_CHARS_MAX} characters"
        )
    return given


def idempotency_key_of(request: Request) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is not None and (not 0 < len(key) <= IDEMPOTENCY_KEY_CHARS_MAX or not key.isprintable()):
        raise RequestInvalid(f"Idempotency-Key must be 1 to {IDEMPOTENCY_KEY_CHARS_MAX} printable characters")
    return key
