"""Partitions of the ledger on Postgres."""

from __future__ import annotations

import datetime

from noetl.adapters.postgres.migrate import ensure_partitions
from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.statements import query
from noetl.core.ids import quarter_named
from noetl.ports.durability.partitions import Partition

_PREFIX = "event_"


class PostgresPartitions:
    """Partitions are made on a connection of their own, which is open for as long as that takes."""

    def __init__(self, database: str, reader: Reader) -> None:
        self._database = database
        self._reader = reader

    async def ensure(self, now: datetime.datetime) -> list[str]:
        return await ensure_partitions(self._database, now)

    async def found(self) -> list[Partition]:
        rows = await self._reader.fetch(query("durability.sql", "partition_names"))
        quarters = [quarter_named(row["name"].removeprefix(_PREFIX)) for row in rows]
        known = {f"{_PREFIX}{quarter.name}": quarter for quarter in quarters if quarter is not None}
        rows = await self._reader.fetch(
            query("durability.sql", "partitions"),
            names=list(known),
            first_ids=[quarter.id_bounds()[0] for quarter in known.values()],
            after_ids=[quarter.id_bounds()[1] for quarter in known.values()],
        )
        made = [Partition(quarter=known[row["name"]], has_open=row["has_open"]) for row in rows]
        return sorted(made, key=lambda one: one.quarter.start)
