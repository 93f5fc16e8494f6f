"""Who projects which shard, on Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.statements import query
from noetl.ports.projections import Member, ProjectionShard, Standing

_FILE = "projecting.sql"


class PostgresProjectionLeases:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def heartbeat(self, member: Member) -> Standing:
        rows = await self._reader.fetch(
            query(_FILE, "projector_heartbeat"),
            runtime_id=member.runtime_id,
            instance=member.instance,
            is_dedicated=member.is_dedicated,
            lease_seconds=member.lease_seconds,
        )
        first = rows[0]
        return Standing(
            sharers=first["sharers"],
            is_sharer=first["is_sharer"],
            shards=first["shards"],
            held=tuple(shard_of(row) for row in rows if row["shard_id"] is not None),
        )

    async def claim(self, member: Member, *, limit: int, by_force: bool = False) -> list[ProjectionShard]:
        found = await self._claim(member, limit, by_force)
        # A shard that was never projected has no row yet.  They are made beside the hot path and only once.
        if len(found) < limit and await self._reader.fetch(query(_FILE, "missing_projections")):
            found += await self._claim(member, limit - len(found), by_force)
        return found

    async def _claim(self, member: Member, limit: int, by_force: bool) -> list[ProjectionShard]:
        rows = await self._reader.fetch(
            query(_FILE, "claim_projections"),
            runtime_id=member.runtime_id,
            lease_seconds=member.lease_seconds,
            rows=limit,
            by_force=by_force,
        )
        return [shard_of(row) for row in rows]

    async def let_go(self, shards: Sequence[ProjectionShard]) -> None:
        await self._reader.fetch(
            query(_FILE, "let_projections_go"),
            shards=[shard.shard_id for shard in shards],
            epochs=[shard.epoch for shard in shards],
        )

    async def leave(self, runtime_id: int) -> None:
        await self._reader.fetch(query(_FILE, "projector_leaves"), runtime_id=runtime_id)


def shard_of(row: Any) -> ProjectionShard:
    return ProjectionShard(row["shard_id"], row["epoch"], row["position"], row["incarnation"])
