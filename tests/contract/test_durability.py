"""The ports of recovery: snapshots, roles, checkpoints and partitions, in memory and on Postgres."""

from __future__ import annotations

import asyncio
import datetime
import functools
from dataclasses import replace

import pytest

from noetl.core import kinds
from noetl.core.errors import TransitionConflict
from noetl.core.event import Event
from noetl.core.execution.state import ExecutionState
from noetl.core.ids import quarters_from, system_execution_of
from noetl.core.snapshot.snapshot import Snapshot, take
from noetl.ports.durability.checkpoints import Barrier
from noetl.ports.durability.roles import RoleLease
from noetl.ports.ledger import QueuedCommand
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.durability import Durable, OpenDurable, memory_durable, postgres_durable
from tests.support.events import decision, offer


@pytest.fixture(params=["memory", "postgres"])
def durable(request: pytest.FixtureRequest) -> OpenDurable:
    if request.param == "memory":
        return memory_durable
    return functools.partial(postgres_durable, request.getfixturevalue("address"))


@pytest.fixture(params=["memory", "postgres"])
def alone(request: pytest.FixtureRequest) -> OpenDurable:
    """A database that no other test sees."""
    return memory_durable if request.param == "memory" else functools.partial(postgres_durable, fresh_database())


# --- snapshots -------------------------------------------------------------------------------------------


def snapshot(execution_id: int, position: int) -> Snapshot:
    state = ExecutionState(execution_id=execution_id, version=position, last_event_id=position + 5)
    return take(state, shard_id=3, position=position)


@asynchronous
async def test_a_snapshot_comes_back_as_it_was(durable: OpenDurable) -> None:
    async with durable() as d:
        one = snapshot(d.make.execution_id(), 7)
        await d.snapshots.save([one])
        assert await d.snapshots.newest(one.execution_id) == [one]
        assert await d.snapshots.newest(d.make.execution_id()) == []


@asynchronous
async def test_the_last_two_of_an_execution_are_kept(durable: OpenDurable) -> None:
    async with durable() as d:
        first, second = d.make.execution_id(), d.make.execution_id()
        for position in (10, 20, 30, 40):
            await d.snapshots.save([snapshot(first, position), snapshot(second, position + 1)])
        assert [one.position for one in await d.snapshots.newest(first)] == [40, 30]
        assert [one.position for one in await d.snapshots.newest(second)] == [41, 31]
        # One that comes late does no harm.
        await d.snapshots.save([snapshot(first, 25)])
        assert [one.position for one in await d.snapshots.newest(first)] == [40, 30]


@asynchronous
async def test_a_snapshot_that_is_there_stays_unless_it_is_of_another_release(durable: OpenDurable) -> None:
    async with durable() as d:
        one = snapshot(d.make.execution_id(), 7)
        await d.snapshots.save([one])
        await d.snapshots.save([replace(one, state=b"other")])
        assert await d.snapshots.newest(one.execution_id) == [one]
        other = replace(one, state=b"other", code_version="other", checksum="c", payload_root="r")
        await d.snapshots.save([other])
        assert await d.snapshots.newest(one.execution_id) == [other]


@asynchronous
async def test_two_snapshots_of_one_execution_at_a_time_are_refused(durable: OpenDurable) -> None:
    async with durable() as d:
        execution_id = d.make.execution_id()
        with pytest.raises(AssertionError):
            await d.snapshots.save([snapshot(execution_id, 1), snapshot(execution_id, 2)])


# --- roles -----------------------------------------------------------------------------------------------


@asynchronous
async def test_a_role_has_one_holder_until_its_lease_runs_out(alone: OpenDurable) -> None:
    async with alone() as d:
        (first,) = await d.roles.hold(["x"], runtime_id=1, lease_seconds=2.0)
        assert first == RoleLease(role="x", runtime_id=1, epoch=1)
        assert await d.roles.hold(["x"], runtime_id=2, lease_seconds=2.0) == []
        assert await d.roles.hold(["x"], runtime_id=1, lease_seconds=2.0) == [first]
        await d.wait(2.1)
        assert await d.roles.hold(["x"], runtime_id=2, lease_seconds=30) == [RoleLease(role="x", runtime_id=2, epoch=2)]
        assert await d.roles.hold(["x"], runtime_id=1, lease_seconds=30) == []


