"""The books of shared limits: what several servers see of each other, who is dead, and whose answer was lost."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from noetl.adapters.memory.clock import VirtualClock
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.serving.permits import MemoryPermits
from noetl.adapters.memory.serving.processes import MemoryRoster, MemoryRuntimes, Presence
from noetl.adapters.postgres.leases import PostgresLeases
from noetl.adapters.postgres.pool import Reader, Transactions
from noetl.adapters.postgres.serving.permits import PostgresPermits
from noetl.adapters.postgres.serving.roster import PostgresRoster
from noetl.core.permits.dealing import OPENING_SECONDS, SILENT_SECONDS, Ask, Dealt
from noetl.core.permits.rates import Allowance
from noetl.ports.serving.permits import LimitKey, LimitUser, PermitBooks
from noetl.ports.serving.roster import Roster, SessionRow
from noetl.ports.serving.runtimes import Profile, Runtimes
from tests.support.aio import asynchronous
from tests.support.databases import SHARDS, connected, fresh_database

LEASE = 60.0
API = LimitKey("acme", "sales", "api")
ONE = Allowance(concurrency=1)
MANY = 40


@dataclass(slots=True, kw_only=True)
class Counter:
    """Two servers with a session each, and the books of both.  `expire` ends the lease of a server, `wait` lets time
    pass."""

    here: PermitBooks
    there: PermitBooks
    runtimes: Runtimes
    roster: Roster
    expire: Callable[[int], Awaitable[None]]
    wait: Callable[[float], Awaitable[None]]
    forget: Callable[[], Awaitable[None]]
    servers: tuple[int, int] = (0, 0)

    async def open(self) -> None:
        found = []
        for number in (1, 2):
            profile = Profile(instance=f"server-{number}", kind="server")
            server = (await self.runtimes.register(profile, lease_seconds=LEASE)).runtime_id
            await self.roster.keep(server, [_session(number)], lease_seconds=LEASE)
            found.append(server)
        self.servers = (found[0], found[1])

    async def turn(
        self, session_id: int, allowance: Allowance, *, books: PermitBooks | None = None, **counts: int
    ) -> int:
        """Of the session's execution, which has its number: all permits so far."""
        dealt = await self.dealt(session_id, allowance, books=books, **counts)
        return dealt.granted.get((session_id, session_id), 0)

    async def dealt(
        self, session_id: int, allowance: Allowance, *, books: PermitBooks | None = None, **counts: int
    ) -> Dealt:
        ask = Ask(session_id=session_id, execution_id=session_id, allowance=allowance, **counts)
        asks = [ask] if counts else []
        where = books or (self.here if session_id == 1 else self.there)
        while True:
            dealt = await where.turn(API, asks, own={session_id})
            if dealt is not None:
                return dealt


Open = Callable[[], AbstractAsyncContextManager[Counter]]


def _session(number: int) -> SessionRow:
    return SessionRow(session_id=number, worker_id=f"worker-{number}", pool="default", kinds=None, slots=4)


@asynccontextmanager
async def in_memory() -> AsyncIterator[Counter]:
    clock = VirtualClock()
    presence = Presence(MemoryDatabase(clock=clock, shard_count=SHARDS))
    books = MemoryPermits(presence)

    async def expire(runtime_id: int) -> None:
        row = presence.runtimes[runtime_id]
        clock.advance(0.001)
        presence.runtimes[runtime_id] = type(row)(
            profile=row.profile,
            last_id=row.last_id,
            started_at=row.started_at,
            heartbeat_at=row.heartbeat_at,
            alive_until=presence.now,
        )

    async def wait(seconds: float) -> None:
        clock.advance(seconds)

    async def forget() -> None:
        books.books.clear()
        books.opened_at = None

    found = Counter(
        here=books,
        there=books,
        runtimes=MemoryRuntimes(presence),
        roster=MemoryRoster(presence),
        expire=expire,
        wait=wait,
        forget=forget,
    )
    await found.open()
    yield found


