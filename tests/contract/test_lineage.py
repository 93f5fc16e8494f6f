"""Results and what led to them, from every ledger in the same way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.event import Event
from noetl.core.reference import Result
from tests.support.aio import asynchronous
from tests.support.backends import Backend, OpenBackend
from tests.support.events import ORGANIZATION, TENANT, EventMaker, decision, offer
from tests.support.lineage import must_be_rebuildable

OWNER = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
BOUNDS = {"depth_max": 100, "results_max": 100}


def ended(make: EventMaker, execution_id: int, step: str, **fields: Any) -> Event:
    """A step that gave a result; `parent` is what led to it, `inputs` what it was made of."""
    parent, inputs = fields.pop("parent", None), fields.pop("inputs", ())
    reference = make.payload(f"{execution_id} {step}".encode()).reference
    result = Result(status="ok", reference=reference, parent_ref=parent).to_json()
    meta = {"step": step, **({"inputs": list(inputs)} if inputs else {}), **fields.pop("meta", {})}
    given = {"result": result, "meta": meta, "parent_event_id": parent, **fields}
    return make.completed(execution_id, f"{step}#1", **given)


async def chained(backend: Backend, length: int) -> list[Event]:
    """An execution of which each step led to the next."""
    make = backend.make
    execution_id = make.execution_id()
    events: list[Event] = []
    for number in range(length):
        parent = events[-1].event_id if events else None
        events.append(ended(make, execution_id, f"s{number}", parent=parent))
    await backend.ledger.append([offer(0, *events)])
    return events


def told(found: Any) -> list[tuple[str | None, int]]:
    return [(one.ref.step, one.depth) for one in found.results]


@asynchronous
async def test_the_way_back_goes_from_result_to_result(backend: OpenBackend) -> None:
    async with backend() as open_:
        events = await chained(open_, 4)
        found = await open_.lineage.walk([events[-1].event_id], **OWNER, **BOUNDS)
        assert told(found) == [("s3", 0), ("s2", 1), ("s1", 2), ("s0", 3)]
        assert not found.is_cut
        first = found.results[0]
        assert first.ref.parent_ref_id == events[2].event_id
        assert first.meta == {"step": "s3"}


@asynchronous
async def test_what_a_result_was_made_of_is_on_the_way_too_by_the_shortest_way(backend: OpenBackend) -> None:
    async with backend() as open_:
        make = open_.make
        execution_id = make.execution_id()
        one = ended(make, execution_id, "one")
        two = ended(make, execution_id, "two", parent=one.event_id)
        inputs = [{"ref_id": one.event_id}, {"ref_id": two.event_id}, {"sha256": "a" * 64}, {"ref_id": 5}]
        three = ended(make, execution_id, "three", parent=two.event_id, inputs=inputs)
        await open_.ledger.append([offer(0, one, two, three)])
        found = await open_.lineage.walk([three.event_id], **OWNER, **BOUNDS)
        assert [step for step, _ in told(found)] == ["three", "two", "one"]
        assert dict(told(found)) == {"three": 0, "two": 1, "one": 1}
        assert found.results[0].meta == {"step": "three", "inputs": inputs}


@asynchronous
async def test_the_way_goes_across_executions(backend: OpenBackend) -> None:
    async with backend() as open_:
        make = open_.make
        child, parent = make.execution_id(), make.execution_id()
        inner = ended(make, child, "inner")
        outer = ended(make, parent, "outer", inputs=[{"ref_id": inner.event_id}])
        await open_.ledger.append([offer(0, inner), offer(1, outer)])
        found = await open_.lineage.walk([outer.event_id], **OWNER, **BOUNDS)
        assert [one.ref.execution_id for one in found.results] == [parent, child]


@asynchronous
async def test_results_of_others_do_not_exist(backend: OpenBackend) -> None:
    async with backend() as open_:
        mine, make = open_.make, open_.make
        stranger = replace(make, tenant_id="other")
        theirs = ended(stranger, stranger.execution_id(), "theirs")
        before = ended(make, make.execution_id(), "before")
        bridge = ended(
            stranger, theirs.execution_id, "bridge", parent=before.event_id, inputs=[{"ref_id": before.event_id}]
        )
        own = ended(mine, mine.execution_id(), "own", inputs=[{"ref_id": theirs.event_id}, {"ref_id": bridge.event_id}])
        await open_.ledger.append([offer(0, theirs, bridge), offer(1, own), offer(2, before)])
        found = await open_.lineage.walk([own.event_id, theirs.event_id], **OWNER, **BOUNDS)
        assert told(found) == [("own", 0)]
        none = await open_.lineage.walk([own.event_id], tenant_id=TENANT, organization_id="other", **BOUNDS)
        assert list(none.results) == []


@asynchronous
async def test_depth_and_number_are_bounded(backend: OpenBackend) -> None:
    async with backend() as open_:
        events = await chained(open_, 6)
        shallow = await open_.lineage.walk([events[-1].event_id], depth_max=2, results_max=100, **OWNER)
        assert told(shallow) == [("s5", 0), ("s4", 1), ("s3", 2)]
        few = await open_.lineage.walk([events[-1].event_id], depth_max=100, results_max=2, **OWNER)
        assert (told(few), few.is_cut) == ([("s5", 0), ("s4", 1)], True)
        exact = await open_.lineage.walk([events[-1].event_id], depth_max=100, results_max=6, **OWNER)
        assert not exact.is_cut


@asynchronous
async def test_a_wide_way_back_ends(backend: OpenBackend) -> None:
    """Every result was made of all before it: without a bound there are more ways than one can walk."""
    async with backend() as open_:
        make = open_.make
        execution_id = make.execution_id()
        events: list[Event] = []
        for number in range(40):
            inputs = [{"ref_id": event.event_id} for event in events[-32:]]
            events.append(ended(make, execution_id, f"s{number}", inputs=inputs))
        await open_.ledger.append([offer(0, *events)])
        found = await open_.lineage.walk([events[-1].event_id], **OWNER, **BOUNDS)
        assert len(found.results) == 40
        assert not found.is_cut


@asynchronous
async def test_frames_of_a_loop_are_counted_and_the_first_are_shown(backend: OpenBackend) -> None:
    async with backend() as open_:
        make = open_.make
        execution_id = make.execution_id()
        frames = [
            make.event(
                execution_id,
                kinds.FRAME_COMMITTED,
                kinds.frame_terminal_key(f"each#1/{number}"),
                stage_id="each#1",
                frame_id=f"each#1/{number}",
                meta={"step": "each", "first": 10 * number},
                result=Result(status="ok", reference=make.payload(b"%d" % number).reference).to_json(),
            )
            for number in range(1, 6)
        ]
        await open_.ledger.append([offer(0, *frames)])
        ended = {"kinds": [kinds.FRAME_COMMITTED], "limit": 3}
        page = await open_.lineage.of_stage(execution_id, "each#1", after_position=0, **ended)
        assert [event.frame_id for event in page] == ["each#1/1", "each#1/2", "each#1/3"]
        rest = await open_.lineage.of_stage(execution_id, "each#1", after_position=page[-1].position, **ended)
        assert [event.frame_id for event in rest] == ["each#1/4", "each#1/5"]
        assert await open_.lineage.of_stage(execution_id, "b#1", after_position=0, **ended) == []
        others = {"kinds": [kinds.FRAME_FAILED], "limit": 3}
        assert await open_.lineage.of_stage(execution_id, "each#1", after_position=0, **others) == []
        (found,) = await open_.lineage.frames([(execution_id, "each#1"), (execution_id, "b#1")], frames_max=2, **OWNER)
        assert (found.execution_id, found.stage_id, found.total) == (execution_id, "each#1", 5)
        assert [one.ref.correlation for one in found.shown] == [
            {"loop_epoch": "each#1", "index": 10, "page": 1},
            {"loop_epoch": "each#1", "index": 20, "page": 2},
        ]
        assert (
            await open_.lineage.frames(
                [(execution_id, "each#1")], frames_max=2, tenant_id=TENANT, organization_id="other"
            )
            == []
        )


@asynchronous
async def test_one_transition_is_found(backend: OpenBackend) -> None:
    async with backend() as open_:
        (event,) = await chained(open_, 1)
        found = await open_.lineage.ended(event.execution_id, event.transition_key)
        assert found is not None
        assert found.event_id == event.event_id
        assert await open_.lineage.ended(event.execution_id, "command.terminal/s9#1") is None
        assert await open_.lineage.ended(event.execution_id + 1, event.transition_key) is None


@asynchronous
async def test_a_decider_writes_the_same_rows_in_one_shard_and_in_many(backend: OpenBackend) -> None:
    async with backend() as open_:
        heads = {head.shard_id: head for head in await open_.own()}
        make = open_.make
        single = ended(make, make.execution_id(), "single")
        first = make.initialized(single.execution_id, shard_id=3, stream_version=1)
        await open_.ledger.advance(decision([heads[3]], first, single._replace(shard_id=3, stream_version=2)))
        heads = {head.shard_id: head for head in await open_.own()}
        many = [
            ended(make, make.execution_id(), f"s{shard}")._replace(shard_id=shard, stream_version=2) for shard in (3, 4)
        ]
        begins = [make.initialized(one.execution_id, shard_id=one.shard_id, stream_version=1) for one in many]
        pairs = [event for pair in zip(begins, many, strict=True) for event in pair]
        await open_.ledger.advance(decision([heads[3], heads[4]], *pairs))
        found = await open_.lineage.walk([one.event_id for one in (single, *many)], **OWNER, **BOUNDS)
        assert {one.ref.step for one in found.results} == {"single", "s3", "s4"}


ODD: dict[str, dict[str, Any]] = {
    "a NUL": {"meta": {"step": "a", "task": "t", "warnings": ["a\0b"]}, "context": {"error": "x\0y"}},
    "credentials": {"meta": {"step": "a", "credentials": ["db", 'a "b"']}},
    "no step": {"meta": {}},
    "another number": {"reference": {"bytes": "7", "row_count": None}},
    "an index": {"reference": {"index": {"sha256": "0", "bytes": 1}, "row_count": 3, "schema_digest": "d"}},
    "a store elsewhere": {"reference": {"store": "s3"}},
    "no uri": {"reference": {"uri": None}},
    "nothing": {"reference": None},
}


@pytest.mark.parametrize("is_decided", [False, True])
@pytest.mark.parametrize("name", ODD)
@asynchronous
async def test_rows_are_what_the_events_say(name: str, *, is_decided: bool, backend: OpenBackend, address: str) -> None:
    odd = ODD[name]
    async with backend() as open_:
        make = open_.make
        event = ended(make, make.execution_id(), "a")
        result: Any = {**event.result, "context": odd.get("context", {})}  # type: ignore[dict-item]
        given = odd.get("reference", {})
        result["reference"] = None if given is None else {**result["reference"], **given}
        event = event._replace(result=result, meta=odd.get("meta", event.meta))
        if is_decided:
            heads = {head.shard_id: head for head in await open_.own()}
            first = make.initialized(event.execution_id, shard_id=1, stream_version=1)
            await open_.ledger.advance(decision([heads[1]], first, event._replace(shard_id=1, stream_version=2)))
        else:
            await open_.ledger.append([offer(1, event)])
        has_row = name not in ("no uri", "nothing")
        found = await open_.lineage.walk([event.event_id], **OWNER, **BOUNDS)
        assert [one.ref.ref_id for one in found.results] == ([event.event_id] if has_row else [])
    await must_be_rebuildable(address)
