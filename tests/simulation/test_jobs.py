"""Words about jobs in trouble: replies are lost, commits land late, the process dies.  Each is recorded once."""

from __future__ import annotations

import asyncio

import pytest

from noetl.adapters.memory.faults import FINE, Mishap, Outcome
from noetl.core import kinds
from noetl.core.errors import LeaseLost
from noetl.core.event import Event
from noetl.core.execution.state import ExecutionState, Status
from noetl.ports.data.compute import JobIntent, JobProgress
from noetl.ports.session import Fact
from noetl.ports.tool import ToolCall, ToolResult
from tests.simulation.checks import check_end, events_of
from tests.simulation.life import Life, SimulatedTool
from tests.simulation.test_recovery import OWNER, Scene, start, step

LOST = Mishap(outcome=Outcome.REPLY_LOST)
AWAY = Mishap(outcome=Outcome.NOT_DONE)
LATE = Mishap(outcome=Outcome.COMMITS_LATE, late_seconds=1.5)
SECONDS = 30


class Jobs(SimulatedTool):
    """Runs a job of half a minute."""

    async def run(self, call: ToolCall) -> ToolResult:
        assert call.jobs is not None
        intent = JobIntent(job_group=call.step, application_id="local-1", ui=None, event_log=None, conf={})
        await call.jobs.intended(intent)
        for second in range(SECONDS):
            await self._faults.pause(1.0)
            await call.jobs.progressed(JobProgress(tasks=SECONDS, tasks_done=second))
        return ToolResult(value=call.attempt, job={"tasks": SECONDS})


class Story(Scene):
    def equip(self, life: Life) -> None:
        life.tool = Jobs(self.chance, self.faults, seconds_max=1.0)

    def told(self, execution_id: int) -> list[Event]:
        return [e for e in events_of(self.database, execution_id) if e.event_type.startswith("job.")]


async def ended(life: Life, execution_id: int) -> ExecutionState:
    async with asyncio.timeout(600):
        return await life.service.wait_terminal(execution_id, timeout_seconds=500, **OWNER)


@pytest.mark.parametrize("mishap", [LOST, AWAY, LATE], ids=lambda one: one.outcome.value)
@pytest.mark.parametrize("place", range(8))
def test_every_word_is_recorded_once_whatever_becomes_of_a_commit(place: int, mishap: Mishap) -> None:
    scene = Story(slots=2)

    async def story() -> None:
        async with scene.process() as life:
            scene.faults.script("advance", *[FINE] * place, mishap)
            execution = await start(life, step("start"))
            state = await ended(life, execution)
            assert state.status is Status.COMPLETED
            told = scene.told(execution)
            # A claim whose reply was lost was never delivered: then the next attempt is the first that runs.
            attempt = 2 if place == 0 and mishap is LOST else 1
            assert [(e.event_type, e.meta["attempt"], e.meta["n"]) for e in told] == [
                (kinds.JOB_INTENDED, attempt, 1),
                *((kinds.JOB_PROGRESSED, attempt, number) for number in range(1, len(told))),
            ]
            assert 4 <= len(told) - 1 <= 7
            assert life.sessions.free_slots == 2
        check_end(scene.database)

    scene.play(story())


def test_after_a_crash_the_next_attempt_tells_its_own_job_and_the_first_one_is_not_heard_any_more() -> None:
    scene = Story(slots=1)

    async def story() -> None:
        async with scene.process() as life:
            execution = await start(life, step("start"))
            await asyncio.sleep(5)
        assert scene.state(execution).commands["start#1"].job is not None
        async with scene.process() as life:
            await asyncio.sleep(5)
            assert life.session is not None
            stale = Fact(execution, "start#1", 1, kinds.JOB_PROGRESSED, meta={"n": 9, "job": 1, "tasks": 1})
            with pytest.raises(LeaseLost):
                await life.decider.report(life.session.session_id, stale)
            assert life.sessions.free_slots == 0, "the word of an earlier attempt frees nothing"
            assert (await ended(life, execution)).status is Status.COMPLETED
        intents = [e for e in scene.told(execution) if e.event_type == kinds.JOB_INTENDED]
        assert [(e.meta["attempt"], e.meta["n"]) for e in intents] == [(1, 1), (2, 1)]
        keys = [e.transition_key for e in scene.told(execution)]
        assert len(keys) == len(set(keys))
        check_end(scene.database)

    scene.play(story())


def test_a_word_that_is_told_again_changes_nothing() -> None:
    scene = Story(slots=1)

    async def story() -> None:
        async with scene.process() as life:
            execution = await start(life, step("start"))
            await asyncio.sleep(3)
            assert life.session is not None
            before = scene.told(execution)
            for fact in [one for one in life.session.reported if one.event_type.startswith("job.")]:
                await life.decider.report(life.session.session_id, fact)
            assert scene.told(execution) == before
            assert (await ended(life, execution)).status is Status.COMPLETED
        check_end(scene.database)

    scene.play(story())
