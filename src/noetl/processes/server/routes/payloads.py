"""Payloads by digest, for workers without the database: read, and put what is too large to travel with a fact."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from noetl.core.errors import PayloadMissing, RequestInvalid
from noetl.core.limits import PAYLOAD_BYTES_MAX, PAYLOAD_INLINE_BYTES_MAX
from noetl.core.locator import payload_locator
from noetl.core.reference import STORE_ANY, STORE_SMALL, Reference, address
from noetl.core.storage import LARGE_STORES
from noetl.processes.server import models
from noetl.processes.server.bodies import answer
from noetl.processes.server.owners import Owner, owner_of
from noetl.processes.server.parts import WorkParts
from noetl.processes.server.problems import too_large
from noetl.processes.server.reading.ranges import Part, is_known, wanted_part
from noetl.processes.server.wire import MEDIA_TYPE_CHARS_MAX, is_media_type

OCTETS = "application/octet-stream"
PIECE_BYTES = 1024 * 1024
_HEX = frozenset("0123456789abcdef")
_STORES = (STORE_SMALL, *LARGE_STORES)


def router(work: WorkParts) -> APIRouter:
    found = APIRouter(tags=["payloads"])
    routes = _Routes(work)
    add = found.add_api_route
    add("/api/payloads/{sha256}", routes.get, responses={200: {"content": {OCTETS: {}}}})
    add("/api/payloads/{sha256}", routes.head, methods=["HEAD"], responses={200: {"content": {OCTETS: {}}}})
    add(
        "/api/payloads/{sha256}",
        routes.put,
        methods=["PUT"],
        status_code=201,
        responses={201: {"model": models.StoredView}},
        openapi_extra={"requestBody": {"required": True, "content": {OCTETS: {"schema": {"type": "string"}}}}},
    )
    return found


class _Routes:
    def __init__(self, work: WorkParts) -> None:
        self._small = work.small
        self._large = work.large
        self._large_name = work.payloads.large_name

    async def get(
        self, request: Request, sha256: str, store: Annotated[str | None, Query(max_length=20)] = None
    ) -> Response:
        """The bytes of a payload of the named tenant and organization, or one range of them."""
        digest, owner = _digest(sha256), owner_of(request)
        headers = _headers(digest)
        if _may_be_small(store):
            found = await self._small.find(digest, **owner)
            if found is not None:
                return _small_answer(request, found, headers)
        reference = _reference(digest, _large_store(store), owner)
        size = await self._large.size_of(reference, **owner)
        if size is None:
            raise PayloadMissing(f"there is no payload {digest}")
        if _is_known(request, headers):
            return Response(status_code=304, headers=headers)
        headers["Content-Type"] = OCTETS
        part = _part(request, size, headers)
        if part is None:
            body = await _started(self._large.get_stream(reference, **owner))
            return StreamingResponse(body, headers=headers | {"Content-Length": str(size)})
        headers |= {"Content-Range": _content_range(part, size), "Content-Length": str(part.length)}
        body = await _started(self._pieces(reference, owner, part.first, part.first + part.length))
        return StreamingResponse(body, 206, headers=headers)

    async def _pieces(self, reference: Reference, owner: Owner, first: int, end: int) -> AsyncIterator[bytes]:
        for offset in range(first, end, PIECE_BYTES):
            length = min(PIECE_BYTES, end - offset)
            yield await self._large.get_range(reference, offset=offset, length=length, **owner)

    async def head(
        self, request: Request, sha256: str, store: Annotated[str | None, Query(max_length=20)] = None
    ) -> Response:
        """Whether there is such a payload, and how many bytes it has."""
        digest, owner = _digest(sha256), owner_of(request)
        headers = _headers(digest)
        found = await self._small.find(digest, **owner) if _may_be_small(store) else None
        if found is not None:
            media_type = found[1] if is_media_type(found[1]) else OCTETS
            return _head_answer(request, len(found[0]), headers | {"Content-Type": media_type})
        size = await self._large.size_of(_reference(digest, _large_store(store), owner), **owner)
        if size is None:
            raise PayloadMissing(f"there is no payload {digest}")
        return _head_answer(request, size, headers | {"Content-Type": OCTETS})

    async def put(
        self, request: Request, sha256: str, store: Annotated[str | None, Query(max_length=20)] = None
    ) -> Response:
        """Store bytes.  They are durable when this answers, under the digest of the path and no other."""
        digest, owner = _digest(sha256), owner_of(request)
        media_type = request.headers.get("Content-Type", OCTETS)
        if not is_media_type(media_type):
            raise RequestInvalid(f"Content-Type must be 1 to {MEDIA_TYPE_CHARS_MAX} printable ASCII characters")
        if store is not None and store not in (STORE_SMALL, self._large_name):
            raise RequestInvalid(f"store: new payloads go to {STORE_SMALL} or {self._large_name}, not to {store!r}")
        if store == STORE_SMALL:
            reference = await self._put_small(request, media_type, owner)
        else:
            chunks = _bounded(request, PAYLOAD_BYTES_MAX)
            reference = await self._large.put_stream(chunks, media_type=media_type, **owner)
        if reference.sha256 != digest:
            raise RequestInvalid(f"the bytes have the digest {reference.sha256}, not the one of the path")
        return answer(reference.to_json(), 201)

    async def _put_small(self, request: Request, media_type: str, owner: Owner) -> Reference:
        """Bytes that travel with no fact, for the table in which those that do are found."""
        content = b"".join([chunk async for chunk in _bounded(request, PAYLOAD_INLINE_BYTES_MAX)])
        payload = address(content, media_type=media_type, store=STORE_SMALL, **owner)
        await self._small.put(payload)
        return payload.reference


def _headers(digest: str) -> dict[str, str]:
    return {"ETag": f'"{digest}"', "Cache-Control": "private, immutable", "Accept-Ranges": "bytes"}


def _may_be_small(store: str | None) -> bool:
    return store in (None, STORE_SMALL)


def _large_store(store: str | None) -> str:
    """The store that a request names.  A name that no store has is a payload that nobody has."""
    if store == STORE_SMALL or (store is not None and store not in _STORES):
        raise PayloadMissing("there is no such payload in this store")
    return store or STORE_ANY


def _small_answer(request: Request, found: tuple[bytes, str], headers: dict[str, str]) -> Response:
    content, media_type = found
    if _is_known(request, headers):
        return Response(status_code=304, headers=headers)
    headers["Content-Type"] = media_type if is_media_type(media_type) else OCTETS
    part = _part(request, len(content), headers)
    if part is None:
        return Response(content, headers=headers)
    headers["Content-Range"] = _content_range(part, len(content))
    return Response(content[part.first : part.first + part.length], 206, headers=headers)


def _head_answer(request: Request, size: int, headers: dict[str, str]) -> Response:
    if _is_known(request, headers):
        return Response(status_code=304, headers=headers)
    return Response(headers=headers | {"Content-Length": str(size)})


def _is_known(request: Request, headers: Mapping[str, str]) -> bool:
    """Whether the reader has the payload; asked only about one that is there."""
    return is_known(request.headers.get("If-None-Match"), headers["ETag"])


def _part(request: Request, size: int, headers: Mapping[str, str]) -> Part | None:
    asked = request.headers.get("Range"), request.headers.get("If-Range")
    return wanted_part(*asked, size=size, etag=headers["ETag"])


def _content_range(part: Part, size: int) -> str:
    return f"bytes {part.first}-{part.first + part.length - 1}/{size}"


async def _started(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A body whose first chunk is there: what is wrong with it by then is still an answer.  What is wrong later breaks
    the connection off before the last chunk, so that nobody takes it for whole."""
    behind = _one_behind(chunks)
    first = await anext(behind, b"")

    async def body() -> AsyncIterator[bytes]:
        yield first
        async for chunk in behind:
            yield chunk

    return body()


async def _one_behind(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same chunks, each when the next one or a good end came."""
    last: bytes | None = None
    async for chunk in chunks:
        if last is not None:
            yield last
        last = chunk
    if last is not None:
        yield last


async def _bounded(request: Request, bytes_max: int) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > bytes_max:
            raise too_large(bytes_max)
        if chunk:
            yield chunk


def _digest(text: str) -> str:
    if len(text) != 64 or not _HEX.issuperset(text):
        raise PayloadMissing("there is no such payload: a payload is named by its lower-case SHA-256")
    return text


def _reference(digest: str, store: str, owner: Owner) -> Reference:
    return Reference(
        kind="payload",
        uri=payload_locator(*_names(owner), digest),
        sha256=digest,
        media_type=OCTETS,
        bytes=0,
        store=store,
    )


def _names(owner: Owner) -> tuple[str, str]:
    return owner.tenant_id, owner.organization_id
