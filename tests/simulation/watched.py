"""Rules for the few rows beside the ledger that decide who may write and what people are shown: watched at every write,
because a row that was wrong for a moment leaves no trace."""

from __future__ import annotations

from typing import Any

from noetl.adapters.memory.database import MemoryDatabase
from noetl.ports.ledger import ExecutionRow, ShardHead
from tests.simulation.frames import require

ENDED = frozenset(("COMPLETED", "FAILED", "CANCELLED"))


class WatchedHeads(dict[int, ShardHead]):
    """Counters and epochs of the shards.  An owner whose epoch is over cannot have the last word."""

    def __setitem__(self, shard_id: int, head: ShardHead) -> None:
        known = self.get(shard_id)
        if known is not None:
            require(head.epoch >= known.epoch, f"shard {shard_id}: epoch {head.epoch} wrote after {known.epoch}")
            require(head.next_position >= known.next_position, f"shard {shard_id}: the counter went back")
            require(head.decided_position >= known.decided_position, f"shard {shard_id}: decided again: {known} {head}")
        require(head.decided_position < head.next_position, f"shard {shard_id}: decided what is not there: {head}")
        super().__setitem__(shard_id, head)


class WatchedExecutions(dict[int, ExecutionRow]):
    """What lists and status views show: never older than it was, and an end stays an end."""

    def __setitem__(self, execution_id: int, row: ExecutionRow) -> None:
        known = self.get(execution_id)
        if known is not None:
            require(row.applied_position >= known.applied_position, f"{execution_id} is shown as it was before")
            is_back = known.status in ENDED and row.status != known.status
            require(not is_back, f"{execution_id} was {known.status} and is shown as {row.status}")
        super().__setitem__(execution_id, row)


def watch_tables(database: MemoryDatabase) -> None:
    tables: Any = database.tables
    tables.heads = WatchedHeads(tables.heads)
    tables.executions = WatchedExecutions(tables.executions)
