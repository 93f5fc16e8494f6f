"""Stores that are asked again until they answer, for workers whose command would otherwise fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from noetl.core.errors import Transient
from noetl.core.reference import Payload, Reference
from noetl.ports.data.payloads import LargePayloadStore, PayloadStore

ASK_AGAIN_SECONDS = 0.5
T = TypeVar("T")
log = logging.getLogger("noetl.payloads")


class Patient:
    def __init__(self, store: PayloadStore) -> None:
        self._store = store

    async def put(self, payload: Payload) -> None:
        await _patiently(lambda: self._store.put(payload))

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        return await _patiently(
            lambda: self._store.get(reference, tenant_id=tenant_id, organization_id=organization_id)
        )


class PatientLarge(Patient):
    def __init__(self, store: LargePayloadStore) -> None:
        super().__init__(store)
        self._large = store

    async def put_stream(
        self, chunks: AsyncIterator[bytes], *, media_type: str, tenant_id: str, organization_id: str
    ) -> Reference:
        """Tried once: what was read of a stream cannot be read again."""
        return await self._large.put_stream(
            chunks, media_type=media_type, tenant_id=tenant_id, organization_id=organization_id
        )

    async def get_range(
        self, reference: Reference, *, offset: int, length: int, tenant_id: str, organization_id: str
    ) -> bytes:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        return await _patiently(lambda: self._large.get_range(reference, offset=offset, length=length, **owner))

    def get_stream(self, reference: Reference, *, tenant_id: str, organization_id: str) -> AsyncIterator[bytes]:
        """Tried once: what was given out of a stream cannot be given again."""
        return self._large.get_stream(reference, tenant_id=tenant_id, organization_id=organization_id)

    async def exists(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bool:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        return await _patiently(lambda: self._large.exists(reference, **owner))

    async def size_of(self, reference: Reference, *, tenant_id: str, organization_id: str) -> int | None:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        return await _patiently(lambda: self._large.size_of(reference, **owner))


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except Transient as error:
            await pause(error)


async def pause(error: Transient) -> None:
    log.warning("waiting for a payload store", extra={"event": "payload.unavailable", "reason": str(error)})
    await asyncio.sleep(ASK_AGAIN_SECONDS)
