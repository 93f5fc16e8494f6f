"""The stores that a process has, made from what its settings name."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from noetl.adapters.objects.adopting import chunks_of
from noetl.adapters.objects.blobs import Seal
from noetl.adapters.objects.content import ContentPayloads
from noetl.adapters.objects.disk_cache import CachedPayloads
from noetl.adapters.objects.filesystem import FilePayloads
from noetl.core.errors import PayloadMissing, SettingsInvalid, StoreRefused, Transient
from noetl.core.reference import STORE_ANY, Payload, Reference
from noetl.core.secret import Secret
from noetl.core.storage import FILE, LARGE_STORES, MEMORY, Cloud, Storage
from noetl.ports.data.counters import Sample
from noetl.ports.data.payloads import AdoptsFiles, HasFiles, LargePayloadStore

log = logging.getLogger("noetl.payloads")
SealOf = Callable[[Secret[bytes]], Seal]
# Everybody can compute it: without a key of the user's, the seal of a cache's entry is a checksum and no secret.
_CACHE_KEY: Secret[bytes] = Secret(hashlib.sha256(b"entries of the disk cache of NoETL").digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKeys:
    """The key of payloads at rest, if there is one, and what makes a seal of a key."""

    key: Secret[bytes] | None
    seal_of: SealOf

    @property
    def seal(self) -> Seal | None:
        return None if self.key is None else self.seal_of(self.key)

    @property
    def cache_seal(self) -> Seal:
        return self.seal_of(self.key or _CACHE_KEY)


class RoutedPayloads:
    """One store made of several: a payload goes to the store that its reference names, a stream to the store `name`.
    What names no store is looked for in all of them."""

    def __init__(self, stores: Mapping[str, LargePayloadStore], *, name: str) -> None:
        self._stores = stores
        self._name = name

    async def put(self, payload: Payload) -> None:
        await self._named(payload.reference).put(payload)

    async def put_stream(
        self, chunks: AsyncIterator[bytes], *, media_type: str, tenant_id: str, organization_id: str
    ) -> Reference:
        return await self._stores[self._name].put_stream(
            chunks, media_type=media_type, tenant_id=tenant_id, organization_id=organization_id
        )

    async def put_file(self, path: Path, *, media_type: str, tenant_id: str, organization_id: str) -> Reference:
        """As it is, where the store can do that."""
        store = self._stores[self._name]
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        if isinstance(store, AdoptsFiles):
            return await store.put_file(path, media_type=media_type, **owner)
        reference = await store.put_stream(chunks_of(path), media_type=media_type, **owner)
        await asyncio.to_thread(path.unlink, missing_ok=True)
        return reference

    async def file_of(self, reference: Reference, *, tenant_id: str, organization_id: str) -> Path | None:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        store = await self._holding(reference, **owner)
        return await store.file_of(reference, **owner) if isinstance(store, HasFiles) else None

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        return await (await self._holding(reference, **owner)).get(reference, **owner)

    async def get_range(
        self, reference: Reference, *, offset: int, length: int, tenant_id: str, organization_id: str
    ) -> bytes:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        return await (await self._holding(reference, **owner)).get_range(
            reference, offset=offset, length=length, **owner
        )

    async def get_stream(self, reference: Reference, *, tenant_id: str, organization_id: str) -> AsyncIterator[bytes]:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        async for chunk in (await self._holding(reference, **owner)).get_stream(reference, **owner):
            yield chunk

    async def exists(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bool:
        return await self.size_of(reference, tenant_id=tenant_id, organization_id=organization_id) is not None

    async def size_of(self, reference: Reference, *, tenant_id: str, organization_id: str) -> int | None:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        return await (await self._holding(reference, **owner)).size_of(reference, **owner)

    def _named(self, reference: Reference) -> LargePayloadStore:
        store = self._stores.get(reference.store)
        if store is None:
            raise PayloadMissing(
                f"{reference.uri} is in the store {reference.store!r}, which is not configured here: "
                "see NOETL_STORAGE_CLOUD_TIER"
            )
        return store

    async def _holding(self, reference: Reference, *, tenant_id: str, organization_id: str) -> LargePayloadStore:
        if reference.store != STORE_ANY:
            return self._named(reference)
        for store in dict.fromkeys(self._stores.values()):
            if await store.exists(reference, tenant_id=tenant_id, organization_id=organization_id):
                return store
        return self._stores[self._name]


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadStores:
    """`durable` are the stores that this process reaches itself, by name; `large` is all of them together, with a cache
    in front of those that are far away."""

    name: str
    """The store that takes new payloads; empty when that is for the server to say."""
    durable: Mapping[str, ContentPayloads]
    large: RoutedPayloads
    caches: tuple[CachedPayloads, ...]

    def samples(self) -> Iterator[Sample]:
        """What the caches counted, together."""
        totals: Counter[str] = Counter()
        for cache in self.caches:
            totals.update({name: int(value) for name, _, value in cache.counters.samples()})
        for name, value in totals.items():
            yield name, {}, value

    async def prepare(self) -> None:
        """At the start of a process.  One that is away may come back; one that refuses us is a wrong setting."""
        for name, store in self.durable.items():
            try:
                await store.prepare()
            except StoreRefused as error:
                raise SettingsInvalid(f"the payload store {name} cannot be used: {error}") from error
            except Transient as error:
                log.warning("payload store is away", extra={"event": "payload.unavailable", "reason": str(error)})


def payload_stores(storage: Storage, *, files: Path, keys: StoreKeys) -> PayloadStores:
    """Every store of the settings.  One that was the tier before stays readable for as long as it is configured."""
    durable: dict[str, ContentPayloads] = {FILE: FilePayloads(files, seal=keys.seal)}
    if storage.tier == MEMORY:
        durable[MEMORY] = _memory(keys.seal)
    if storage.cloud is not None:
        durable[storage.cloud.kind] = _cloud(storage.cloud, keys.seal)
    read: dict[str, LargePayloadStore] = dict(durable)
    caches = _cached(storage, read, [] if storage.cloud is None else [storage.cloud.kind], keys)
    large = RoutedPayloads(read, name=storage.tier)
    return PayloadStores(name=storage.tier, durable=durable, large=large, caches=caches)


def worker_stores(storage: Storage, *, server: LargePayloadStore, keys: StoreKeys) -> PayloadStores:
    """The stores of a worker: straight to a bucket that its settings name, through its server to everything else."""
    durable = {} if storage.cloud is None else {storage.cloud.kind: _cloud(storage.cloud, keys.seal)}
    read: dict[str, LargePayloadStore] = {**dict.fromkeys(LARGE_STORES, server), **durable}
    caches = _cached(storage, read, list(read), keys)
    name = storage.tier if storage.tier in durable else ""
    large = RoutedPayloads(read, name=name or FILE)
    return PayloadStores(name=name, durable=durable, large=large, caches=caches)


def _cached(
    storage: Storage, read: dict[str, LargePayloadStore], names: list[str], keys: StoreKeys
) -> tuple[CachedPayloads, ...]:
    """Put the disk cache, if there is one, before the named stores: those that are not on this machine."""
    if storage.cache_dir is None:
        return ()
    folder, seal = Path(storage.cache_dir), keys.cache_seal
    caches = {
        store: CachedPayloads(store, folder=folder, bytes_max=storage.cache_bytes, seal=seal)
        for store in dict.fromkeys(read[name] for name in names)
    }
    read.update({name: caches[read[name]] for name in names})
    return tuple(caches.values())


def _cloud(cloud: Cloud, seal: Seal | None) -> ContentPayloads:
    from noetl.adapters.objects.clouds import cloud_payloads  # noqa: PLC0415 - most processes need no cloud

    return cloud_payloads(cloud, seal=seal)


def _memory(seal: Seal | None) -> ContentPayloads:
    from noetl.adapters.objects.clouds import memory_payloads  # noqa: PLC0415 - only tests have one

    return memory_payloads(seal=seal)
