"""The body of an answer: read with a limit, decoded by its type, or streamed to where large bodies are kept."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import msgspec

from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import (
    HTTP_BODY_BYTES_IN_MEMORY_MAX,
    HTTP_BODY_BYTES_MAX,
    HTTP_MEDIA_TYPE_CHARS_MAX,
    RESULT_BYTES_MAX,
)
from noetl.ports.tool import BodySink
from noetl.tools.http.failures import storage_failure

_OCTETS = "application/octet-stream"
_TEXT_SUBTYPES = frozenset(
    {"json", "xml", "javascript", "ecmascript", "yaml", "x-yaml", "toml", "sql", "graphql"}
    | {"x-www-form-urlencoded", "ndjson", "x-ndjson", "jsonl"}
)
_STRICT = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class ContentType:
    """A `Content-Type` header taken apart."""

    media_type: str
    charset: str

    @property
    def is_json(self) -> bool:
        return self.media_type == "application/json" or self.media_type.endswith("+json")

    @property
    def is_text(self) -> bool:
        kind, _, subtype = self.media_type.partition("/")
        if kind == "text" or subtype.endswith(("+json", "+xml", "+yaml")):
            return True
        return kind == "application" and subtype in _TEXT_SUBTYPES


_JSON = ContentType("application/json", "utf-8")


def content_type(header: str) -> ContentType:
    if header == "application/json":
        return _JSON
    media_type, _, rest = header.partition(";")
    charset = "utf-8"
    for parameter in rest.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            charset = value.strip().strip("\"'").lower()
    return ContentType(media_type.strip().lower(), charset or "utf-8")


# --- reading ---------------------------------------------------------------------------------------------


class TooLarge(Exception):
    """More bytes than may be held; `start` is what was read so far, perhaps nothing."""

    def __init__(self, start: list[bytes]) -> None:
        super().__init__()
        self.start = start


async def read_whole(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """The body, decompressed, or TooLarge.  The limit counts what decompression made, not what was sent."""
    if (response.content_length or 0) > bytes_max:
        raise TooLarge([])
    content = response.content
    first = await content.readany()
    if content.at_eof() and len(first) <= bytes_max:
        return first
    parts, size = [first], len(first)
    while size <= bytes_max:
        part = await content.readany()
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    raise TooLarge(parts)


async def read_body(
    response: aiohttp.ClientResponse, kind: ContentType, *, response_type: str, sink: BodySink | None
) -> object:
    """What `data` and `body` are."""
    is_json = response_type == "json" or (response_type == "auto" and kind.is_json)
    try:
        content = await read_whole(response, RESULT_BYTES_MAX if is_json else HTTP_BODY_BYTES_IN_MEMORY_MAX)
    except TooLarge as large:
        if is_json:
            raise ToolFailed(_too_large("JSON body", RESULT_BYTES_MAX)) from None
        return await _keep(response, large.start, sink)
    return decoded(content, kind, response_type=response_type)


async def _keep(response: aiohttp.ClientResponse, start: list[bytes], sink: BodySink | None) -> dict[str, object]:
    """Hand the body over without holding it; the value is its reference."""
    if sink is None:
        message = f"http: a body above {HTTP_BODY_BYTES_IN_MEMORY_MAX:,} bytes needs a store, and this worker has none"
        raise ToolFailed(Failure(kind="storage_access", code="NO_STORE", message=message))
    header = response.headers.get("Content-Type") or _OCTETS
    media_type = header[:HTTP_MEDIA_TYPE_CHARS_MAX]
    counted = _Counted(response, start)
    try:
        reference = await sink.keep(counted.chunks(), media_type=media_type)
    except (aiohttp.ClientError, TimeoutError):
        raise  # the server's doing, not the store's
    except OSError as error:
        raise ToolFailed(storage_failure(error)) from error
    return {"_ref": dict(reference), "media_type": media_type, "bytes": counted.size}


class _Counted:
    """The rest of a body as it arrives; never more than a few chunks are held."""

    def __init__(self, response: aiohttp.ClientResponse, start: list[bytes]) -> None:
        self._response = response
        self._start = start
        self.size = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        start, self._start = self._start, []
        start.reverse()
        while start:
            chunk = start.pop()
            self.size += len(chunk)
            yield chunk
        async for chunk in self._response.content.iter_any():
            self.size += len(chunk)
            if self.size > HTTP_BODY_BYTES_MAX:
                raise ToolFailed(_too_large("body", HTTP_BODY_BYTES_MAX))
            yield chunk


def _too_large(what: str, bytes_max: int) -> Failure:
    message = f"http: the {what} has more than {bytes_max:,} bytes"
    return Failure(kind="storage_quota", code="BODY_TOO_LARGE", message=message)


# --- decoding --------------------------------------------------------------------------------------------


def decoded(content: bytes, kind: ContentType, *, response_type: str) -> object:
    """Parsed JSON, text, or base64 of bytes.  Raises ToolFailed only when JSON was demanded and is not there."""
    if response_type == "json" or (response_type == "auto" and kind.is_json):
        if not content:
            return None
        try:
            return parsed(content, kind.charset)
        except ValueError:
            if response_type == "json":
                raise ToolFailed(
                    Failure(kind="parse", code="JSON_INVALID", message="http: the body is not JSON"),
                    data=text_of(content, kind.charset),
                ) from None
            return text_of(content, kind.charset)
    if response_type == "binary":
        return base64.b64encode(content).decode("ascii")
    if response_type == "text":
        return text_of(content, kind.charset)
    return _guessed(content, kind)


def _guessed(content: bytes, kind: ContentType) -> object:
    """`auto` without a JSON type: JSON if it parses, else text, else base64."""
    is_text = kind.is_text
    if not is_text and kind.media_type in ("", _OCTETS):
        is_text = _is_utf8(content)
    if not is_text:
        return base64.b64encode(content).decode("ascii")
    try:
        return _STRICT.decode(content)
    except (ValueError, RecursionError):
        return text_of(content, kind.charset)


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return b"\0" not in content


def text_of(content: bytes, charset: str) -> str:
    try:
        return content.decode(charset, "replace")
    except (LookupError, UnicodeError):
        return content.decode("utf-8", "replace")


def parsed(content: bytes, charset: str = "utf-8") -> object:
    """JSON as values that can be recorded: NaN, Infinity and numbers beyond a float are null (dsl §8.6).

    Raises ValueError.  The strict reader is the fast one; what it refuses is read again by the lenient one.
    """
    try:
        return _STRICT.decode(content)
    except (ValueError, RecursionError):
        text = text_of(content, "utf-8-sig" if charset == "utf-8" else charset)
    try:
        value = json.loads(text, parse_constant=lambda _: None, parse_float=_finite)
        return _storable(value) if "\\u" in text else value
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _storable(value: object) -> object:
    """Half of a surrogate pair is no text that can be stored."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, dict):
        return {str(_storable(key)): _storable(item) for key, item in value.items()}
    return value
