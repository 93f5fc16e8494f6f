"""Checkpoints in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults
from noetl.adapters.memory.tables import StoredEvent, event_of
from noetl.core.ids import is_system, system_execution_of
from noetl.ports.durability.checkpoints import Barrier, Checkpoint
from noetl.ports.durability.roles import RoleLease

Applied = Callable[[], Mapping[int, tuple[int, int]]]
"""How far projectors are: the position and the id of the last event, by shard."""


class MemoryCheckpoints:
    def __init__(
        self, database: MemoryDatabase, faults: Faults | None = None, *, applied: Applied | None = None
    ) -> None:
        self._database = database
        self._applied = applied or self._projected
        self._faults = faults or Faults()

    async def barriers(self) -> list[Barrier]:
        return await self._faults.around("barriers", self._barriers)

    def _barriers(self) -> list[Barrier]:
        tables, applied = self._database.tables, self._applied()
        found = []
        for shard_id in sorted(tables.heads):
            position, event_id = applied.get(shard_id, (0, 0))
            rows = tables.checkpoints.get(system_execution_of(shard_id), [])
            covered = rows[-1].position if rows else 0
            first = self._uncovered(shard_id, covered)
            clock = self._database.clock
            found.append(
                Barrier(
                    shard_id=shard_id,
                    applied_position=position,
                    last_event_id=event_id,
                    epoch=rows[-1].epoch if rows else 0,
                    position=covered,
                    uncovered_ms=None if first is None else -1000 * clock.seconds_until(first.ingest_time),
                    is_due=first is not None and first.position <= position,
                )
            )
        return found

    def _projected(self) -> dict[int, tuple[int, int]]:
        tables = self._database.tables
        shards = {
            shard_id: row.position
            for shard_id, row in tables.projections.items()
            if row.incarnation == tables.incarnation and row.position
        }
        return {
            shard_id: (position, event_of(tables.shards[shard_id][position - 1]).event_id)
            for shard_id, position in shards.items()
        }

    def _uncovered(self, shard_id: int, covered: int) -> StoredEvent | None:
        behind = self._database.tables.shards[shard_id][covered:]
        return next((row for row in behind if not is_system(event_of(row).execution_id)), None)

    async def commit(self, checkpoints: Sequence[Checkpoint], *, lease: RoleLease) -> frozenset[int]:
        def commit() -> frozenset[int]:
            row = self._database.tables.roles.get(lease.role)
            if row is None or (row.runtime_id, row.epoch) != (lease.runtime_id, lease.epoch):
                return frozenset()
            free = [one for one in checkpoints if one.shard_id not in self._database.locked()]
            self._database.checkpoint(free)
            return frozenset(one.shard_id for one in free)

        return await self._faults.around("commit_checkpoints", commit)
