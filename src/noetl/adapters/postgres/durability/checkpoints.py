"""Checkpoints on Postgres: the event and its row are one statement."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.statements import query
from noetl.core import limits
from noetl.core.ids import SYSTEM_ID_LIMIT
from noetl.ports.durability.checkpoints import Barrier, Checkpoint
from noetl.ports.durability.roles import RoleLease


class PostgresCheckpoints:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def barriers(self) -> list[Barrier]:
        rows = await self._reader.fetch(query("durability.sql", "barriers"), first_id=SYSTEM_ID_LIMIT)
        return [Barrier(**dict(row)) for row in rows]

    async def commit(self, checkpoints: Sequence[Checkpoint], *, lease: RoleLease) -> frozenset[int]:
        rows = await self._reader.fetch(
            query("durability.sql", "commit_checkpoints"),
            events=f"[{','.join(_row(one) for one in checkpoints)}]",
            shards=sorted(one.shard_id for one in checkpoints),
            role=lease.role,
            runtime_id=lease.runtime_id,
            role_epoch=lease.epoch,
            rows_kept=limits.CHECKPOINT_ROWS_MAX,
        )
        return frozenset(row["shard_id"] for row in rows)


def _row(one: Checkpoint) -> str:
    """The sealed bytes go in as they are."""
    return (
        f'{{"checkpoint_epoch":{one.epoch},"applied_position":{one.position},"applied_event_id":{one.last_event_id},'
        f'"shard_id":{one.shard_id},"checksum":"\\\\x{one.event.checksum}",{one.event.text[1:]}'
    )
