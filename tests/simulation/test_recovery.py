"""Single stories of recovery, each one a seed that once failed or a branch that no seed takes."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.durability.checkpoints import MemoryCheckpoints
from noetl.adapters.memory.faults import Faults, Mishap, Outcome
from noetl.adapters.memory.ledger import MemoryLedger
from noetl.adapters.memory.payloads import Contents
from noetl.adapters.session.in_process import InProcessSession
from noetl.core import kinds
from noetl.core.errors import ExecutionClosed, LeaseLost, LedgerBusy
from noetl.core.event import Draft, Event
from noetl.core.execution.lifecycle import cancel_requested
from noetl.core.execution.state import ExecutionState, Status
from noetl.core.ids import is_system
from noetl.core.reference import Result
from noetl.engine.control.decider import MISSES_UNHELD_MAX
from noetl.engine.durability.checkpointer import Checkpointer
from noetl.engine.executions import StartRequest
from noetl.ports.session import ClaimWithdrawn, CommandMessage
from tests.simulation.checker import Checker
from tests.simulation.checks import check_cache, check_end, events_of, folded
from tests.simulation.faults import Weather
from tests.simulation.life import Life
from tests.simulation.loop import run_simulated
from tests.simulation.side import Surroundings
from tests.support.events import offer

FAILS = Mishap(outcome=Outcome.NOT_DONE)
LOST = Mishap(outcome=Outcome.REPLY_LOST)
OWNER = {"tenant_id": "acme", "organization_id": "sales"}


class Scene:
    """A database that outlives its processes, and a script of faults."""

    def __init__(self, *, slots: int = 2, shards: int = 1) -> None:
        self.clock = VirtualClock()
        self.chance = random.Random("scene")
        self.faults = Faults()
        self.database = MemoryDatabase(clock=self.clock, shard_count=shards)
        self.large: Contents = {}
        self.checker = Checker()
        self.checker.watch(self.database, self.large)
        self.slots = slots
        self._ids = VirtualIds(self.clock, node=1023)

    @asynccontextmanager
    async def process(self) -> AsyncIterator[Life]:
        """One life; leaving it is a crash."""
        life = Life(
            Surroundings(database=self.database, faults=self.faults, clock=self.clock),
            large=self.large,
            chance=self.chance,
            weather=Weather(),
            slots=self.slots,
        )
        self.equip(life)
        task = asyncio.ensure_future(life.run())
        opened = asyncio.ensure_future(life.is_open.wait())
        await asyncio.wait([task, opened], return_when=asyncio.FIRST_COMPLETED)
        try:
            yield life
        finally:
            opened.cancel()
            is_alive = not task.done()
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()
            assert is_alive, "the process ended by itself"
        check_cache(self.database, life.states)

    def equip(self, life: Life) -> None:
        """What a story brings along for every process."""

    def play(self, story: Coroutine[Any, Any, None]) -> None:
        run_simulated(story, self.clock, random.Random("loop"))

    async def foreign_fact(self, execution_id: int, command_id: str) -> None:
        """Another server, which does not own the shard, appends what its worker reported."""
        await self._foreign(
            execution_id,
            Draft(
                event_type=kinds.COMMAND_COMPLETED,
                transition_key=kinds.terminal_key(command_id),
                command_id=command_id,
                result=Result(status="ok").to_json(),
                meta={"step": command_id.partition("#")[0], "attempt": 1},
            ),
        )

    async def foreign_facts(self, executions: Sequence[int], command_id: str, *, every_seconds: float) -> None:
        """The same for one execution after the other; a shard that somebody has to itself is waited for."""
        for execution_id in executions:
            while True:
                await asyncio.sleep(every_seconds)
                try:
                    await self.foreign_fact(execution_id, command_id)
                except LedgerBusy:
                    continue
                break

    async def foreign_cancel(self, execution_id: int) -> None:
        draft = cancel_requested(self.state(execution_id), now=self.clock.now(), reason="enough", cause="request")
        await self._foreign(execution_id, draft)

    async def _foreign(self, execution_id: int, draft: Draft) -> None:
        event = Event(
            execution_id=execution_id,
            event_id=self._ids.next_id(),
            event_time=self.clock.now(),
            producer="noetl://tenant/acme/org/sales/host/another",
            correlation_id=str(execution_id),
            **draft._asdict(),
            **OWNER,
        )
        await MemoryLedger(self.database).append([offer(self.shard_of(execution_id), event)])

    async def checkpoint(self, shard_id: int) -> None:
        """Whoever has the role commits a checkpoint."""
        checkpoints = MemoryCheckpoints(self.database)
        role = Checkpointer(checkpoints, ids=self._ids, clock=self.clock, producer="test", interval_seconds=1)
        self.database.checkpoint([role._checkpoint((await checkpoints.barriers())[shard_id])])

    def shard_of(self, execution_id: int) -> int:
        return self.database.tables.streams[execution_id].shard_id

    @property
    def count(self) -> int:
        """How many executions there are, without those in which the system speaks of itself."""
        return sum(not is_system(execution_id) for execution_id in self.database.tables.streams)

    def state(self, execution_id: int) -> ExecutionState:
        return folded(events_of(self.database, execution_id))


def step(name: str, following: object = None, **given: object) -> dict[str, object]:
    policy = given.pop("policy", None)
    tool = {"kind": "python", "code": "work", "input": given}
    if policy is not None:
        tool["spec"] = {"policy": policy}
    return {"step": name, "tool": tool, **({"next": following} if following is not None else {})}


def request(*steps: dict[str, object]) -> StartRequest:
    document = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "scene", "path": "simulation/scene"},
        "workflow": list(steps),
    }
    return StartRequest(text=json.dumps(document), file="scene.yaml", payload={}, **OWNER)


async def start(life: Life, *steps: dict[str, object]) -> int:
    return (await life.service.start(request(*steps))).execution_id


async def ended(life: Life, execution_id: int, *, within: float) -> ExecutionState:
    return await life.service.wait_terminal(execution_id, timeout_seconds=within, **OWNER)


RETRY = {"do": "retry", "attempts": 2, "delay": 5, "backoff": "fixed"}
RULES = {"rules": [{"when": "{{ output.status == 'error' }}", "then": RETRY}]}
FORK = (
    step("start", {"spec": {"mode": "inclusive"}, "arcs": [{"step": "a"}, {"step": "b"}]}),
    step("a", "join", seconds=1000),
    step("b", "join", seconds=1000),
    step("join"),
)


def test_a_command_that_is_queued_while_the_dispatcher_looks_is_not_forgotten() -> None:
    scene = Scene(slots=1)

    async def story() -> None:
        scene.faults.script("waiting", Mishap(seconds_after=5))
        async with scene.process() as life:
            first = await start(life, step("start", seconds=10))
            second = await start(life, step("start", seconds=1))  # no slot is free: it waits in the queue
            assert (await ended(life, first, within=60)).status is Status.COMPLETED
            assert (await ended(life, second, within=60)).status is Status.COMPLETED
        check_end(scene.database)

    scene.play(story())


def test_a_claim_that_finds_its_slot_given_away_is_tried_again() -> None:
    scene = Scene(slots=2)

    async def story() -> None:
        async with scene.process() as life:
            holding = [await start(life, step("start", seconds=20)) for _ in range(2)]
            queued = await start(life, step("start"))
            # While the dispatcher's look at the queue is on its way, new work takes both slots that became free.
            scene.faults.script("waiting", Mishap(seconds_after=3))
            await ended(life, holding[0], within=60)
            more = [await start(life, step("start", seconds=20)) for _ in range(2)]
            for execution in (*holding, *more, queued):
                assert (await ended(life, execution, within=200)).status is Status.COMPLETED
        check_end(scene.database)

    scene.play(story())


def test_a_miss_over_a_checkpoint_in_one_shard_does_not_hide_what_came_in_another() -> None:
    scene = Scene(slots=20, shards=2)

    async def story() -> None:
        async with scene.process() as life:
            other = await start(life, step("start", seconds=5))
            executions = [await start(life, *FORK) for _ in range(6)]
            execution = next(one for one in executions if scene.shard_of(one) != scene.shard_of(other))
            await asyncio.sleep(1)
            await scene.foreign_fact(execution, "b#1")
            await scene.foreign_fact(execution, "a#1")
            await scene.checkpoint(scene.shard_of(other))
            # Its end is the next commit, and misses its fence over nothing but a checkpoint.
            assert (await ended(life, other, within=60)).status is Status.COMPLETED
            await life.decider.catch_up()
            assert (await ended(life, execution, within=60)).status is Status.COMPLETED
            for one in executions:
                assert (await ended(life, one, within=5_000)).status is Status.COMPLETED
        check_end(scene.database)

    scene.play(story())


def test_a_commit_that_holds_in_one_shard_is_done_there_and_decided_again_in_the_other() -> None:
    scene = Scene(slots=20, shards=2)

    async def story() -> None:
        async with scene.process() as life:
            here, there = await in_both_shards(scene, life)
            scene.faults.script("advance", Mishap(seconds_before=0.02))
            for execution in (here, there):
                await scene.foreign_fact(execution, "b#1")
            # Both are decided in one commit, which is on its way when somebody appends in one of the two shards.
            # So soon that no checkpoint comes between.
            deciding = asyncio.ensure_future(life.decider.catch_up())
            await asyncio.sleep(0.01)
            await scene.foreign_fact(there, "a#1")
            commits = life.decider._counts.commits
            await deciding
            # One part of the first, and the rest.
            assert (life.decider._counts.misses, life.decider._counts.commits - commits) == (1, 2)
            heads = scene.database.tables.heads.values()
            assert all(head.decided_position == head.next_position - 1 for head in heads)
            for execution in (here, there):
                assert (await ended(life, execution, within=5_000)).status is Status.COMPLETED
            assert life.decider._counts.unknown == 0
        check_end(scene.database)

    scene.play(story())


async def in_both_shards(scene: Scene, life: Life) -> tuple[int, int]:
    """Two executions that wait for `a` and `b`, one in each shard."""
    found: dict[int, int] = {}
    while len(found) < 2:
        execution = await start(life, *FORK)
        found.setdefault(scene.shard_of(execution), execution)
    await asyncio.sleep(1)
    return found[0], found[1]


@pytest.mark.parametrize(
    "mishaps", [(), (FAILS,), (LOST,), (FAILS, LOST, FAILS)], ids=["miss", "fails", "lost", "storm"]
)
def test_facts_that_another_server_appended_are_decided_after_a_miss(mishaps: tuple[Mishap, ...]) -> None:
    scene = Scene(slots=3)

    async def story() -> None:
        async with scene.process() as life:
            execution = await start(life, *FORK)
            await asyncio.sleep(1)
            assert set(scene.state(execution).commands) == {"a#1", "b#1"}
            await scene.foreign_fact(execution, "b#1")
            await scene.foreign_fact(execution, "a#1")
            # The next decision in the shard misses its fence, and while it looks again there is more trouble.
            scene.faults.script("advance", Mishap(), *mishaps)
            other = await start(life, step("start"))
            assert (await ended(life, execution, within=60)).status is Status.COMPLETED
            assert (await ended(life, other, within=60)).status is Status.COMPLETED
            # The workers that really ran them come late.
            await asyncio.sleep(1000)
            assert life.sessions.free_slots == 3
        check_end(scene.database)

    scene.play(story())


def test_facts_that_nobody_decided_before_a_crash_are_decided_after_it() -> None:
    scene = Scene(slots=3)

    async def story() -> None:
        async with scene.process() as life:
            execution = await start(life, *FORK)
            await asyncio.sleep(1)
        await scene.foreign_fact(execution, "a#1")
        await scene.foreign_fact(execution, "b#1")
        # The first attempt to restore is lost and found again.
        scene.faults.script("advance", LOST)
        async with scene.process() as life:
            assert (await ended(life, execution, within=60)).status is Status.COMPLETED
        check_end(scene.database)

    scene.play(story())


def test_a_late_word_about_an_earlier_attempt_does_not_free_the_slot_of_the_present_one() -> None:
    scene = Scene(slots=1)

    async def story() -> None:
        async with scene.process() as life:
            waits = step("start", seconds=30, fails=1, attempt="{{ _attempt }}", policy=RULES)
            execution = await start(life, waits)
            await asyncio.sleep(50)  # the second attempt runs
            assert life.session is not None
            assert [fact.event_type for fact in life.session.reported] == [kinds.TASK_WAITING]
            assert life.sessions.free_slots == 0
            with pytest.raises(LeaseLost):
                await life.decider.report(life.session.session_id, life.session.reported[0])
            assert life.sessions.free_slots == 0
            assert (await ended(life, execution, within=60)).status is Status.COMPLETED
            with pytest.raises(ExecutionClosed):
                await life.decider.report(life.session.session_id, life.session.reported[1])
            assert life.sessions.free_slots == 1
        check_end(scene.database)

    scene.play(story())


@pytest.mark.parametrize("slots", [1, 2])
def test_an_execution_that_cannot_be_read_stops_nobody_else(slots: int) -> None:
    scene = Scene(slots=slots)

    async def story() -> None:
        async with scene.process() as life:
            damaged = await start(life, step("start", seconds=100))
            healthy = await start(life, step("start", seconds=100))
        rows = scene.database.tables.events[damaged]
        rows[1] = rows[1]._replace(text=rows[1].text.replace("acme", "emca"))
        async with scene.process() as life:
            assert (await ended(life, healthy, within=300)).status is Status.COMPLETED
            fresh = await start(life, step("start"))
            assert (await ended(life, fresh, within=300)).status is Status.COMPLETED
            await asyncio.sleep(60)
            life.states.drop(damaged)
        assert not scene.database.tables.streams[damaged].closed

    scene.play(story())


class _Away(Faults):
    """A database that is not there for a while."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock
        self.until = 0.0

    def draw(self, operation: str) -> Mishap:
        is_away = self._clock.monotonic() < self.until and operation not in ("put", "get")
        return FAILS if is_away else super().draw(operation)


