"""What a worker without the database reads and keeps through its server: payloads, and sealed credentials."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import BinaryIO
from urllib.parse import quote

from noetl.adapters.session.http_stream_link import Refused, ServerLink, owner_headers
from noetl.core.codec import sha256_hex
from noetl.core.errors import HostUnavailable, PayloadCorrupt, PayloadMissing, Transient
from noetl.core.locator import payload_locator
from noetl.core.reference import Payload, Reference
from noetl.ports.secrets import SealedCredential

SPOOL_BYTES = 1024 * 1024
AWAY_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
log = logging.getLogger("noetl.worker")


class HttpPayloads:
    """Both stores of a worker.  A small payload travels with its fact; `put` is for the others."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link

    async def put(self, payload: Payload) -> None:
        reference = payload.reference
        headers = owner_headers(payload.tenant_id, payload.organization_id) | {"Content-Type": reference.media_type}
        path = f"/api/payloads/{reference.sha256}?store={quote(reference.store, safe='')}"
        # A file, so that it is sent piece by piece and the loop has time for others.
        await _patiently(lambda: self._link.content("PUT", path, body=io.BytesIO(payload.content), headers=headers))

    async def put_stream(
        self, chunks: AsyncIterator[bytes], *, media_type: str, tenant_id: str, organization_id: str
    ) -> Reference:
        """The digest is part of the address, so the bytes wait in a temporary file until it is known."""
        with tempfile.TemporaryFile() as file:
            digest = hashlib.sha256()
            async for chunk in chunks:
                digest.update(chunk)
                file.write(chunk)
            sha256, size = digest.hexdigest(), file.tell()
            headers = owner_headers(tenant_id, organization_id) | {"Content-Type": media_type}
            path = f"/api/payloads/{sha256}"
            await _patiently(lambda: self._link.content("PUT", path, body=_chunks_of(file), headers=headers))
        return Reference(
            kind="payload",
            uri=payload_locator(tenant_id, organization_id, sha256),
            sha256=sha256,
            media_type=media_type,
            bytes=size,
            store="file",
        )

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        path = f"/api/payloads/{reference.sha256}?store={quote(reference.store, safe='')}"
        headers = owner_headers(tenant_id, organization_id)
        content = await _patiently(lambda: self._link.content("GET", path, headers=headers))
        if sha256_hex(content) != reference.sha256:
            raise PayloadCorrupt(f"{reference.uri}: the server sent other bytes")
        return content

    async def get_range(
        self, reference: Reference, *, offset: int, length: int, tenant_id: str, organization_id: str
    ) -> bytes:
        path = f"/api/payloads/{reference.sha256}?store={quote(reference.store, safe='')}"
        headers = owner_headers(tenant_id, organization_id) | {"Range": f"bytes={offset}-{offset + length - 1}"}
        content = await _patiently(lambda: self._link.content("GET", path, headers=headers))
        if len(content) != length:
            raise PayloadCorrupt(f"{reference.uri} has fewer bytes than its index says")
        return content

    async def get_stream(self, reference: Reference, *, tenant_id: str, organization_id: str) -> AsyncIterator[bytes]:
        digest = hashlib.sha256()
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        for offset in range(0, reference.bytes, SPOOL_BYTES):
            length = min(SPOOL_BYTES, reference.bytes - offset)
            chunk = await self.get_range(reference, offset=offset, length=length, **owner)
            digest.update(chunk)
            yield chunk
        if digest.hexdigest() != reference.sha256:
            raise PayloadCorrupt(f"{reference.uri}: the server sent other bytes")

    async def exists(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bool:
        path = f"/api/payloads/{reference.sha256}?store={quote(reference.store, safe='')}"
        headers = owner_headers(tenant_id, organization_id) | {"Range": "bytes=0-0"}
        try:
            await _patiently(lambda: self._link.content("GET", path, headers=headers))
        except PayloadMissing:
            return False
        return True


async def _patiently(ask: Callable[[], Awaitable[bytes]]) -> bytes:
    """Ask again while the server is away for a moment: all of this can be asked twice, and a task should not fail for
    it.  Whether the work is still ours is for the session to say."""
    for seconds in AWAY_SECONDS:
        try:
            return await ask()
        except Transient as error:
            log.info("payload not moved yet", extra={"event": "payload.unavailable", "reason": str(error)})
            await asyncio.sleep(seconds)
    return await ask()


async def _chunks_of(file: BinaryIO) -> AsyncIterator[bytes]:
    file.seek(0)
    while chunk := file.read(SPOOL_BYTES):
        yield chunk


class HttpCredentials:
    """Sealed credentials of the server; the key stays here."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link

    async def find(self, name: str, *, tenant_id: str, organization_id: str) -> SealedCredential | None:
        path = f"/api/worker/credentials/{quote(name, safe='')}"
        try:
            found = await self._link.ask("GET", path, headers=owner_headers(tenant_id, organization_id))
        except Refused as refused:
            if refused.is_not_found:
                return None
            raise
        try:
            return SealedCredential(
                name=str(found["name"]),
                type=str(found["type"]),
                tenant_id=str(found["tenant_id"]),
                organization_id=str(found["organization_id"]),
                key_id=str(found["key_id"]),
                nonce=base64.b64decode(str(found["nonce"]), validate=True),
                ciphertext=base64.b64decode(str(found["ciphertext"]), validate=True),
                updated_at=str(found["updated_at"]),
            )
        except (KeyError, ValueError) as error:
            raise HostUnavailable(f"the server's answer about a credential cannot be read: {error!r}") from error
