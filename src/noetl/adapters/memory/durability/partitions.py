"""Partitions in memory: only their names, since nothing here is divided."""

from __future__ import annotations

import datetime

from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults
from noetl.core.ids import quarters_from
from noetl.ports.durability.partitions import QUARTERS_AHEAD, Partition


class MemoryPartitions:
    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._database = database
        self._faults = faults or Faults()

    async def ensure(self, now: datetime.datetime) -> list[str]:
        def ensure() -> list[str]:
            known = self._database.tables.quarters
            missing = [quarter for quarter in quarters_from(now, QUARTERS_AHEAD) if quarter not in known]
            known.update(missing)
            return [f"event_{quarter.name}" for quarter in missing]

        return await self._faults.around("ensure_partitions", ensure)

    async def found(self) -> list[Partition]:
        def read() -> list[Partition]:
            tables = self._database.tables
            opened = [execution_id for execution_id, stream in tables.streams.items() if not stream.closed]
            found = []
            for quarter in sorted(tables.quarters, key=lambda one: one.start):
                first, after = quarter.id_bounds()
                found.append(Partition(quarter=quarter, has_open=any(first <= one < after for one in opened)))
            return found

        return await self._faults.around("partitions", read)
