"""Jobs on the run: intent, progress and cost in the ledger, pools that do not wait for each other, cancelling that
waits for the confirmation.  The job itself is a stand-in; the engine and its ledger are real."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import CommandStatus, ExecutionState, Status
from noetl.core.execution.view.document import execution_view
from tests.support.aio import asynchronous
from tests.support.databases import connected, fresh_database
from tests.support.engine import Told, completed, running_engine
from tests.support.jobs import STAGES, TASKS, UI, StandIn, job_step
from tests.support.replay import decided_again


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


def has_job(state: ExecutionState) -> bool:
    return any(command.job is not None for command in state.commands.values())


def has_progress(state: ExecutionState) -> bool:
    return any(command.job is not None and command.job.progress for command in state.commands.values())


def numbers(told: Told, event_type: str) -> list[tuple[Any, ...]]:
    return [tuple(event.meta.get(name) for name in ("attempt", "n", "row")) for event in told.of_type(event_type)]


@asynchronous
async def test_a_job_is_on_the_run_before_it_begins_while_it_runs_and_after_it(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path, tools={"spark": StandIn()}) as engine:
        execution_id = await engine.start(job_step(seconds=1.5))
        state = await engine.until(execution_id, has_progress)
        view = execution_view(state)["steps"]["start"]
        told = await engine.finish(execution_id)
        playbook = await engine.engine.playbooks.pinned(
            told.state.playbook, tenant_id="default", organization_id="default"
        )
    assert view["status"] == "claimed"
    (running,) = view["running_jobs"]
    assert (running["command_id"], running["attempt"], running["ui"]) == ("start#1", 1, UI)
    assert (running["application"], running["since"]) == ("local-1", told.of_type(kinds.JOB_INTENDED)[0].event_time)
    assert (running["progress"]["stages"], running["progress"]["tasks"]) == (STAGES, TASKS)
    assert "jobs" not in view
    story = [event.event_type for event in told.events]
    first = story.index(kinds.COMMAND_CLAIMED)
    assert story[first : first + 4] == [
        kinds.COMMAND_CLAIMED,
        kinds.JOB_INTENDED,
        kinds.JOB_PROGRESSED,
        kinds.COMMAND_COMPLETED,
    ]
    (intent,), (ended,) = told.of_type(kinds.JOB_INTENDED), told.of_type(kinds.COMMAND_COMPLETED)
    assert intent.meta["conf"] == {"spark.app.name": "start"}
    assert intent.meta["task"] == ended.meta["jobs"][0]["task"]  # type: ignore[index]
    (job,) = execution_view(told.state)["steps"]["start"]["jobs"]
    assert (job["rows_read"], job["try"], len(job["expect"])) == (1_000_000, 1, 2)
    assert job["spark.password"] != "no job says this"
    assert "running_jobs" not in execution_view(told.state)["steps"]["start"]
    assert completed(told) == {"attempt": 1}
    assert fold_all(told.events) == told.state
    assert decided_again(told.events, playbook)


@asynchronous
async def test_the_jobs_of_a_loop_are_facts_about_its_frames(address: str, tmp_path: Path) -> None:
    body = """
    workflow:
      - step: each
        loop: {in: [a, b, c], iterator: item, spec: {mode: parallel, max_in_flight: 3, frame: {max_rows: 3}}}
        tool: {kind: spark, sql: SELECT 1 AS n, inputs: {seconds: 0.1}}
    """
    async with running_engine(address, tmp_path, tools={"spark": StandIn()}) as engine:
        told = await engine.run(body)
        commands = [row.pool for row in await engine.engine.queue.commands_of(told.state.execution_id)]
    assert commands == []
    assert told.state.status is Status.COMPLETED
    intents = told.of_type(kinds.JOB_INTENDED)
    assert sorted(str(event.meta["row"]) for event in intents) == ["0", "1", "2"]
    assert all(event.frame_id and event.stage_id == "each#1" for event in intents)
    by_frame = [
        [event.meta["n"] for event in intents if event.frame_id == one] for one in {e.frame_id for e in intents}
    ]
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in by_frame)
    jobs: list[Any] = [job for event in told.of_type(kinds.FRAME_COMMITTED) for job in event.meta["jobs"]]  # type: ignore[attr-defined]
    assert sorted(job["row"] for job in jobs) == [0, 1, 2]
    assert fold_all(told.events) == told.state


@asynchronous
async def test_a_failed_job_tells_its_cost_and_every_try_its_intent(address: str, tmp_path: Path) -> None:
    body = """
    workflow:
      - step: start
        tool:
          kind: spark
          sql: SELECT 1 AS n
          inputs: {fail: SPARK_DRIVER_LOST}
          spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 2}}]}}
    """
    async with running_engine(address, tmp_path, tools={"spark": StandIn()}) as engine:
        told = await engine.run(body)
        samples = {name: value for one in engine.engine.counted for name, _, value in one.samples()}
    assert told.state.status is Status.FAILED
    assert numbers(told, kinds.JOB_INTENDED) == [(1, 1, None), (1, 2, None)]
    (failed,) = told.of_type(kinds.COMMAND_FAILED)
    assert [job["try"] for job in failed.meta["jobs"]] == [1, 2]  # type: ignore[attr-defined]
    assert [samples[f"noetl_jobs_{name}_total"] for name in ("started", "failed", "lost")] == [2, 2, 2]


@asynchronous
async def test_long_jobs_hold_slots_of_their_own_and_nobody_waits_behind_them(address: str, tmp_path: Path) -> None:
    tool = StandIn()
    quick = "workflow:\n  - step: start\n    tool: {kind: noop}\n"
    variables = {"NOETL_SPARK_JOBS_MAX": "2", "NOETL_WORKER_SLOTS": "2"}
    async with running_engine(address, tmp_path, variables, tools={"spark": tool}) as engine:
        jobs = [await engine.start(job_step(seconds=1.0)) for _ in range(5)]
        await engine.until(jobs[0], has_job)
        for _ in range(5):
            assert (await engine.run(quick)).state.status is Status.COMPLETED
        assert not (await engine.state(jobs[-1])).is_terminal, "the quick ones went past"
        # And the other way round: commands of the default pool wait, jobs go on.
        sleepy = "workflow:\n  - step: start\n    tool: {kind: python, code: 'import time; time.sleep(0.5)'}\n"
        slow = [await engine.start(sleepy) for _ in range(6)]
        for execution_id in (*jobs, *slow):
            assert (await engine.finish(execution_id)).state.status is Status.COMPLETED
    assert tool.most == 2


@asynchronous
async def test_a_cancel_reaches_the_job_and_waits_until_it_is_confirmed(address: str, tmp_path: Path) -> None:
    tool = StandIn()
    async with running_engine(address, tmp_path, tools={"spark": tool}) as engine:
        execution_id = await engine.start(job_step(seconds=60, confirm=5.0))
        await engine.until(execution_id, has_job)
        state = await engine.cancel(execution_id)
        assert state.status is Status.RUNNING, "it is being stopped, and that is not the end"
        await asyncio.sleep(1.0)
        state = await engine.state(execution_id)
        assert (state.status, tool.confirmed) == (Status.RUNNING, [])
        assert [one.status for one in state.commands.values()] == [CommandStatus.CLAIMED]
        told = await engine.finish(execution_id)
    assert tool.confirmed == ["start"]
    assert told.state.status is Status.CANCELLED
    story = [event.event_type for event in told.events]
    assert story.index(kinds.COMMAND_FAILED) < story.index(kinds.EXECUTION_CANCELLED)
    assert "unconfirmed" not in told.events[-1].meta
    assert fold_all(told.events) == told.state


@asynchronous
async def test_a_step_that_nobody_serves_says_so_and_begins_when_somebody_comes(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path, tools={"spark": StandIn()}, has_worker=False) as engine:
        execution_id = await engine.start(job_step())
        await engine.until(execution_id, lambda state: bool(state.commands))
        service = engine.engine.service
        (unserved,) = await service.unserved(await engine.state(execution_id))
        assert unserved.to_json() == {
            "step": "start",
            "pool": "spark",
            "kinds": ["spark"],
            "message": "no worker of pool 'spark' is connected: start one with `noetl worker --pool spark`",
        }
        async with asyncio.TaskGroup() as group:
            other = group.create_task((await engine.engine._worker("default", 2)).run())
            await asyncio.sleep(0.3)
            assert not (await engine.state(execution_id)).is_terminal, "a worker of another pool takes nothing of it"
            assert len(await service.unserved(await engine.state(execution_id))) == 1
            mine = group.create_task((await engine.engine._worker("spark", 1)).run())
            told = await engine.finish(execution_id)
            assert await service.unserved(told.state) == []
            other.cancel()
            mine.cancel()
    assert told.state.status is Status.COMPLETED


@asynchronous
async def test_a_row_in_a_pool_that_is_not_its_own_moves_and_nobody_waits_behind_it(
    address: str, tmp_path: Path
) -> None:
    body = "workflow:\n  - step: start\n    tool: {kind: noop, result: 1}\n"
    async with running_engine(address, tmp_path, tools={"spark": StandIn()}, has_worker=False) as engine:
        execution_id = await engine.start(job_step())
        await engine.until(execution_id, lambda state: bool(state.commands))
        async with connected(address) as connection:
            # As somebody queued it who knew of one pool only.
            await connection.execute("UPDATE noetl.command SET pool = 'default' WHERE execution_id = $1", execution_id)
        async with asyncio.TaskGroup() as group:
            other = group.create_task((await engine.engine._worker("default", 1)).run())
            assert (await engine.run(body)).state.status is Status.COMPLETED
            async with asyncio.timeout(60):
                while (row := (await engine.engine.queue.commands_of(execution_id))[0]).pool != "spark":
                    await asyncio.sleep(0.01)
            assert row.session_id is None
            mine = group.create_task((await engine.engine._worker("spark", 1)).run())
            assert (await engine.finish(execution_id)).state.status is Status.COMPLETED
            other.cancel()
            mine.cancel()
