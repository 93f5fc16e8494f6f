"""Reading an answer: small bodies into memory, large ones to where they are kept, as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import aiohttp

from noetl.clients.http.body import OCTETS, ContentType, decoded
from noetl.clients.http.failures import storage_failure
from noetl.clients.http.whole import TooLarge, read_whole
from noetl.core.codec import ordered_bytes
from noetl.core.errors import SECRET_IN_BODY, Failure, ToolFailed
from noetl.core.limits import (
    HTTP_BODY_BYTES_IN_MEMORY_MAX,
    HTTP_BODY_BYTES_MAX,
    HTTP_MEDIA_TYPE_CHARS_MAX,
    HTTP_VALUE_BYTES_MAX,
    RESULT_BYTES_MAX,
)
from noetl.core.reference import MEDIA_JSON
from noetl.core.results.scanned import NotScanned
from noetl.ports.tool import BodySink
from noetl.tools.http.spool import BodyFile

Reference = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Body:
    """What `data` and `body` are: a value, or what is stored behind a reference."""

    value: object = None
    reference: Reference | None = None


async def read_body(
    response: aiohttp.ClientResponse, kind: ContentType, *, response_type: str, sink: BodySink | None
) -> Body:
    is_json = response_type == "json" or (response_type == "auto" and kind.is_json)
    try:
        content = await read_whole(response, _held_max(is_json, sink))
    except TooLarge as large:
        if is_json and sink is None:
            raise ToolFailed(_too_large("JSON body", RESULT_BYTES_MAX)) from None
        if is_json and sink is not None:
            return await _large_json(response, large.start, kind, response_type=response_type, sink=sink)
        return Body(await _keep(response, large.start, sink))
    value = decoded(content, kind, response_type=response_type)
    if sink is None or not isinstance(value, str) or len(value) <= HTTP_VALUE_BYTES_MAX:
        return Body(value)
    return await _kept_text(value, sink)


def _held_max(is_json: bool, sink: BodySink | None) -> int:
    if not is_json:
        return HTTP_BODY_BYTES_IN_MEMORY_MAX
    return RESULT_BYTES_MAX if sink is None else HTTP_VALUE_BYTES_MAX


# --- what is stored on its own -------------------------------------------------------------------------------


async def _large_json(
    response: aiohttp.ClientResponse, start: list[bytes], kind: ContentType, *, response_type: str, sink: BodySink
) -> Body:
    """The same value as if it were held, without holding it: only what cannot be read piece by piece is."""
    with BodyFile() as file:
        counted = _Counted(response, start, what="JSON body", bytes_max=RESULT_BYTES_MAX)
        try:
            await file.fill(counted.chunks())
            return Body(reference=await file.keep_json(sink))
        except (aiohttp.ClientError, TimeoutError):
            raise  # the server's doing, not the store's
        except OSError as error:
            raise ToolFailed(storage_failure(error)) from error
        except NotScanned:
            pass
        except ToolFailed as error:
            # What holds a credential is scrubbed as a value: what goes by in pieces cannot be.
            if error.failure.code != SECRET_IN_BODY:
                raise
        content = await asyncio.to_thread(file.read)
    return Body(await asyncio.to_thread(decoded, content, kind, response_type=response_type))


async def _kept_text(value: str, sink: BodySink) -> Body:
    """A long text, stored once for both of its names."""

    async def content() -> AsyncIterator[bytes]:
        yield ordered_bytes(value)

    try:
        return Body(reference=await sink.keep(content(), media_type=MEDIA_JSON))
    except OSError as error:
        raise ToolFailed(storage_failure(error)) from error
    except ToolFailed as error:
        if error.failure.code != SECRET_IN_BODY:
            raise
    return Body(value)


async def _keep(response: aiohttp.ClientResponse, start: list[bytes], sink: BodySink | None) -> dict[str, object]:
    """Hand the body over without holding it; the value is its reference."""
    if sink is None:
        message = f"http: a body above {HTTP_BODY_BYTES_IN_MEMORY_MAX:,} bytes needs a store, and this worker has none"
        raise ToolFailed(Failure(kind="storage_access", code="NO_STORE", message=message))
    media_type = _media_type(response.headers.get("Content-Type"))
    counted = _Counted(response, start, what="body", bytes_max=HTTP_BODY_BYTES_MAX)
    try:
        reference = await sink.keep(counted.chunks(), media_type=media_type)
    except (aiohttp.ClientError, TimeoutError):
        raise  # the server's doing, not the store's
    except OSError as error:
        raise ToolFailed(storage_failure(error)) from error
    return {"_ref": dict(reference), "media_type": media_type, "bytes": counted.size}


def _media_type(header: str | None) -> str:
    """What the server says about its body, if stores can write that down: servers send any bytes here."""
    is_plain = header is not None and header.isascii() and header.isprintable()
    return (header or OCTETS)[:HTTP_MEDIA_TYPE_CHARS_MAX] if is_plain else OCTETS


class _Counted:
    """The rest of a body as it arrives; never more than a few chunks are held."""

    def __init__(self, response: aiohttp.ClientResponse, start: list[bytes], *, what: str, bytes_max: int) -> None:
        self._response = response
        self._start = start
        self._what = what
        self._bytes_max = bytes_max
        self.size = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        start, self._start = self._start, []
        start.reverse()
        while start:
            yield self._counted(start.pop())
        async for chunk in self._response.content.iter_any():
            yield self._counted(chunk)

    def _counted(self, chunk: bytes) -> bytes:
        self.size += len(chunk)
        if self.size > self._bytes_max:
            raise ToolFailed(_too_large(self._what, self._bytes_max))
        return chunk


def _too_large(what: str, bytes_max: int) -> Failure:
    message = f"http: the {what} has more than {bytes_max:,} bytes"
    return Failure(kind="storage_quota", code="BODY_TOO_LARGE", message=message)
