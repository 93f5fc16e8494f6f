"""The memory adapter can be made to fail as a real database does.  These are the tests of that test tool."""

from __future__ import annotations

import asyncio

import pytest

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults, Mishap, Outcome
from noetl.adapters.memory.ledger import MemoryLedger
from noetl.core.errors import LedgerUnavailable
from noetl.core.ids import time_of
from tests.support.aio import asynchronous
from tests.support.backends import appender, memory_backend
from tests.support.events import decision, offer

LOST = Mishap(outcome=Outcome.REPLY_LOST)
FAILS = Mishap(outcome=Outcome.NOT_DONE)
LATE = Mishap(outcome=Outcome.COMMITS_LATE, late_seconds=0.001)


@asynchronous
async def test_a_lost_reply_hides_a_commit_and_the_same_keys_find_it() -> None:
    faults = Faults()
    async with memory_backend(faults) as b, appender(b.ledger) as group:
        faults.script("append", LOST)
        execution = b.make.execution_id()
        request = offer(0, b.make.initialized(execution))
        with pytest.raises(LedgerUnavailable):
            await group.append(request)
        assert len(await b.ledger.read_execution(execution)) == 1
        again = await group.append(request)
        assert [(one.position, one.is_duplicate) for one in again] == [(1, True)]


@asynchronous
async def test_a_failure_before_the_commit_leaves_nothing() -> None:
    faults = Faults()
    async with memory_backend(faults) as b, appender(b.ledger) as group:
        faults.script("append", FAILS)
        execution = b.make.execution_id()
        with pytest.raises(LedgerUnavailable):
            await group.append(offer(0, b.make.initialized(execution)))
        assert await b.ledger.read_execution(execution) == []
        assert (await b.heads())[0].next_position == 1


@asynchronous
async def test_a_late_commit_lands_behind_the_answer_and_respects_the_fence() -> None:
    faults = Faults()
    async with memory_backend(faults) as b:
        head = (await b.own())[0]
        late, early = b.make.execution_id(), b.make.execution_id()
        faults.script("advance", LATE)
        with pytest.raises(LedgerUnavailable):
            await b.ledger.advance(decision([head], b.make.initialized(late)._replace(stream_version=1)))
        assert await b.ledger.read_execution(late) == []
        await asyncio.sleep(0.005)
        assert len(await b.ledger.read_execution(late)) == 1
        # The other way round: who decided again in the meantime has the position, and the late one misses.
        head = (await b.heads())[0]
        faults.script("advance", LATE)
        lost = b.make.execution_id()
        with pytest.raises(LedgerUnavailable):
            await b.ledger.advance(decision([head], b.make.initialized(lost)._replace(stream_version=1)))
        won = decision([head], b.make.initialized(early)._replace(stream_version=1))
        assert await b.ledger.advance(won) == {0}
        await asyncio.sleep(0.005)
        assert await b.ledger.read_execution(lost) == []
        assert (await b.heads())[0].next_position == head.next_position + 1


@asynchronous
async def test_what_a_crash_leaves_is_what_was_committed() -> None:
    database = MemoryDatabase(clock=VirtualClock(), shard_count=2)
    faults = Faults()
    faults.script("append", Mishap(seconds_before=60), Mishap(seconds_after=60))
    before, after = 4194304 + 1, 4194304 + 2
    async with memory_backend() as maker:
        offers = [[offer(0, maker.make.initialized(execution))] for execution in (before, after)]
    for one in offers:
        task = asyncio.ensure_future(MemoryLedger(database, faults).append(one))
        await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
    survivor = MemoryLedger(database)
    assert await survivor.read_execution(before) == []
    assert len(await survivor.read_execution(after)) == 1


@asynchronous
async def test_every_commit_is_shown_to_the_observers() -> None:
    database = MemoryDatabase(clock=VirtualClock(), shard_count=1)
    seen: list[int] = []
    database.observers.append(lambda rows: seen.extend(row.position for row in rows))
    async with memory_backend() as maker:
        ids = [maker.make.execution_id() for _ in range(3)]
        await MemoryLedger(database).append([offer(0, maker.make.initialized(e)) for e in ids])
    assert seen == [1, 2, 3]


def test_virtual_ids_follow_the_virtual_clock_and_never_repeat() -> None:
    clock = VirtualClock()
    ids = VirtualIds(clock, node=5)
    first = [ids.next_id() for _ in range(5000)]
    assert len(set(first)) == 5000
    assert first == sorted(first)
    clock.advance(3600)
    assert time_of(ids.next_id()) == clock.moment()
    assert ids.last_id > first[-1]


def test_virtual_time_only_moves_when_it_is_told_to() -> None:
    clock = VirtualClock()
    assert clock.now() == "2026-01-01T00:00:00.000000Z"
    clock.advance(1.5)
    assert (clock.now(), clock.monotonic()) == ("2026-01-01T00:00:01.500000Z", 1.5)
    assert clock.seconds_until("2026-01-01T00:00:00.000000Z") == -1.5
