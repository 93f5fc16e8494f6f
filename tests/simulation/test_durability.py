"""Roles, checkpointer and snapshotter in virtual time: killed at each of their awaits, with answers lost and commits
that land late, and another process that goes on."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import pytest

from noetl.adapters.memory.clock import VirtualClock
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults, Mishap, Outcome
from noetl.adapters.memory.tables import event_of
from noetl.core import kinds
from noetl.core.execution.evolve import evolve
from noetl.core.execution.state import Entry, ExecutionState, Status
from noetl.core.ids import system_execution_of
from noetl.core.snapshot.snapshot import restore
from noetl.engine.control.states import Held
from noetl.engine.durability.roles import CHECKPOINTER, Roles
from noetl.engine.durability.snapshotter import Snapshotter
from noetl.ports.durability.roles import RoleLease
from tests.simulation.loop import PROCESS, SimulationLoop, run_simulated
from tests.support.durability import Durable, memory_parts
from tests.support.events import offer

SHARDS = 3
LEASE, HEARTBEAT = 6.0, 2.0
P = ParamSpec("P")
T = TypeVar("T")


class Inline:
    """Background work of a process that has one thread."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await asyncio.sleep(0)
        return function(*args, **kwargs)


class Doomed(Faults):
    """Its process stands still for ever at one of its awaits."""

    def __init__(self, process: str, last: int | None = None, mishaps: dict[str, Mishap] | None = None) -> None:
        super().__init__()
        self._process = process
        self._left = last
        self.awaits = 0
        for operation, mishap in (mishaps or {}).items():
            self.script(operation, mishap)

    async def pause(self, seconds: float) -> None:
        self.awaits += 1
        if self.awaits == self._left:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimulationLoop)
            loop.stop_process(self._process)
        await asyncio.sleep(seconds)


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.database = MemoryDatabase(clock=self.clock, shard_count=SHARDS)
        self.applied: dict[int, tuple[int, int]] = {}
        self.parts = memory_parts(self.database, self.applied)

    def begin(self, process: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        return asyncio.get_running_loop().create_task(work, context=context)

    def process(self, name: str, number: int, faults: Faults) -> Durable:
        parts = memory_parts(self.database, self.applied, faults)
        checkpointer = parts.checkpointer()
        checkpointer._interval = 1.0
        roles = Roles(
            parts.roles,
            {CHECKPOINTER: checkpointer},
            runtime_id=number,
            lease_seconds=LEASE,
            heartbeat_seconds=HEARTBEAT,
            clock=self.clock,
        )
        self.begin(name, roles.run())
        return parts

    async def work(self, seconds: float) -> None:
        """Events come, and a projector applies them."""
        until = self.clock.monotonic() + seconds
        turn = 0
        while self.clock.monotonic() < until:
            turn += 1
            shard_id = turn % SHARDS
            event = self.parts.make.initialized(self.parts.make.execution_id())
            await self.parts.ledger.append([offer(shard_id, event)])
            self.project()
            await asyncio.sleep(0.4)

    def project(self) -> None:
        for shard_id, rows in self.database.tables.shards.items():
            if rows:
                self.applied[shard_id] = len(rows), event_of(rows[-1]).event_id

    def check(self) -> None:
        """What must be true of checkpoints at any time, from the raw rows."""
        for shard_id, rows in self.database.tables.shards.items():
            told = [event_of(row) for row in rows if row.event_type == kinds.CHECKPOINT_COMMITTED]
            kept = self.database.tables.checkpoints.get(system_execution_of(shard_id), [])
            assert [event.meta["epoch"] for event in told] == list(range(1, len(told) + 1))
            assert [(event.meta["epoch"], event.meta["position"]) for event in told] == [
                (one.epoch, one.position) for one in kept
            ]
            positions = [one.position for one in kept]
            assert positions == sorted(set(positions))
            for event in told:
                covered: Any = event.meta["position"]
                assert covered < event.position, "it covers what was there before"
                assert rows[covered - 1].position == covered


def played(story: Callable[[World], Coroutine[Any, Any, None]], seed: object = 0) -> World:
    world = World()
    run_simulated(story(world), world.clock, random.Random(str(seed)))
    world.check()
    return world


TROUBLES: dict[str, dict[str, Mishap]] = {
    "nothing else": {},
    "a commit that did not happen": {"commit_checkpoints": Mishap(outcome=Outcome.NOT_DONE)},
    "an answer that was lost": {"commit_checkpoints": Mishap(outcome=Outcome.REPLY_LOST)},
    "a commit that lands late": {"commit_checkpoints": Mishap(outcome=Outcome.COMMITS_LATE, late_seconds=1.5)},
    "a look that failed": {"barriers": Mishap(outcome=Outcome.NOT_DONE)},
    "a heartbeat that was lost": {"hold_roles": Mishap(outcome=Outcome.REPLY_LOST)},
}


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("last", [*range(1, 22), None])
def test_whoever_dies_at_any_await_another_goes_on_and_everything_is_covered(last: int | None, trouble: str) -> None:
    async def story(world: World) -> None:
        world.process("one", 1, Doomed("one", last, TROUBLES[trouble]))
        world.process("other", 2, Doomed("other"))
        await world.work(8.0)
        await asyncio.sleep(LEASE + HEARTBEAT + 2.0)
        world.project()
        for barrier in await world.parts.checkpoints.barriers():
            assert barrier.uncovered_ms is None, barrier

    world = played(story, (last, trouble))
    assert all(world.database.tables.checkpoints.get(system_execution_of(shard)) for shard in range(SHARDS))


def test_an_idle_system_appends_nothing() -> None:
    async def story(world: World) -> None:
        world.process("one", 1, Faults())
        await world.work(3.0)
        await asyncio.sleep(3.0)
        world.project()
        before = {shard: len(rows) for shard, rows in world.database.tables.shards.items()}
        for _ in range(60):
            await asyncio.sleep(1.0)
            world.project()
        assert {shard: len(rows) for shard, rows in world.database.tables.shards.items()} == before

    played(story)


def test_a_checkpoint_comes_within_its_interval() -> None:
    async def story(world: World) -> None:
        world.process("one", 1, Faults())
        world.begin("worker", world.work(10.0))
        ages = []
        for _ in range(90):
            await asyncio.sleep(0.1)
            found = await world.parts.checkpoints.barriers()
            ages += [barrier.uncovered_ms for barrier in found if barrier.uncovered_ms is not None]
        assert max(ages) < 1_500

    played(story)


# --- roles -----------------------------------------------------------------------------------------------


class Watched:
    """Work that says when it is done by whom."""

    def __init__(self, told: list[tuple[str, int]], name: str) -> None:
        self._told = told
        self._name = name

    async def run(self, lease: RoleLease) -> None:
        while True:
            self._told.append((self._name, lease.epoch))
            await asyncio.sleep(0.1)


def roles(world: World, name: str, number: int, told: list[tuple[str, int]], faults: Faults | None = None) -> Roles:
    return Roles(
        memory_parts(world.database, {}, faults).roles,
        {"x": Watched(told, name)},
        runtime_id=number,
        lease_seconds=LEASE,
        heartbeat_seconds=HEARTBEAT,
        clock=world.clock,
    )


def test_whoever_ends_hands_its_roles_over_at_the_next_heartbeat() -> None:
    async def story(world: World) -> None:
        told: list[tuple[str, int]] = []
        task = world.begin("one", roles(world, "one", 1, told).run())
        await asyncio.sleep(0.5)
        world.begin("other", roles(world, "other", 2, told).run())
        await asyncio.sleep(1.0)
        assert {name for name, _ in told} == {"one"}
        task.cancel()
        await asyncio.wait([task])
        before = len(told)
        await asyncio.sleep(HEARTBEAT)
        assert set(told[before:]) == {("other", 2)}

    played(story)


def test_a_holder_that_hears_nothing_stops_before_another_can_begin() -> None:
    async def story(world: World) -> None:
        told: list[tuple[str, int]] = []
        faults = Faults()
        one = roles(world, "one", 1, told, faults)
        world.begin("one", one.run())
        await asyncio.sleep(0.5)
        world.begin("other", roles(world, "other", 2, told).run())
        faults.script("hold_roles", *[Mishap(outcome=Outcome.NOT_DONE)] * 20)
        await asyncio.sleep(20.0)
        assert one.held == frozenset()
        names = [name for name, _ in told]
        assert "one" not in names[names.index("other") :], "two did the same at a time"
        assert {sample[2] for sample in one.samples()} == {0.0}

    played(story)


def test_a_holder_that_stood_still_learns_that_its_role_is_gone() -> None:
    async def story(world: World) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        told: list[tuple[str, int]] = []
        one = roles(world, "one", 1, told)
        world.begin("one", one.run())
        await asyncio.sleep(0.5)
        loop.stop_process("one")
        world.begin("other", roles(world, "other", 2, told).run())
        await asyncio.sleep(3 * LEASE)
        loop.continue_process("one")
        await asyncio.sleep(HEARTBEAT + 0.5)
        before = len(told)
        await asyncio.sleep(5.0)
        assert set(told[before:]) == {("other", 2)}
        assert one.held == frozenset()

    played(story)


def test_work_that_fails_ends_the_process() -> None:
    class Failing:
        async def run(self, _lease: RoleLease) -> None:
            raise RuntimeError("a defect")

    async def story(world: World) -> None:
        failing = roles(world, "one", 1, [])
        failing._works = {"x": Failing()}
        with pytest.raises(ExceptionGroup):
            await failing.run()
        (holder,) = await world.parts.roles.holders()
        assert holder.runtime_id is None

    played(story)


# --- snapshots -------------------------------------------------------------------------------------------


async def growing(world: World, snapshotter: Snapshotter | None, *, events: int) -> ExecutionState:
    """An execution that gets longer and longer; its states are offered at the end of every batch."""
    make = world.parts.make
    execution_id = make.execution_id()
    first = {"path": "p", "playbook": {}, "entry": "s", "workload": {}}
    fired = (
        make.event(execution_id, kinds.TIMER_FIRED, f"timer.fired/{n}", meta={"name": str(n)}) for n in range(1, events)
    )
    story = [make.initialized(execution_id, meta=first), *fired]
    state: ExecutionState | None = None
    for number in range(0, events, 7):
        await world.parts.ledger.append([offer(1, *story[number : number + 7])])
        for event in await world.parts.ledger.read_execution(execution_id, after_position=number):
            state = evolve(state, event)
        assert state is not None
        if snapshotter is not None:
            snapshotter.offer(Held(state, 1, event.position))
        await asyncio.sleep(0.1)
    assert state is not None
    return state


@pytest.mark.parametrize("last", [*range(1, 12), None])
@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.NOT_DONE, Outcome.REPLY_LOST])
def test_a_snapshotter_that_dies_at_any_await_leaves_only_snapshots_that_fit(
    last: int | None, outcome: Outcome
) -> None:
    async def story(world: World) -> None:
        faults = Doomed("one", last, {"save_snapshots": Mishap(outcome=outcome)})
        parts = memory_parts(world.database, {}, faults)
        snapshotter = Snapshotter(parts.snapshots, background=Inline(), interval_events=20)
        world.begin("one", snapshotter.run())
        state = await growing(world, snapshotter, events=140)
        await asyncio.sleep(3.0)
        kept = await world.parts.snapshots.newest(state.execution_id)
        events = await world.parts.ledger.read_execution(state.execution_id)
        for snapshot in kept:
            folded: ExecutionState | None = None
            for event in events[: snapshot.stream_version]:
                folded = evolve(folded, event)
            assert restore(snapshot) == folded
            assert snapshot.position == events[snapshot.stream_version - 1].position
        if last is None:
            assert len(kept) == 2
            assert state.version - kept[0].stream_version <= 20

    played(story, (last, outcome))


