"""Cancelling and time limits through the real engine: real ledger, real timers, real child processes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from noetl.core import kinds
from noetl.core.errors import ExecutionClosed, ExecutionUnknown
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import CommandStatus, ExecutionState, Status
from tests.support.aio import asynchronous
from tests.support.databases import connected, fresh_database
from tests.support.engine import OWNER, Running, Told, running_engine

SLOTS = 16
SLEEPER = """
- step: {name}
  tool:
    kind: python
    input: {{file: "{{{{ workload.file }}}}"}}
    code: |
      import os, time
      with open(file + "{name}", "w") as out: out.write(str(os.getpid()))
      time.sleep(60)
"""


def sleeper(name: str = "start") -> str:
    return "workflow:" + SLEEPER.format(name=name)


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


async def appears(file: Path) -> int:
    """The process id that user code wrote when it had begun."""
    async with asyncio.timeout(60):
        while not (file.exists() and (text := file.read_text())):
            await asyncio.sleep(0.01)
    return int(text)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def is_gone(pid: int) -> bool:
    async with asyncio.timeout(20):  # by itself it would end after a minute
        while is_alive(pid):
            await asyncio.sleep(0.01)
    return True


async def nothing_is_left(engine: Running, address: str, told: Told) -> None:
    """No slot is held, and the derived tables know nothing of the execution any more."""
    async with asyncio.timeout(60):
        while engine.engine.sessions.pools.free_in("default") != SLOTS:
            await asyncio.sleep(0.01)
    assert fold_all(told.events) == told.state
    async with connected(address) as connection:
        for table in ("command", "timer"):
            count = f"SELECT count(*) FROM noetl.{table} WHERE execution_id = $1"
            assert await connection.fetchval(count, told.state.execution_id) == 0, table
    # What is shown follows a moment later.
    shown = await engine.engine.status.wait_terminal(told.state.execution_id, timeout_seconds=60, **OWNER)
    assert shown.row.status == str(told.state.status)


def error_of(state: ExecutionState) -> dict[str, object]:
    assert state.result is not None
    context = state.result["context"]
    assert isinstance(context, dict)
    return dict(context["error"])


# --- cancelling ------------------------------------------------------------------------------------------


@asynchronous
async def test_a_cancelled_python_step_ends_with_its_process(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start(sleeper(), {"file": str(tmp_path / "pid_")})
        pid = await appears(tmp_path / "pid_start")
        assert is_alive(pid)
        state = await engine.cancel(execution_id, "a better idea")
        assert state.cancelling == {"reason": "a better idea", "cause": "request"}
        told = await engine.finish(execution_id)
        assert told.state.status is Status.CANCELLED
        assert error_of(told.state)["message"] == "a better idea"
        [failed] = told.of_type(kinds.COMMAND_FAILED)
        assert failed.result is not None
        assert failed.result["context"]["error"]["kind"] == "cancelled"
        assert "unconfirmed" not in told.events[-1].meta
        assert await is_gone(pid)
        await nothing_is_left(engine, address, told)
        with pytest.raises(ExecutionClosed):
            await engine.cancel(execution_id)
        with pytest.raises(ExecutionUnknown):
            await engine.engine.service.cancel(execution_id, reason="", tenant_id="x", organization_id="y")
        # The engine goes on with other work.
        after = await engine.run("workflow: [{step: start, tool: {kind: python, code: 'result = 5'}}]")
        assert after.result == 5


@asynchronous
async def test_asking_twice_is_one_request(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start(sleeper(), {"file": str(tmp_path / "pid_")})
        await appears(tmp_path / "pid_start")
        await asyncio.gather(*(engine.cancel(execution_id, f"ask {n}") for n in range(3)))
        told = await engine.finish(execution_id)
    assert len(told.of_type(kinds.CANCEL_REQUESTED)) == 1
    assert told.state.status is Status.CANCELLED


@asynchronous
async def test_a_cancelled_retry_wait_ends_at_once(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start("""
        workflow:
          - step: start
            tool:
              kind: python
              code: "raise ConnectionError('not yet')"
              spec: {policy: {rules: [{when: true, then: {do: retry, attempts: 5, delay: 100, backoff: fixed}}]}}
        """)
        await engine.until(execution_id, lambda state: state.timers)
        state = await engine.cancel(execution_id)
        assert state.status is Status.CANCELLED
        await nothing_is_left(engine, address, await engine.finish(execution_id))


@asynchronous
async def test_in_a_fan_out_every_branch_is_stopped(address: str, tmp_path: Path) -> None:
    branches = [f"b{n}" for n in range(20)]
    arcs = ", ".join(f"{{step: {name}}}" for name in branches)
    body = "workflow:\n- {step: start, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [" + arcs + "]}}"
    body += "".join(SLEEPER.format(name=name) for name in branches) + "- {step: end, tool: {kind: noop}}"
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start(body, {"file": str(tmp_path / "pid_")})
        # More branches than slots: some run and some wait in the queue.
        pids = [await appears(tmp_path / f"pid_{name}") for name in branches[:SLOTS]]
        await engine.cancel(execution_id)
        told = await engine.finish(execution_id)
        assert told.state.status is Status.CANCELLED
        assert len(told.of_type(kinds.COMMAND_FAILED)) == SLOTS
        assert "end#1" not in {event.command_id for event in told.events}
        for pid in pids:
            assert await is_gone(pid)
        await nothing_is_left(engine, address, told)


@asynchronous
async def test_a_cancelled_loop_stops_its_frames(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start(
            """
        workflow:
          - step: start
            loop: {in: [0, 1, 2, 3, 4, 5], iterator: n, spec: {mode: parallel, max_in_flight: 3}}
            tool:
              kind: python
              input: {file: "{{ workload.file }}", n: "{{ n }}"}
              code: |
                import os, time
                with open(file + str(n), "w") as out: out.write(str(os.getpid()))
                time.sleep(60)
        """,
            {"file": str(tmp_path / "pid_")},
        )
        pids = [await appears(tmp_path / f"pid_{n}") for n in range(3)]
        await engine.cancel(execution_id)
        told = await engine.finish(execution_id)
        assert told.state.status is Status.CANCELLED
        assert [event.meta["status"] for event in told.of_type(kinds.LOOP_DONE)] == ["stopped"]
        for pid in pids:
            assert await is_gone(pid)
        await nothing_is_left(engine, address, told)


# --- time limits -----------------------------------------------------------------------------------------


@asynchronous
async def test_a_step_that_takes_too_long_fails_with_its_process(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        body = sleeper() + "  spec: {timeout: 1500ms}\n"
        execution_id = await engine.start(body, {"file": str(tmp_path / "pid_")})
        pid = await appears(tmp_path / "pid_start")
        told = await engine.finish(execution_id)
        assert told.state.status is Status.FAILED
        error = error_of(told.state)
        assert (error["kind"], error["code"]) == ("timeout", "step_timeout")
        assert error["message"] == "step 'start' ran longer than its limit of 1.5 s"
        assert await is_gone(pid)
        await nothing_is_left(engine, address, told)


@asynchronous
async def test_an_arc_handles_a_step_that_takes_too_long(address: str, tmp_path: Path) -> None:
    body = (
        sleeper()
        + """\
  spec: {policy: {lifecycle: {timeout_s: 1}}}
  next:
    arcs:
      - {step: late, when: "{{ output.error.kind == 'timeout' and event.name == 'step.failed' }}"}
      - {step: early}
