"""The ledger port in memory, and taking shards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults
from noetl.adapters.memory.tables import Hold, event_of
from noetl.core.event import Event
from noetl.ports.ledger import Advance, AppendOutcome, Offer, ShardHead

# As the writer of the real one lets the database end a transaction that stands still.
HOLD_SECONDS_MAX = 10.0


class MemoryLedger:
    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._database = database
        self._faults = faults or Faults()

    async def append(self, offers: Sequence[Offer]) -> AppendOutcome:
        return await self._faults.around("append", lambda: self._database.append(offers))

    async def advance(self, advance: Advance) -> frozenset[int]:
        return await self._faults.around("advance", lambda: self._database.advance(advance))

    @asynccontextmanager
    async def hold(self, shards: Collection[int]) -> AsyncIterator[None]:
        held = self._database.tables.held
        await self._faults.around("hold", lambda: self._database.refuse_locked(shards))
        hold = Hold(asyncio.current_task(), self._database.clock.monotonic() + HOLD_SECONDS_MAX)
        held.update(dict.fromkeys(shards, hold))
        try:
            yield
        finally:
            for shard_id in shards:
                if held.get(shard_id) is hold:
                    del held[shard_id]

    async def locked(self, shards: Collection[int]) -> frozenset[int]:
        return await self._faults.around("locked", lambda: self._database.locked() & frozenset(shards))

    async def read_execution(self, execution_id: int, *, after_position: int = 0, limit: int = 10_000) -> list[Event]:
        def read() -> list[Event]:
            rows = self._database.tables.events.get(execution_id, [])
            return [event_of(row) for row in rows if row.position > after_position][:limit]

        return await self._faults.around("read_execution", read)

    async def read_shard(self, shard_id: int, *, after_position: int, limit: int = 10_000) -> list[Event]:
        def read() -> list[Event]:
            rows = self._database.tables.shards.get(shard_id, [])
            return [event_of(row) for row in rows[after_position : after_position + limit]]

        return await self._faults.around("read_shard", read)

    async def heads(self) -> list[ShardHead]:
        def read() -> list[ShardHead]:
            heads = self._database.tables.heads
            return [heads[shard_id] for shard_id in sorted(heads)]

        return await self._faults.around("heads", read)

    async def shard_of(self, execution_id: int) -> int | None:
        def read() -> int | None:
            stream = self._database.tables.streams.get(execution_id)
            return None if stream is None else stream.shard_id

        return await self._faults.around("shard_of", read)

    async def incarnation(self) -> str:
        return await self._faults.around("incarnation", lambda: self._database.tables.incarnation)

    async def own_shards(self) -> list[ShardHead]:
        """What a process does when it starts: raise the epoch of every shard and take them."""
        return await self._faults.around("own_shards", self._database.own_shards)
