"""Sessions of workers in other processes: whoever dies, whenever, loses no command and writes nothing afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from noetl.adapters.memory.faults import Mishap, Outcome
from noetl.core import kinds
from noetl.core.errors import EnvelopeInvalid, LeaseLost, NoetlError
from noetl.core.execution.state import Status
from noetl.core.reference import Result
from noetl.engine.control.sessions import Sessions, free_kinds
from noetl.engine.sessions.keeper import Keeper, Told
from noetl.engine.sessions.remote import Profile, RemoteSession
from noetl.ports.session import CommandMessage, Fact, Stop
from tests.simulation.checks import check_end, events_of
from tests.simulation.life import Life
from tests.simulation.test_recovery import FORK, Scene, ended, start, step

LEASE = 3.0
BEAT = 1.0
CHAIN = (step("start", "a"), step("a", "b"), step("b"))


@asynccontextmanager
async def kept(life: Life) -> AsyncIterator[Keeper]:
    """The keeper of a process, as `wiring.Engine` makes it."""
    keeper = Keeper(
        control=life.decider,
        sessions=life.sessions,
        queue=life.queue,
        ids=life._ids,
        clock=life._clock,
        lease_seconds=LEASE,
    )
    task = asyncio.ensure_future(keeper.run())
    try:
        yield keeper
    finally:
        is_alive = not task.done()
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        assert is_alive, "the keeper ended by itself"


def profile(slots: int = 2, **fields: object) -> Profile:
    return Profile(worker_id="w", slots=slots, **fields)  # type: ignore[arg-type]


def done(message: CommandMessage, event_type: str = kinds.COMMAND_COMPLETED) -> Fact:
    return Fact(
        execution_id=message.execution_id,
        command_id=message.command_id,
        attempt=message.attempt,
        event_type=event_type,
        result=Result(status="ok").to_json(),
    )


async def tell(keeper: Keeper, session: RemoteSession, fact: Fact, fact_id: str | None = None) -> NoetlError | None:
    (outcome,) = await keeper.report(session, [Told(fact_id, fact)])
    return outcome


async def work(keeper: Keeper, session: RemoteSession, *, commands: int | None = None, beats: bool = True) -> None:
    """A worker that completes what it hears, at once, until it has done so many or its session is over."""
    listener = session.voice.listen()
    while commands is None or commands > 0:
        try:
            words = await session.voice.words(listener, BEAT)
            if beats:
                keeper.beat(session.session_id)
        except LeaseLost:
            return
        for word in words:
            if isinstance(word, CommandMessage):
                await tell(keeper, session, done(word))
                commands = None if commands is None else commands - 1


async def heard(session: RemoteSession, within: float = 30.0) -> list[CommandMessage]:
    words = await session.voice.words(session.voice.listen(), within)
    return [word for word in words if isinstance(word, CommandMessage)]


def claims(scene: Scene, execution: int) -> list[tuple[str | None, int]]:
    events = [e for e in events_of(scene.database, execution) if e.event_type == kinds.COMMAND_CLAIMED]
    return [(event.command_id, int(str(event.meta["attempt"]))) for event in events]


def test_a_silent_session_is_dead_its_commands_go_back_and_its_facts_are_refused() -> None:
    scene = Scene(slots=0)

    async def story() -> None:
        async with scene.process() as life, kept(life) as keeper:
            silent = keeper.register(profile())
            execution = await start(life, *CHAIN)
            (first,) = await heard(silent)
            await asyncio.sleep(LEASE - 0.1)
            assert keeper.find(silent.session_id) is silent
            await asyncio.sleep(0.2)
            with pytest.raises(LeaseLost):
                keeper.beat(silent.session_id)
            assert isinstance(await tell(keeper, silent, done(first)), LeaseLost)
            other = keeper.register(profile())
            working = asyncio.ensure_future(work(keeper, other))
            assert (await ended(life, execution, within=30)).status is Status.COMPLETED
            # The same words again, about an execution that has ended.
            assert isinstance(await tell(keeper, silent, done(first)), LeaseLost)
            working.cancel()
            assert claims(scene, execution) == [("start#1", 1), ("start#1", 2), ("a#1", 1), ("b#1", 1)]
        check_end(scene.database)

    scene.play(story())


def test_heartbeats_keep_a_session_that_has_nothing_to_say() -> None:
    scene = Scene(slots=0)

    async def story() -> None:
        async with scene.process() as life, kept(life) as keeper:
            session = keeper.register(profile())
            for _ in range(20):
                await asyncio.sleep(BEAT)
                keeper.beat(session.session_id)

    scene.play(story())


@pytest.mark.parametrize("end", ["dies", "drains"])
@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.NOT_DONE, Outcome.REPLY_LOST])
def test_a_session_that_ends_while_its_claim_is_being_committed_loses_no_command(end: str, outcome: Outcome) -> None:
    scene = Scene(slots=0)

    async def story() -> None:
        async with scene.process() as life, kept(life) as keeper:
            session = keeper.register(profile())
            await asyncio.sleep(1)
            scene.faults.script("advance", Mishap(outcome=outcome, seconds_before=1, seconds_after=1))
            starting = asyncio.ensure_future(start(life, *CHAIN))
            await asyncio.sleep(0.5)
            if end == "dies":
                keeper.end(session.session_id)
            else:
                keeper.drain(session.session_id)
            execution = await starting
            await asyncio.sleep(2)
            other = keeper.register(profile())
            working = asyncio.ensure_future(work(keeper, other))
            assert (await ended(life, execution, within=30)).status is Status.COMPLETED
            working.cancel()
        check_end(scene.database)

    scene.play(story())


def test_rows_are_given_back_although_the_database_is_away() -> None:
    scene = Scene(slots=0)

    async def story() -> None:
        async with scene.process() as life, kept(life) as keeper:
            silent = keeper.register(profile())
            execution = await start(life, *CHAIN)
            await heard(silent)
            scene.faults.script("release", *[Mishap(outcome=Outcome.NOT_DONE)] * 3, Mishap(outcome=Outcome.REPLY_LOST))
            keeper.end(silent.session_id)
            working = asyncio.ensure_future(work(keeper, keeper.register(profile())))
            assert (await ended(life, execution, within=30)).status is Status.COMPLETED
            working.cancel()
        check_end(scene.database)

    scene.play(story())


def test_a_draining_session_ends_what_it_was_sent_and_gives_back_the_rest() -> None:
    scene = Scene(slots=0)

    async def story() -> None:
        async with scene.process() as life, kept(life) as keeper:
            session = keeper.register(profile(slots=3))
            first = await start(life, step("start", seconds=1))
            (sent,) = await heard(session)
            second = await start(life, step("start", seconds=1))
            await asyncio.sleep(0.1)
            assert len(session.held) == 2
            assert len(keeper.drain(session.session_id).held) == 1
            other = keeper.register(profile())
            working = asyncio.ensure_future(work(keeper, other))
            assert (await ended(life, second, within=30)).status is Status.COMPLETED
            assert claims(scene, second) == [("start#1", 1), ("start#1", 2)]
            assert await tell(keeper, session, done(sent)) is None
            assert (await ended(life, first, within=30)).status is Status.COMPLETED
            assert claims(scene, first) == [("start#1", 1)]
            working.cancel()
        check_end(scene.database)

    scene.play(story())


def test_what_was_sent_is_not_given_back_because_a_connection_broke() -> None:
    scene = Scene(slots=0)

    async def story() -> None:
        async with scene.process() as life, kept(life) as keeper:
            session = keeper.register(profile())
            execution = await start(life, step("start", seconds=1))
            (first,) = await heard(session)
            (again,) = await heard(session)
            assert again == first
            session.voice.listen()
            assert len(keeper.drain(session.session_id).held) == 1
            assert await tell(keeper, session, done(first)) is None
            assert (await ended(life, execution, within=30)).status is Status.COMPLETED
        check_end(scene.database)

    scene.play(story())


def test_an_earlier_connection_hears_nothing_more() -> None:
    scene = Scene(slots=0)

    async def story() -> None:
        async with scene.process() as life, kept(life) as keeper:
            session = keeper.register(profile())
            waiting = asyncio.ensure_future(session.voice.words(session.voice.listen(), 100.0))
            await asyncio.sleep(0.1)
            session.voice.listen()
            with pytest.raises(LeaseLost):
                await waiting

    scene.play(story())


def test_a_fact_that_is_told_twice_has_one_effect_and_one_answer() -> None:
    scene = Scene(slots=0)

    async def story() -> None:
        async with scene.process() as life, kept(life) as keeper:
            session = keeper.register(profile())
            execution = await start(life, *CHAIN)
            (first,) = await heard(session)
            told = [Told("1", done(first)), Told("1", done(first))]
            assert await keeper.report(session, told) == [None, None]
            assert await tell(keeper, session, done(first), "1") is None
            assert isinstance(await tell(keeper, session, done(first), "2"), LeaseLost)
            assert isinstance(await tell(keeper, session, done(first), "2"), LeaseLost)
            terminal = [e for e in events_of(scene.database, execution) if e.command_id == "start#1"]
            assert [e.event_type for e in terminal].count(kinds.COMMAND_COMPLETED) == 1

    scene.play(story())


def test_a_fact_refused_for_what_it_says_leaves_the_command_to_say_something_else() -> None:
    scene = Scene(slots=0)

    async def story() -> None:
        async with scene.process() as life, kept(life) as keeper:
            session = keeper.register(profile())
            execution = await start(life, step("start"))
            (first,) = await heard(session)
            wrong = done(first)._replace(result={"nonsense": 1})
            assert isinstance(await tell(keeper, session, wrong, "1"), EnvelopeInvalid)
            assert session.is_holding(first.execution_id, first.command_id, first.attempt)
            assert await tell(keeper, session, done(first), "2") is None
            assert not session.is_holding(first.execution_id, first.command_id, first.attempt)
            assert (await ended(life, execution, within=5)).status is Status.COMPLETED
        check_end(scene.database)

    scene.play(story())


def test_a_session_cannot_speak_about_what_another_holds() -> None:
    scene = Scene(slots=0)

    async def story() -> None:
        async with scene.process() as life, kept(life) as keeper:
            session, other = keeper.register(profile()), None
            execution = await start(life, *CHAIN)
            (first,) = await heard(session)
            other = keeper.register(profile())
            assert isinstance(await tell(keeper, other, done(first)), LeaseLost)
            assert claims(scene, execution) == [("start#1", 1)]

    scene.play(story())


def test_a_process_that_stood_still_does_not_blame_its_workers() -> None:
    scene = Scene(slots=0)

    async def story() -> None:
        async with scene.process() as life, kept(life) as keeper:
            session = keeper.register(profile())
            await asyncio.sleep(1)
            scene.clock.advance(60)  # no timer fired, no heartbeat was read
            await asyncio.sleep(0.5)
            keeper.beat(session.session_id)
            await asyncio.sleep(LEASE + 0.1)
            with pytest.raises(LeaseLost):
                keeper.find(session.session_id)

    scene.play(story())


def test_registering_again_with_the_same_key_is_the_same_session_while_it_lives() -> None:
    scene = Scene(slots=0)

    async def story() -> None:
        async with scene.process() as life, kept(life) as keeper:
            session = keeper.register(profile(), key="k")
            assert keeper.register(profile(), key="k") is session
            assert life.sessions.free_slots == 2
            keeper.end(session.session_id)
            assert keeper.register(profile(), key="k") is not session

    scene.play(story())


def test_claiming_again_with_the_same_key_gives_the_same_commands() -> None:
    scene = Scene(slots=0)

    async def story() -> None:
        async with scene.process() as life, kept(life) as keeper:
            session = keeper.register(profile(slots=4))
            for _ in range(3):
                await start(life, step("start"))
            await asyncio.sleep(1)
            first = await session.voice.claim(2, 1.0, "one")
            assert len(first) == 2
            assert await session.voice.claim(2, 1.0, "one") == first
            assert len(await session.voice.claim(2, 1.0, "two")) == 1
            assert await session.voice.claim(2, 0.5, "three") == []

    scene.play(story())


# --- kinds -----------------------------------------------------------------------------------------------


class Sink:
    """A session that remembers what it was given."""

    def __init__(self, session_id: int, slots: int = 1) -> None:
        self.session_id, self.slots = session_id, slots

    def announce(self, message: CommandMessage) -> None: ...

    def deliver(self, message: CommandMessage) -> None: ...

    def withdraw(self, message: CommandMessage) -> None: ...

    def stop(self, stop: Stop) -> None: ...


def test_a_slot_is_reserved_only_where_every_kind_of_task_can_run() -> None:
    sessions = Sessions()
    sessions.connect(Sink(1), kinds=["noop"])
    sessions.connect(Sink(2), kinds=["noop", "http"])
    assert free_kinds(sessions) == {"noop", "http"}
    assert sessions.reserve({"python"}) is None
    assert sessions.reserve({"noop", "http"}) == 2
    assert sessions.reserve({"http"}) is None
    assert free_kinds(sessions) == {"noop"}
    sessions.connect(Sink(3))
    assert free_kinds(sessions) is None
    assert sessions.reserve({"python"}) == 3
    assert sessions.reserve({"noop"}, pool="elsewhere") is None
    assert sessions.reserve({"noop"}) == 1
    assert sessions.free_slots == 0
    assert sessions.pools.claimable() == []


def test_a_command_waits_for_a_session_that_can_run_it_and_holds_up_nobody() -> None:
    scene = Scene(slots=0)

    async def story() -> None:
        async with scene.process() as life, kept(life) as keeper:
            unable = keeper.register(profile(kinds=frozenset({"noop"})))
            able = keeper.register(profile(slots=1, kinds=frozenset({"noop", "python"})))
            working = [asyncio.ensure_future(work(keeper, session)) for session in (unable, able)]
            executions = [await start(life, *CHAIN) for _ in range(3)]
            for execution in executions:
                assert (await ended(life, execution, within=60)).status is Status.COMPLETED
            keeper.end(able.session_id)
            left = await start(life, *CHAIN)
            await asyncio.sleep(10)
            assert claims(scene, left) == []
            again = keeper.register(profile())
            working.append(asyncio.ensure_future(work(keeper, again)))
            assert (await ended(life, left, within=5)).status is Status.COMPLETED
            for task in working:
                task.cancel()
        check_end(scene.database)

    scene.play(story())


# --- chance ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_workers_that_come_and_go_finish_every_execution(seed: int) -> None:
    scene = Scene(slots=0)
    chance = random.Random(f"sessions {seed}")

    async def life_of_a_worker(keeper: Keeper) -> None:
        while True:
            session = keeper.register(profile(slots=chance.choice((1, 2, 8))))
            fate = chance.random()
            commands = None if fate < 0.3 else chance.randrange(1, 6)
            await work(keeper, session, commands=commands, beats=fate < 0.8)
            if fate < 0.4:
                with contextlib.suppress(LeaseLost):
                    keeper.drain(session.session_id)
                await asyncio.sleep(chance.random())
            if fate < 0.5:
                keeper.end(session.session_id)
            await asyncio.sleep(chance.random() * 2)

    def troubled() -> list[Mishap]:
        kinds_of_trouble = (Outcome.DONE, Outcome.DONE, Outcome.DONE, Outcome.NOT_DONE, Outcome.REPLY_LOST)
        return [
            Mishap(outcome=chance.choice(kinds_of_trouble), seconds_before=chance.random(), seconds_after=0.01)
            for _ in range(40)
        ]

    async def story() -> None:
        async with scene.process() as life, kept(life) as keeper:
            scene.faults.script("release", *troubled())
            scene.faults.script("waiting", *troubled())
            workers = [asyncio.ensure_future(life_of_a_worker(keeper)) for _ in range(3)]
            executions = [await start(life, *(CHAIN if number % 2 else FORK)) for number in range(6)]
            scene.faults.script("advance", *troubled())
            for execution in executions:
                state = await ended(life, execution, within=5_000)
                assert state.is_terminal, seed
                # With luck bad enough, a command was claimed so often that it was given up: that is told, too.
                assert state.failure is None or "attempts_exhausted" in str(state.failure), seed
            for worker in workers:
                worker.cancel()
        check_end(scene.database)

    scene.play(story())