@asynchronous
async def test_a_lease_that_had_run_out_is_a_new_one_for_its_last_holder_too(alone: OpenDurable) -> None:
    async with alone() as d:
        await d.roles.hold(["x"], runtime_id=1, lease_seconds=0.1)
        await d.wait(0.2)
        (again,) = await d.roles.hold(["x"], runtime_id=1, lease_seconds=30)
        assert again.epoch == 2


@asynchronous
async def test_whoever_lets_go_of_a_role_gives_it_to_the_next_at_once(alone: OpenDurable) -> None:
    async with alone() as d:
        held = await d.roles.hold(["x", "y"], runtime_id=1, lease_seconds=30)
        assert [lease.role for lease in held] == ["x", "y"]
        await d.roles.release(held[:1])
        assert [one.role for one in await d.roles.hold(["x", "y"], runtime_id=2, lease_seconds=30)] == ["x"]
        # A word about an earlier lease says nothing about this one.
        await d.roles.release(held[:1])
        holders = {one.role: one for one in await d.roles.holders()}
        assert (holders["x"].runtime_id, holders["x"].epoch) == (2, 2)
        assert (holders["y"].runtime_id, holders["y"].epoch) == (1, 1)
        assert 25 < holders["x"].seconds_left <= 30


@asynchronous
async def test_of_many_who_want_a_role_one_has_it(alone: OpenDurable) -> None:
    async with alone() as d:
        asked = (d.roles.hold(["x"], runtime_id=number, lease_seconds=30) for number in range(1, 9))
        held = [lease for leases in await asyncio.gather(*asked) for lease in leases]
        assert len(held) == 1


# --- checkpoints -----------------------------------------------------------------------------------------


async def append(d: Durable, shard_id: int, count: int = 1) -> Event:
    """Begin executions in a shard; returns the last event as it is stored."""
    for _ in range(count):
        event = d.make.initialized(d.make.execution_id())
        await d.ledger.append([offer(shard_id, event)])
    return (await d.ledger.read_execution(event.execution_id))[-1]


async def barrier(d: Durable, shard_id: int) -> Barrier:
    return {one.shard_id: one for one in await d.checkpoints.barriers()}[shard_id]


@asynchronous
async def test_a_checkpoint_covers_what_was_applied_and_no_more(alone: OpenDurable) -> None:
    async with alone() as d:
        applied = await append(d, 3, 4)
        await append(d, 3, 2)
        await d.apply(3, applied.position, applied.event_id)
        assert await d.checkpointer().look(await d.lease()) == {3}
        (committed,) = await d.ledger.read_execution(system_execution_of(3))
        assert (committed.event_type, committed.transition_key) == (kinds.CHECKPOINT_COMMITTED, kinds.checkpoint_key(1))
        assert committed.meta == {"epoch": 1, "shard": 3, "position": 4, "last_event_id": str(applied.event_id)}
        assert (committed.shard_id, committed.position, committed.stream_version) == (3, 7, 1)
        found = await barrier(d, 3)
        assert (found.epoch, found.position, found.is_due) == (1, 4, False)
        assert found.uncovered_ms is not None


@asynchronous
async def test_checkpoints_are_no_reason_for_a_checkpoint(alone: OpenDurable) -> None:
    async with alone() as d:
        lease, checkpointer = await d.lease(), d.checkpointer()
        event = await append(d, 5)
        await d.apply(5, event.position, event.event_id)
        assert await checkpointer.look(lease) == {5}
        heads = await d.ledger.heads()
        for _ in range(3):
            # The projector applies the checkpoint as well.
            await d.apply(5, heads[5].next_position - 1, event.event_id)
            assert await checkpointer.look(lease) == frozenset()
        assert await d.ledger.heads() == heads
        assert (await barrier(d, 5)).uncovered_ms is None
        event = await append(d, 5)
        await d.apply(5, event.position, event.event_id)
        assert await checkpointer.look(lease) == {5}
        assert [one.stream_version for one in await d.ledger.read_execution(system_execution_of(5))] == [1, 2]


@asynchronous
async def test_what_was_decided_stays_decided_and_what_was_not_does_not_become_so(alone: OpenDurable) -> None:
    async with alone() as d:
        first, second = await append(d, 1), await append(d, 2)
        await d.apply(1, first.position, first.event_id)
        await d.apply(2, second.position, second.event_id)
        before = {head.shard_id: head for head in await d.ledger.heads()}
        assert before[1].decided_position == 0
        assert await d.checkpointer().look(await d.lease()) == {1, 2}
        after = {head.shard_id: head for head in await d.ledger.heads()}
        assert (after[1].next_position, after[1].decided_position) == (before[1].next_position + 1, 0)
        assert (after[0].next_position, after[0].decided_position) == (1, 0)


