"""Somebody outside holds the row of a shard in an open transaction: what is in that shard waits, nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.postgres.serving.shards import PostgresShards
from noetl.core.errors import LedgerUnavailable
from noetl.core.execution.state import Status
from tests.support.aio import asynchronous
from tests.support.databases import SHARDS, connected, fresh_database
from tests.support.durability import Durable, postgres_durable
from tests.support.engine import running_engine
from tests.support.events import offer

LOOP = """
workflow:
  - step: begin
    loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel, max_in_flight: 3}}
    tool: {kind: noop, result: "{{ n }}"}
"""
EXECUTIONS = 24


@pytest.fixture
def address() -> str:
    return fresh_database()


@asynccontextmanager
async def holding(address: str, shard_id: int) -> AsyncIterator[None]:
    async with connected(address) as intruder, intruder.transaction():
        await intruder.execute("UPDATE noetl.execution_shard SET updated_at = now() WHERE shard_id = $1", shard_id)
        yield


@asynchronous
async def test_only_the_executions_of_the_locked_shard_wait(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path, {"NOETL_SHARD_COUNT": "3"}) as running:
        first = await running.run(LOOP)
        shard_id = first.events[0].shard_id
        async with holding(address, shard_id):
            asked = [asyncio.ensure_future(running.start(LOOP)) for _ in range(EXECUTIONS)]
            # Those of other shards come to their end while the lock is held: it is given up behind this line only.
            await asyncio.wait(asked, timeout=60.0, return_when=asyncio.FIRST_COMPLETED)
            done, waiting = await asyncio.wait(asked, timeout=3.0)
            elsewhere = [task.result() for task in done]
            told = [await running.finish(execution_id) for execution_id in elsewhere]
            assert told
            assert all(one.events[0].shard_id != shard_id for one in told)
            assert waiting, "somebody must have waited for the locked shard, or this shows nothing"
        told += [await running.finish(await task) for task in waiting]
        assert len(told) == EXECUTIONS
        assert {one.state.status for one in told} == {Status.COMPLETED}
        # On a slow machine others may be among them, never the other way round.
        assert any(one.events[0].shard_id == shard_id for one in told[-len(waiting) :])


@asynchronous
async def test_checkpoints_of_other_shards_do_not_wait(address: str) -> None:
    async with postgres_durable(address) as d:
        for shard_id in (1, 2, 3):
            event = d.make.initialized(d.make.execution_id())
            await d.ledger.append([offer(shard_id, event)])
            await d.apply(shard_id, 1, event.event_id)
        lease, checkpointer = await d.lease(), d.checkpointer()
        async with holding(address, 2):
            assert await checkpointer.look(lease) == {1, 3}
        assert await checkpointer.look(lease) == {2}


@asynchronous
async def test_shards_that_somebody_holds_are_claimed_and_handed_over_later(address: str) -> None:
    reader = Reader(address, size_max=2)
    await reader.open()
    try:
        shards = PostgresShards(reader)
        async with holding(address, 2):
            assert {head.shard_id for head in await shards.claim(7, count=100)} == {*range(SHARDS)} - {2}
        async with holding(address, 4):
            assert set(await shards.hand_over(7, [3, 4, 5])) == {3, 5}
        assert {head.shard_id for head in await shards.claim(8, count=100)} >= {2, 3, 5}
    finally:
        await reader.close()


@asynchronous
async def test_who_holds_a_shard_can_be_asked(address: str) -> None:
    writer, reader = Writer(address), Reader(address, size_max=2)
    await reader.open()
    try:
        ledger = PostgresLedger(writer, reader)
        assert await ledger.locked([1, 2, 3]) == frozenset()
        async with holding(address, 2):
            assert await ledger.locked([1, 2, 3]) == {2}
            assert await ledger.locked([1, 3]) == frozenset()
        assert await ledger.locked([1, 2, 3]) == frozenset()
    finally:
        await writer.close()
        await reader.close()


@asynchronous
async def test_another_server_waits_for_a_shard_that_its_owner_holds(address: str) -> None:
    async with postgres_durable(address) as first, postgres_durable(address) as second:
        (head,) = [one for one in await first.ledger.heads() if one.shard_id == 0]
        event = second.make.initialized(second.make.execution_id())
        async with first.ledger.hold([0]):
            appending = asyncio.ensure_future(second.ledger.append([offer(0, event)]))
            await asyncio.sleep(0.2)
            assert not appending.done()
        outcome = await appending
        assert outcome.first_positions == {0: head.next_position}


async def hold_until_the_connection_breaks(durable: Durable, address: str) -> None:
    async with durable.ledger.hold([0]):
        async with connected(address) as outsider:
            await outsider.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND state = 'idle in transaction'"
            )
        await asyncio.sleep(0.05)


@asynchronous
async def test_a_held_shard_is_free_when_the_connection_of_its_holder_breaks(address: str) -> None:
    async with postgres_durable(address) as first, postgres_durable(address) as second:
        with pytest.raises(LedgerUnavailable):
            await hold_until_the_connection_breaks(first, address)
        await second.ledger.append([offer(0, second.make.initialized(second.make.execution_id()))])
        await first.ledger.append([offer(0, first.make.initialized(first.make.execution_id()))])
