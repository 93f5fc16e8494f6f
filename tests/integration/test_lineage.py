"""Lineage through the real engine: who led to whom, what was read, and rows that the ledger gives again."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from noetl.adapters.postgres.migrate import migrate, migrations
from noetl.core import kinds
from noetl.core.errors import ExecutionUnknown, ResultUnfinished, ResultUnknown
from noetl.core.event import Event
from noetl.core.results.references import Role, role_of
from noetl.engine.reading.trace import Trace
from noetl.processes.server.owners import Owner
from tests.support.aio import asynchronous
from tests.support.databases import connected, empty_database
from tests.support.engine import OWNER, Running, Told, completed, running_engine
from tests.support.lineage import derived_refs, must_be_rebuildable, stored_refs

CHAIN = """
workload: {n: 3}
workflow:
  - step: start
    tool: {kind: python, input: {n: "{{ n }}"}, code: "result = {'rows': list(range(n))}"}
    next: [{step: each}]
  - step: each
    loop: {in: "{{ start.rows }}", iterator: x, spec: {mode: parallel}}
    tool: {kind: python, input: {x: "{{ x }}"}, code: "result = x * 2"}
    next: [{step: last}]
  - step: last
    tool:
      kind: python
      input: {sum: "{{ each.results | sum }}", first: "{{ start.rows[0] }}"}
      code: "result = {'sum': sum, 'first': first}"
