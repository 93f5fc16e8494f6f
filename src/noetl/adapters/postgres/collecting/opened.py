"""Everything of the collector that is in Postgres, for one run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from noetl.adapters.postgres.collecting.books import PostgresBooks, only_collector
from noetl.adapters.postgres.collecting.roots import PostgresRoots
from noetl.adapters.postgres.collecting.small import CollectedPayloads
from noetl.adapters.postgres.pool import Reader
from noetl.ports.data.collection import Control


@asynccontextmanager
async def open_collection(dsn: str, *, connections_max: int) -> AsyncIterator[Control]:
    """Raises CollectionBusy when another collector is at work."""
    reader = Reader(dsn, size_max=connections_max)
    try:
        await reader.open()
        async with only_collector(dsn) as turn:
            yield Control(PostgresRoots(reader), CollectedPayloads(reader), PostgresBooks(reader), turn)
    finally:
        await reader.close()
