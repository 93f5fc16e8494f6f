"""The lineage port on Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.rows import event_of, iso
from noetl.adapters.postgres.statements import query
from noetl.core.codec import parse_json
from noetl.core.event import Event
from noetl.core.limits import TRACE_VISITS_MAX
from noetl.core.results.references import ResultRef
from noetl.ports.data.lineage import Frames, Traced, Walk


class PostgresLineage:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def ended(self, execution_id: int, transition_key: str) -> Event | None:
        rows = await self._reader.fetch(
            query("lineage.sql", "transition"), execution_id=execution_id, transition_key=transition_key
        )
        return event_of(rows[0]) if rows else None

    async def of_stage(
        self, execution_id: int, stage_id: str, *, kinds: Sequence[str], after_position: int, limit: int
    ) -> list[Event]:
        rows = await self._reader.fetch(
            query("lineage.sql", "of_stage"),
            execution_id=execution_id,
            stage_id=stage_id,
            kinds=list(kinds),
            after_position=after_position,
            rows=limit,
        )
        return [event_of(row) for row in rows]

    async def walk(
        self, ref_ids: Sequence[int], *, tenant_id: str, organization_id: str, depth_max: int, results_max: int
    ) -> Walk:
        rows = await self._reader.fetch(
            query("lineage.sql", "walk"),
            ref_ids=list(ref_ids),
            tenant_id=tenant_id,
            organization_id=organization_id,
            depth_max=depth_max,
            visits_max=TRACE_VISITS_MAX,
            rows=results_max + 1,
        )
        is_cut = len(rows) > results_max or any(row["visits"] >= TRACE_VISITS_MAX for row in rows[:1])
        return Walk(results=[_traced(row) for row in rows[:results_max]], is_cut=is_cut)

    async def frames(
        self, stages: Sequence[tuple[int, str]], *, tenant_id: str, organization_id: str, frames_max: int
    ) -> list[Frames]:
        rows = await self._reader.fetch(
            query("lineage.sql", "frames"),
            executions=[execution_id for execution_id, _ in stages],
            stages=[stage_id for _, stage_id in stages],
            tenant_id=tenant_id,
            organization_id=organization_id,
            rows=frames_max,
        )
        found = []
        for (execution_id, stage_id), group in groupby(rows, key=lambda row: (row["of_execution"], row["of_stage"])):
            members = list(group)
            shown = [_traced(row) for row in members]
            found.append(Frames(execution_id=execution_id, stage_id=stage_id, total=members[0]["total"], shown=shown))
        return found


def _traced(row: Any) -> Traced:
    values = {name: row[name] for name in ResultRef._fields}
    values["created_at"] = iso(row["created_at"])
    values["correlation"] = None if row["correlation"] is None else parse_json(row["correlation"])
    values["auth_reference"] = None if row["auth_reference"] is None else tuple(row["auth_reference"])
    meta: Any = None if row["meta"] is None else parse_json(row["meta"])
    return Traced(ref=ResultRef(**values), depth=row["depth"], meta=meta)
