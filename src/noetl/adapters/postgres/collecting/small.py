"""The small payloads in `noetl.payload`, as the collector sees them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.statements import query
from noetl.core.codec import sha256_hex
from noetl.core.errors import PayloadCorrupt
from noetl.core.locator import payload_locator
from noetl.core.reference import STORE_SMALL
from noetl.ports.data.collection import Owner
from noetl.ports.data.payloads import StoredObject

ROWS = 2_000


class CollectedPayloads:
    name = STORE_SMALL
    is_local = True

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def owners(self) -> AsyncIterator[tuple[str, str]]:
        owner = ("", "")
        while True:
            rows = await self._reader.fetch(
                query("collection.sql", "next_owner"), tenant_id=owner[0], organization_id=owner[1]
            )
            if not rows:
                return
            owner = (rows[0]["tenant_id"], rows[0]["organization_id"])
            yield owner

    async def objects(self, *, tenant_id: str, organization_id: str) -> AsyncIterator[StoredObject]:
        last = ""
        while True:
            rows = await self._reader.fetch(
                query("collection.sql", "objects"),
                tenant_id=tenant_id,
                organization_id=organization_id,
                sha256=last,
                rows=ROWS,
            )
            for row in rows:
                yield StoredObject(row["sha256"], row["bytes"], row["renewed_at"], row["media_type"])
            if not rows:
                return
            last = rows[-1]["sha256"]

    async def contents(
        self, digests: Sequence[str], *, owner: Owner
    ) -> AsyncIterator[tuple[str, AsyncGenerator[bytes, None]]]:
        rows = await self._reader.fetch(
            query("collection.sql", "contents"),
            tenant_id=owner.tenant_id,
            organization_id=owner.organization_id,
            digests=list(digests),
        )
        for row in rows:
            yield row["sha256"], _verified(row["content"], row["sha256"], owner)

    async def delete(self, sha256: str, *, renewed_before: float, tenant_id: str, organization_id: str) -> bool:
        key = {"tenant_id": tenant_id, "organization_id": organization_id, "sha256": sha256}
        if await self._reader.fetch(query("collection.sql", "delete_payload"), renewed_before=renewed_before, **key):
            return True
        return not await self._reader.fetch(query("collection.sql", "is_there"), **key)


async def _verified(content: bytes, sha256: str, owner: Owner) -> AsyncGenerator[bytes, None]:
    yield content
    if sha256_hex(content) != sha256:
        raise PayloadCorrupt(f"{payload_locator(*owner, sha256)}: the stored bytes have another digest")