@asynccontextmanager
async def on_postgres(address: str) -> AsyncIterator[Counter]:
    turns = Transactions(address, size_max=2), Transactions(address, size_max=2)
    reader = Reader(address, size_max=4)
    await reader.open()

    async def change(statement: str, *values: object) -> None:
        async with connected(address) as connection:
            await connection.execute(statement, *values)

    async def expire(runtime_id: int) -> None:
        await change("UPDATE noetl.runtime SET alive_until = clock_timestamp() WHERE runtime_id = $1", runtime_id)

    async def forget() -> None:
        await change("TRUNCATE noetl.shared_limit, noetl.limit_lease, noetl.limit_books")

    found = Counter(
        here=PostgresPermits(turns[0], reader),
        there=PostgresPermits(turns[1], reader),
        runtimes=PostgresLeases(reader),
        roster=PostgresRoster(reader),
        expire=expire,
        wait=asyncio.sleep,
        forget=forget,
    )
    await found.open()
    try:
        yield found
    finally:
        for one in turns:
            await one.close()
        await reader.close()


@pytest.fixture(params=["memory", "postgres"])
def counter(request: pytest.FixtureRequest) -> Open:
    return in_memory if request.param == "memory" else functools.partial(on_postgres, fresh_database())


@asynchronous
async def test_what_one_server_gave_out_another_cannot_give_again(counter: Open) -> None:
    async with counter() as c:
        assert await c.turn(1, ONE, waiting=3) == 1
        assert await c.turn(2, ONE, waiting=3) == 0
        assert await c.turn(1, ONE, returned=1) == 1
        assert await c.turn(2, ONE, waiting=3) == 1


@asynchronous
async def test_askers_at_the_same_moment_never_get_more_than_there_is(counter: Open) -> None:
    async with counter() as c:
        held = {1: 0, 2: 0}
        returned = {1: 0, 2: 0}
        most, got = 0, 0

        async def ask(session_id: int) -> None:
            nonlocal most, got
            for _ in range(MANY):
                use = {"returned": returned[session_id], "in_use": held[session_id], "waiting": 3}
                granted = await c.turn(session_id, Allowance(concurrency=3), **use)
                held[session_id] = granted - returned[session_id]
                most = max(most, sum(held.values()))
                got += held[session_id]
                await asyncio.sleep(0)
                returned[session_id] += held[session_id]
                held[session_id] = 0

        await asyncio.gather(ask(1), ask(2))
        assert most <= 3
        assert got >= MANY
        (view,) = await c.here.look(tenant_id="acme", organization_id="sales")
        assert view.granted == returned[1] + returned[2]


@asynchronous
async def test_an_answer_that_was_lost_is_given_again(counter: Open) -> None:
    async with counter() as c:
        assert await c.turn(1, Allowance(concurrency=5), waiting=2) == 2
        assert await c.turn(1, Allowance(concurrency=5), waiting=2) == 2
        assert await c.turn(2, Allowance(concurrency=5), waiting=9) == 3


@asynchronous
async def test_permits_of_a_session_that_ended_come_back_at_once(counter: Open) -> None:
    async with counter() as c:
        assert await c.turn(1, ONE, waiting=1) == 1
        assert await c.turn(2, ONE, waiting=1) == 0
        await c.roster.end(1)
        assert await c.turn(2, ONE, waiting=1) == 1
        # What is dead gets nothing, whoever asks for it.
        assert await c.turn(1, Allowance(concurrency=9), waiting=1) == 0


@asynchronous
async def test_permits_of_a_server_whose_lease_is_over_come_back(counter: Open) -> None:
    async with counter() as c:
        assert await c.turn(1, ONE, waiting=1) == 1
        await c.expire(c.servers[0])
        assert await c.turn(2, ONE, waiting=1) == 1


@asynchronous
async def test_books_that_are_gone_are_written_again_by_those_who_hold_permits(counter: Open) -> None:
    async with counter() as c:
        assert await c.turn(1, Allowance(concurrency=2), waiting=2) == 2
        await c.forget()
        assert await c.turn(1, Allowance(concurrency=2), in_use=2, waiting=1) == 2
        assert await c.turn(2, Allowance(concurrency=2), waiting=1) == 0


