"""The projector over a real ledger: it may die anywhere, share its work, meet what it cannot fold, and begin anew."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from noetl.adapters.memory.faults import Faults, Mishap, Outcome
from noetl.core.errors import LedgerCorrupt, LedgerUnavailable
from noetl.core.event import Event, seal
from noetl.core.execution.evolve import evolve as real_evolve
from noetl.engine.control.states import States
from noetl.engine.projecting.projector import Pace, Projector
from noetl.engine.projecting.rows import execution_row
from noetl.ports.ledger import ExecutionRow, Offer
from tests.support.aio import asynchronous
from tests.support.databases import SHARDS, connected, fresh_database
from tests.support.projecting import Projecting, memory_projecting, poison, postgres_projecting, story

PACE = Pace(window_seconds=0.002, poll_seconds=0.002, batch_events=7)


@pytest.fixture
def address() -> str:
    return fresh_database()


async def fill(p: Projecting, executions: int, *, steps: int = 2, ends: bool = True) -> list[int]:
    """Executions over all shards, their events mixed."""
    ids = [p.make.execution_id() for _ in range(executions)]
    stories = [(number % SHARDS, story(p.make, one, steps=steps, ends=ends)) for number, one in enumerate(ids)]
    while stories:
        await p.ledger.append([Offer(shard_id=shard, events=[seal(events.pop(0))]) for shard, events in stories])
        stories = [(shard, events) for shard, events in stories if events]
    return ids


async def folded(p: Projecting, ids: Sequence[int]) -> list[ExecutionRow]:
    """What a full fold of the ledger gives."""
    states = States(p.ledger)
    held = [await states.fold(one) for one in sorted(ids)]
    return [execution_row(one.state, one.shard_id, one.position) for one in held]


@contextlib.asynccontextmanager
async def running(projector: Projector) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(projector.run())
        yield task
        task.cancel()


@asynchronous
async def test_rows_are_what_a_full_fold_gives(address: str) -> None:
    async with postgres_projecting(address) as p:
        ids = await fill(p, 40)
        async with running(p.projector(p.member(), pace=PACE)) as _:
            await p.until_caught_up()
            later = await fill(p, 5, ends=False)
            await p.until_caught_up()
        assert await p.rows() == await folded(p, ids + later)


class Mortal:
    """A port of which one call, the nth of all, kills the process before or after it did its work."""

    def __init__(self, port: Any, life: Life) -> None:
        self._port = port
        self._life = life

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        work = getattr(self._port, name)

        async def call(*args: Any, **named: Any) -> Any:
            await self._life.step()
            found = await work(*args, **named)
            await self._life.step()
            return found

        return call


class Died(Exception):
    """The process is gone."""


class Life:
    def __init__(self, steps: int) -> None:
        self.left = steps

    async def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Died


def mortal(p: Projecting, steps: int) -> Projecting:
    life = Life(steps)
    ports = {name: Mortal(getattr(p, name), life) for name in ("leases", "projections", "tail")}
    return dataclasses.replace(p, **ports)  # type: ignore[arg-type]


async def died(projector: Projector) -> bool:
    """Let it live for as long as it can, but no longer than a moment."""
    is_dead = False
    with contextlib.suppress(TimeoutError):
        try:
            async with asyncio.timeout(1):
                await projector.run()
        except* Died:
            is_dead = True
    return is_dead


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


@asynchronous
async def test_killed_at_every_statement_it_ends_with_the_rows_of_a_full_fold(address: str) -> None:
    async with postgres_projecting(address) as p:
        ids: list[int] = []
        deaths = 0
        for steps in range(1, 40):
            ids += await fill(p, 4, ends=steps % 2 == 0)
            deaths += await died(mortal(p, steps).projector(p.member(), pace=PACE, by_force=True))
            assert all(row.version > 0 for row in await p.rows())
        assert deaths >= 30, "most of these lives must have been cut short"
        async with running(p.projector(p.member(), by_force=True)) as _:
            await p.until_caught_up()
        assert await p.rows() == await folded(p, ids)


@asynchronous
async def test_two_projectors_share_the_shards_and_the_heir_takes_all(address: str) -> None:
    async with postgres_projecting(address) as p:
        first, second = p.projector(p.member(), pace=PACE), p.projector(p.member(), pace=PACE)
        async with running(first) as one:
            await until(lambda: len(shards_of(first)) == SHARDS)
            async with running(second) as _:
                await until(lambda: len(shards_of(first)) == len(shards_of(second)) == SHARDS // 2)
                ids = await fill(p, 32)
                await p.until_caught_up()
                assert first.counts.events > 0
                assert second.counts.events > 0
                assert first.counts.events + second.counts.events == 32 * 6
                # Killed, not asked: the other waits for the end of the lease, and of nothing else.
                one.cancel()
                ids += await fill(p, 16)
                await p.until_caught_up()
                assert len(shards_of(second)) == SHARDS
        assert await p.rows() == await folded(p, ids)


@asynchronous
async def test_a_projector_that_leaves_hands_its_shards_over_at_once(address: str) -> None:
    async with postgres_projecting(address) as p:
        leaving = p.projector(p.member(lease_seconds=60), pace=PACE)
        async with running(leaving) as _:
            async with asyncio.timeout(60):
                while len(shards_of(leaving)) < SHARDS:
                    await asyncio.sleep(0.01)
        await leaving.leave()
        heir = p.projector(p.member(lease_seconds=60), pace=PACE)
        async with running(heir) as _, asyncio.timeout(30):
            while len(shards_of(heir)) < SHARDS:
                await asyncio.sleep(0.01)


def shards_of(projector: Projector) -> list[Any]:
    found: Any = projector.summary()["shards"]
    return list(found)


@asynchronous
async def test_poison_is_set_aside_and_nobody_else_is_touched(address: str) -> None:
    async with postgres_projecting(address) as p:
        chance = random.Random(7)
        ids = await fill(p, 500, steps=3, ends=False)
        bad = sorted(chance.sample(ids, 100))
        for number, one in enumerate(bad):
            shard = ids.index(one) % SHARDS
            await p.append(shard, poison(p.make, one))
            if number % 3 == 0:
                await p.append(shard, p.make.ended(one))
        good = await fill(p, 1_000, steps=2)
        good += [one for one in ids if one not in bad]
        projector = p.projector(p.member(), pace=Pace(window_seconds=0.01, poll_seconds=0.01, batch_events=500))
        async with running(projector) as _:
            await p.until_caught_up(60)
        rows = await p.rows()
        assert [row.execution_id for row in rows if row.quarantine is not None] == bad
        assert projector.counts.quarantined == len(bad)
        assert [row for row in rows if row.quarantine is None] == await folded(p, good)
        (told,) = [json.loads(row.quarantine or "") for row in rows if row.execution_id == bad[0]]
        assert told["event_type"] == "command.issued"
        assert "KeyError('step')" in told["reason"]
        # The last good state is shown, and stays after another fold from nothing.
        before = [row for row in rows if row.quarantine is not None]
        assert {row.version for row in before} == {7}
        async with connected(address) as connection:
            await connection.execute("TRUNCATE noetl.projection_checkpoint, noetl.execution")
        async with running(p.projector(p.member(), by_force=True)) as _:
            await p.until_caught_up(60)
        assert [row for row in await p.rows() if row.quarantine is not None] == before


@asynchronous
async def test_what_newer_code_can_fold_is_healed_when_it_takes_the_shard(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with postgres_projecting(address) as p:
        (one, other) = await fill(p, 2, ends=False)
        with monkeypatch.context() as old_code:
            old_code.setattr("noetl.engine.projecting.folder.evolve", _unable_to_fold(one))
            projector = p.projector(p.member(), pace=PACE)
            async with running(projector) as _:
                await p.until_caught_up()
                await p.append(0, p.make.issued(one, "late#1"))
                await p.until_caught_up()
            assert [row.execution_id for row in await p.rows() if row.quarantine is not None] == [one]
            assert not await projector.refold(one), "this code cannot"
        async with running(p.projector(p.member(), by_force=True)) as _:
            async with asyncio.timeout(60):
                while any(row.quarantine is not None for row in await p.rows()):
                    await asyncio.sleep(0.01)
        assert await p.rows() == await folded(p, [one, other])


def _unable_to_fold(execution_id: int) -> Callable[..., Any]:
    """The fold of an older release, which does not know something that this execution has."""
    evolve = real_evolve

    def fold(state: Any, event: Event) -> Any:
        if event.execution_id == execution_id and event.stream_version > 2:
            raise LedgerCorrupt("what is this")
        return evolve(state, event)

    return fold


@asynchronous
async def test_an_event_with_damaged_bytes_sets_its_execution_aside(address: str) -> None:
    async with postgres_projecting(address) as p:
        ids = await fill(p, 20, ends=False)
        await p.spoil(ids[3])
        async with running(p.projector(p.member(), pace=PACE)) as _:
            await p.until_caught_up()
        assert [row.execution_id for row in await p.rows() if row.quarantine is not None] == [ids[3]]


@pytest.mark.parametrize("is_running", [True, False])
@asynchronous
async def test_a_restored_ledger_makes_it_begin_anew(address: str, is_running: bool) -> None:
    async with postgres_projecting(address) as p:
        ids = await fill(p, 20)
        first = p.projector(p.member(), pace=PACE)
        async with running(first) as _:
            await p.until_caught_up()
            if is_running:
                await lose(address, ids.pop())
                await p.restore()
                await until(lambda: first.counts.rebuilds >= SHARDS)
                await p.until_caught_up()
        if not is_running:
            await lose(address, ids.pop())
            await p.restore()
            second = p.projector(p.member(), by_force=True)
            async with running(second) as _:
                await until(lambda: second.counts.rebuilds >= SHARDS)
                await p.until_caught_up()
            assert second.counts.errors["ledger_restored"] == SHARDS
        assert await p.rows() == await folded(p, ids)


async def lose(address: str, execution_id: int) -> None:
    """Go back to before the last execution, as a restored backup does."""
    async with connected(address) as connection:
        shard = await connection.fetchval("SELECT shard_id FROM noetl.stream WHERE execution_id = $1", execution_id)
        count = await connection.fetchval("SELECT count(*) FROM noetl.event WHERE execution_id = $1", execution_id)
        last = "SELECT max(position) - count(*) FROM noetl.event WHERE shard_id = $1 AND position > $2"
        assert await connection.fetchval(last, shard, 6) is not None
        rows = await connection.fetch(
            "SELECT position FROM noetl.event WHERE execution_id = $1 ORDER BY position", execution_id
        )
        await connection.execute("DELETE FROM noetl.event WHERE execution_id = $1", execution_id)
        for number, row in enumerate(rows):
            # Those behind it move up: in that ledger it never was.
            text = "UPDATE noetl.event SET position = position - 1 WHERE shard_id = $1 AND position > $2"
            await connection.execute(text, shard, row["position"] - number)
        text = "UPDATE noetl.execution_shard SET next_position = next_position - $2 WHERE shard_id = $1"
        await connection.execute(text, shard, count)


@asynchronous
async def test_a_watermark_ahead_of_the_ledger_makes_it_begin_anew(address: str) -> None:
    async with postgres_projecting(address) as p:
        ids = await fill(p, 16)
        async with running(p.projector(p.member(), pace=PACE)) as _:
            await p.until_caught_up()
        async with connected(address) as connection:
            await connection.execute("UPDATE noetl.projection_checkpoint SET position = 1000 WHERE shard_id = 3")
        second = p.projector(p.member(), by_force=True)
        async with running(second) as _:
            await p.until_caught_up()
        assert second.counts.rebuilds == 1
        assert await p.rows() == await folded(p, ids)


@asynchronous
async def test_a_gap_halts_the_shard_loudly_and_no_other(address: str, caplog: pytest.LogCaptureFixture) -> None:
    async with postgres_projecting(address) as p:
        ids = await fill(p, 2 * SHARDS)
        async with connected(address) as connection:
            await connection.execute("DELETE FROM noetl.event WHERE shard_id = 5 AND position = 3")
        projector = p.projector(p.member(), pace=PACE)
        async with running(projector) as _, asyncio.timeout(60):
            while sum(one.position == one.head for one in await p.projections.progress()) < SHARDS - 1:
                await asyncio.sleep(0.01)
            while not (halted := [one for one in shards_of(projector) if one["halted"]]):
                await asyncio.sleep(0.01)
        assert [(one["shard_id"], one["position"]) for one in halted] == [(5, 0)]
        assert "no event at position 3" in halted[0]["halted"]
        assert "a shard is halted" in caplog.text
        assert all(row.shard_id != 5 for row in await p.rows())
        assert len(await p.rows()) == len(ids) - 2


@asynchronous
async def test_events_that_are_handed_over_are_projected_without_a_look_at_the_ledger() -> None:
    async with memory_projecting() as p:
        member = p.member()
        projector = p.projector(member, pace=Pace(window_seconds=0.001, poll_seconds=3600, batch_events=500))
        parts = projector._parts
        async with running(projector) as _:
            async with asyncio.timeout(60):
                while len(shards_of(projector)) < SHARDS:
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            one, other = p.make.execution_id(), p.make.execution_id()
            await p.append(2, *story(p.make, one))
            parts.feed.tell(await p.ledger.read_execution(one))
            await p.until_caught_up()
            # Somebody else appends in between: what is handed over does not follow, and the ledger is read.
            await p.append(2, *story(p.make, other, ends=False))
            third = p.make.execution_id()
            await p.append(2, *story(p.make, third))
            parts.feed.tell(await p.ledger.read_execution(third))
            await p.until_caught_up()
        assert await p.rows() == await folded(p, [one, other, third])


@asynchronous
async def test_a_lost_database_is_waited_for(address: str) -> None:
    async with postgres_projecting(address) as p:
        ids = await fill(p, 64)
        failing = dataclasses.replace(p, projections=Unsure(p.projections, times=3))
        projector = failing.projector(p.member(), pace=PACE)
        async with running(projector) as _:
            await p.until_caught_up()
        assert projector.counts.errors["unavailable"] == 3
        assert await p.rows() == await folded(p, ids)


class Unsure:
    """Commits and loses the reply, so many times."""

    def __init__(self, port: Any, times: int) -> None:
        self._port = port
        self._times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def project(self, *args: Any, **named: Any) -> Any:
        found = await self._port.project(*args, **named)
        if self._times:
            self._times -= 1
            raise LedgerUnavailable("the connection broke after the commit")
        return found


class Weather(Faults):
    """Everything that can happen to an operation, by a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self.is_over = False

    def draw(self, operation: str) -> Mishap:
        if self.is_over or self._chance.random() > 0.3:
            return Mishap()
        outcome = self._chance.choice(list(Outcome))
        return Mishap(outcome=outcome, seconds_after=0.001 * self._chance.random(), late_seconds=0.004)


@pytest.mark.parametrize("seed", range(20))
@asynchronous
async def test_lost_replies_and_late_commits_change_no_row(seed: int) -> None:
    weather = Weather(seed)
    async with memory_projecting(weather) as p:
        first, second = (p.projector(p.member(lease_seconds=0.05), pace=PACE) for _ in range(2))
        ids: list[int] = []
        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(_tick(p))
            lives = [group.create_task(one.run()) for one in (first, second)]
            for number in range(6):
                ids += await fill(p, 8, ends=number % 2 == 0)
                await asyncio.sleep(0.005)
            lives.pop(0).cancel()
            ids += await fill(p, 8)
            await asyncio.sleep(0.02)
            weather.is_over = True
            await p.until_caught_up()
            for task in (ticking, *lives):
                task.cancel()
        assert await p.rows() == await folded(p, ids)
        assert first.counts.quarantined + second.counts.quarantined == 0


async def _tick(p: Projecting) -> None:
    """Time passes for whoever looks at the virtual clock."""
    while True:
        await asyncio.sleep(0.001)
        await p.wait(0.001)