def test_a_process_outlives_a_database_that_is_away_for_a_minute() -> None:
    scene = Scene(slots=2)
    scene.faults = away = _Away(scene.clock)

    async def story() -> None:
        async with scene.process() as life:
            running = [await start(life, *FORK[:1], step("a", seconds=5), step("b", seconds=5)) for _ in range(3)]
            life.states.clear()
            away.until = scene.clock.monotonic() + 60
            for execution in running:
                await _closed(scene, execution, within=120)
            assert life.sessions.free_slots == 2
        check_end(scene.database)

    scene.play(story())


async def _closed(scene: Scene, execution: int, *, within: float) -> None:
    async with asyncio.timeout(within):
        while not scene.database.tables.streams[execution].closed:
            await asyncio.sleep(0.5)
    await asyncio.sleep(2)


def test_a_lost_queue_and_lost_timers_are_rebuilt_from_the_ledger() -> None:
    scene = Scene(slots=1)

    async def story() -> None:
        async with scene.process() as life:
            waits = await start(life, step("start", fails=1, attempt="{{ _attempt }}", policy=RULES))
            await asyncio.sleep(1)
            queued = [await start(life, step("start", seconds=50)) for _ in range(2)]
            assert scene.database.tables.timers
            assert scene.database.tables.commands
        scene.database.tables.drop_derived()
        async with scene.process() as life:
            for execution in (waits, *queued):
                assert (await ended(life, execution, within=300)).status is Status.COMPLETED
        check_end(scene.database)

    scene.play(story())


