"""Playbooks through the real engine: real ledger, real child processes, real payloads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from noetl.core import kinds
from noetl.core.errors import AppendOverloaded, ExecutionUnknown, RequestInvalid
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import Status
from noetl.core.expression import parse_count
from tests.support.aio import asynchronous
from tests.support.databases import connected, fresh_database
from tests.support.engine import running_engine
from tests.support.logs import log_lines


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


@asynchronous
async def test_values_keep_their_types_through_input_and_every_kind_of_set(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workload: {n: 7, text: "007", flag: true, nothing: null, items: [1, {a: 2}]}
        workflow:
          - step: start
            tool:
              - name: first
                kind: python
                input:
                  {n: "{{ n }}", text: "{{ text }}", flag: "{{ flag }}", nothing: "{{ nothing }}", xs: "{{ items }}"}
                code: 'result = {"types": [type(v).__name__ for v in (n, text, flag, nothing, xs)], "n": n + 1}'
                set: {local: "{{ output.n }}"}
                spec: {policy: {rules: [{else: {then: {do: continue, set: {ctx.from_rule: "{{ output.data.n }}"}}}}]}}
              - name: second
                kind: python
                input: {seen: "{{ local }}", rule: "{{ ctx.from_rule }}"}
                code: 'result = {"seen": seen, "rule": rule}'
            set: {ctx.nested: {deep: ["{{ output.data.second.seen }}", "x{{ n }}"]}, n: "{{ n + 100 }}"}
            next: {arcs: [{step: end, set: {by_arc: "{{ start.first.types }}"}}]}
          - step: end
            tool:
              kind: python
              input: {ctx: "{{ ctx }}", original: "{{ workload.n }}", bare: "{{ n }}"}
              code: 'result = {"ctx": ctx, "original": original, "bare": bare}'
        """)
    assert told.result == {
        "ctx": {
            "from_rule": 8,
            "nested": {"deep": [8, "x7"]},
            "n": 107,
            "by_arc": ["int", "str", "bool", "NoneType", "list"],
        },
        "original": 7,
        "bare": 107,
    }


@asynchronous
async def test_routing_over_large_results_never_opens_them(address: str, tmp_path: Path) -> None:
    body = """
    workflow:
      - step: start
        tool: {kind: python, code: 'result = {"rows": [{"n": i} for i in range(20000)], "more": list(range(5000))}'}
        set: {ctx.rows: "{{ start.rows }}"}
        next:
          arcs:
            - {step: wrong, when: "{{ start.rows | length < 3 }}"}
            - {step: wrong, when: "{{ (start.rows + ctx.rows) | length == 1 }}"}
            - {step: wrong, when: "{% for r in start.rows[:3] %}{{ r.n if r.n > 5 }}{% endfor %}"}
            - {step: end, when: "{{ start.rows[19999].n == 19999 and start.more | sum > 10 }}"}
      - {step: wrong, tool: {kind: noop}}
      - step: end
        tool:
          kind: python
          input: {rows: "{{ ctx.rows }}", size: "{{ start._size_bytes }}", store: "{{ start._store }}"}
          code: 'result = [len(rows), rows[-1], size > 64000, store]'
    """
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(body)
        assert told.result == [20000, {"n": 19999}, True, "kv"]
        assert all(len(str(event.result)) < 2_000 for event in told.events)
        assert any("/eval/" in str(event.command_id) for event in told.events)
        assert list((tmp_path / "payloads").rglob("*"))
        assert fold_all(told.events) == told.state


@asynchronous
async def test_a_long_retry_wait_is_a_timer_and_survives_a_restart(address: str, tmp_path: Path) -> None:
    body = """
    workflow:
      - step: start
        tool:
          - name: before
            kind: python
            code: 'result = {"kept": 41}'
          - name: flaky
            kind: python
            input: {attempt: "{{ _attempt }}", kept: "{{ before.kept }}"}
            code: |
              if attempt < 2: raise ConnectionError("not yet")
              result = {"answer": kept + 1, "attempt": attempt}
            spec:
              policy:
                rules:
                  - when: "{{ output.status == 'error' and output.error.kind == 'connection' }}"
                    then: {do: retry, attempts: 3, delay: 2.2, set: {ctx.failures: "{{ _attempt }}"}}
    """
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start(body)
        with engine.engine.watchers.watch(execution_id) as watch:
            while not (
                await engine.engine.service.state(execution_id, tenant_id="default", organization_id="default")
            ).timers:
                assert await watch.changed(10)
        assert engine.engine.sessions.pools.free_in("default") == 16
    async with running_engine(address, tmp_path) as engine:
        told = await engine.finish(execution_id)
    assert told.result["flaky"] == {"answer": 42, "attempt": 2}
    assert [event.transition_key for event in told.of_type(kinds.TASK_WAITING)] == ["task.waiting/start#1/1"]
    assert len(told.of_type(kinds.TIMER_FIRED)) == 1
    assert len(told.of_type(kinds.COMMAND_ISSUED)) == 1
    assert told.state.variables["failures"].value == 1


