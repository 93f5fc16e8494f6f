"""Where a payload lives: small ones travel with the event's own statement, large ones are stored before it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from noetl.core.codec import canonical_bytes, parse_json
from noetl.core.errors import PayloadMissing
from noetl.core.limits import PAYLOAD_INLINE_BYTES_MAX
from noetl.core.reference import MEDIA_JSON, Payload, Reference, address, reference_from_json
from noetl.ports.payloads import PayloadStore

STORE_SMALL = "db"
STORE_LARGE = "file"
CACHE_BYTES_MAX = 64 * 1024 * 1024


class Payloads:
    """Addresses new payloads and reads old ones, with a small cache of parsed values in front."""

    def __init__(self, *, small: PayloadStore, large: PayloadStore) -> None:
        self._stores: Mapping[str, PayloadStore] = {STORE_SMALL: small, STORE_LARGE: large}
        self._cache: OrderedDict[tuple[str, str, str], tuple[int, object]] = OrderedDict()
        self._cached_bytes = 0

    async def keep_json(
        self, value: object, *, tenant_id: str, organization_id: str, media_type: str = MEDIA_JSON
    ) -> Payload:
        payload = await self.keep(
            canonical_bytes(value),
            tenant_id=tenant_id,
            organization_id=organization_id,
            media_type=media_type,
        )
        self._remember(payload.reference, value, tenant_id, organization_id)
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
            await self._stores[STORE_LARGE].put(payload)
        return payload

    async def read(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        store = self._stores.get(reference.store)
        if store is None:
            raise PayloadMissing(f"{reference.uri} is in the store {reference.store!r}, which is not configured")
        return await store.get(reference, tenant_id=tenant_id, organization_id=organization_id)

    async def read_json(self, document: Mapping[str, object], *, tenant_id: str, organization_id: str) -> Any:
        """The parsed value behind a recorded reference.  Callers must not change it."""
        reference = reference_from_json(document)
        key = (tenant_id, organization_id, reference.sha256)
        known = self._cache.get(key)
        if known is not None:
            self._cache.move_to_end(key)
            return known[1]
        value = parse_json(await self.read(reference, tenant_id=tenant_id, organization_id=organization_id))
        self._remember(reference, value, tenant_id, organization_id)
        return value

    def _remember(self, reference: Reference, value: object, tenant_id: str, organization_id: str) -> None:
        key = (tenant_id, organization_id, reference.sha256)
        if key in self._cache or reference.bytes > CACHE_BYTES_MAX // 8:
            return
        self._cache[key] = (reference.bytes, value)
        self._cached_bytes += reference.bytes
        while self._cached_bytes > CACHE_BYTES_MAX:
            _, (size, _value) = self._cache.popitem(last=False)
            self._cached_bytes -= size
