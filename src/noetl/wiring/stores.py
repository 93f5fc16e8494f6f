"""Where payloads and tables are: stores, tiers, keys."""

from __future__ import annotations

import contextlib

from noetl.adapters.arrow.build import TableTiers, deferred_datasets, deferred_tables
from noetl.adapters.arrow.datasets.deferred import DeferredDatasets
from noetl.adapters.arrow.deferred import DeferredTables
from noetl.adapters.crypto.chunks import ChunkSeal
from noetl.adapters.crypto.keys import payload_key
from noetl.adapters.objects.build import StoreKeys, payload_stores
from noetl.adapters.objects.leftovers import FileLeftovers
from noetl.adapters.postgres.collecting.opened import open_collection
from noetl.adapters.sqlite.holdings import SqliteHoldings
from noetl.core.collection.plan import Policy
from noetl.engine.collecting.collector import Collector, CollectorParts
from noetl.engine.collecting.large import CollectedLarge
from noetl.engine.collecting.report import Report
from noetl.ports.data.payloads import LargePayloadStore
from noetl.settings import Settings


def tables_over(store: LargePayloadStore, settings: Settings) -> DeferredTables:
    tiers = TableTiers(
        node_id=settings.node_id,
        home=settings.home,
        shared_bytes=settings.tier15_budget_bytes,
        grace_seconds=settings.tier15_grace_seconds,
        memory_bytes=settings.tier1_memory_bytes,
    )
    return deferred_tables(store, tiers)


def datasets_over(store: LargePayloadStore) -> DeferredDatasets:
    return deferred_datasets(store)


def local_tables(settings: Settings) -> DeferredTables:
    """The tables in the store of this home, without an engine."""
    stores = payload_stores(settings.storage, files=settings.home / "payloads", keys=payload_keys(settings))
    return tables_over(stores.large, settings)


def payload_keys(settings: Settings) -> StoreKeys:
    return StoreKeys(key=payload_key(settings.payload_key, settings.payload_key_file), seal_of=ChunkSeal)


async def collect_payloads(settings: Settings, database: str, policy: Policy, **how: bool) -> Report:
    """Look for payloads that nothing names, and delete those whose grace is over.  Raises CollectionBusy."""
    root = settings.home / "payloads"
    durable = payload_stores(settings.storage, files=root, keys=payload_keys(settings)).durable
    large = [CollectedLarge(name, store) for name, store in durable.items()]
    async with open_collection(database, connections_max=settings.reader_connections) as control:
        with contextlib.closing(SqliteHoldings()) as holdings:
            left = (FileLeftovers(root),)
            parts = CollectorParts(control=control, large=large, holdings=holdings, leftovers=left)
            return await Collector(parts, policy, **how).run()
