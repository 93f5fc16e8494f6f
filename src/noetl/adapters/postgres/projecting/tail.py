"""The tails of the shards on Postgres.  An event that cannot be read is told as such and stops nobody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.rows import event_of, iso
from noetl.adapters.postgres.statements import query
from noetl.core.errors import Terminal
from noetl.core.event import Event
from noetl.ports.projections import Unreadable


class PostgresTail:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def read(self, after: Mapping[int, int], *, limit: int) -> list[Event | Unreadable]:
        shards = sorted(after)
        rows = await self._reader.fetch(
            query("projecting.sql", "tail"), shards=shards, after=[after[shard] for shard in shards], rows=limit
        )
        return [_read(row) for row in rows]

    async def story(self, execution_id: int, *, after_position: int, limit: int) -> list[Event | Unreadable]:
        rows = await self._reader.fetch(
            query("reads.sql", "execution_events"),
            execution_id=execution_id,
            after_position=after_position,
            rows=limit,
        )
        return [_read(row) for row in rows]


def _read(row: Any) -> Event | Unreadable:
    try:
        return event_of(row)
    except (Terminal, ValueError) as error:
        # Other bytes than were stored, a type that this code does not know, or no JSON at all.
        return Unreadable(
            execution_id=row["execution_id"],
            event_id=row["event_id"],
            tenant_id=row["tenant_id"],
            organization_id=row["organization_id"],
            event_type=row["event_type"],
            event_time=iso(row["event_time"]),
            shard_id=row["shard_id"],
            position=row["position"],
            stream_version=row["stream_version"],
            ingest_time=iso(row["ingest_time"]),
            reason=str(error),
        )
