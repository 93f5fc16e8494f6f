"""Snapshots on Postgres."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.statements import query
from noetl.core.snapshot.snapshot import Snapshot
from noetl.ports.durability.snapshots import SNAPSHOTS_KEPT


class PostgresSnapshots:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def newest(self, execution_id: int) -> list[Snapshot]:
        rows = await self._reader.fetch(
            query("durability.sql", "newest_snapshots"), execution_id=execution_id, rows=SNAPSHOTS_KEPT
        )
        return [Snapshot(**dict(row)) for row in rows]

    async def save(self, snapshots: Sequence[Snapshot]) -> None:
        # In one order for all writers: two that save the same executions cannot deadlock.
        ordered = sorted(snapshots, key=lambda one: one.execution_id)
        assert len({one.execution_id for one in ordered}) == len(ordered), "one snapshot of an execution at a time"
        await self._reader.fetch(
            query("durability.sql", "save_snapshots"),
            executions=[one.execution_id for one in ordered],
            positions=[one.position for one in ordered],
            tenants=[one.tenant_id for one in ordered],
            organizations=[one.organization_id for one in ordered],
            shards=[one.shard_id for one in ordered],
            versions=[one.stream_version for one in ordered],
            events=[one.last_event_id for one in ordered],
            code_versions=[one.code_version for one in ordered],
            upcasters=[one.upcaster_digest for one in ordered],
            roots=[one.payload_root for one in ordered],
            checksums=[one.checksum for one in ordered],
            states=[one.state for one in ordered],
        )
