"""The published views, for readers that are no part of the control plane.  Only SELECTs, each of one page."""

from __future__ import annotations

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.statements import query
from noetl.core.errors import LedgerUnavailable, ResultUnknown, ShardUnknown
from noetl.core.reference import Reference
from noetl.ports.data.sources import EVENT_COLUMNS, EventPage, EventWindow, LedgerHeads

_FILE = "published.sql"


class PublishedLedger:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def heads(self) -> LedgerHeads:
        rows = await self._reader.fetch(query(_FILE, "ledger_heads"))
        if not rows:
            raise LedgerUnavailable("the ledger has no shards: its database is not set up yet")
        return LedgerHeads(
            incarnation=str(rows[0]["ledger_incarnation"]),
            positions={row["shard_id"]: row["last_position"] for row in rows},
        )

    async def events(self, window: EventWindow, *, rows_max: int) -> EventPage:
        """Raises ShardUnknown."""
        # Read before the events: what is committed meanwhile stands behind the position that is answered.
        heads = await self._reader.fetch(query(_FILE, "shard_head"), shard_id=window.shard_id)
        if not heads:
            raise ShardUnknown(f"the ledger has no shard {window.shard_id}")
        until = min(window.until_position, heads[0]["last_position"])
        values: dict[str, object] = {
            "shard_id": window.shard_id,
            "after_position": window.after_position,
            "until_position": until,
            "tenant_id": window.tenant_id,
            "organization_id": window.organization_id,
            "event_types": None if window.event_types is None else list(window.event_types),
            "rows": rows_max,
        }
        if window.execution_id is None:
            found = await self._reader.fetch(query(_FILE, "ledger_window"), **values)
        else:
            statement = query(_FILE, "ledger_execution_window")
            found = await self._reader.fetch(statement, execution_id=window.execution_id, **values)
        is_all = len(found) < rows_max
        position = max(window.after_position, until) if is_all else found[-1]["position"]
        return EventPage(rows=[[row[name] for name in EVENT_COLUMNS] for row in found], position=position)

    async def result(self, execution_id: int, step: str, *, tenant_id: str, organization_id: str) -> Reference:
        """Where the result of a step is.  Raises ResultUnknown."""
        rows = await self._reader.fetch(
            query(_FILE, "step_result"),
            execution_id=execution_id,
            step=step,
            tenant_id=tenant_id,
            organization_id=organization_id,
        )
        if not rows:
            raise ResultUnknown(f"step {step[:100]!r} of execution {execution_id} has no stored result")
        row = rows[0]
        return Reference(
            kind="payload",
            uri=row["uri"],
            sha256=row["sha256"],
            media_type=row["media_type"],
            bytes=row["bytes"] or 0,
            store=row["store_tier"] or "",
            row_count=row["row_count"],
            schema_digest=row["schema_digest"],
        )