@asynchronous
async def test_pipelines_jump_break_continue_and_fail(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: start
            tool:
              - name: count
                kind: python
                input: {n: "{{ iter.n | default(0) }}"}
                code: "result = n + 1"
                spec: {policy: {rules: [{else: {then: {do: continue, set: {iter.n: "{{ output.data }}"}}}}]}}
              - name: again
                kind: noop
                spec:
                  policy:
                    rules:
                      - {when: "{{ iter.n < 3 }}", then: {do: jump, to: count}}
                      - {when: "{{ iter.n == 3 }}", then: {do: break}}
              - {name: never, kind: python, code: "raise RuntimeError()"}
            next: [failing]
          - step: failing
            tool:
              - name: soft
                kind: python
                code: "raise ValueError('soft')"
                spec: {policy: {rules: [{when: "{{ output.error.kind == 'python' }}", then: {do: continue}}]}}
              - {name: hard, kind: noop, spec: {policy: {rules: [{else: {then: {do: fail}}}]}}}
            next:
              arcs:
                - {step: wrong}
                - {step: handled, when: "{{ event.name == 'step.failed' and error.kind == 'policy' }}"}
          - {step: wrong, tool: {kind: noop}}
          - step: handled
            tool: {kind: python, input: {n: "{{ start.count }}", s: "{{ failing.status }}"}, code: "result = [n, s]"}
        """)
    assert told.state.status is Status.COMPLETED
    assert told.result == [3, "error"]


@asynchronous
async def test_loops_in_templates_see_views_like_any_other_template(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: start
            tool: {kind: python, code: "result = {'rows': [1, 2, 3]}"}
            next: [end]
          - step: end
            tool:
              kind: noop
              result: >-
                {% for r in start.data.rows %}{{ r }};{% endfor %}{{ ctx.start.rows | length }}{{ start.status }}
        """)
    assert told.result == "1;2;3;3ok"


@asynchronous
async def test_large_context_values_travel_by_reference_and_can_be_changed(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: start
            tool:
              kind: python
              code: 'result = {"rows": list(range(3000))}'
              spec: {policy: {rules: [{else: {then: {do: continue, set: {ctx.big: "{{ output.data }}"}}}}]}}
            next: [change]
          - step: change
            tool:
              kind: noop
              spec:
                policy:
                  rules: [{else: {then: {do: continue, set: {ctx.big.extra: "{{ ctx.big.rows | length }}"}}}}]
            next: [end]
          - step: end
            tool: {kind: python, input: {big: "{{ ctx.big }}"}, code: 'result = [len(big["rows"]), big["extra"]]'}
        """)
    assert told.result == [3000, 3000]
    assert not told.state.variables["big"].is_inline
    assert all(len(str(event.writes)) < 1_000 for event in told.events)


@asynchronous
async def test_printed_text_and_tracebacks_are_kept_beside_the_events(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: start
            tool: {kind: python, code: "print('hello'); raise KeyError('gone')"}
        """)
        failed = told.of_type(kinds.COMMAND_FAILED)[0]
        reference = failed.meta["traceback"]
        assert isinstance(reference, dict)
        async with connected(address) as connection:
            traceback = await connection.fetchval(
                "SELECT content FROM noetl.payload WHERE sha256 = $1", reference["sha256"]
            )
        lines = await log_lines(engine, told.state.execution_id)
    assert [line["text"] for line in lines] == ["hello"]
    assert failed.meta["logs"] == {"lines": 1, "bytes": 5}
    assert b"KeyError" in traceback
    assert told.state.status is Status.FAILED
    assert told.state.failure is not None
    assert told.state.failure["step"] == "start"


@asynchronous
async def test_an_idempotency_key_starts_one_execution(address: str, tmp_path: Path) -> None:
    body = "workflow:\n  - {step: start, tool: {kind: noop}}\n"
    async with running_engine(address, tmp_path) as engine:
        first = await engine.start(body, key="k1")
        assert await engine.start(body, key="k1") == first
        assert await engine.start(body, key="k2") != first
        with pytest.raises(RequestInvalid, match="another request"):
            await engine.start(body, {"other": 1}, key="k1")


