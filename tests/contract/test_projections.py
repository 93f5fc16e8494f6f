"""Projections: leases, the one commit of rows and watermark, the tail, and what is shown.  Over both adapters."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest

from noetl.core.errors import ExecutionUnknown, NotShownYet
from noetl.core.event import Event
from noetl.engine.control.states import States
from noetl.engine.projecting.rows import execution_row
from noetl.engine.projecting.status import StatusService
from noetl.ports.ledger import ExecutionRow
from noetl.ports.projections import Member, Move, ProjectionShard, Unreadable
from tests.support.aio import asynchronous
from tests.support.databases import SHARDS, fresh_database
from tests.support.events import ORGANIZATION, TENANT
from tests.support.projecting import (
    LEASE_SECONDS,
    OpenProjecting,
    Projecting,
    memory_projecting,
    postgres_projecting,
    story,
)

OWNER = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
STRANGER = {"tenant_id": "another", "organization_id": "another"}


@pytest.fixture(scope="module")
def own_address() -> str:
    return fresh_database()


@pytest.fixture(params=["memory", "postgres"])
def projecting(request: pytest.FixtureRequest) -> OpenProjecting:
    if request.param == "memory":
        return memory_projecting
    return functools.partial(postgres_projecting, request.getfixturevalue("own_address"))


async def taken(p: Projecting, member: Member, limit: int = SHARDS) -> dict[int, ProjectionShard]:
    await p.leases.heartbeat(member)
    return {shard.shard_id: shard for shard in await p.leases.claim(member, limit=limit)}


def move(shard: ProjectionShard, position: int, **fields: object) -> Move:
    given = {"position": position, "last_event_id": 77, **fields}
    return Move(shard_id=shard.shard_id, epoch=shard.epoch, seen=shard.position, **given)  # type: ignore[arg-type]


async def row_of(p: Projecting, shard_id: int, *, ends: bool = False) -> tuple[ExecutionRow, list[Event]]:
    """An execution in the ledger and the row that it folds to."""
    execution_id = p.make.execution_id()
    await p.append(shard_id, *story(p.make, execution_id, ends=ends))
    held = await States(p.ledger).fold(execution_id)
    return execution_row(held.state, shard_id, held.position), await p.ledger.read_execution(execution_id)


# --- leases ------------------------------------------------------------------------------------------------


@asynchronous
async def test_shards_are_claimed_once_and_the_epoch_rises_with_every_claim(projecting: OpenProjecting) -> None:
    async with projecting() as p:
        one, other = p.member(), p.member()
        mine = await taken(p, one, 5)
        assert sorted(mine) == [0, 1, 2, 3, 4]
        assert {shard.epoch for shard in mine.values()} == {1}
        theirs = await taken(p, other)
        assert sorted(theirs) == list(range(5, SHARDS))
        assert await p.leases.claim(other, limit=1) == []
        await p.leases.let_go([mine[2], mine[3]])
        again = await p.leases.claim(other, limit=1)
        assert [(shard.shard_id, shard.epoch) for shard in again] == [(2, 2)]
        # Whoever let go late lets go of nothing that is somebody else's.
        await p.leases.let_go([mine[2]])
        assert [shard.shard_id for shard in await p.leases.claim(one, limit=SHARDS)] == [3]


@asynchronous
async def test_a_lease_that_runs_out_is_taken_over_and_a_renewed_one_is_not(projecting: OpenProjecting) -> None:
    async with projecting() as p:
        dead, live, heir = p.member(), p.member(), p.member()
        await taken(p, dead, 3)
        await taken(p, live, 3)
        for _ in range(3):
            await p.wait(LEASE_SECONDS / 2)
            standing = await p.leases.heartbeat(live)
        assert [shard.shard_id for shard in standing.held] == [3, 4, 5]
        found = await taken(p, heir)
        assert sorted(found) == [0, 1, 2, *range(6, SHARDS)]
        assert {found[shard].epoch for shard in (0, 1, 2)} == {2}
        assert (await p.leases.heartbeat(dead)).held == ()


@asynchronous
async def test_by_force_the_shards_of_the_living_are_taken_too(projecting: OpenProjecting) -> None:
    async with projecting() as p:
        before, after = p.member(), p.member()
        await taken(p, before)
        assert await p.leases.claim(after, limit=SHARDS) == []
        found = await p.leases.claim(after, limit=SHARDS, by_force=True)
        assert [shard.epoch for shard in found] == [2] * SHARDS
        # One's own are never taken again: the epoch that one works with would be stale.
        assert await p.leases.claim(after, limit=SHARDS, by_force=True) == []


@asynchronous
async def test_those_that_do_nothing_else_share_the_shards_between_them(projecting: OpenProjecting) -> None:
    async with projecting() as p:
        inside, other_inside = p.member(), p.member()
        await p.leases.heartbeat(inside)
        standing = await p.leases.heartbeat(other_inside)
        assert (standing.sharers, standing.share) == (2, SHARDS // 2)
        dedicated = [p.member(is_dedicated=True) for _ in range(3)]
        for member in dedicated:
            standing = await p.leases.heartbeat(member)
        assert (standing.sharers, standing.is_sharer, standing.share) == (3, True, 6)
        standing = await p.leases.heartbeat(inside)
        assert (standing.is_sharer, standing.share) == (False, 0)
        for member in dedicated[1:]:
            await p.leases.leave(member.runtime_id)
        assert (await p.leases.heartbeat(inside)).share == 0
        await p.wait(LEASE_SECONDS * 1.2)
        assert (await p.leases.heartbeat(inside)).share == SHARDS


@asynchronous
async def test_whoever_leaves_holds_nothing(projecting: OpenProjecting) -> None:
    async with projecting() as p:
        gone, heir = p.member(), p.member()
        await taken(p, gone)
        await p.leases.leave(gone.runtime_id)
        standing = await p.leases.heartbeat(heir)
        assert (standing.sharers, standing.share) == (1, SHARDS)
        assert len(await p.leases.claim(heir, limit=SHARDS)) == SHARDS


# --- rows and watermark ------------------------------------------------------------------------------------


@asynchronous
async def test_rows_and_watermark_are_written_together(projecting: OpenProjecting) -> None:
    async with projecting() as p:
        shards = await taken(p, p.member())
        row, _ = await row_of(p, 4)
        step = move(shards[4], row.applied_position, waited_ms=12)
        assert await p.projections.project([step], [row], incarnation=shards[4].incarnation) == {4: 12}
        shown = await p.views.find(row.execution_id, **OWNER)
        assert shown is not None
        assert (shown.row, shown.watermark) == (row, row.applied_position)
        assert await p.views.positions([row.execution_id, 5]) == {row.execution_id: (row.applied_position, "RUNNING")}
        assert await p.views.find(row.execution_id, tenant_id="other", organization_id=ORGANIZATION) is None
        progress = {one.shard_id: one for one in await p.projections.progress()}
        assert (progress[4].position, progress[4].lag_ms, progress[4].is_held) == (row.applied_position, 12, True)
        assert progress[4].head == row.applied_position


@pytest.mark.parametrize("wrong", ["epoch", "position", "incarnation"])
@asynchronous
async def test_a_move_that_is_not_right_writes_nothing(projecting: OpenProjecting, wrong: str) -> None:
    async with projecting() as p:
        shards = await taken(p, p.member())
        row, _ = await row_of(p, 5)
        other, _ = await row_of(p, 6)
        shard, incarnation = shards[5], shards[5].incarnation
        if wrong == "epoch":
            shard = shard._replace(epoch=shard.epoch + 1)
        elif wrong == "position":
            shard = shard._replace(position=shard.position + 1)
        else:
            incarnation = "00000000-0000-4000-8000-00000000dead"
        moves = [move(shard, row.applied_position), move(shards[6], other.applied_position)]
        held = await p.projections.project(moves, [row, other], incarnation=incarnation)
        assert sorted(held) == ([] if wrong == "incarnation" else [6])
        assert await p.views.find(row.execution_id, **OWNER) is None
        assert (await p.views.find(other.execution_id, **OWNER) is None) is (wrong == "incarnation")
        progress = {one.shard_id: one for one in await p.projections.progress()}
        assert progress[5].position == shards[5].position


@asynchronous
async def test_a_late_write_of_the_owner_before_is_refused(projecting: OpenProjecting) -> None:
    async with projecting() as p:
        stale = await taken(p, p.member())
        await p.leases.claim(p.member(), limit=SHARDS, by_force=True)
        row, _ = await row_of(p, 7)
        step = move(stale[7], row.applied_position)
        assert await p.projections.project([step], [row], incarnation=stale[7].incarnation) == {}
        assert await p.views.find(row.execution_id, **OWNER) is None


@asynchronous
async def test_a_row_never_goes_back(projecting: OpenProjecting) -> None:
    async with projecting() as p:
        shard = (await taken(p, p.member()))[8]
        row, _ = await row_of(p, 8, ends=True)
        older = dataclasses.replace(row, status="RUNNING", ended_at=None, applied_position=row.applied_position - 1)
        for number, written in enumerate((row, older), start=1):
            step = move(shard, shard.position + 1, last_event_id=number)
            assert await p.projections.project([step], [written], incarnation=shard.incarnation)
            shard = shard._replace(position=shard.position + 1)
        shown = await p.views.find(row.execution_id, **OWNER)
        assert shown is not None
        assert shown.row == row


@asynchronous
async def test_the_lag_is_told_by_the_clock_of_the_database(projecting: OpenProjecting) -> None:
    async with projecting() as p:
        shard = (await taken(p, p.member()))[9]
        row, events = await row_of(p, 9)
        await p.wait(0.05)
        step = move(shard, row.applied_position, ingest_time=events[0].ingest_time)
        (lag,) = (await p.projections.project([step], [row], incarnation=shard.incarnation)).values()
        assert 45 <= lag < 5_000


@asynchronous
async def test_a_rebuilt_shard_begins_at_its_first_event_without_rows(projecting: OpenProjecting) -> None:
    async with projecting() as p:
        shards = await taken(p, p.member())
        row, _ = await row_of(p, 10)
        other, _ = await row_of(p, 11)
        moves = [move(shards[10], row.applied_position), move(shards[11], other.applied_position)]
        await p.projections.project(moves, [row, other], incarnation=shards[10].incarnation)
        new = "00000000-0000-4000-8000-0000000000aa"
        stale = shards[10]._replace(epoch=shards[10].epoch - 1)
        assert await p.projections.rebuild(stale, incarnation=new) is None
        assert await p.views.find(row.execution_id, **OWNER) is not None
        rebuilt = await p.projections.rebuild(shards[10], incarnation=new)
        assert rebuilt == shards[10]._replace(position=0, incarnation=new)
        assert await p.views.find(row.execution_id, **OWNER) is None
        assert await p.views.is_recorded(row.execution_id, **OWNER)
        assert not await p.views.is_recorded(row.execution_id, **STRANGER)
        assert not await p.views.is_recorded(row.execution_id + 1, **OWNER)
        assert await p.views.find(other.execution_id, **OWNER) is not None


@asynchronous
async def test_an_execution_that_is_recorded_and_not_shown_is_not_unknown(projecting: OpenProjecting) -> None:
    async with projecting() as p:
        row, _ = await row_of(p, 10)
        unused: Any = None
        status = StatusService(p.views, unused, watched=unused, feed=unused, clock=unused)
        with pytest.raises(NotShownYet, match=str(row.execution_id)):
            await status.find(row.execution_id, **OWNER)
        for execution_id, owner in ((row.execution_id + 1, OWNER), (row.execution_id, STRANGER)):
            with pytest.raises(ExecutionUnknown):
                await status.find(execution_id, **owner)


# --- quarantine --------------------------------------------------------------------------------------------


@asynchronous
async def test_a_quarantined_row_keeps_what_was_known_and_can_be_healed(projecting: OpenProjecting) -> None:
    async with projecting() as p:
        shard = (await taken(p, p.member()))[12]
        row, _ = await row_of(p, 12)
        await p.projections.project([move(shard, row.applied_position)], [row], incarnation=shard.incarnation)
        shard = shard._replace(position=row.applied_position)
        bad = dataclasses.replace(
            row,
            state=None,
            path="",
            version=0,
            applied_position=row.applied_position + 1,
            quarantine='{"reason":"why"}',
        )
        await p.projections.project([move(shard, shard.position + 1)], [bad], incarnation=shard.incarnation)
        shown = await p.views.find(row.execution_id, **OWNER)
        assert shown is not None
        assert (shown.row.path, shown.row.state, shown.row.version) == (row.path, row.state, row.version)
        assert shown.row.quarantine == '{"reason":"why"}'
        assert await p.projections.quarantined([12, 13], limit=10) == [row.execution_id]
        assert await p.projections.quarantined([13], limit=10) == []
        assert not await p.projections.heal(row), "it is further than that"
        healed = dataclasses.replace(row, applied_position=row.applied_position + 2, status="COMPLETED")
        assert await p.projections.heal(healed)
        shown = await p.views.find(row.execution_id, **OWNER)
        assert shown is not None
        assert shown.row == healed
        assert not await p.projections.heal(healed), "it is well"


# --- the tail ----------------------------------------------------------------------------------------------


@asynchronous
async def test_the_tails_of_several_shards_are_read_in_order(projecting: OpenProjecting) -> None:
    async with projecting() as p:
        heads = {head.shard_id: head.next_position - 1 for head in await p.ledger.heads()}
        ids = {shard: p.make.execution_id() for shard in (13, 14)}
        for shard, execution_id in ids.items():
            await p.append(shard, *story(p.make, execution_id, steps=3))
        found = await p.tail.read({shard: heads[shard] for shard in ids}, limit=4)
        places = [(one.shard_id, one.position) for one in found]
        assert places == [(shard, heads[shard] + number) for shard in (13, 14) for number in (1, 2, 3, 4)]
        rest = await p.tail.read({14: heads[14] + 4}, limit=100)
        assert [one.stream_version for one in rest] == [5, 6, 7, 8]
        assert await p.tail.read({14: heads[14] + 8}, limit=100) == []


@asynchronous
async def test_an_event_that_cannot_be_read_is_told_as_such(projecting: OpenProjecting) -> None:
    async with projecting() as p:
        head = {head.shard_id: head.next_position - 1 for head in await p.ledger.heads()}[15]
        bad, good = p.make.execution_id(), p.make.execution_id()
        await p.append(15, *story(p.make, bad, ends=False))
        await p.append(15, *story(p.make, good))
        await p.spoil(bad)
        found = await p.tail.read({15: head}, limit=100)
        assert [type(one) for one in found] == [Event] * 4 + [Unreadable] + [Event] * 6
        (unreadable,) = [one for one in found if isinstance(one, Unreadable)]
        assert (unreadable.execution_id, unreadable.position) == (bad, head + 5)
        assert unreadable.reason
        told = await p.tail.story(bad, after_position=head + 3, limit=100)
        assert [type(one) for one in told] == [Event, Unreadable]