def test_states_are_offered_without_waiting_and_what_is_too_much_is_dropped() -> None:
    async def story(world: World) -> None:
        snapshotter = Snapshotter(world.parts.snapshots, background=Inline(), interval_events=5)
        for n in range(1, 1_101):
            snapshotter.offer(Held(ExecutionState(execution_id=n, version=5), 1, n))
            snapshotter.offer(Held(ExecutionState(execution_id=n, version=4), 1, n))
        world.begin("one", snapshotter.run())
        await asyncio.sleep(1.0)
        assert {name: value for name, _, value in snapshotter.samples()} == {
            "noetl_snapshots_total": 1_000,
            "noetl_snapshots_dropped_total": 100,
        }
        assert await world.parts.snapshots.newest(1_100)
        assert not await world.parts.snapshots.newest(1)

    played(story)


def test_the_end_of_an_execution_is_always_kept() -> None:
    async def story(world: World) -> None:
        snapshotter = Snapshotter(world.parts.snapshots, background=Inline(), interval_events=1_000)
        world.begin("one", snapshotter.run())
        ended = ExecutionState(execution_id=9, version=4).changed({"status": Status.COMPLETED})
        snapshotter.offer(Held(ended, 1, 4))
        snapshotter.offer(Held(ExecutionState(execution_id=10, version=4), 1, 5))
        await asyncio.sleep(1.0)
        assert [one.position for one in await world.parts.snapshots.newest(9)] == [4]
        assert not await world.parts.snapshots.newest(10)

    played(story)


def test_a_state_that_has_no_bytes_is_left_out_and_nobody_suffers() -> None:
    async def story(world: World) -> None:
        snapshotter = Snapshotter(world.parts.snapshots, background=Inline(), interval_events=1)
        world.begin("one", snapshotter.run())
        for execution_id, value in ((9, float("nan")), (10, "\ud800"), (11, "text")):
            state = ExecutionState(execution_id=execution_id, version=4, variables={"x": Entry(value)})
            snapshotter.offer(Held(state, 1, execution_id))
        await asyncio.sleep(1.0)
        assert [len(await world.parts.snapshots.newest(one)) for one in (9, 10, 11)] == [0, 0, 1]
        assert ("noetl_snapshots_dropped_total", {}, 2) in list(snapshotter.samples())

    played(story)
