"""Rows of the queue that nobody will ever take out again, in memory."""

from __future__ import annotations

from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults


class MemoryQueueLeftovers:
    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._database = database
        self._faults = faults or Faults()

    async def drop_ended(self) -> int:
        def drop() -> int:
            tables = self._database.tables
            ended = [key for key in tables.commands if tables.streams[key[0]].closed]
            for key in ended:
                del tables.commands[key]
            return len(ended)

        return await self._faults.around("drop_ended", drop)
