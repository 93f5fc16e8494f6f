"""What a worker without the database reads and keeps through its server: payloads, and sealed credentials."""

from __future__ import annotations

import base64
import hashlib
import io
import tempfile
from collections.abc import AsyncIterator
from typing import BinaryIO
from urllib.parse import quote

from noetl.adapters.session.http_stream_link import Refused, ServerLink, owner_headers
from noetl.core.codec import sha256_hex
from noetl.core.errors import HostUnavailable, PayloadCorrupt
from noetl.core.locator import payload_locator
from noetl.core.reference import Payload, Reference
from noetl.ports.secrets import SealedCredential

SPOOL_BYTES = 1024 * 1024


class HttpPayloads:
    """Both stores of a worker.  A small payload travels with its fact; `put` is for the large ones."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link

    async def put(self, payload: Payload) -> None:
        reference = payload.reference
        headers = owner_headers(payload.tenant_id, payload.organization_id) | {"Content-Type": reference.media_type}
        # A file, so that it is sent piece by piece and the loop has time for others.
        content = io.BytesIO(payload.content)
        await self._link.content("PUT", f"/api/payloads/{reference.sha256}", body=content, headers=headers)

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
            answer = await self._link.content("PUT", f"/api/payloads/{sha256}", body=_chunks_of(file), headers=headers)
            assert answer
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
        content = await self._link.content("GET", path, headers=owner_headers(tenant_id, organization_id))
        if sha256_hex(content) != reference.sha256:
            raise PayloadCorrupt(f"{reference.uri}: the server sent other bytes")
        return content


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