"""


@pytest.fixture(scope="module")
def address() -> str:
    return empty_database()


def ended(told: Told, command_id: str) -> Event:
    (event,) = [event for event in told.events if event.transition_key == kinds.terminal_key(command_id)]
    return event


def parent_of(event: Event) -> int | None:
    result: Any = event.result
    return None if result["parent_ref"] is None else int(result["parent_ref"]["ref_id"])


def inputs_of(event: Event) -> Any:
    return event.meta.get("inputs", [])


async def trace_of(engine: Running, execution_id: int, step: str, run: int | None = None) -> Trace:
    return await engine.engine.traces.trace(execution_id, step, run=run, **OWNER)


def roles(trace: Trace) -> dict[str, Role]:
    """Whose results are on the way, by step."""
    return {f"{one.ref.step}/{role_of(one.ref)}": role_of(one.ref) for one in trace.results}


@asynchronous
async def test_results_point_back_through_a_loop_and_say_what_they_were_made_of(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(CHAIN)
        assert completed(told) == {"sum": 6, "first": 0}
        trace = await trace_of(engine, told.state.execution_id, "last")
    start, each, last = (ended(told, name) for name in ("start#1", "each#1/seal", "last#1"))
    frames = told.of_type(kinds.FRAME_COMMITTED)
    assert (parent_of(start), parent_of(last)) == (None, each.event_id)
    assert {parent_of(frame) for frame in frames} == {start.event_id}
    assert parent_of(each) == frames[-1].event_id
    assert inputs_of(start) == []
    assert {one["ref_id"] for one in inputs_of(last)} == {start.event_id, each.event_id}
    assert parent_of(told.events[-1]) == last.event_id
    assert trace.ref_id == last.event_id
    assert set(roles(trace)) == {"last/step", "each/loop", "each/frame", "start/step"}
    assert not trace.is_cut
    (loop,) = trace.frames
    assert (loop.stage_id, loop.total, len(loop.shown)) == ("each#1", len(frames), len(frames))
    await must_be_rebuildable(address)


@asynchronous
async def test_a_result_of_another_execution_is_on_the_way(address: str, tmp_path: Path) -> None:
    child = """
    workload: {n: 1}
    workflow:
      - step: inner
        tool: {kind: python, input: {n: "{{ n }}"}, code: 'result = {"double": n * 2}'}
        next: [{step: finish}]
      - {step: finish, tool: {kind: python, input: {n: "{{ inner.double }}"}, code: "result = {'n': n}"}}
    """
    async with running_engine(address, tmp_path) as engine:
        await engine.register("lib/lineage", child)
        told = await engine.run("""
        workflow:
          - step: before
            tool: {kind: python, code: "result = {'n': 4}"}
            next: [{step: call}]
          - step: call
            tool: {kind: playbook, path: lib/lineage, input: {n: "{{ before.n }}"}}
        """)
        assert completed(told)["n"] == 8
        trace = await trace_of(engine, told.state.execution_id, "call")
        (handed,) = told.of_type(kinds.CHILD_TERMINAL)
        child_id = int(str(handed.meta["child_execution_id"]))
        events = await engine.engine.ledger.read_execution(child_id)
    call = ended(told, "call#1")
    assert {"ref_id": handed.event_id} in inputs_of(call)
    assert parent_of(handed) == events[-1].event_id
    (inner,) = [event for event in events if event.transition_key == "command.terminal/inner#1"]
    assert parent_of(inner) == ended(told, "before#1").event_id
    assert {one.ref.execution_id for one in trace.results} == {told.state.execution_id, child_id}
    assert set(roles(trace)) == {
        *("call/step", "call/child", "finish/execution", "finish/step", "inner/step", "before/step")
    }
    await must_be_rebuildable(address)


@asynchronous
async def test_only_what_was_opened_is_an_input_and_credentials_by_name_only(address: str, tmp_path: Path) -> None:
    canary = "canary-0c2f7a"
    async with running_engine(address, tmp_path) as engine:
        owner = Owner(**OWNER)
        await engine.engine.credentials.put("crm", type="generic", data={"token": canary}, owner=owner)
        told = await engine.run("""
        keychain:
          - {name: held, kind: credential, credential: crm}
        workflow:
          - step: a
            tool: {kind: python, code: "result = {'n': 1}"}
            next: [{step: b}]
          - step: b
            tool: {kind: python, input: {size: "{{ keychain.held.token | length }}"}, code: "result = {'n': size}"}
            next: [{step: c}]
          - step: c
            tool: {kind: python, input: {n: "{{ a.n }}"}, code: "result = n"}
        """)
        assert completed(told) == 1
        refs = await stored_refs(address)
    a, b, c = (ended(told, name) for name in ("a#1", "b#1", "c#1"))
    assert (inputs_of(b), inputs_of(c)) == ([], [{"ref_id": a.event_id}])
    assert b.meta["credentials"] == ["crm", "held"]
    assert refs[b.event_id].auth_reference == ("crm", "held")
    assert refs[c.event_id].auth_reference is None
    assert parent_of(c) == b.event_id
    assert canary not in str(refs)
    await must_be_rebuildable(address)


@asynchronous
async def test_what_was_read_before_a_wait_is_an_input_of_the_result(address: str, tmp_path: Path) -> None:
    marker = tmp_path / "tried"
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(f"""
        workflow:
          - step: a
            tool: {{kind: python, code: "result = {{'n': 1}}"}}
            next: [{{step: b}}]
          - step: b
            tool:
              - {{kind: python, name: first, input: {{n: "{{{{ a.n }}}}"}}, code: "result = n"}}
              - kind: python
                name: second
                code: |
                  import pathlib
                  marker = pathlib.Path("{marker}")
                  if not marker.exists():
                      marker.touch()
                      raise ConnectionError("once")
                  result = 2
                spec: {{policy: {{rules: [{{when: "{{{{ error }}}}", then: {{do: retry, attempts: 3, delay: 2.1}}}}]}}}}
        """)
        assert told.state.failure is None, told.state.failure
    assert len(told.of_type(kinds.TASK_WAITING)) == 1
    assert inputs_of(ended(told, "b#1")) == [{"ref_id": ended(told, "a#1").event_id}]


@asynchronous
async def test_a_trace_of_nothing_says_what_there_is(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: a
            tool: {kind: python, code: "result = 1"}
            next: [{step: b, when: "{{ a == 2 }}"}, {step: c}]
          - {step: b, tool: {kind: noop}}
          - {step: c, tool: {kind: python, code: "raise ValueError('no')"}}
        """)
        execution_id = told.state.execution_id
        with pytest.raises(ResultUnknown, match=r"there are those of 'a', 'c'"):
            await trace_of(engine, execution_id, "zz")
        with pytest.raises(ResultUnknown, match=r"run 7.*its last one is of run 1"):
            await trace_of(engine, execution_id, "a", run=7)
        with pytest.raises(ExecutionUnknown):
            await engine.engine.traces.trace(execution_id, "a", tenant_id="other", organization_id="default")
        with pytest.raises(ExecutionUnknown):
            await trace_of(engine, 1, "a")
        failed = await trace_of(engine, execution_id, "c")
        assert (failed.status, failed.ref_id, failed.parent) == ("error", None, ended(told, "a#1").event_id)
        assert [one.ref.step for one in failed.results] == ["a"]
        assert failed.error is not None
        assert failed.error["kind"] == "python"
        open_id = await engine.start("""
        workflow:
          - {step: slow, tool: {kind: python, code: "import time; time.sleep(60)"}}
        """)
        await engine.until(open_id, lambda state: state.commands)
        with pytest.raises(ResultUnfinished):
            await trace_of(engine, open_id, "slow")
        await engine.cancel(open_id)


