"""Claims that come late, that lose their race, and that must be alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from noetl.adapters.memory.faults import Faults, Mishap, Outcome
from noetl.adapters.memory.ledger import MemoryLedger
from noetl.adapters.memory.queue import MemoryQueue
from noetl.core.execution.state import Command, Status
from noetl.engine.control import decider
from noetl.engine.control.facts import attempts_max
from noetl.engine.control.inputs import ClaimInput, RestoreInput
from noetl.engine.control.parts import ControlParts
from noetl.engine.control.sessions import Sessions
from noetl.engine.control.states import States
from noetl.engine.sharing.recorder import Recorder
from noetl.engine.sharing.waiting import Waiting
from noetl.ports.ledger import QueuedCommand
from tests.simulation.life import Life
from tests.simulation.test_recovery import Scene, start, step
from tests.unit.test_solitude import Worker


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> list[ControlParts]:
    """The parts of every decider that was made since."""
    made: list[ControlParts] = []
    init = decider.Decider.__init__

    def remember(self: decider.Decider, parts: ControlParts, **more: object) -> None:
        made.append(parts)
        init(self, parts, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(decider.Decider, "__init__", remember)
    return made


def another_server(parts: ControlParts, sessions: Sessions, ledger: MemoryLedger, queue: MemoryQueue) -> Recorder:
    """It owns no shard, and has a worker of its own that it claims for."""
    sessions.connect(Worker(900, 4))
    other = replace(parts, ledger=ledger, sessions=sessions, states=States(ledger))
    return Recorder(other, ledger=ledger, queue=queue, producer="noetl://tenant/acme/org/sales/host/other")


async def waiting(life: Life, queue: MemoryQueue) -> QueuedCommand:
    """A command for which the only slot is not free."""
    await start(life, step("start", seconds=2))
    execution_id = await start(life, step("start", seconds=1))
    await asyncio.sleep(0.1)
    (row,) = await queue.commands_of(execution_id)
    return row


def test_a_claim_of_another_server_that_comes_late_leaves_no_command_behind(wired: list[ControlParts]) -> None:
    """The row must not be behind the ledger: nobody would ever claim it."""
    scene = Scene(slots=1)

    async def story() -> None:
        async with scene.process() as life:
            queue, faults = MemoryQueue(scene.database), Faults()
            row = await waiting(life, queue)
            sessions = Sessions()
            recorder = another_server(wired[0], sessions, MemoryLedger(scene.database, faults), queue)
            recording = asyncio.ensure_future(recorder.run())
            # The first append is given up and comes all the same, before the second one.
            late = Mishap(outcome=Outcome.COMMITS_LATE, late_seconds=0.2)
            faults.script("append", late, Mishap(seconds_before=0.5))
            await recorder.tell(ClaimInput(execution_id=row.execution_id, row=row))
            recording.cancel()
            assert sessions.connected[900].holds == {}
            (command,) = scene.state(row.execution_id).commands.values()
            (row,) = await queue.commands_of(row.execution_id)
            assert row.attempt >= command.attempt == 1
            await life.decider.catch_up()
            await asyncio.sleep(600)
            assert scene.state(row.execution_id).status is Status.COMPLETED

    scene.play(story())


def test_a_row_that_another_server_took_again_since_the_look_is_not_taken_from_it(wired: list[ControlParts]) -> None:
    """It was given back once, ahead of the ledger, and so it looked: free, with the attempt that it has now."""
    scene = Scene(slots=1)

    async def story() -> None:
        async with scene.process() as life:
            queue = MemoryQueue(scene.database)
            row = await waiting(life, queue)
            recorder = another_server(wired[0], Sessions(), MemoryLedger(scene.database), queue)
            recording = asyncio.ensure_future(recorder.run())
            await recorder.tell(ClaimInput(execution_id=row.execution_id, row=row))
            recording.cancel()
            await life.decider.catch_up()
            await asyncio.sleep(5)  # the slot is free
            one = ClaimInput(execution_id=row.execution_id, row=replace(row, attempt=1), is_sure=False)
            await life.decider.tell(one)
            assert one.doubted == [1]
            assert held(life, row.execution_id).attempt == 1
            # Whoever knows that nobody holds it any more says so.
            await life.decider.tell(replace(one, is_sure=True))
            assert held(life, row.execution_id).attempt == 2

    scene.play(story())


def test_what_is_put_back_and_claimed_in_one_commit_is_claimed(wired: list[ControlParts]) -> None:
    """Whoever takes over a shard puts back what is open in it, while its sessions ask for work."""
    scene = Scene(slots=1)

    async def story() -> None:
        async with scene.process() as life:
            queue = MemoryQueue(scene.database)
            row = await waiting(life, queue)
            wired[0].sessions.connect(Worker(900, 4))
            claim = ClaimInput(execution_id=row.execution_id, row=row)
            told = [Waiting(one, asyncio.Future()) for one in (RestoreInput(execution_id=row.execution_id), claim)]
            life.decider._inputs.extend(told)
            await life.decider.tell(claim)
            assert held(life, row.execution_id).attempt == 1
            (row,) = await queue.commands_of(row.execution_id)
            assert (row.session_id, row.attempt) == (900, 1)

    scene.play(story())


def test_a_row_that_is_behind_the_ledger_is_claimed_all_the_same() -> None:
    """Its holder was told to stop, for the row is not its own."""
    scene = Scene(slots=1)

    async def story() -> None:
        async with scene.process() as life:
            queued = await start(life, step("start", seconds=5_000))
            await asyncio.sleep(0.5)
            key, sessions = (queued, "start#1"), life.decider._sessions
            (session_id,) = sessions.connected
            rows = scene.database.tables.commands
            rows[key] = rows[key]._replace(command=replace(rows[key].command, attempt=0, session_id=None))
            sessions.finish(session_id, *key, 1)
            sessions.pools.expect()
            await asyncio.sleep(2)
            assert held(life, queued).attempt == rows[key].command.attempt == 2

    scene.play(story())


def held(life: Life, execution_id: int) -> Command:
    found = life.states.cached(execution_id)
    assert found is not None
    (command,) = found.state.commands.values()
    return command


def test_the_last_attempt_begins_when_its_worker_is_empty_and_others_go_on_behind_it() -> None:
    scene = Scene(slots=2)

    async def story() -> None:
        async with scene.process() as life:
            sessions, queue = life.decider._sessions, MemoryQueue(scene.database)
            (session_id,) = sessions.connected
            victim = await start(life, step("start", seconds=5_000))
            await asyncio.sleep(0.5)

            async def lose() -> None:
                """As if its worker had died."""
                command = held(life, victim)
                sessions.finish(session_id, victim, command.command_id, command.attempt)
                await queue.release(session_id, commands=[(victim, command.command_id)])
                sessions.pools.expect()

            state = life.states.cached(victim)
            assert state is not None
            last = attempts_max(state.state, held(life, victim))
            while held(life, victim).attempt < last - 1:
                await lose()
                await asyncio.sleep(0.5)
            beside = await start(life, step("start", seconds=3))
            await asyncio.sleep(0.1)
            await lose()
            await asyncio.sleep(2)
            assert held(life, victim).attempt == last - 1, "somebody runs beside it"
            behind = await start(life, step("start", seconds=1))
            await asyncio.sleep(2)
            assert scene.state(beside).status is Status.COMPLETED
            assert held(life, victim).attempt == last
            assert scene.state(behind).status is Status.RUNNING, "it has the worker to itself"
            command = held(life, victim)
            sessions.finish(session_id, victim, command.command_id, command.attempt)
            await asyncio.sleep(3)
            assert scene.state(behind).status is Status.COMPLETED

    scene.play(story())


def test_an_execution_is_unanswered_from_a_word_about_it_until_that_is_recorded() -> None:
    """What a session does not hold any more is not given to another one as long as its end may be on its way."""
    scene = Scene(slots=1)

    async def story() -> None:
        async with scene.process() as life:
            execution = await start(life, step("start", seconds=1))
            await asyncio.sleep(0.5)
            assert execution not in life.decider.unanswered
            scene.faults.script("advance", Mishap(seconds_before=30))
            await asyncio.sleep(20)
            (session,) = life.sessions.connected.values()
            assert scene.state(execution).status is Status.RUNNING
            assert execution in life.decider.unanswered
            await asyncio.sleep(30)
            assert scene.state(execution).status is Status.COMPLETED
            assert not session.holds
            assert not life.decider.unanswered

    scene.play(story())
