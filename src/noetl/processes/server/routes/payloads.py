"""Payloads by digest, for workers without the database: read, and put what is too large to travel with a fact."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from noetl.core.errors import PayloadCorrupt, PayloadMissing, RequestInvalid
from noetl.core.limits import PAYLOAD_INLINE_BYTES_MAX, RESULT_BYTES_MAX
from noetl.core.locator import payload_locator
from noetl.core.reference import Reference, address
from noetl.engine.payloads import STORE_LARGE, STORE_SMALL
from noetl.processes.server import models
from noetl.processes.server.bodies import answer
from noetl.processes.server.owners import Owner, owner_of
from noetl.processes.server.parts import WorkParts
from noetl.processes.server.problems import too_large
from noetl.processes.server.wire import MEDIA_TYPE_CHARS_MAX, is_media_type

OCTETS = "application/octet-stream"
_HEX = frozenset("0123456789abcdef")
# One range with both ends; of any other the whole is sent, as the protocol allows.
_RANGE = re.compile(r"bytes=([0-9]{1,15})-([0-9]{1,15})")


def router(work: WorkParts) -> APIRouter:
    found = APIRouter(tags=["payloads"])
    routes = _Routes(work)
    found.add_api_route("/api/payloads/{sha256}", routes.get, responses={200: {"content": {OCTETS: {}}}})
    found.add_api_route(
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
        self._payloads = work.payloads
        self._small = work.small
        self._large = work.large

    async def get(
        self, request: Request, sha256: str, store: Annotated[str | None, Query(max_length=20)] = None
    ) -> Response:
        """The bytes of a payload of the named tenant and organization."""
        digest, owner = _digest(sha256), owner_of(request)
        etag = f'"{digest}"'
        if request.headers.get("If-None-Match") == etag:
            return Response(status_code=304, headers={"ETag": etag})
        headers = {"ETag": etag, "Cache-Control": "private, immutable", "Accept-Ranges": "bytes"}
        wanted = _RANGE.fullmatch(request.headers.get("Range", "")) if store == STORE_LARGE else None
        if wanted is not None:
            content = await self._part(digest, owner, int(wanted[1]), int(wanted[2]))
            headers |= {"Content-Type": OCTETS, "Content-Range": f"bytes {wanted[1]}-{wanted[2]}/*"}
            return Response(content, 206, headers=headers)
        content, media_type = await self._read(digest, owner, (store,) if store else (STORE_SMALL, STORE_LARGE))
        return Response(content, headers=headers | {"Content-Type": media_type})

    async def _part(self, digest: str, owner: Owner, first: int, last: int) -> bytes:
        if last < first:
            raise RequestInvalid(f"Range: {last} is before {first}")
        try:
            reference = _reference(digest, STORE_LARGE, owner)
            return await self._large.get_range(reference, offset=first, length=last - first + 1, **owner)
        except PayloadCorrupt as error:
            raise RequestInvalid(f"Range: the payload has fewer than {last + 1} bytes") from error

    async def _read(self, digest: str, owner: Owner, stores: tuple[str, ...]) -> tuple[bytes, str]:
        """Bytes and their media type.  A file has none: the reference that names it knows."""
        for store in stores:
            if store == STORE_SMALL:
                found = await self._small.find(digest, **owner)
                if found is not None:
                    return found[0], found[1] if is_media_type(found[1]) else OCTETS
                continue
            try:
                return await self._payloads.read(_reference(digest, store, owner), **owner), OCTETS
            except PayloadMissing:
                continue
        raise PayloadMissing(f"there is no payload {digest}")

    async def put(
        self, request: Request, sha256: str, store: Annotated[str | None, Query(max_length=20)] = None
    ) -> Response:
        """Store bytes.  They are durable when this answers, under the digest of the path and no other."""
        digest, owner = _digest(sha256), owner_of(request)
        media_type = request.headers.get("Content-Type", OCTETS)
        if not is_media_type(media_type):
            raise RequestInvalid(f"Content-Type must be 1 to {MEDIA_TYPE_CHARS_MAX} printable ASCII characters")
        if store == STORE_SMALL:
            reference = await self._put_small(request, media_type, owner)
        else:
            chunks = _bounded(request, RESULT_BYTES_MAX)
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
