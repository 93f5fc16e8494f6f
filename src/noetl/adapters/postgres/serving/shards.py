"""Who owns which shard, on Postgres."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.statements import query
from noetl.points import point
from noetl.ports.ledger import ShardHead
from noetl.ports.serving.shards import OwnedShard


class PostgresShards:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def claim(self, runtime_id: int, *, count: int) -> list[ShardHead]:
        rows = await self._reader.fetch(query("serving.sql", "claim_shards"), runtime_id=runtime_id, shards=count)
        if rows:
            point("server.owned")
        return sorted((_head(row) for row in rows), key=lambda head: head.shard_id)

    async def hand_over(self, runtime_id: int, shards: Collection[int]) -> list[int]:
        rows = await self._reader.fetch(
            query("serving.sql", "hand_over_shards"), runtime_id=runtime_id, shards=sorted(shards)
        )
        if rows:
            point("server.handed_over")
        return sorted(row["shard_id"] for row in rows)

    async def look(self) -> list[OwnedShard]:
        rows = await self._reader.fetch(query("serving.sql", "look_at_shards"))
        return [
            OwnedShard(
                head=_head(row),
                owner_runtime_id=row["owner_runtime_id"],
                owner_instance=row["owner_instance"],
                owner_url=row["owner_url"],
                lease_seconds=row["lease_seconds"],
                projected_position=row["projected_position"],
            )
            for row in rows
        ]


def _head(row: Any) -> ShardHead:
    return ShardHead(row["shard_id"], row["next_position"], row["decided_position"], row["epoch"])
