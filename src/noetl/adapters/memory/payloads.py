"""The payload port in memory.  Content is checked on every read, as the real stores do."""

from __future__ import annotations

from collections.abc import AsyncIterator

from noetl.adapters.memory.faults import Faults
from noetl.core.codec import sha256_hex
from noetl.core.errors import PayloadCorrupt, PayloadMissing
from noetl.core.reference import Payload, Reference, address

Contents = dict[tuple[str, str, str], bytes]


class MemoryPayloads:
    """Over the payload table of a database, or over a place of its own."""

    def __init__(self, contents: Contents, faults: Faults | None = None) -> None:
        self._contents = contents
        self._faults = faults or Faults()

    async def put(self, payload: Payload) -> None:
        key = (payload.tenant_id, payload.organization_id, payload.reference.sha256)
        await self._faults.around("put", lambda: self._contents.setdefault(key, payload.content))

    async def put_stream(
        self, chunks: AsyncIterator[bytes], *, media_type: str, tenant_id: str, organization_id: str
    ) -> Reference:
        content = b"".join([chunk async for chunk in chunks])
        payload = address(
            content, media_type=media_type, store="memory", tenant_id=tenant_id, organization_id=organization_id
        )
        await self.put(payload)
        return payload.reference

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        key = (tenant_id, organization_id, reference.sha256)
        content = await self._faults.around("get", lambda: self._contents.get(key))
        if content is None:
            raise PayloadMissing(f"{reference.uri} is not there")
        if sha256_hex(content) != reference.sha256:
            raise PayloadCorrupt(f"{reference.uri}: the stored bytes have another digest")
        return content

    async def get_range(
        self, reference: Reference, *, offset: int, length: int, tenant_id: str, organization_id: str
    ) -> bytes:
        key = (tenant_id, organization_id, reference.sha256)
        content = await self._faults.around("get", lambda: self._contents.get(key))
        if content is None:
            raise PayloadMissing(f"{reference.uri} is not there")
        if offset + length > len(content):
            raise PayloadCorrupt(f"{reference.uri} has fewer bytes than its index says")
        return content[offset : offset + length]

    async def get_stream(self, reference: Reference, *, tenant_id: str, organization_id: str) -> AsyncIterator[bytes]:
        yield await self.get(reference, tenant_id=tenant_id, organization_id=organization_id)

    async def exists(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bool:
        return (tenant_id, organization_id, reference.sha256) in self._contents

    async def size_of(self, reference: Reference, *, tenant_id: str, organization_id: str) -> int | None:
        content = self._contents.get((tenant_id, organization_id, reference.sha256))
        return None if content is None else len(content)
