"""The ports of several servers on one ledger: processes, ownership of shards, worker sessions and what they hold.

Only the clock of the database says what has run out."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.ledger import MemoryLedger
from noetl.adapters.memory.queue import MemoryQueue
from noetl.adapters.memory.serving.processes import MemoryRoster, MemoryRuntimes, MemoryShards, Presence
from noetl.adapters.postgres.leases import PostgresLeases
from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.postgres.queue import PostgresQueue
from noetl.adapters.postgres.serving.roster import PostgresRoster
from noetl.adapters.postgres.serving.shards import PostgresShards
from noetl.adapters.system.clock import SystemClock
from noetl.adapters.system.ids import SnowflakeIds
from noetl.core.event import seal
from noetl.core.locator.locality import NOWHERE, Place
from noetl.ports.ledger import Ledger, Offer, QueuedCommand, ShardHead, StopWord
from noetl.ports.queue import Queue, Taken
from noetl.ports.serving.roster import HeldCommand, Roster, SessionRow
from noetl.ports.serving.runtimes import Profile, Runtimes
from noetl.ports.serving.shards import Shards
from tests.support.aio import asynchronous
from tests.support.databases import SHARDS, connected, fresh_database
from tests.support.events import ORGANIZATION, TENANT, EventMaker, decision, offer

LEASE = 60.0
OWNER = {"tenant_id": TENANT, "organization_id": ORGANIZATION}


@dataclass(slots=True, kw_only=True)
class Cluster:
    """One ledger and everything that servers share; `expire` lets the lease of a process run out."""

    ledger: Ledger
    queue: Queue
    runtimes: Runtimes
    shards: Shards
    roster: Roster
    make: EventMaker
    expire: Callable[[int], Awaitable[None]]

    async def server(self, name: str = "one", **more: Any) -> int:
        profile = Profile(instance=name, kind=more.pop("kind", "server"), **more)
        return (await self.runtimes.register(profile, lease_seconds=LEASE)).runtime_id

    async def commit(self, head: ShardHead, **parts: Any) -> frozenset[int]:
        return await self.ledger.advance(decision([head], **parts))


Open = Callable[[], AbstractAsyncContextManager[Cluster]]


@asynccontextmanager
async def in_memory() -> AsyncIterator[Cluster]:
    clock = VirtualClock()
    database = MemoryDatabase(clock=clock, shard_count=SHARDS)
    presence = Presence(database)

    async def expire(_runtime_id: int) -> None:
        clock.advance(LEASE)

    yield Cluster(
        ledger=MemoryLedger(database),
        queue=MemoryQueue(database),
        runtimes=MemoryRuntimes(presence),
        shards=MemoryShards(presence),
        roster=MemoryRoster(presence),
        make=EventMaker(ids=VirtualIds(clock), clock=clock),
        expire=expire,
    )


@asynccontextmanager
async def on_postgres(address: str) -> AsyncIterator[Cluster]:
    writer, reader = Writer(address), Reader(address, size_max=4)
    await reader.open()

    async def expire(runtime_id: int) -> None:
        async with connected(address) as connection:
            await connection.execute(
                "UPDATE noetl.runtime SET alive_until = clock_timestamp() WHERE runtime_id = $1", runtime_id
            )

    try:
        yield Cluster(
            ledger=PostgresLedger(writer, reader),
            queue=PostgresQueue(reader),
            runtimes=PostgresLeases(reader),
            shards=PostgresShards(reader),
            roster=PostgresRoster(reader),
            make=EventMaker(ids=_IDS, clock=SystemClock()),
            expire=expire,
        )
    finally:
        await writer.close()
        await reader.close()


_IDS = SnowflakeIds(node=1021)


@pytest.fixture(params=["memory", "postgres"])
def cluster(request: pytest.FixtureRequest) -> Open:
    # A database of its own for each: who is alive is the same for all that use one.
    return in_memory if request.param == "memory" else functools.partial(on_postgres, fresh_database())


# --- processes -------------------------------------------------------------------------------------------


@asynchronous
async def test_a_process_counts_while_its_lease_holds(cluster: Open) -> None:
    async with cluster() as c:
        one, other = await c.server("one", url="http://one"), await c.server("other")
        await c.server("shows", kind="projector")
        assert await c.runtimes.renew(one, last_id=5, lease_seconds=LEASE) == 2
        known = {row.instance: row for row in await c.runtimes.known()}
        assert set(known) == {"one", "other", "shows"}
        assert (known["one"].url, known["one"].kind) == ("http://one", "server")
        assert 0 < known["one"].lease_seconds <= LEASE
        await c.runtimes.leave(other, last_id=6)
        assert await c.runtimes.renew(one, last_id=7, lease_seconds=LEASE) == 1


@asynchronous
async def test_a_process_whose_lease_ran_out_does_not_count_until_it_beats(cluster: Open) -> None:
    async with cluster() as c:
        one, other = await c.server("one"), await c.server("other")
        await c.expire(one)
        assert await c.runtimes.renew(other, last_id=1, lease_seconds=LEASE) == 1
        assert await c.runtimes.renew(one, last_id=1, lease_seconds=LEASE) == 2


@asynchronous
async def test_nobody_renews_what_was_never_registered(cluster: Open) -> None:
    async with cluster() as c:
        assert await c.runtimes.renew(4711, last_id=1, lease_seconds=LEASE) is None


@asynchronous
async def test_whoever_takes_a_seat_knows_that_its_last_holder_is_dead(cluster: Open) -> None:
    async with cluster() as c:
        dead = await c.server("dead", seat="home/host.lock")
        elsewhere = await c.server("elsewhere", seat="other/host.lock")
        assert len(await c.shards.claim(dead, count=2)) == 2
        heir = await c.server("heir", seat="home/host.lock")
        assert len(await c.shards.claim(heir, count=SHARDS)) == SHARDS
        assert await c.runtimes.renew(elsewhere, last_id=1, lease_seconds=LEASE) == 2


# --- shards ----------------------------------------------------------------------------------------------


@asynchronous
async def test_free_shards_are_claimed_up_to_a_number_and_their_epoch_rises(cluster: Open) -> None:
    async with cluster() as c:
        one, other = await c.server("one"), await c.server("other")
        first = await c.shards.claim(one, count=1)
        rest = await c.shards.claim(other, count=SHARDS)
        assert [head.epoch for head in (*first, *rest)] == [1] * SHARDS
        assert {head.shard_id for head in (*first, *rest)} == set(range(SHARDS))
        assert await c.shards.claim(one, count=SHARDS) == []
        owners = {row.head.shard_id: row for row in await c.shards.look()}
        assert {row.owner_runtime_id for row in owners.values()} == {one, other}
        assert owners[first[0].shard_id].owner_instance == "one"
        assert not any(row.is_free for row in owners.values())


@asynchronous
async def test_shards_of_a_silent_owner_are_free_and_its_late_commit_is_refused(cluster: Open) -> None:
    async with cluster() as c:
        silent = await c.server("silent")
        heads = await c.shards.claim(silent, count=SHARDS)
        heir = await c.server("heir")
        assert await c.shards.claim(heir, count=SHARDS) == []
        await c.expire(silent)
        await c.runtimes.renew(heir, last_id=1, lease_seconds=LEASE)
        assert all(row.is_free for row in await c.shards.look())
        (taken,) = await c.shards.claim(heir, count=1)
        assert taken.epoch == heads[taken.shard_id].epoch + 1
        stale = next(head for head in heads if head.shard_id == taken.shard_id)
        row = QueuedCommand(
            execution_id=c.make.execution_id(),
            command_id="s#1",
            shard_id=stale.shard_id,
            tool_kind="noop",
            body="{}",
            **OWNER,
        )
        assert await c.commit(stale, queue=[row]) == frozenset()
        assert await c.commit(taken, queue=[row]) == {taken.shard_id}


@asynchronous
async def test_what_is_handed_over_is_free_at_once_and_only_the_owner_can(cluster: Open) -> None:
    async with cluster() as c:
        one, other = await c.server("one"), await c.server("other")
        await c.shards.claim(one, count=SHARDS)
        assert await c.shards.hand_over(other, [0, 1]) == []
        assert await c.shards.hand_over(one, [1, 0]) == [0, 1]
        assert [head.shard_id for head in await c.shards.claim(other, count=SHARDS)] == [0, 1]


@asynchronous
async def test_whoever_leaves_lets_go_of_everything(cluster: Open) -> None:
    async with cluster() as c:
        one, other = await c.server("one"), await c.server("other")
        (head,) = await c.shards.claim(one, count=1)
        await c.roster.keep(one, [session(7)], lease_seconds=LEASE)
        execution = c.make.execution_id()
        await c.commit(head, queue=[command(execution, head.shard_id, session_id=7, attempt=1)])
        await c.runtimes.leave(one, last_id=9)
        assert await c.roster.living() == []
        assert (await c.queue.commands_of(execution))[0].session_id is None
        assert len(await c.shards.claim(other, count=SHARDS)) == SHARDS


# --- sessions --------------------------------------------------------------------------------------------


def session(number: int, **fields: Any) -> SessionRow:
    return SessionRow(session_id=number, **{"worker_id": "w", "pool": "default", "kinds": None, "slots": 2, **fields})


def command(execution_id: int, shard_id: int, command_id: str = "s#1", **fields: Any) -> QueuedCommand:
    fields = {"tool_kind": "noop", "body": "{}", **OWNER, **fields}
    return QueuedCommand(execution_id=execution_id, command_id=command_id, shard_id=shard_id, **fields)


@asynchronous
async def test_sessions_are_known_while_their_server_vouches_for_them(cluster: Open) -> None:
    async with cluster() as c:
        one, other = await c.server("one"), await c.server("other")
        await c.roster.keep(one, [session(7, kinds=frozenset(("http", "python")), pool="web")], lease_seconds=LEASE)
        await c.roster.keep(other, [session(8)], lease_seconds=LEASE)
        assert await c.roster.living() == [
            session(7, kinds=frozenset(("http", "python")), pool="web"),
            session(8),
        ]
        await c.roster.end(8)
        assert [row.session_id for row in await c.roster.living()] == [7]
        await c.expire(one)
        assert await c.roster.living() == []


@asynchronous
async def test_other_servers_see_where_a_session_is_or_that_it_is_nowhere(cluster: Open) -> None:
    async with cluster() as c:
        one = await c.server("one")
        somewhere = Place(region="eu", zone='a "b"', node="n\u00e4")
        await c.roster.keep(one, [session(7, place=somewhere), session(8)], lease_seconds=LEASE)
        assert [row.place for row in await c.roster.living()] == [somewhere, NOWHERE]
        # A session does not move: what is renewed is its lease.
        await c.roster.keep(one, [session(7, place=somewhere), session(8)], lease_seconds=LEASE)
        assert [row.place for row in await c.roster.living()] == [somewhere, NOWHERE]


@asynchronous
async def test_what_dead_sessions_hold_goes_back_and_nothing_else(cluster: Open) -> None:
    async with cluster() as c:
        dead, alive = await c.server("dead"), await c.server("alive")
        (head,) = await c.shards.claim(alive, count=1)
        await c.roster.keep(dead, [session(7)], lease_seconds=LEASE)
        execution = c.make.execution_id()
        rows = [
            command(execution, head.shard_id, f"s{number}#1", session_id=number, attempt=1) for number in (7, 8, 99)
        ]
        await c.commit(head, queue=rows)
        await c.expire(dead)
        await c.runtimes.renew(alive, last_id=1, lease_seconds=LEASE)
        await c.roster.keep(alive, [session(8)], lease_seconds=LEASE)
        assert await c.roster.release_dead() == 2
        held = {row.command_id: row.session_id for row in await c.queue.commands_of(execution)}
        assert held == {"s7#1": None, "s8#1": 8, "s99#1": None}
        assert await c.roster.release_dead() == 0


@asynchronous
async def test_a_session_is_ended_by_its_own_worker_only(cluster: Open) -> None:
    async with cluster() as c:
        one = await c.server("one")
        (head,) = await c.shards.claim(one, count=1)
        await c.roster.keep(one, [session(7, worker_id="mine")], lease_seconds=LEASE)
        execution = c.make.execution_id()
        await c.commit(head, queue=[command(execution, head.shard_id, session_id=7, attempt=1)])
        assert await c.roster.end(7, worker_id="other") == 0
        assert await c.roster.end(7, worker_id="mine") == 1
        assert (await c.queue.commands_of(execution))[0].session_id is None


@asynchronous
async def test_what_sessions_hold_is_seen_with_its_stop_word(cluster: Open) -> None:
    async with cluster() as c:
        owner, other = await c.server("owner"), await c.server("other")
        (head,) = await c.shards.claim(owner, count=1)
        await c.roster.keep(other, [session(7)], lease_seconds=LEASE)
        await c.roster.keep(owner, [session(8)], lease_seconds=LEASE)
        execution, shard = c.make.execution_id(), head.shard_id
        rows = [command(execution, shard, f"s{number}#1", session_id=number, attempt=2) for number in (7, 8)]
        await c.commit(head, queue=rows)
        assert await c.roster.held_elsewhere([shard], runtime_id=owner) == [HeldCommand(execution, "s7#1", 2, 7)]
        assert await c.roster.held_elsewhere([shard + 1], runtime_id=owner) == []
        words = [StopWord(execution, "s7#1", 2, "drain"), StopWord(execution, "s8#1", 1, "cancel")]
        assert await c.commit(head, stops=words) == {shard}
        # The word for an attempt that nobody holds any more is said to nobody.
        held = {row.command_id: row.stop for row in await c.roster.held([7, 8])}
        assert held == {"s7#1": "drain", "s8#1": None}
        await c.roster.end(7)
        assert await c.roster.held([7]) == []


# --- rows that are taken before their claim is recorded ----------------------------------------------------


@asynchronous
async def test_a_row_is_taken_once(cluster: Open) -> None:
    async with cluster() as c:
        (head,) = await c.shards.claim(await c.server(), count=1)
        execution = c.make.execution_id()
        await c.commit(head, queue=[command(execution, head.shard_id, name) for name in ("a#1", "b#1")])
        assert await c.queue.free(execution) == {"a#1": 0, "b#1": 0}
        assert await c.queue.take([Taken(execution, "a#1", 1, 7), Taken(execution, "gone#1", 1, 7)]) == {
            (execution, "a#1")
        }
        assert await c.queue.take([Taken(execution, "a#1", 1, 8)]) == set()
        assert await c.queue.free(execution) == {"b#1": 0}
        # Given back it stays ahead of the ledger, and may be taken with the same attempt.
        await c.queue.release(7, commands=[(execution, "a#1")])
        assert await c.queue.free(execution) == {"a#1": 1, "b#1": 0}
        assert await c.queue.take([Taken(execution, "a#1", 1, 8)]) == {(execution, "a#1")}
        # Unless it is known that no claim was recorded: nobody must take it for one whose first attempt has died.
        assert await c.queue.release(8, commands=[(execution, "a#1")], untaken=[2]) == 0  # of another attempt
        assert await c.queue.release(8, commands=[(execution, "a#1")], untaken=[1]) == 1
        assert await c.queue.free(execution) == {"a#1": 0, "b#1": 0}


@asynchronous
async def test_a_rebuilt_row_leaves_a_claim_alone_that_is_being_recorded(cluster: Open) -> None:
    async with cluster() as c:
        (head,) = await c.shards.claim(await c.server(), count=1)
        execution = c.make.execution_id()
        await c.commit(head, queue=[command(execution, head.shard_id)])
        await c.queue.take([Taken(execution, "s#1", 1, 7)])
        await c.commit(head, queue=[command(execution, head.shard_id, attempt=0)])
        (row,) = await c.queue.commands_of(execution)
        assert (row.session_id, row.attempt) == (7, 1)
        await c.commit(head, queue=[command(execution, head.shard_id, attempt=1, session_id=8)])
        (row,) = await c.queue.commands_of(execution)
        assert row.session_id == 8


# --- by shard ----------------------------------------------------------------------------------------------


@asynchronous
async def test_timers_are_read_by_shard(cluster: Open) -> None:
    async with cluster() as c:
        heads = await c.shards.claim(await c.server(), count=2)
        execution = c.make.execution_id()
        for head in heads:
            timer = (execution, f"t{head.shard_id}", head.shard_id, "2024-02-01T00:00:00.000000Z")
            await c.commit(head, timers=[timer])
        one = heads[0].shard_id
        assert [timer.shard_id for timer in await c.queue.due_timers(limit=9, shards=[one])] == [one]
        assert len(await c.queue.due_timers(limit=9)) == 2
        assert await c.queue.next_due_in(shards=[]) is None
        due_in = await c.queue.next_due_in(shards=[one])
        assert due_in is not None
        assert due_in < 0


@asynchronous
async def test_an_offer_may_expect_a_version_of_each_stream(cluster: Open) -> None:
    async with cluster() as c:
        parent, child = c.make.execution_id(), c.make.execution_id()
        await c.ledger.append([offer(0, c.make.initialized(parent))])
        both = [seal(c.make.issued(parent)), seal(c.make.initialized(child))]
        late = Offer(shard_id=0, events=both, expected_versions={parent: 0, child: 0})
        assert {one.version for one in (await c.ledger.append([late])).left_out.values()} == {1}
        good = Offer(shard_id=0, events=both, expected_versions={parent: 1, child: 0})
        assert (await c.ledger.append([good])).left_out == {}
        assert await c.ledger.shard_of(child) == 0
        assert await c.ledger.shard_of(c.make.execution_id()) is None
