"""Payloads by digest, for workers without the database: read, and put what is too large to travel with a fact."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from noetl.core.errors import PayloadMissing, RequestInvalid
from noetl.core.limits import RESULT_BYTES_MAX
from noetl.core.locator import payload_locator
from noetl.core.reference import Reference
from noetl.engine.payloads import STORE_LARGE, STORE_SMALL
from noetl.processes.server import models
from noetl.processes.server.bodies import answer
from noetl.processes.server.owners import Owner, owner_of
from noetl.processes.server.parts import WorkParts
from noetl.processes.server.problems import too_large
from noetl.processes.server.wire import MEDIA_TYPE_CHARS_MAX, is_media_type

OCTETS = "application/octet-stream"
_HEX = frozenset("0123456789abcdef")


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
        content, media_type = await self._read(digest, owner, (store,) if store else (STORE_SMALL, STORE_LARGE))
        headers = {"ETag": etag, "Cache-Control": "private, immutable", "Content-Type": media_type}
        return Response(content, headers=headers)

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

    async def put(self, request: Request, sha256: str) -> Response:
        """Store bytes.  They are durable when this answers, under the digest of the path and no other."""
        digest, owner = _digest(sha256), owner_of(request)
        media_type = request.headers.get("Content-Type", OCTETS)
        if not is_media_type(media_type):
            raise RequestInvalid(f"Content-Type must be 1 to {MEDIA_TYPE_CHARS_MAX} printable ASCII characters")
        reference = await self._large.put_stream(_bounded(request), media_type=media_type, **owner)
        if reference.sha256 != digest:
            raise RequestInvalid(f"the bytes have the digest {reference.sha256}, not the one of the path")
        return answer(reference.to_json(), 201)


async def _bounded(request: Request) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > RESULT_BYTES_MAX:
            raise too_large(RESULT_BYTES_MAX)
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