- {step: early, tool: {kind: noop}}
- {step: late, tool: {kind: python, input: {e: "{{ start.error }}"}, code: "result = e['code']"}}
"""
    )
    async with running_engine(address, tmp_path) as engine:
        told = await engine.finish(await engine.start(body, {"file": str(tmp_path / "pid_")}))
        assert told.state.status is Status.COMPLETED
        assert told.result == "step_timeout"
        await nothing_is_left(engine, address, told)


@asynchronous
async def test_a_step_that_ends_in_time_leaves_no_timer(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        executor: {spec: {timeout: 1h}}
        workflow:
          - {step: start, tool: {kind: python, code: "result = 1"}, spec: {timeout: 1h}, next: [{step: rows}]}
          - {step: rows, loop: {in: [1, 2], iterator: n}, tool: {kind: noop}, spec: {timeout: 1h}}
        """)
        assert told.state.status is Status.COMPLETED
        assert all("due_at" in event.meta for event in told.of_type(kinds.STAGE_OPENED))
        await nothing_is_left(engine, address, told)


@asynchronous
async def test_a_loop_that_takes_too_long_keeps_what_it_has(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: start
            loop: {in: [0, 0, 60], iterator: n, spec: {mode: parallel, max_in_flight: 3, frame: {max_rows: 1}}}
            tool: {kind: python, input: {n: "{{ n }}"}, code: "import time; time.sleep(n); result = n"}
            spec: {timeout: 2s}
            next: {arcs: [{step: late, when: "{{ output.status == 'error' }}"}]}
          - step: late
            tool: {kind: python, input: {s: "{{ start.stats }}", r: "{{ start.results }}"}, code: "result = [s, r]"}
        """)
        assert told.state.status is Status.COMPLETED
        stats, rows = told.result
        assert stats == {"total": 3, "success": 2, "failed": 1}
        assert rows[:2] == [0, 0]
        assert rows[2]["error"]["code"] == "step_timeout"
        await nothing_is_left(engine, address, told)


@asynchronous
async def test_an_execution_that_takes_too_long_fails(address: str, tmp_path: Path) -> None:
    body = "executor: {spec: {timeout: 1s, final_step: last}}\n" + sleeper() + "- {step: last, tool: {kind: noop}}"
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start(body, {"file": str(tmp_path / "pid_")})
        told = await engine.finish(execution_id)
        assert told.state.status is Status.FAILED
        assert error_of(told.state)["code"] == "execution_timeout"
        assert told.events[-1].event_type == kinds.PLAYBOOK_FAILED
        assert "last" not in told.state.runs
        assert await is_gone(await appears(tmp_path / "pid_start"))
        await nothing_is_left(engine, address, told)


@asynchronous
async def test_a_time_limit_outlives_the_engine(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start(sleeper() + "  spec: {timeout: 2s}\n", {"file": str(tmp_path / "pid_")})
        await engine.until(execution_id, lambda s: any(c.status is CommandStatus.CLAIMED for c in s.commands.values()))
    async with running_engine(address, tmp_path) as engine:
        told = await engine.finish(execution_id)
        assert told.state.status is Status.FAILED
        assert error_of(told.state)["code"] == "step_timeout"
        await nothing_is_left(engine, address, told)