@asynchronous
async def test_the_rate_is_one_for_all_servers_and_by_one_clock(counter: Open) -> None:
    async with counter() as c:
        rate = Allowance(rate=1 / 3600)
        first = await c.dealt(1, rate, waiting=2)
        assert first.granted == {(1, 1): 1}
        second = await c.dealt(2, rate, waiting=2)
        assert second.granted == {(2, 2): 0}
        assert second.due_seconds == pytest.approx(3600, abs=5)
        assert second.is_shared
        # The strictest counts; without whoever declared it the next is due soon.
        await c.roster.end(1)
        third = await c.dealt(2, Allowance(rate=100.0), waiting=2)
        assert third.due_seconds == pytest.approx(0.01, abs=0.01)
        await c.wait(0.02)
        assert await c.turn(2, Allowance(rate=100.0), waiting=1) == 1


@asynchronous
async def test_a_limit_is_shown_with_everybody_who_uses_it(counter: Open) -> None:
    async with counter() as c:
        await c.turn(1, Allowance(rate=0.01, concurrency=3), waiting=2)
        await c.turn(2, Allowance(concurrency=2), waiting=4)
        (view,) = await c.here.look(tenant_id="acme", organization_id="sales")
        assert (view.name, view.allowance) == ("api", Allowance(rate=0.01, concurrency=2))
        assert view.users == (LimitUser(1, 1, 1), LimitUser(2, 0, 4))
        assert await c.here.look(tenant_id="acme", organization_id="other") == []
        await c.roster.end(1)
        await c.roster.end(2)
        assert await c.here.look(tenant_id="acme", organization_id="sales") == []


@asynchronous
async def test_books_that_were_lost_give_nothing_to_whoever_comes_before_those_who_hold_permits(counter: Open) -> None:
    async with counter() as c:
        two = Allowance(concurrency=2)
        assert await c.turn(1, two, waiting=2) == 2
        await c.forget()
        assert await c.turn(2, two, waiting=2) == 0
        assert await c.turn(1, two, in_use=2) == 2
        await c.wait(OPENING_SECONDS)
        assert await c.turn(2, two, waiting=2) == 0
        assert await c.turn(1, two, returned=1, in_use=1) == 2
        assert await c.turn(2, two, waiting=2) == 1


@asynchronous
async def test_after_a_silence_a_session_whose_lease_is_over_is_given_time_to_come_back(counter: Open) -> None:
    """As after an outage: nobody could renew anything, and the one who waits is the first to be back."""
    async with counter() as c:
        assert await c.turn(1, ONE, waiting=1) == 1
        await c.wait(SILENT_SECONDS + 0.1)
        await c.expire(c.servers[0])
        assert await c.turn(2, ONE, waiting=1) == 0
        await c.runtimes.renew(c.servers[0], last_id=0, lease_seconds=LEASE)
        assert await c.turn(1, ONE, in_use=1) == 1
        await c.wait(OPENING_SECONDS)
        assert await c.turn(2, ONE, waiting=1) == 0
        assert await c.turn(1, ONE, returned=1) == 1
        assert await c.turn(2, ONE, waiting=1) == 1


@asynchronous
async def test_a_limit_that_nobody_uses_any_more_is_forgotten_and_begins_anew(counter: Open) -> None:
    async with counter() as c:
        assert await c.turn(1, ONE, waiting=1) == 1
        assert await c.here.sweep(unused_seconds=60) == 0
        await c.wait(0.2)
        assert await c.here.sweep(unused_seconds=0.1) == 1
        assert await c.here.sweep(unused_seconds=0.1) == 0
        assert await c.here.look(tenant_id="acme", organization_id="sales") == []
        dealt = await c.dealt(2, ONE, waiting=1)
        assert dealt.granted == {(2, 2): 1}
        assert dealt.book.dealt == 1