@asynchronous
async def test_each_run_of_a_step_has_its_own_trace(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: a
            tool: {kind: python, input: {n: "{{ ctx.n | default(0) }}"}, code: "result = {'n': n + 1}"}
            set: {ctx.n: "{{ a.n }}"}
            next: [{step: a, when: "{{ a.n < 3 }}"}]
        """)
        assert completed(told) == {"n": 3}
        steps = [
            [one.ref.command_id for one in (await trace_of(engine, told.state.execution_id, "a", run)).results]
            for run in (None, 1, 2)
        ]
    assert steps == [["a#3", "a#2", "a#1"], ["a#1"], ["a#2", "a#1"]]


@asynchronous
async def test_the_way_is_walked_by_indexes(address: str) -> None:
    """No look at all events or results, however many there are."""
    async with connected(address) as connection:
        text = Path("src/noetl/adapters/postgres/sql/lineage.sql").read_text()
        walk = text.split("-- name: walk\n")[1].split("-- name:")[0]
        for name, value in (
            ("ref_ids", "'{1,2,3}'"),
            ("tenant_id", "'default'"),
            ("organization_id", "'default'"),
            ("depth_max", "100"),
            ("visits_max", "100"),
            ("rows", "10"),
        ):
            walk = walk.replace(f":{name}::", f"{value}::")
        await connection.execute("ANALYZE noetl.event")
        await connection.execute("SET enable_seqscan = off")
        plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {walk}"))
    assert "Seq Scan on event" not in plan
    assert plan.count("event_id = w.ref_id") >= 1


# --- a ledger that is older than the table ---------------------------------------------------------------


@pytest.fixture
def where() -> str:
    return empty_database()


@asynchronous
async def test_a_ledger_that_is_older_gets_its_rows(where: str, tmp_path: Path) -> None:
    async with running_engine(where, tmp_path) as engine:
        told = await engine.run(CHAIN)
    [mine] = [one for one in migrations() if one.name == "0005_pre_result_ref"]
    before = await stored_refs(where)
    async with connected(where) as connection:
        # Back to what the release before had.
        await connection.execute(
            "DROP VIEW noetl_views.result_refs; DROP VIEW noetl.result_ref;"
            "DROP INDEX noetl.idx_event_result; DROP INDEX noetl.idx_result_ref_parent_chain"
        )
        await connection.execute("DELETE FROM noetl.migration WHERE number = $1", mine.number)
    assert await migrate(where, shard_count=16, now=datetime.datetime.now(datetime.UTC)) == [mine.name]
    assert await stored_refs(where) == await derived_refs(where) == before
    async with running_engine(where, tmp_path) as engine:
        trace = await trace_of(engine, told.state.execution_id, "last")
        assert len(trace.results) == 4
        again = await engine.run(CHAIN)
        assert completed(again) == {"sum": 6, "first": 0}
    await must_be_rebuildable(where)


@asynchronous
async def test_the_physical_address_is_where_the_file_is(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - {step: big, tool: {kind: python, code: "result = {'text': ['x' * 1000] * 1000}"}}
        """)
        assert told.state.failure is None
    ref = (await stored_refs(address))[ended(told, "big#1").event_id]
    assert ref.store_tier == "file"
    assert (tmp_path / "payloads" / str(ref.physical_address)).is_file()