@asynchronous
async def test_a_checkpoint_of_an_epoch_that_is_there_is_refused_whole(alone: OpenDurable) -> None:
    async with alone() as d:
        lease, checkpointer = await d.lease(), d.checkpointer()
        for shard_id in (1, 2):
            event = await append(d, shard_id)
            await d.apply(shard_id, event.position, event.event_id)
        stale = [checkpointer._checkpoint(one) for one in await d.checkpoints.barriers() if one.is_due]
        event = await append(d, 1)
        await d.checkpoints.commit(stale[:1], lease=lease)
        heads = await d.ledger.heads()
        with pytest.raises(TransitionConflict):
            await d.checkpoints.commit(stale, lease=lease)
        assert await d.ledger.heads() == heads
        assert (await barrier(d, 2)).epoch == 0


@asynchronous
async def test_whoever_lost_the_role_commits_nothing(alone: OpenDurable) -> None:
    async with alone() as d:
        lease = await d.lease(runtime_id=1)
        event = await append(d, 1)
        await d.apply(1, event.position, event.event_id)
        await d.roles.release([lease])
        await d.lease(runtime_id=2)
        heads = await d.ledger.heads()
        assert await d.checkpointer().look(lease) == frozenset()
        assert await d.ledger.heads() == heads


@asynchronous
async def test_without_a_projector_there_is_no_checkpoint_and_the_age_shows_it(alone: OpenDurable) -> None:
    async with alone() as d:
        await append(d, 1)
        await d.wait(0.05)
        checkpointer = d.checkpointer()
        assert await checkpointer.look(await d.lease()) == frozenset()
        ages = {labels["shard"]: value for name, labels, value in checkpointer.samples() if "age" in name}
        assert ages["1"] >= 50
        assert ages["2"] == 0


# --- what is left in the queue ---------------------------------------------------------------------------


@asynchronous
async def test_commands_of_executions_that_are_closed_are_taken_out_and_no_others(alone: OpenDurable) -> None:
    async with alone() as d:
        head = (await d.ledger.heads())[4]
        started = [d.make.initialized(d.make.execution_id(), shard_id=4, stream_version=1) for _ in range(2)]
        rows = [
            QueuedCommand(
                execution_id=event.execution_id,
                command_id="a#1",
                shard_id=4,
                tenant_id=event.tenant_id,
                organization_id=event.organization_id,
                tool_kind="noop",
                body="{}",
            )
            for event in started
        ]
        assert await d.ledger.advance(decision([head], *started, queue=rows)) == {4}
        assert await d.leftovers.drop_ended() == 0
        # Somebody records the end and dies before the row is gone.
        await d.ledger.append([offer(4, d.make.ended(started[0].execution_id))])
        assert await d.leftovers.drop_ended() == 1
        assert await d.leftovers.drop_ended() == 0
        assert await d.queue.commands_of(started[0].execution_id) == []
        assert len(await d.queue.commands_of(started[1].execution_id)) == 1


# --- partitions ------------------------------------------------------------------------------------------


@asynchronous
async def test_missing_quarters_are_made_and_those_that_are_there_are_left_alone(alone: OpenDurable) -> None:
    async with alone() as d:
        now = datetime.datetime.now(datetime.UTC)
        await d.partitions.ensure(now)
        later = now + datetime.timedelta(days=366)
        wanted = quarters_from(later, 5)
        made = await d.partitions.ensure(later)
        assert made == [f"event_{quarter.name}" for quarter in wanted[-len(made) :]]
        assert 3 <= len(made) <= 5
        assert await d.partitions.ensure(later) == []
        assert [one.quarter for one in await d.partitions.found()][-5:] == wanted
        assert not any(one.has_open for one in (await d.partitions.found())[-4:])


@asynchronous
async def test_a_quarter_with_an_open_execution_is_told(alone: OpenDurable) -> None:
    async with alone() as d:
        now = datetime.datetime.fromisoformat(d.make.clock.now())
        await d.partitions.ensure(now)
        event = d.make.initialized(d.make.execution_id())
        await d.ledger.append([offer(1, event)])
        found = {one.quarter: one.has_open for one in await d.partitions.found()}
        assert found[quarters_from(now, 1)[0]] is True
        await d.ledger.append([offer(1, d.make.ended(event.execution_id))])
        assert not any(one.has_open for one in await d.partitions.found())
