"""A store for bytes of any size, as the collector sees it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

from noetl.core.locator import payload_locator
from noetl.core.reference import Reference
from noetl.ports.data.collection import Owner
from noetl.ports.data.payloads import CollectableStore, LargePayloadStore, StoredObject


class LargeStore(LargePayloadStore, CollectableStore, Protocol):
    """Streams, and can be collected."""


class CollectedLarge:
    is_local = False

    def __init__(self, name: str, store: LargeStore) -> None:
        self.name = name
        self._store = store

    def owners(self) -> AsyncIterator[tuple[str, str]]:
        return self._store.owners()

    def objects(self, *, tenant_id: str, organization_id: str) -> AsyncIterator[StoredObject]:
        return self._store.objects(tenant_id=tenant_id, organization_id=organization_id)

    async def delete(self, sha256: str, *, renewed_before: float, tenant_id: str, organization_id: str) -> bool:
        return await self._store.delete(
            sha256, renewed_before=renewed_before, tenant_id=tenant_id, organization_id=organization_id
        )

    async def contents(
        self, digests: Sequence[str], *, owner: Owner
    ) -> AsyncIterator[tuple[str, AsyncGenerator[bytes, None]]]:
        for sha256 in digests:
            yield sha256, self._stream(sha256, owner)

    async def _stream(self, sha256: str, owner: Owner) -> AsyncGenerator[bytes, None]:
        reference = Reference(
            kind="payload",
            uri=payload_locator(*owner, sha256),
            sha256=sha256,
            media_type="application/octet-stream",
            bytes=0,
            store=self.name,
        )
        async for chunk in self._store.get_stream(reference, **owner._asdict()):
            yield chunk
