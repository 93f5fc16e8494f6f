"""Writing projections on Postgres: rows and watermark in one statement.

Its connection does not wait for the disk: what is lost with the machine is lost together with its watermark, and is
folded again.  What it was made of is on disk, because only committed events are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.postgres.projecting.leases import shard_of
from noetl.adapters.postgres.statements import query
from noetl.ports.ledger import ExecutionRow
from noetl.ports.projections import Move, ProjectionShard, ShardProgress

_FILE = "projecting.sql"
FORGOTTEN_AT_ONCE = 5_000


class PostgresProjections:
    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def project(
        self, moves: Sequence[Move], rows: Sequence[ExecutionRow], *, incarnation: str
    ) -> Mapping[int, int]:
        ordered = sorted(moves)
        values: dict[str, object] = {
            "incarnation": incarnation,
            "shards": [move.shard_id for move in ordered],
            "epochs": [move.epoch for move in ordered],
            "seen": [move.seen for move in ordered],
            "positions": [move.position for move in ordered],
            "event_ids": [move.last_event_id for move in ordered],
            "ingest_times": [move.ingest_time for move in ordered],
            "waited_ms": [move.waited_ms for move in ordered],
            **_columns(rows),
        }
        found = await self._writer.fetch(query(_FILE, "project"), values)
        return {row["shard_id"]: row["lag_ms"] or 0 for row in found}

    async def progress(self) -> list[ShardProgress]:
        rows = await self._reader.fetch(query(_FILE, "projection_progress"))
        return [ShardProgress(**dict(row)) for row in rows]

    async def rebuild(self, shard: ProjectionShard, *, incarnation: str) -> ProjectionShard | None:
        values: dict[str, object] = {
            "shard_id": shard.shard_id,
            "epoch": shard.epoch,
            "incarnation": incarnation,
            "rows": FORGOTTEN_AT_ONCE,
        }
        while rows := await self._writer.fetch(query(_FILE, "rebuild_projection"), values):
            if rows[0]["shard_id"] is not None:
                return shard_of(rows[0])
        return None

    async def quarantined(self, shard_ids: Sequence[int], *, limit: int) -> list[int]:
        rows = await self._reader.fetch(query(_FILE, "quarantined"), shards=list(shard_ids), rows=limit)
        return [row["execution_id"] for row in rows]

    async def heal(self, row: ExecutionRow) -> bool:
        values: dict[str, object] = {
            "execution_id": row.execution_id,
            "status": row.status,
            "path": row.path,
            "digest": row.playbook_digest,
            "started_at": row.started_at,
            "ended_at": row.ended_at,
            "last_step": row.last_step,
            "last_event_id": row.last_event_id,
            "applied_position": row.applied_position,
            "version": row.version,
            "state": row.state,
        }
        return bool(await self._writer.fetch(query(_FILE, "heal_projection"), values))


def _columns(rows: Sequence[ExecutionRow]) -> dict[str, object]:
    return {
        "execution_ids": [row.execution_id for row in rows],
        "tenants": [row.tenant_id for row in rows],
        "organizations": [row.organization_id for row in rows],
        "row_shards": [row.shard_id for row in rows],
        "paths": [row.path for row in rows],
        "digests": [row.playbook_digest for row in rows],
        "statuses": [row.status for row in rows],
        "started": [row.started_at for row in rows],
        "ended": [row.ended_at for row in rows],
        "last_steps": [row.last_step for row in rows],
        "last_events": [row.last_event_id for row in rows],
        "applied": [row.applied_position for row in rows],
        "parents": [row.parent_execution_id for row in rows],
        "versions": [row.version for row in rows],
        "states": [row.state for row in rows],
        "quarantines": [row.quarantine for row in rows],
        "retries": [row.retry_of for row in rows],
    }
