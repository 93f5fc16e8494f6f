"""Turns at one limit by servers that are not equally fast, on Postgres: everybody has a turn, and whoever stands still
holds up nobody for long."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from noetl.adapters.postgres.migrate import migrate
from noetl.adapters.postgres.pool import Reader, Transaction, Transactions
from noetl.adapters.postgres.serving.permits import PostgresPermits
from noetl.adapters.postgres.statements import Statement
from noetl.adapters.session.in_process import InProcessPermits
from noetl.adapters.system.clock import SystemClock
from noetl.core.errors import LedgerUnavailable
from noetl.core.permits.dealing import OPENING_SECONDS, Ask
from noetl.core.permits.rates import Allowance
from noetl.engine.permits.desk import PermitDesk
from noetl.engine.permits.taking import Permits
from tests.contract.test_permits import API, ONE, on_postgres
from tests.contract.test_permits import Counter as Servers
from tests.support.aio import asynchronous
from tests.support.databases import empty_database, fresh_database
from tests.support.postgres import embedded_server

CALLS_AT_A_TIME = 12


class Far(Transactions):
    """A database that is so far away that every statement takes a while longer; `arrives` holds all answers back."""

    def __init__(self, dsn: str, *, seconds: float, arrives: asyncio.Event | None = None) -> None:
        super().__init__(dsn, size_max=2)
        self.seconds = seconds
        self.arrives = arrives
        self.answered = asyncio.Event()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Transaction]:
        async with super().begin() as near:
            yield FarAway(near, self)


class FarAway(Transaction):
    def __init__(self, near: Transaction, where: Far) -> None:
        self._near, self._where = near, where

    async def fetch(self, statement: Statement, values: dict[str, object]) -> object:  # type: ignore[override]
        await asyncio.sleep(self._where.seconds / 2)
        found = await self._near.fetch(statement, values)
        self._where.answered.set()
        await asyncio.sleep(self._where.seconds / 2)
        if self._where.arrives is not None:
            await self._where.arrives.wait()
        return found


@pytest.fixture
def address() -> str:
    return fresh_database()


@asynchronous
async def test_a_server_that_is_far_from_the_database_gets_its_share(address: str) -> None:
    """Two executions of which each is at home at a server of its own, and both always wait."""
    allowance, done = Allowance(concurrency=4), Counter[int]()
    async with on_postgres(address) as c:
        reader = Reader(address, size_max=1)
        await reader.open()
        clock = SystemClock()
        everybody = []

        async def calls(permits: Permits, execution_id: int) -> None:
            while True:
                async with permits.permit(API, allowance, execution_id):
                    await asyncio.sleep(0.01)
                done[execution_id] += 1

        places = Far(address, seconds=0.0), Far(address, seconds=0.025)
        for number, turns in enumerate(places, start=1):
            desk = PermitDesk(PostgresPermits(turns, reader), clock, is_alive=lambda _: True)
            permits = Permits(InProcessPermits(desk, number), clock)
            everybody += [desk.run(), permits.run(), *(calls(permits, number) for _ in range(CALLS_AT_A_TIME))]
        tasks = [asyncio.ensure_future(one) for one in everybody]
        async with asyncio.timeout(60):
            while not (done[1] and done[2]):
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)  # whoever was first was alone for a while
        done.clear()
        await asyncio.sleep(4)
        async with asyncio.timeout(60):
            while sum(done.values()) < 60:
                await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for turns in places:
            await turns.close()
        await reader.close()
        assert c.servers
    assert min(done[1], done[2]) >= 0.25 * sum(done.values()), done


@asynchronous
async def test_a_server_that_stands_still_within_its_turn_holds_up_the_others_for_a_moment(address: str) -> None:
    async with on_postgres(address) as c:
        arrives = asyncio.Event()
        still, reader = Far(address, seconds=0.0, arrives=arrives), Reader(address, size_max=1)
        await reader.open()
        await c.turn(2, ONE)  # so that there is a limit whose first statement locks it
        ask = Ask(session_id=1, execution_id=1, allowance=ONE, waiting=1)
        standing = asyncio.ensure_future(PostgresPermits(still, reader).turn(API, [ask], own={1}))
        await still.answered.wait()  # it has the lock, and stands still until it is told
        async with asyncio.timeout(8):  # other transactions may stand still for ten
            assert await c.turn(2, ONE, waiting=1) == 1
        arrives.set()
        with pytest.raises(LedgerUnavailable):
            await standing
        assert await c.turn(1, ONE, waiting=1) == 0, "what it would have given it has not given"
        await still.close()
        await reader.close()


@asynchronous
async def test_after_a_crash_of_the_database_nothing_of_a_concurrency_is_granted_twice() -> None:
    """Whoever waits is back before whoever holds all the permits; both have connections that broke."""
    with embedded_server() as server:
        address = await asyncio.to_thread(empty_database, server)
        await migrate(address, shard_count=1, now=datetime.datetime.now(datetime.UTC))
        async with on_postgres(address) as c:
            assert await c.turn(1, ONE, waiting=1) == 1
            assert await c.turn(2, ONE, waiting=1) == 0
            os.kill(server.address.pid, signal.SIGKILL)
            await asyncio.to_thread(server.postgres.start)
            assert await patient(c, 2, waiting=1) == 0
            assert await patient(c, 1, in_use=1) == 1
            assert await c.turn(2, ONE, waiting=1) == 0
            await asyncio.sleep(OPENING_SECONDS)
            assert await c.turn(2, ONE, waiting=1) == 0
            await c.turn(1, ONE, returned=1)
            assert await c.turn(2, ONE, waiting=1) == 1


async def patient(c: Servers, session_id: int, **counts: int) -> int:
    async with asyncio.timeout(60):
        while True:
            try:
                return await c.turn(session_id, ONE, books=None, **counts)
            except LedgerUnavailable:
                await asyncio.sleep(0.05)
