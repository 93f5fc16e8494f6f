"""The tables of a process from its settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from noetl.adapters.arrow.datasets.deferred import DeferredDatasets
from noetl.adapters.arrow.deferred import DeferredTables
from noetl.ports.data.datasets import Datasets
from noetl.ports.data.payloads import LargePayloadStore
from noetl.ports.data.tables import Tables

MEGABYTE = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTiers:
    """What a process may use before it asks the durable store."""

    node_id: str
    home: Path
    shared_bytes: int
    """Of all processes of the node together; 0 switches that tier off."""
    grace_seconds: float
    memory_bytes: int


def deferred_tables(store: LargePayloadStore, tiers: TableTiers) -> DeferredTables:
    """Tables in a store.  Arrow is loaded with the first one: that takes a third of a second, and most processes have
    none."""

    def make() -> Tables:
        from noetl.adapters.arrow.segments.shared import open_segments  # noqa: PLC0415 - see above
        from noetl.adapters.arrow.tables import ArrowTables  # noqa: PLC0415

        segments = open_segments(
            node_id=tiers.node_id,
            home=tiers.home,
            budget_bytes=tiers.shared_bytes,
            grace_seconds=tiers.grace_seconds,
        )
        return ArrowTables(store, segments=segments, spill=tiers.home / "spill", memory_bytes=tiers.memory_bytes)

    return DeferredTables(make)


def deferred_datasets(store: LargePayloadStore) -> DeferredDatasets:
    """Datasets in a store, loaded as late as tables are."""

    def make() -> Datasets:
        from noetl.adapters.arrow.datasets.datasets import ArrowDatasets  # noqa: PLC0415 - see above

        return ArrowDatasets(store)

    return DeferredDatasets(make)
