"""Small payloads in `noetl.payload`.  Most arrive with the commit of their event; `put` is for the rest."""

from __future__ import annotations

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.statements import query
from noetl.core.codec import sha256_hex
from noetl.core.errors import PayloadCorrupt, PayloadMissing
from noetl.core.locator import payload_locator
from noetl.core.reference import Payload, Reference


class PostgresPayloads:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def put(self, payload: Payload) -> None:
        await self._reader.fetch(
            query("reads.sql", "put_payload"),
            tenant_id=payload.tenant_id,
            organization_id=payload.organization_id,
            sha256=payload.reference.sha256,
            media_type=payload.reference.media_type,
            content=payload.content,
        )

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        found = await self.find(reference.sha256, tenant_id=tenant_id, organization_id=organization_id)
        if found is None:
            raise PayloadMissing(f"{reference.uri} is not in noetl.payload")
        return found[0]

    async def find(self, sha256: str, *, tenant_id: str, organization_id: str) -> tuple[bytes, str] | None:
        """The bytes of a digest, verified, and their media type."""
        rows = await self._reader.fetch(
            query("reads.sql", "payload"), tenant_id=tenant_id, organization_id=organization_id, sha256=sha256
        )
        if not rows:
            return None
        content: bytes = rows[0]["content"]
        if sha256_hex(content) != sha256:
            raise PayloadCorrupt(
                f"{payload_locator(tenant_id, organization_id, sha256)}: the stored bytes have another digest"
            )
        return content, str(rows[0]["media_type"])
