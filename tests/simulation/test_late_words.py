"""Who is heard about a command: the attempt that holds it, through the session that was given it, and nobody else."""

from __future__ import annotations

import asyncio

import pytest

from noetl.core import kinds
from noetl.core.errors import ExecutionClosed, LeaseLost, NoetlError
from noetl.core.execution.state import Status
from noetl.core.reference import Result
from noetl.ports.session import Fact
from tests.simulation.checks import check_end, events_of
from tests.simulation.test_ending import Deaf, cancel
from tests.simulation.test_recovery import RULES, Scene, ended, start, step
from tests.simulation.test_sessions import CHAIN, heard, kept, profile


def test_nobody_is_heard_about_a_command_that_waits_for_its_next_attempt() -> None:
    scene = Scene(slots=1)

    async def story() -> None:
        async with scene.process() as life:
            execution = await start(life, step("start", fails=1, attempt="{{ _attempt }}", policy=RULES))
            await asyncio.sleep(2)  # the first attempt has failed, and its retry is not due
            assert life.session is not None
            (waiting,) = life.session.reported
            assert waiting.event_type == kinds.TASK_WAITING
            before = events_of(scene.database, execution)
            with pytest.raises(LeaseLost):
                # A process that recorded it would have ended: the checker looks at every commit.
                await asyncio.wait_for(life.decider.report(life.session.session_id, waiting), 5)
            assert events_of(scene.database, execution) == before
            assert (await ended(life, execution, within=60)).status is Status.COMPLETED
        check_end(scene.database)

    scene.play(story())


def test_a_session_holds_one_attempt_of_a_command_and_no_other() -> None:
    """Whatever is said beside facts, logs for instance, is believed by this alone."""
    scene = Scene(slots=0)

    async def story() -> None:
        async with scene.process() as life, kept(life) as keeper:
            session = keeper.register(profile())
            await start(life, *CHAIN)
            (first,) = await heard(session)
            assert session.message(first.execution_id, first.command_id, first.attempt) is first
            for attempt in (first.attempt - 1, first.attempt + 1):
                with pytest.raises(LeaseLost):
                    session.message(first.execution_id, first.command_id, attempt)

    scene.play(story())


def test_nobody_is_heard_behind_the_end_of_an_execution() -> None:
    """Not even the one who held a command until then, and did not stop when it was told to."""
    scene = Scene(slots=0)

    async def story() -> None:
        deaf = Deaf()
        async with scene.process() as life:
            life.sessions.connect(deaf)
            execution = await start(life, step("start"))
            await asyncio.sleep(1)
            await cancel(life, execution)
            assert (await ended(life, execution, within=60)).status is Status.CANCELLED
            before = events_of(scene.database, execution)
            result = Result(status="ok").to_json()
            late = Fact(execution, "start#1", 1, kinds.COMMAND_COMPLETED, result=result)
            with pytest.raises(NoetlError) as refused:
                await life.decider.report(deaf.session_id, late)
            assert isinstance(refused.value, ExecutionClosed)
            assert events_of(scene.database, execution) == before

    scene.play(story())
