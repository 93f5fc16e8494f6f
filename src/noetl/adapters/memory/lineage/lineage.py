"""The lineage port in memory.  The rows about results are not kept: they are read off the events."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.tables import event_of
from noetl.core import kinds
from noetl.core.event import Event
from noetl.core.results.references import ResultRef, result_ref
from noetl.ports.data.lineage import Frames, Traced, Walk

_FRAME_ENDED = (kinds.FRAME_COMMITTED, kinds.FRAME_FAILED)


class MemoryLineage:
    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def ended(self, execution_id: int, transition_key: str) -> Event | None:
        row = self._database.tables.transitions.get((execution_id, transition_key))
        return None if row is None else event_of(row)

    async def of_stage(
        self, execution_id: int, stage_id: str, *, kinds: Sequence[str], after_position: int, limit: int
    ) -> list[Event]:
        events = (event_of(row) for row in self._database.tables.events.get(execution_id, ()))
        found = [one for one in events if one.stage_id == stage_id and one.event_type in kinds]
        return [one for one in found if one.position > after_position][:limit]

    async def walk(
        self, ref_ids: Sequence[int], *, tenant_id: str, organization_id: str, depth_max: int, results_max: int
    ) -> Walk:
        known = self._results(tenant_id, organization_id)
        reached: dict[int, int] = {}
        level = dict.fromkeys(ref_ids)
        for depth in range(depth_max + 1):
            level = {ref_id: None for ref_id in level if ref_id in known and ref_id not in reached}
            reached.update(dict.fromkeys(level, depth))
            level = {before: None for ref_id in level for before in _before(*known[ref_id])}
        found = [
            Traced(ref=known[ref_id][0], depth=depth, meta=known[ref_id][1].meta) for ref_id, depth in reached.items()
        ]
        found.sort(key=lambda one: (one.depth, -one.ref.ref_id))
        return Walk(results=found[:results_max], is_cut=len(found) > results_max)

    async def frames(
        self, stages: Sequence[tuple[int, str]], *, tenant_id: str, organization_id: str, frames_max: int
    ) -> list[Frames]:
        found = []
        for execution_id, stage_id in sorted(stages):
            events = [event_of(row) for row in self._database.tables.events.get(execution_id, ())]
            ended = [event for event in events if event.stage_id == stage_id and event.event_type in _FRAME_ENDED]
            known = self._results(tenant_id, organization_id)
            shown = [
                Traced(ref=known[event.event_id][0], meta=event.meta) for event in ended if event.event_id in known
            ]
            if shown:
                few = shown[:frames_max]
                found.append(Frames(execution_id=execution_id, stage_id=stage_id, total=len(ended), shown=few))
        return found

    def _results(self, tenant_id: str, organization_id: str) -> dict[int, tuple[ResultRef, Event]]:
        found: dict[int, tuple[ResultRef, Event]] = {}
        for rows in self._database.tables.events.values():
            for row in rows:
                event = event_of(row)
                ref = result_ref(event)
                if ref is not None and (ref.tenant_id, ref.organization_id) == (tenant_id, organization_id):
                    found[ref.ref_id] = ref, event
        return found


def _before(ref: ResultRef, event: Event) -> list[int]:
    inputs = event.meta.get("inputs", ())
    assert isinstance(inputs, list | tuple)
    made_of = [int(one["ref_id"]) for one in inputs if "ref_id" in one]
    return made_of if ref.parent_ref_id is None else [ref.parent_ref_id, *made_of]
