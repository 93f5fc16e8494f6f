"""Reading in memory: the tails of the ledger, and what people are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults
from noetl.adapters.memory.tables import StoredEvent, event_of
from noetl.core.codec import parse_json
from noetl.core.errors import Terminal
from noetl.core.event import Event, kind_of
from noetl.ports.projections import ShownExecution, Unreadable


class MemoryTail:
    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._database = database
        self._faults = faults or Faults()

    async def read(self, after: Mapping[int, int], *, limit: int) -> list[Event | Unreadable]:
        def read() -> list[Event | Unreadable]:
            shards = self._database.tables.shards
            return [_read(row) for shard in sorted(after) for row in shards[shard][after[shard] : after[shard] + limit]]

        return await self._faults.around("tail", read)

    async def story(self, execution_id: int, *, after_position: int, limit: int) -> list[Event | Unreadable]:
        def read() -> list[Event | Unreadable]:
            rows = self._database.tables.events.get(execution_id, [])
            return [_read(row) for row in rows if row.position > after_position][:limit]

        return await self._faults.around("story", read)


class MemoryExecutionViews:
    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._database = database
        self._faults = faults or Faults()

    async def find(self, execution_id: int, *, tenant_id: str, organization_id: str) -> ShownExecution | None:
        def read() -> ShownExecution | None:
            tables = self._database.tables
            row = tables.executions.get(execution_id)
            if row is None or (row.tenant_id, row.organization_id) != (tenant_id, organization_id):
                return None
            projected = tables.projections.get(row.shard_id)
            return ShownExecution(row=row, watermark=projected.position if projected else 0)

        return await self._faults.around("shown_execution", read)

    async def is_recorded(self, execution_id: int, *, tenant_id: str, organization_id: str) -> bool:
        def read() -> bool:
            rows = self._database.tables.events.get(execution_id, [])
            owners = [(event.tenant_id, event.organization_id) for event in map(event_of, rows[:1])]
            return owners == [(tenant_id, organization_id)]

        return await self._faults.around("is_recorded", read)

    async def positions(self, execution_ids: Sequence[int]) -> dict[int, tuple[int, str]]:
        def read() -> dict[int, tuple[int, str]]:
            tables = self._database.tables
            found = {}
            for execution_id in execution_ids:
                row = tables.executions.get(execution_id)
                if row is not None:
                    projected = tables.projections.get(row.shard_id)
                    position = max(row.applied_position, projected.position if projected else 0)
                    found[execution_id] = (position, row.status)
            return found

        return await self._faults.around("shown_positions", read)


def _read(row: StoredEvent) -> Event | Unreadable:
    try:
        event = event_of(row)
        kind_of(event)
    except (Terminal, ValueError) as error:
        document: Any = parse_json(row.text)
        return Unreadable(
            execution_id=document["execution_id"],
            event_id=document["event_id"],
            tenant_id=document["tenant_id"],
            organization_id=document["organization_id"],
            event_type=row.event_type,
            event_time=document["event_time"],
            shard_id=row.shard_id,
            position=row.position,
            stream_version=row.stream_version,
            ingest_time=row.ingest_time,
            reason=str(error),
        )
    return event
