"""Where a payload lives: small ones travel with the event's own statement, large ones are stored before it."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from noetl.core.codec import canonical_bytes, parse_json
from noetl.core.errors import PayloadMissing, Transient
from noetl.core.limits import PAYLOAD_INLINE_BYTES_MAX
from noetl.core.reference import MEDIA_JSON, Payload, Reference, address, reference_from_json
from noetl.ports.payloads import LargePayloadStore, PayloadStore

STORE_SMALL = "db"
STORE_LARGE = "file"
CACHE_BYTES_MAX = 64 * 1024 * 1024
ASK_AGAIN_SECONDS = 0.5
T = TypeVar("T")
log = logging.getLogger("noetl.payloads")


class _Cache:
    """Parsed values by owner and digest; the longest unused go first."""

    def __init__(self) -> None:
        self._values: OrderedDict[tuple[str, str, str], tuple[int, object]] = OrderedDict()
        self._bytes = 0

    def find(self, key: tuple[str, str, str]) -> tuple[int, object] | None:
        found = self._values.get(key)
        if found is not None:
            self._values.move_to_end(key)
        return found

    def keep(self, key: tuple[str, str, str], size: int, value: object) -> None:
        if key in self._values or size > CACHE_BYTES_MAX // 8:
            return
        self._values[key] = (size, value)
        self._bytes += size
        while self._bytes > CACHE_BYTES_MAX:
            _, (dropped, _value) = self._values.popitem(last=False)
            self._bytes -= dropped


class _Patient:
    def __init__(self, store: PayloadStore) -> None:
        self._store = store

    async def put(self, payload: Payload) -> None:
        await _patiently(lambda: self._store.put(payload))

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        return await _patiently(
            lambda: self._store.get(reference, tenant_id=tenant_id, organization_id=organization_id)
        )


class _PatientLarge(_Patient):
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


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except Transient as error:
            log.warning("waiting for a payload store", extra={"event": "payload.unavailable", "reason": str(error)})
            await asyncio.sleep(ASK_AGAIN_SECONDS)


class Payloads:
    """Addresses new payloads and reads old ones, with a small cache of parsed values in front."""

    def __init__(self, *, small: PayloadStore, large: LargePayloadStore) -> None:
        self._small = small
        self._large = large
        self._stores: Mapping[str, PayloadStore] = {STORE_SMALL: small, STORE_LARGE: large}
        self._cache = _Cache()

    def patient(self) -> Payloads:
        """For a worker, whose command would otherwise fail: a store that is away for a while is asked again until it
        answers.  The cache is the same."""
        patient = Payloads(small=_Patient(self._small), large=_PatientLarge(self._large))
        patient._cache = self._cache
        return patient

    async def keep_json(
        self, value: object, *, tenant_id: str, organization_id: str, media_type: str = MEDIA_JSON
    ) -> Payload:
        payload = await self.keep(
            canonical_bytes(value),
            tenant_id=tenant_id,
            organization_id=organization_id,
            media_type=media_type,
        )
        reference = payload.reference
        self._cache.keep((tenant_id, organization_id, reference.sha256), reference.bytes, value)
        return payload

    async def keep(
        self,
        content: bytes,
        *,
        tenant_id: str,
        organization_id: str,
        media_type: str,
    ) -> Payload:
        """Address bytes.  A large payload is durable when this returns; a small one must travel with its event."""
        store = STORE_SMALL if len(content) <= PAYLOAD_INLINE_BYTES_MAX else STORE_LARGE
        payload = address(
            content, media_type=media_type, store=store, tenant_id=tenant_id, organization_id=organization_id
        )
        if store == STORE_LARGE:
            await self._large.put(payload)
        return payload

    async def keep_stream(
        self, chunks: AsyncIterator[bytes], *, tenant_id: str, organization_id: str, media_type: str
    ) -> Reference:
        """Store bytes as they arrive.  They are durable when this returns, however few they were."""
        reference = await self._large.put_stream(
            chunks, media_type=media_type, tenant_id=tenant_id, organization_id=organization_id
        )
        return replace(reference, store=STORE_LARGE)

    async def store(self, payload: Payload) -> None:
        """Make a payload durable that travels with no event.  Storing it again changes nothing."""
        await self._stores[payload.reference.store].put(payload)

    async def read(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        store = self._stores.get(reference.store)
        if store is None:
            raise PayloadMissing(f"{reference.uri} is in the store {reference.store!r}, which is not configured")
        return await store.get(reference, tenant_id=tenant_id, organization_id=organization_id)

    async def read_json(self, document: Mapping[str, object], *, tenant_id: str, organization_id: str) -> Any:
        """The parsed value behind a recorded reference.  Callers must not change it."""
        reference = reference_from_json(document)
        key = (tenant_id, organization_id, reference.sha256)
        known = self._cache.find(key)
        if known is not None:
            return known[1]
        value = parse_json(await self.read(reference, tenant_id=tenant_id, organization_id=organization_id))
        self._cache.keep(key, reference.bytes, value)
        return value
