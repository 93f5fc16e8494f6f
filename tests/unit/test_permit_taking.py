"""The worker's end of shared limits: calls that wait, are cancelled, and words that are lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from noetl.adapters.memory.clock import VirtualClock
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults, Mishap, Outcome
from noetl.adapters.memory.serving.permits import MemoryPermits
from noetl.adapters.memory.serving.processes import MemoryRoster, MemoryRuntimes, Presence
from noetl.adapters.session.in_process import InProcessPermits
from noetl.adapters.system.clock import SystemClock
from noetl.core.errors import HostUnavailable
from noetl.core.permits.rates import Allowance
from noetl.engine.permits import desk as desk_module
from noetl.engine.permits.desk import PermitDesk
from noetl.engine.permits.taking import Permits, Taken
from noetl.ports.serving.permits import LimitKey, PermitGrant, PermitSource, PermitUse
from noetl.ports.serving.roster import SessionRow
from noetl.ports.serving.runtimes import Profile
from tests.support.aio import asynchronous

API = LimitKey("acme", "sales", "api")
TWO = Allowance(concurrency=2)


@dataclass(slots=True)
class Loser:
    """Between a worker and its server: loses the next words, or the answers to them."""

    inner: PermitSource
    words: int = 0
    answers: int = 0

    async def ask(self, turn: int, uses: Sequence[PermitUse], *, wait_seconds: float) -> Sequence[PermitGrant]:
        if self.words > 0:
            self.words -= 1
            raise HostUnavailable("the word was lost")
        found = await self.inner.ask(turn, uses, wait_seconds=wait_seconds)
        if self.answers > 0 and found:
            self.answers -= 1
            raise HostUnavailable("the answer was lost")
        return found


@dataclass(slots=True)
class Shop:
    """One server and its workers, in memory."""

    desk: PermitDesk
    books: MemoryPermits
    roster: MemoryRoster
    server: int
    alive: set[int]
    group: asyncio.TaskGroup
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    clock: VirtualClock = field(default_factory=VirtualClock)

    async def worker(self, session_id: int, **losses: int) -> Permits:
        row = SessionRow(session_id=session_id, worker_id=f"w{session_id}", pool="default", kinds=None, slots=9)
        await self.roster.keep(self.server, [row], lease_seconds=3600)
        self.alive.add(session_id)
        permits = Permits(Loser(InProcessPermits(self.desk, session_id), **losses), SystemClock())
        self.tasks.append(self.group.create_task(permits.run()))
        return permits

    async def end(self, session_id: int) -> None:
        self.alive.discard(session_id)
        await self.roster.end(session_id)

    def in_use(self) -> int:
        return sum(seat.in_use for book in self.books.books.values() for seat in book.seats)


@asynccontextmanager
async def shop() -> AsyncIterator[Shop]:
    clock = VirtualClock()
    presence = Presence(MemoryDatabase(clock=clock, shard_count=1))
    faults = Faults()
    books, roster, runtimes = MemoryPermits(presence, faults), MemoryRoster(presence), MemoryRuntimes(presence)
    server = (await runtimes.register(Profile(instance="one", kind="server"), lease_seconds=3600)).runtime_id
    alive: set[int] = set()
    desk = PermitDesk(books, SystemClock(), is_alive=alive.__contains__)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        found = Shop(desk, books, roster, server, alive, group, faults=faults, clock=clock)
        found.tasks.append(group.create_task(desk.run()))
        yield found
        for task in found.tasks:
            task.cancel()


async def until(holds: object) -> None:
    """Wait on a condition; the shop's own timeout ends what never holds."""
    assert callable(holds)
    while not holds():
        await asyncio.sleep(0.005)


@dataclass(slots=True)
class Calls:
    now: int = 0
    most: int = 0
    done: int = 0
    taken: list[Taken] = field(default_factory=list)
    hold: asyncio.Event | None = None


async def call(permits: Permits, calls: Calls, *, execution_id: int = 1, allowance: Allowance = TWO) -> None:
    async with permits.permit(API, allowance, execution_id) as taken:
        calls.taken.append(taken)
        calls.now += 1
        calls.most = max(calls.most, calls.now)
        try:
            await (calls.hold.wait() if calls.hold is not None else asyncio.sleep(0.002))
        finally:
            calls.now -= 1
        calls.done += 1


@asynchronous
async def test_calls_of_two_workers_and_two_executions_are_never_more_at_a_time_than_permits() -> None:
    async with shop() as s:
        one, two = await s.worker(1), await s.worker(2)
        calls = Calls()
        async with asyncio.TaskGroup() as group:
            for number in range(24):
                group.create_task(call(one if number % 2 else two, calls, execution_id=number % 3))
        assert (calls.done, calls.most) == (24, 2)
        await until(lambda: s.in_use() == 0)


