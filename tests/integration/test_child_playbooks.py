"""Playbooks that start each other, through the real engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import CommandStatus, ExecutionState, Status
from noetl.core.limits import CHILDREN_DEPTH_MAX
from tests.support.aio import asynchronous
from tests.support.databases import connected, fresh_database
from tests.support.engine import Running, Told, running_engine

SLOTS = 16
DOUBLE = """
workload: {n: 1}
workflow:
  - step: start
    tool: {kind: python, input: {n: "{{ n }}"}, code: 'result = {"double": n * 2}'}
    next: [{step: finish}]
  - {step: finish, tool: {kind: python, code: 'result = {"status": "fine", "data": [1, 2], "path": "mine"}'}}
"""
FAILING = """
workflow:
  - step: start
    tool: {kind: python, input: {m: "{{ workload.m | default('gone') }}"}, code: "raise ConnectionError(m)"}
"""
SLOW = """
workflow:
  - {step: start, tool: {kind: python, code: "import time; time.sleep(60)"}}
"""
LARGE = """
workflow:
  - {step: start, tool: {kind: python, code: 'result = {"rows": list(range(30000))}'}}
"""


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


async def registered(engine: Running) -> Running:
    for path, body in (("lib/double", DOUBLE), ("lib/fail", FAILING), ("lib/slow", SLOW), ("lib/large", LARGE)):
        await engine.register(path, body)
    return engine


def child_of(state: ExecutionState) -> int:
    [command] = state.commands.values()
    assert command.child is not None
    return command.child.execution_id


def error_of(told: Told) -> dict[str, Any]:
    assert told.state.result is not None
    context: Any = told.state.result["context"]
    return dict(context["error"])


async def nothing_is_left(engine: Running, address: str) -> None:
    async with asyncio.timeout(60):
        while engine.engine.sessions.pools.free_in("default") != SLOTS:
            await asyncio.sleep(0.01)
    async with connected(address) as connection:
        for table in ("command", "timer"):
            assert await connection.fetchval(f"SELECT count(*) FROM noetl.{table}") == 0, table


@asynchronous
async def test_a_task_gets_the_result_of_the_step_that_it_asks_for(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        await registered(engine)
        told = await engine.run("""
        workflow:
          - step: start
            tool: {kind: playbook, path: lib/double, input: {n: 21}, return_step: start}
            next: {arcs: [{step: end, when: "{{ start.double == 42 and start.completed }}"}]}
          - {step: end, tool: {kind: python, input: {r: "{{ start }}"}, code: "result = r"}}
        """)
        [started] = told.of_type(kinds.CHILD_STARTED)
        child_id = str(started.meta["child_execution_id"])
        assert told.result == {
            "execution_id": child_id,
            "path": "lib/double",
            "status": "completed",
            "completed": True,
            "failed": False,
            "return_step": "start",
            "data": {"double": 42},
            "double": 42,
        }
        child = await engine.finish(int(child_id))
        assert child.state.parent_execution_id == told.state.execution_id
        assert {event.parent_execution_id for event in child.events} == {told.state.execution_id}
        assert {event.shard_id for event in child.events} == {event.shard_id for event in told.events}
        # Start and return are single commits: nothing of the shard stands between the two sides.
        assert child.events[0].position == started.position + 1
        [returned] = told.of_type(kinds.CHILD_TERMINAL)
        assert returned.position == child.events[-1].position + 1
        assert fold_all(told.events) == told.state
        assert fold_all(child.events) == child.state
        rows = await engine.engine.service.newest(tenant_id="default", organization_id="default", limit=2)
        assert [row.parent_execution_id for row in rows] == [told.state.execution_id, None]
        await nothing_is_left(engine, address)


@asynchronous
async def test_without_a_step_the_result_is_that_of_the_playbook_and_control_keys_win(
    address: str, tmp_path: Path
) -> None:
    async with running_engine(address, tmp_path) as engine:
        await registered(engine)
        told = await engine.run("""
        workflow:
          - step: start
            tool:
              - {name: one, kind: playbook, path: lib/double, version: 1}
              - {name: two, kind: python, input: {one: "{{ one }}"}, code: "result = one"}
        """)
    result = told.result["two"]
    assert result["data"] == {"status": "fine", "data": [1, 2], "path": "mine"}
    assert (result["status"], result["path"], result["return_step"]) == ("fine", "lib/double", None)


@asynchronous
async def test_inputs_and_results_of_any_size_travel(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        await registered(engine)
        told = await engine.run(
            """
        workflow:
          - step: start
            tool: {kind: playbook, path: lib/large, input: {many: "{{ workload.many }}", small: 1}}
            next: {arcs: [{step: end, when: "{{ start.rows | length == 30000 }}"}]}
          - {step: end, tool: {kind: python, input: {r: "{{ start.data.rows }}"}, code: "result = r[-1]"}}
        """,
            {"many": "x" * 100_000},
        )
        assert told.result == 29999
        child = await engine.finish(int(str(told.of_type(kinds.CHILD_STARTED)[0].meta["child_execution_id"])))
        assert child.state.workload["small"].value == 1
        assert child.state.workload["many"].reference is not None


@asynchronous
async def test_a_failing_child_fails_the_task_with_its_kind(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        await registered(engine)
        told = await engine.run("""
        workflow:
          - {step: start, tool: {kind: playbook, path: lib/fail, input: {m: "no route"}}}
        """)
    error = error_of(told)
    child_id = told.of_type(kinds.CHILD_STARTED)[0].meta["child_execution_id"]
    assert told.state.status is Status.FAILED
    assert (error["kind"], error["code"], error["retryable"]) == ("connection", "CHILD_FAILED", True)
    assert error["message"] == f"playbook 'lib/fail' (execution {child_id}) failed: no route"
    assert error["details"]["execution_id"] == child_id
    assert error["details"]["status"] == "failed"


@asynchronous
async def test_policy_rules_apply_to_a_failing_child(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        await registered(engine)
        told = await engine.run("""
        workflow:
          - step: start
            tool:
              - name: flaky
                kind: playbook
                path: "{{ 'lib/fail' if _attempt < 3 else 'lib/double' }}"
                input: {n: "{{ _attempt }}"}
                return_step: start
                spec:
                  policy:
                    rules:
                      - when: "{{ output.error.kind == 'connection' and output.error.details.execution_id }}"
                        then:
                          do: retry
                          attempts: 3
                          delay: "{{ 0.01 if _attempt == 1 else 2.1 }}"
                          set: {ctx.seen: "{{ _attempt }}"}
              - name: ignored
                kind: playbook
                path: lib/fail
                spec: {policy: {rules: [{else: {then: {do: continue}}}]}}
              - {name: last, kind: python, input: {e: "{{ ignored.error.kind }}"}, code: "result = e"}
        """)
    assert told.state.status is Status.COMPLETED
    assert told.result["flaky"]["double"] == 6
    assert told.result["last"] == "connection"
    assert told.state.variables["seen"].value == 2
    numbers = [event.meta["n"] for event in told.of_type(kinds.CHILD_STARTED)]
    children = {event.meta["child_execution_id"] for event in told.of_type(kinds.CHILD_STARTED)}
    assert numbers == [1, 2, 3, 4]
    assert len(children) == 4
    # The second failure waited longer than a worker holds a slot for.
    assert len(told.of_type(kinds.TASK_WAITING)) == 1


@asynchronous
async def test_an_unknown_playbook_says_how_to_register_it(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("workflow: [{step: start, tool: {kind: playbook, path: lib/absent}}]")
        handled = await engine.run("""
        workflow:
          - step: start
            tool:
              - name: try
                kind: playbook
                path: lib/absent
                spec: {policy: {rules: [{when: "{{ output.error.kind == 'not_found' }}", then: {do: continue}}]}}
              - {name: after, kind: noop, result: 7}
        """)
        await nothing_is_left(engine, address)
    error = error_of(told)
    assert error["kind"] == "not_found"
    assert "'lib/absent'" in error["message"]
    assert "noetl catalog register" in error["message"]
    assert handled.result["after"] == 7


@asynchronous
async def test_a_child_that_nobody_waits_for_runs_on_alone(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        await registered(engine)
        told = await engine.run("""
        workflow:
          - {step: start, tool: {kind: playbook, path: lib/slow, wait: false}}
        """)
        child_id = int(told.result["execution_id"])
        assert told.result == {"status": "started", "execution_id": str(child_id), "path": "lib/slow", "async": True}
        assert not (await engine.state(child_id)).is_terminal
        await engine.cancel(child_id)
        assert (await engine.finish(child_id)).state.status is Status.CANCELLED
        await nothing_is_left(engine, address)


@asynchronous
async def test_waiting_for_a_child_holds_no_slot_and_outlives_the_engine(address: str, tmp_path: Path) -> None:
    body = """
    workflow:
      - step: start
        tool: {kind: playbook, path: lib/gate, input: {file: "{{ workload.file }}"}}
        next: [{step: end}]
      - {step: end, tool: {kind: python, input: {r: "{{ start.data }}"}, code: "result = r"}}
    """
    gate = """
    workflow:
      - step: start
        tool:
          kind: python
          input: {file: "{{ workload.file }}"}
          code: |
            import os
            if not os.path.exists(file): raise ConnectionError("closed")
            result = "open"
          spec: {policy: {rules: [{when: "{{ error }}", then: {do: retry, attempts: 9, delay: 2.1}}]}}
    """
    async with running_engine(address, tmp_path) as engine:
        await engine.register("lib/gate", gate)
        execution_id = await engine.start(body, {"file": str(tmp_path / "open")})
        state = await engine.until(execution_id, lambda s: any(c.awaits_child for c in s.commands.values()))
        child_id = child_of(state)
        await engine.until(child_id, lambda s: any(c.status is CommandStatus.WAITING for c in s.commands.values()))
        assert engine.engine.sessions.pools.free_in("default") == SLOTS
    (tmp_path / "open").touch()
    async with running_engine(address, tmp_path) as engine:
        told = await engine.finish(execution_id)
        assert told.state.status is Status.COMPLETED
        assert told.result == "open"
        assert len(told.of_type(kinds.CHILD_STARTED)) == 1
        await nothing_is_left(engine, address)


@asynchronous
async def test_a_child_that_takes_too_long_is_cancelled_and_the_task_fails(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        await registered(engine)
        told = await engine.run("workflow: [{step: start, tool: {kind: playbook, path: lib/slow, timeout: 1}}]")
        error = error_of(told)
        child_id = int(str(told.of_type(kinds.CHILD_STARTED)[0].meta["child_execution_id"]))
        assert (error["kind"], error["code"]) == ("timeout", "CHILD_TIMEOUT")
        assert (await engine.finish(child_id)).state.status is Status.CANCELLED
        await nothing_is_left(engine, address)


@asynchronous
async def test_a_step_that_takes_too_long_cancels_the_child_it_waits_for(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        await registered(engine)
        told = await engine.run("""
        workflow: [{step: start, tool: {kind: playbook, path: lib/slow}, spec: {timeout: 1s}}]
        """)
        child_id = int(str(told.of_type(kinds.CHILD_STARTED)[0].meta["child_execution_id"]))
        assert error_of(told)["code"] == "step_timeout"
        assert (await engine.finish(child_id)).state.status is Status.CANCELLED
        await nothing_is_left(engine, address)


@asynchronous
async def test_cancelling_goes_down_to_the_last_child_and_confirms_upwards(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        await registered(engine)
        middle = "workflow: [{step: start, tool: {kind: playbook, path: lib/slow}}]"
        await engine.register("lib/middle", middle)
        top = await engine.start("workflow: [{step: start, tool: {kind: playbook, path: lib/middle}}]")
        waits = lambda s: any(c.awaits_child for c in s.commands.values())  # noqa: E731
        second = child_of(await engine.until(top, waits))
        third = child_of(await engine.until(second, waits))
        await engine.until(third, lambda s: any(c.status is CommandStatus.CLAIMED for c in s.commands.values()))
        await engine.cancel(top, "all of it")
        ends = [await engine.finish(execution_id) for execution_id in (top, second, third)]
        assert [told.state.status for told in ends] == [Status.CANCELLED] * 3
        assert [told.state.cancelling and told.state.cancelling["cause"] for told in ends] == [
            "request",
            "parent",
            "parent",
        ]
        assert all("unconfirmed" not in told.events[-1].meta for told in ends)
        # From the bottom to the top.
        positions = [told.events[-1].position for told in ends]
        assert positions == sorted(positions, reverse=True)
        await nothing_is_left(engine, address)


@asynchronous
async def test_a_playbook_that_starts_itself_ends_at_the_limit(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        await engine.register("lib/self", "workflow: [{step: start, tool: {kind: playbook, path: lib/self}}]")
        told = await engine.run("workflow: [{step: start, tool: {kind: playbook, path: lib/self}}]")
        message = error_of(told)["message"]
        assert told.state.status is Status.FAILED
        assert f"the limit is {CHILDREN_DEPTH_MAX}" in message
        rows = await engine.engine.service.newest(tenant_id="default", organization_id="default", limit=100)
        chain = [row for row in rows if row.execution_id >= told.state.execution_id]
        assert len(chain) == CHILDREN_DEPTH_MAX + 1
        assert {row.status for row in chain} == {"FAILED"}
        await nothing_is_left(engine, address)


@asynchronous
async def test_a_child_that_cannot_begin_says_why(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        await engine.register("lib/odd", "workload: {x: '{{ 1 / 0 }}'}\nworkflow: [{step: start, tool: {kind: noop}}]")
        told = await engine.run("workflow: [{step: start, tool: {kind: playbook, path: lib/odd}}]")
        broken = await engine.run("workflow: [{step: start, tool: {kind: playbook, version: 1}}]")
    assert error_of(told)["kind"] == "config"
    assert "workload.x" in error_of(told)["message"]
    assert "path is required" in error_of(broken)["message"]
    assert not broken.of_type(kinds.CHILD_TERMINAL)


@asynchronous
async def test_the_rows_of_a_loop_wait_for_their_children_without_a_slot(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        await registered(engine)
        told = await engine.run("""
        workflow:
          - step: start
            loop: {in: [1, 2, 3, 4, 5], iterator: n, spec: {mode: parallel, max_in_flight: 3}}
            tool:
              - {name: before, kind: python, input: {n: "{{ n }}"}, code: "result = {'m': n * 10}"}
              - {name: child, kind: playbook, path: lib/double, input: {n: "{{ before.m + n }}"}, return_step: start}
              - {name: after, kind: python, input: {d: "{{ child.double }}", n: "{{ n }}"}, code: "result = [n, d]"}
            next: [{step: end}]
          - step: end
            tool:
              kind: python
              input: {rows: "{{ start.results }}", stats: "{{ start.stats }}"}
              code: "result = [[row['after'] for row in rows], stats]"
        """)
        assert told.result == [[[n, 22 * n] for n in range(1, 6)], {"total": 5, "success": 5, "failed": 0}]
        started = told.of_type(kinds.CHILD_STARTED)
        assert len(started) == 5
        assert all(event.frame_id == event.command_id and event.stage_id == "start#1" for event in started)
        assert not told.of_type(kinds.FRAME_ABANDONED)
        assert fold_all(told.events) == told.state
        await nothing_is_left(engine, address)


@asynchronous
async def test_rows_whose_children_fail_are_failed_rows(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        await registered(engine)
        told = await engine.run("""
        workflow:
          - step: start
            loop: {in: [lib/double, lib/fail, lib/absent], iterator: which}
            tool: {kind: playbook, path: "{{ which }}"}
            spec: {policy: {failure: {mode: best_effort}}}
            next: [{step: end}]
          - step: end
            tool:
              kind: python
              input: {rows: "{{ start.results }}", stats: "{{ start.stats }}"}
              code: "result = [stats['failed'], [row['error']['kind'] for row in rows if 'error' in row]]"
        """)
        assert told.result == [2, ["connection", "not_found"]]
        await nothing_is_left(engine, address)


@asynchronous
async def test_cancelling_a_loop_cancels_the_children_of_its_rows(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        await registered(engine)
        execution_id = await engine.start("""
        workflow:
          - step: start
            loop: {in: [1, 2, 3, 4, 5], iterator: n, spec: {mode: parallel, max_in_flight: 3}}
            tool: {kind: playbook, path: lib/slow}
        """)
        state = await engine.until(execution_id, lambda s: sum(c.awaits_child for c in s.commands.values()) == 3)
        children = [command.child.execution_id for command in state.commands.values() if command.child is not None]
        await engine.cancel(execution_id)
        assert (await engine.finish(execution_id)).state.status is Status.CANCELLED
        for child_id in children:
            assert (await engine.finish(child_id)).state.status is Status.CANCELLED
        await nothing_is_left(engine, address)
