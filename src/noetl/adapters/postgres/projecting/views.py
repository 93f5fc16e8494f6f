"""Reading what people are shown, on Postgres."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.rows import iso
from noetl.adapters.postgres.statements import query
from noetl.ports.ledger import ExecutionRow
from noetl.ports.projections import ShownExecution


class PostgresExecutionViews:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def find(self, execution_id: int, *, tenant_id: str, organization_id: str) -> ShownExecution | None:
        rows = await self._reader.fetch(
            query("projecting.sql", "shown_execution"),
            execution_id=execution_id,
            tenant_id=tenant_id,
            organization_id=organization_id,
        )
        if not rows:
            return None
        values = dict(rows[0])
        watermark = values.pop("watermark")
        values["started_at"] = iso(values["started_at"])
        values["ended_at"] = iso(values["ended_at"]) if values["ended_at"] else None
        return ShownExecution(row=ExecutionRow(**values), watermark=watermark)

    async def is_recorded(self, execution_id: int, *, tenant_id: str, organization_id: str) -> bool:
        rows = await self._reader.fetch(
            query("projecting.sql", "is_recorded"),
            execution_id=execution_id,
            tenant_id=tenant_id,
            organization_id=organization_id,
        )
        return bool(rows)

    async def positions(self, execution_ids: Sequence[int]) -> dict[int, tuple[int, str]]:
        rows = await self._reader.fetch(query("projecting.sql", "shown_positions"), execution_ids=list(execution_ids))
        return {row["execution_id"]: (row["position"], row["status"]) for row in rows}