@asynchronous
async def test_lost_words_and_lost_answers_lose_no_permit_and_make_none() -> None:
    async with shop() as s:
        worker = await s.worker(1, words=2, answers=3)
        s.faults.script("turn", Mishap(outcome=Outcome.NOT_DONE), Mishap(outcome=Outcome.REPLY_LOST))
        calls = Calls()
        async with asyncio.TaskGroup() as group:
            for _ in range(12):
                group.create_task(call(worker, calls))
        assert (calls.done, calls.most) == (12, 2)
        await until(lambda: s.in_use() == 0)


@asynchronous
async def test_a_call_that_is_cancelled_while_it_waits_or_runs_leaves_nothing_behind() -> None:
    async with shop() as s:
        worker = await s.worker(1)
        calls = Calls(hold=asyncio.Event())
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call(worker, calls)) for _ in range(5)]
            await until(lambda: calls.now == 2)
            for task in tasks:
                task.cancel()
        await until(lambda: s.in_use() == 0)
        free = Calls()
        await call(worker, free)
        assert free.done == 1


@asynchronous
async def test_a_permit_that_arrives_for_a_call_that_is_gone_goes_to_the_next_one() -> None:
    async with shop() as s:
        worker = await s.worker(1)
        calls = Calls()
        for _ in range(30):
            async with asyncio.TaskGroup() as group:
                gone = group.create_task(call(worker, calls, allowance=Allowance(concurrency=1)))
                await asyncio.sleep(0.001)
                gone.cancel()
                group.create_task(call(worker, calls, allowance=Allowance(concurrency=1)))
        assert calls.most == 1
        await until(lambda: s.in_use() == 0)


@asynchronous
async def test_a_permit_for_a_call_that_was_cancelled_during_the_turn_does_not_stay_with_the_calls_beside_it() -> None:
    for mishap in (Mishap(seconds_after=0.1), Mishap(seconds_after=0.1, outcome=Outcome.REPLY_LOST)):
        async with shop() as s:
            worker = await s.worker(1)
            held = Calls(hold=asyncio.Event())
            async with asyncio.TaskGroup() as group:
                long = group.create_task(call(worker, held))
                await until(lambda held=held: held.now == 1)
                # The turn has given the second permit; its call ends before the desk hears of it.
                s.faults.script("turn", mishap, mishap)
                gone = group.create_task(call(worker, held))
                await until(lambda s=s: s.in_use() == 2)
                gone.cancel()
                await until(lambda s=s: s.in_use() == 1)
                assert held.now == held.most == 1
                long.cancel()


@asynchronous
async def test_what_a_dead_session_held_goes_to_those_who_wait() -> None:
    async with shop() as s:
        victim, other = await s.worker(1), await s.worker(2)
        held, waiting = Calls(hold=asyncio.Event()), Calls()
        async with asyncio.TaskGroup() as group:
            stuck = [group.create_task(call(victim, held)) for _ in range(2)]
            await until(lambda: held.now == 2)
            group.create_task(call(other, waiting, execution_id=2))
            await until(lambda: any(seat.asked for book in s.books.books.values() for seat in book.seats))
            assert waiting.done == 0
            await s.end(1)
            await until(lambda: waiting.done == 1)
            for task in stuck:
                task.cancel()


@asynchronous
async def test_what_is_stricter_than_declared_is_told_once() -> None:
    async with shop() as s:
        worker = await s.worker(1)
        calls, strict = Calls(), Calls(hold=asyncio.Event())
        async with asyncio.TaskGroup() as group:
            group.create_task(call(worker, strict, execution_id=2, allowance=Allowance(concurrency=2)))
            await until(lambda: strict.now == 1)
            for _ in range(3):
                group.create_task(call(worker, calls, execution_id=1, allowance=Allowance(concurrency=9)))
            await until(lambda: calls.done == 3)
            assert strict.hold is not None
            strict.hold.set()
        told = [taken.stricter for taken in calls.taken if taken.stricter is not None]
        assert told == [Allowance(concurrency=2)]
        assert all(taken.waited_seconds >= 0 for taken in calls.taken)


@asynchronous
async def test_the_desk_counts_what_it_granted_and_who_waits() -> None:
    async with shop() as s:
        worker = await s.worker(1)
        calls = Calls(hold=asyncio.Event())
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(call(worker, calls))
            await until(lambda: calls.now == 2)
            samples = {name: value for name, _, value in s.desk.samples()}
            assert samples["noetl_limit_in_use"] == 2
            assert samples["noetl_limit_waiting"] == 3
            assert calls.hold is not None
            calls.hold.set()
        assert calls.most == 2
        await until(lambda: {n: v for n, _, v in s.desk.samples()}["noetl_limit_in_use"] == 0)
        assert 2 <= {n: v for n, _, v in s.desk.samples()}["noetl_limit_granted_total"] <= 5


