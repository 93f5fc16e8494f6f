"""Node numbers are what makes ids unique: a number has one holder, and the next one goes on behind its last id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from noetl.adapters.postgres.leases import PostgresLeases
from noetl.adapters.postgres.pool import Reader
from noetl.adapters.system.ids import SnowflakeIds
from noetl.ports.serving.runtimes import NodeLease, Profile
from tests.support.aio import asynchronous
from tests.support.databases import connected, fresh_database

PROCESSES = 6
LEASE = 60.0


@pytest.fixture
def address() -> str:
    return fresh_database()


@asynccontextmanager
async def processes(address: str, count: int) -> AsyncIterator[list[PostgresLeases]]:
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            reader = Reader(address, size_max=1)
            await reader.open()
            stack.push_async_callback(reader.close)
            found.append(PostgresLeases(reader))
        yield found


async def register(leases: PostgresLeases, name: str) -> NodeLease:
    return await leases.register(Profile(instance=name, kind="server"), lease_seconds=LEASE)


@asynchronous
async def test_processes_that_start_at_once_have_numbers_of_their_own(address: str) -> None:
    async with processes(address, PROCESSES) as started, connected(address) as gate:
        async with gate.transaction():
            # One more that is about to have the lowest number: all others look while it is free, and want it too.
            await gate.execute(
                "INSERT INTO noetl.runtime (runtime_id, node_number, instance, kind, leased_until, alive_until)"
                " VALUES (999, 0, 'faster', 'server', 'infinity', 'infinity')"
            )
            waiting = [asyncio.ensure_future(register(one, f"{number}")) for number, one in enumerate(started)]
            await _all_blocked(address, PROCESSES)
        leases = await asyncio.gather(*waiting)
    assert sorted(lease.node_number for lease in leases) == list(range(1, PROCESSES + 1))
    assert len({lease.runtime_id for lease in leases}) == PROCESSES
    ids = [SnowflakeIds(node=lease.node_number, last_id=lease.last_id) for lease in leases]
    made = [source.next_id() for source in ids for _ in range(2_000)]
    assert len(set(made)) == len(made)


@asynchronous
async def test_a_number_of_the_living_is_not_given_away_and_one_of_the_dead_is(address: str) -> None:
    async with processes(address, 1) as (leases,), connected(address) as database:
        first, second = await register(leases, "first"), await register(leases, "second")
        assert first.node_number != second.node_number
        await database.execute(
            "UPDATE noetl.runtime SET leased_until = clock_timestamp() WHERE runtime_id = $1", first.runtime_id
        )
        heir = await register(leases, "heir")
        assert heir.node_number == first.node_number
        assert heir.runtime_id not in (first.runtime_id, second.runtime_id)
        # The process that lost its number learns of it with its next heartbeat.
        assert await leases.renew(first.runtime_id, last_id=1, lease_seconds=LEASE) is None


@pytest.mark.parametrize("way", ["renewed", "left"])
@asynchronous
async def test_whoever_takes_a_number_over_goes_on_behind_its_last_id(address: str, way: str) -> None:
    """The clock of the heir may be behind."""
    last_id = 1 << 62
    async with processes(address, 1) as (leases,), connected(address) as database:
        first = await register(leases, "first")
        if way == "renewed":
            await leases.renew(first.runtime_id, last_id=last_id, lease_seconds=LEASE)
            await database.execute("UPDATE noetl.runtime SET leased_until = clock_timestamp()")
        else:
            await leases.leave(first.runtime_id, last_id=last_id)
        heir = await register(leases, "heir")
        assert (heir.node_number, heir.last_id) == (first.node_number, last_id)
        assert SnowflakeIds(node=heir.node_number, last_id=heir.last_id).next_id() > last_id


async def _all_blocked(address: str, count: int) -> None:
    async with connected(address) as connection:
        for _ in range(1_000):
            waiting = await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            if waiting == count:
                return
            await asyncio.sleep(0.005)
    raise AssertionError("not all of them wait for the number")
