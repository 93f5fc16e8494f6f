"""What a doctor looks at, on Postgres."""

from __future__ import annotations

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.statements import query
from noetl.ports.durability.examination import (
    Connections,
    DeadRuntime,
    Depth,
    Depths,
    FrameDepth,
    QueueRow,
    Unprojected,
    WaitingPool,
)

_FILE = "doctor.sql"


class PostgresExamination:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def dead_runtimes(self, *, limit: int) -> list[DeadRuntime]:
        rows = await self._reader.fetch(query(_FILE, "dead_runtimes"), rows=limit)
        return [DeadRuntime(**dict(row)) for row in rows]

    async def held_by_the_dead(self, *, limit: int) -> list[QueueRow]:
        rows = await self._reader.fetch(query(_FILE, "held_by_the_dead"), rows=limit)
        return [QueueRow(**dict(row)) for row in rows]

    async def queued_after_the_end(self, *, limit: int) -> list[QueueRow]:
        rows = await self._reader.fetch(query(_FILE, "queued_after_the_end"), rows=limit)
        return [QueueRow(**dict(row)) for row in rows]

    async def unprojected(self) -> list[Unprojected]:
        return [Unprojected(**dict(row)) for row in await self._reader.fetch(query(_FILE, "unprojected"))]

    async def waiting_pools(self, *, seconds: float) -> list[WaitingPool]:
        rows = await self._reader.fetch(query(_FILE, "waiting_pools"), seconds=seconds)
        return [WaitingPool(**dict(row)) for row in rows]

    async def depths(self) -> Depths:
        rows = await self._reader.fetch(query(_FILE, "queue_depths"))
        frames = await self._reader.fetch(query(_FILE, "frame_depths"))
        due = await self._reader.fetch(query(_FILE, "timers_due"))
        return Depths(
            pools=[Depth(**dict(row)) for row in rows],
            frames=[FrameDepth(**dict(row)) for row in frames],
            timers_due=due[0]["due"],
        )

    async def connections(self) -> Connections:
        rows = await self._reader.fetch(query(_FILE, "connections"))
        return Connections(**dict(rows[0]))

    async def now(self) -> float:
        rows = await self._reader.fetch(query(_FILE, "database_clock"))
        return float(rows[0]["now"])