@asynchronous
async def test_while_nobody_else_waits_a_permit_goes_from_call_to_call_without_a_word() -> None:
    async with shop() as s:
        worker = await s.worker(1)
        calls = Calls()
        async with asyncio.TaskGroup() as group:
            for _ in range(100):
                group.create_task(call(worker, calls))
        assert (calls.done, calls.most) == (100, 2)
        assert s.books.books[API].dealt < 50
        await until(lambda: s.in_use() == 0)


@asynchronous
async def test_who_comes_while_permits_go_from_call_to_call_gets_its_share() -> None:
    async with shop() as s:
        first, second = await s.worker(1), await s.worker(2)
        calls, late, is_over = Calls(), Calls(), asyncio.Event()

        async def again() -> None:
            while not is_over.is_set():
                await call(first, calls)

        async with asyncio.TaskGroup() as group:
            for _ in range(6):
                group.create_task(again())
            await until(lambda: calls.done > 20)
            for _ in range(10):
                await call(second, late, execution_id=2)
            is_over.set()
        assert late.done == 10
        await until(lambda: s.in_use() == 0)


@asynchronous
async def test_a_rate_counts_every_call() -> None:
    async with shop() as s:
        worker = await s.worker(1)
        calls = Calls()
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(call(worker, calls, allowance=Allowance(rate=1000.0, concurrency=2)))
            while calls.done < 5:
                await asyncio.sleep(0.01)
                s.clock.advance(0.01)
        assert s.books.books[API].dealt == 5


@asynchronous
async def test_who_holds_permits_for_long_says_so_again_in_books_that_were_lost() -> None:
    """Another server must see them: the database was restarted, or another one stands in for it."""
    async with shop() as s:
        worker = await s.worker(1)
        held = Calls(hold=asyncio.Event())
        async with asyncio.TaskGroup() as group:
            stuck = [group.create_task(call(worker, held)) for _ in range(2)]
            await until(lambda: held.now == 2)
            await until(lambda: s.in_use() == 2)
            s.books.books.clear()
            await until(lambda: s.in_use() == 2)
            for task in stuck:
                task.cancel()


@asynchronous
async def test_a_limit_whose_turn_takes_long_holds_up_no_other_limit() -> None:
    async with shop() as s:
        worker = await s.worker(1)
        slow = Calls(hold=asyncio.Event())
        async with asyncio.TaskGroup() as group:
            s.faults.script("turn", Mishap(seconds_before=3600))
            stuck = group.create_task(call(worker, slow))
            await until(lambda: s.desk._limits and s.desk._limits[API].is_turning)
            other = LimitKey("acme", "other", "api")
            for _ in range(3):
                async with worker.permit(other, TWO, 9):
                    pass
            assert slow.now == 0
            stuck.cancel()


@asynchronous
async def test_more_permits_than_one_turn_deals_come_with_the_turns_behind_it_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(desk_module, "POLL_SECONDS", 3600.0)  # so that no look at the books brings them
    async with shop() as s:
        worker = await s.worker(1)
        many = Calls(hold=asyncio.Event())
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(call(worker, many, allowance=Allowance(concurrency=10_000))) for _ in range(1_800)
            ]
            await until(lambda: many.now == len(calls))
            assert many.hold is not None
            many.hold.set()


@asynchronous
async def test_that_a_call_has_begun_is_no_reason_for_a_turn() -> None:
    async with shop() as s:
        worker = await s.worker(1)
        held = Calls(hold=asyncio.Event())
        async with asyncio.TaskGroup() as group:
            stuck = group.create_task(call(worker, held))
            await until(lambda: held.now == 1)
            turned_at = s.books.books[API].turned_at
            s.clock.advance(1.0)
            await until(lambda: s.desk._sessions[1].uses[API, 1].in_use == 1)
            await asyncio.sleep(0.05)
            assert s.books.books[API].turned_at == turned_at
            stuck.cancel()


@asynchronous
async def test_what_was_used_here_is_forgotten_when_nobody_uses_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "UNUSED_SECONDS", 0.05)
    async with shop() as s:
        worker = await s.worker(1)
        s.faults.script("sweep_limits", Mishap(outcome=Outcome.NOT_DONE))
        await call(worker, Calls())
        await until(lambda: s.in_use() == 0)
        assert API in s.books.books
        s.clock.advance(1.0)
        await until(lambda: not s.books.books)
