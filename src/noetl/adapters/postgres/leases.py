"""Ownership: shards by epoch, node numbers by lease.  Only the database's clock decides what has run out."""

from __future__ import annotations

from dataclasses import dataclass

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.statements import query
from noetl.core.errors import LedgerUnavailable
from noetl.ports.ledger import ShardHead

NODE_LEASE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class NodeLease:
    runtime_id: int
    node_number: int
    last_id: int


class PostgresLeases:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def lease_node(self, *, instance: str, kind: str) -> NodeLease:
        rows = await self._reader.fetch(
            query("reads.sql", "lease_node"), instance=instance, kind=kind, lease_seconds=NODE_LEASE_SECONDS
        )
        if not rows:
            raise LedgerUnavailable("no node number could be leased: all are taken or another process was faster")
        return NodeLease(rows[0]["runtime_id"], rows[0]["node_number"], rows[0]["last_id"])

    async def renew_node(self, runtime_id: int, *, last_id: int) -> bool:
        rows = await self._reader.fetch(
            query("reads.sql", "renew_node"),
            runtime_id=runtime_id,
            last_id=last_id,
            lease_seconds=NODE_LEASE_SECONDS,
        )
        return bool(rows)

    async def release_node(self, runtime_id: int, *, last_id: int) -> None:
        await self._reader.fetch(query("reads.sql", "release_node"), runtime_id=runtime_id, last_id=last_id)

    async def refresh_incarnation(self) -> None:
        """Notice a restored or promoted database before anything is written to it."""
        await self._reader.fetch(query("reads.sql", "refresh_incarnation"))

    async def own_shards(self, *, runtime_id: int, instance: str) -> list[ShardHead]:
        """Take every shard of the database."""
        rows = await self._reader.fetch(query("reads.sql", "own_shards"), runtime_id=runtime_id, instance=instance)
        return [ShardHead(r["shard_id"], r["next_position"], r["decided_position"], r["epoch"]) for r in rows]
