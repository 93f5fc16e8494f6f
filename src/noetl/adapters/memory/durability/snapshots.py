"""Snapshots in memory."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults
from noetl.core.snapshot.snapshot import Snapshot
from noetl.ports.durability.snapshots import SNAPSHOTS_KEPT


class MemorySnapshots:
    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._database = database
        self._faults = faults or Faults()

    async def newest(self, execution_id: int) -> list[Snapshot]:
        def read() -> list[Snapshot]:
            kept = self._database.tables.snapshots.get(execution_id, {})
            return [kept[position] for position in sorted(kept, reverse=True)][:SNAPSHOTS_KEPT]

        return await self._faults.around("newest_snapshots", read)

    async def save(self, snapshots: Sequence[Snapshot]) -> None:
        assert len({one.execution_id for one in snapshots}) == len(snapshots), "one snapshot of an execution at a time"

        def save() -> None:
            for one in snapshots:
                kept = self._database.tables.snapshots.setdefault(one.execution_id, {})
                before = max((position for position in kept if position < one.position), default=0)
                for position in [position for position in kept if position < before]:
                    del kept[position]
                known = kept.get(one.position)
                if known is None or _fold(known) != _fold(one):
                    kept[one.position] = one

        await self._faults.around("save_snapshots", save)


def _fold(one: Snapshot) -> tuple[str, str]:
    return one.code_version, one.upcaster_digest