@asynchronous
async def test_another_tenants_execution_does_not_exist(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("workflow:\n  - {step: start, tool: {kind: noop}}\n")
        with pytest.raises(ExecutionUnknown):
            await engine.engine.service.state(told.state.execution_id, tenant_id="other", organization_id="default")


@asynchronous
async def test_a_dropped_queue_is_rebuilt_and_attempts_go_on(address: str, tmp_path: Path) -> None:
    body = """
    workflow:
      - step: start
        tool: {kind: python, code: "import time; time.sleep(0.5); result = 1"}
    """
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start(body)
    async with connected(address) as connection:
        await connection.execute("TRUNCATE noetl.command, noetl.timer, noetl.execution")
    async with running_engine(address, tmp_path) as engine:
        assert execution_id in engine.engine.resumed
        told = await engine.finish(execution_id)
    assert [event.meta["attempt"] for event in told.of_type(kinds.COMMAND_CLAIMED)] == [1, 2]
    assert told.result == 1


@asynchronous
async def test_deciding_parses_no_template(address: str, tmp_path: Path) -> None:
    body = """
    workload: {n: 3}
    workflow:
      - step: start
        tool: {kind: python, input: {n: "{{ n }}"}, code: "result = n"}
        set: {ctx.m: "{{ start + n }}"}
        next: {arcs: [{step: end, when: "{{ ctx.m > 5 }}"}]}
      - {step: end, tool: {kind: noop, result: "{{ ctx.m }}"}}
    """
    async with running_engine(address, tmp_path) as engine:
        await engine.run(body)
        before = parse_count()
        told = await engine.run(body)
        assert parse_count() == before
    assert told.result == 6


@asynchronous
async def test_a_command_behind_busy_loops_gets_its_turn(address: str, tmp_path: Path) -> None:
    loops = """
    workload: {turns: 60}
    workflow:
      - step: start
        tool:
          kind: python
          input: {n: "{{ ctx.n | default(0) }}"}
          code: "import time; time.sleep(0.01); result = n + 1"
        set: {ctx.n: "{{ start }}"}
        next: {arcs: [{step: start, when: "{{ ctx.n < turns }}"}]}
    """
    async with running_engine(address, tmp_path) as engine:
        busy = [await engine.start(loops) for _ in range(20)]
        late = await engine.start("workflow:\n  - {step: start, tool: {kind: noop}}\n")
        told = await engine.finish(late)
        still_running = [
            one for one in busy if (held := engine.engine.states.cached(one)) and not held.state.is_terminal
        ]
        assert len(still_running) == len(busy)
        for one in busy:
            await engine.finish(one)
    assert told.state.status is Status.COMPLETED


@asynchronous
async def test_more_branches_than_slots_all_run_once(address: str, tmp_path: Path) -> None:
    names = [f"b{number}" for number in range(60)]
    branches = "\n".join(
        f'  - {{step: {name}, tool: {{kind: python, code: "result = 1"}}, next: [join]}}' for name in names
    )
    body = f"workflow:\n  - {{step: start, tool: {{kind: noop}}, next: [{', '.join(names)}]}}\n{branches}\n"
    body += '  - {step: join, tool: {kind: noop, result: "{{ b0 + b59 }}"}}\n'
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(body)
    assert told.result == 2
    assert len(told.of_type(kinds.COMMAND_CLAIMED)) == 62


@asynchronous
async def test_a_restored_or_promoted_database_begins_a_new_incarnation(tmp_path: Path) -> None:
    address = await asyncio.to_thread(fresh_database)
    async with running_engine(address, tmp_path) as engine:
        first = await engine.engine.ledger.incarnation()
    async with running_engine(address, tmp_path) as engine:
        assert await engine.engine.ledger.incarnation() == first
    for column in ("timeline_id", "system_identifier"):
        async with connected(address) as connection:
            await connection.execute(f"UPDATE noetl.ledger SET {column} = {column} - 1")
        async with running_engine(address, tmp_path) as engine:
            second = await engine.engine.ledger.incarnation()
        assert second != first
        first = second


@asynchronous
async def test_a_full_decider_refuses_new_executions_and_nothing_else(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "workflow:\n  - {step: start, tool: {kind: noop}}\n"
    async with running_engine(address, tmp_path) as engine:
        running = await engine.start(body.replace("noop", 'python, code: "import time; time.sleep(0.2)"'))
        monkeypatch.setattr("noetl.engine.control.decider.DECIDE_INPUTS_WAITING_MAX", 0)
        with pytest.raises(AppendOverloaded):
            await engine.start(body)
        assert (await engine.finish(running)).state.status is Status.COMPLETED