def test_a_command_that_kills_its_process_again_and_again_ends_itself() -> None:
    scene = Scene(slots=1)

    async def story() -> None:
        async with scene.process() as life:
            execution = await start(life, step("start", seconds=100))
        for _ in range(12):
            async with scene.process():
                await asyncio.sleep(1)
        state = scene.state(execution)
        assert state.status is Status.FAILED
        assert state.failure is not None
        assert "claimed 10 times" in str(state.failure["error"])
        check_end(scene.database)

    scene.play(story())


def test_a_resume_point_is_not_changed_by_the_run_that_reads_it() -> None:
    scene = Scene(slots=1)

    async def story() -> None:
        async with scene.process() as life:
            # Two attempts are allowed and both fail, so the step fails.
            execution = await start(life, step("start", fails=2, attempt="{{ _attempt }}", policy=RULES))
            await asyncio.sleep(4.5)
            # The claim of the second attempt is prepared, not committed, and claimed again.
            scene.faults.script("advance", Mishap(seconds_before=1, outcome=Outcome.NOT_DONE))
            assert (await ended(life, execution, within=60)).status is Status.FAILED

    scene.play(story())


class _Nobody:
    async def report(self, session_id: int, fact: object) -> None: ...


def test_a_withdrawn_command_is_not_begun_when_it_is_announced_again() -> None:
    async def story() -> None:
        session = InProcessSession(session_id=1, slots=1, control=_Nobody())
        first, again = (
            CommandMessage(execution_id=1, command_id="s#1", attempt=1, body={"try": n}, **OWNER) for n in range(2)
        )
        session.announce(first)
        session.withdraw(first)
        session.announce(again)
        session.deliver(again)
        with pytest.raises(ClaimWithdrawn):
            await session.confirmed(first)
        await session.confirmed(again)

    asyncio.run(story())


def test_an_owner_decides_though_others_append_faster_than_it_can_commit() -> None:
    """Every commit takes four times as long as the pause between two appends of somebody else."""
    scene = Scene(slots=200, shards=1)

    async def story() -> None:
        async with scene.process() as life:
            executions = [await start(life, *FORK) for _ in range(80)]
            await asyncio.sleep(1)
            scene.faults.script("advance", *[Mishap(seconds_before=0.02)] * 200)
            appending = asyncio.ensure_future(scene.foreign_facts(executions, "b#1", every_seconds=0.005))
            await asyncio.sleep(0.01)
            await life.decider.catch_up()
            head = scene.database.tables.heads[0]
            assert not appending.done(), "somebody else appends all the time"
            assert head.decided_position > 0
            assert life.decider._counts.misses == MISSES_UNHELD_MAX
            await appending
            for execution in executions:
                assert (await ended(life, execution, within=5_000)).status is Status.COMPLETED
        check_end(scene.database)

    scene.play(story())
