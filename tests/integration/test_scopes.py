"""Where `set` writes and how long it lasts (dsl §6), through the real engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from noetl.core import kinds
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import completed, running_engine


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


@asynchronous
async def test_values_of_a_block_see_the_state_before_it_and_one_that_fails_is_skipped(
    address: str, tmp_path: Path
) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workload: {x: 1, y: 2, doc: {kept: 1}}
        workflow:
          - step: start
            tool:
              - name: swap
                kind: noop
                set: {ctx.x: "{{ y }}", ctx.y: "{{ x }}", ctx.bad: "{{ missing + 1 }}", local: "{{ x }}"}
              - name: deep
                kind: noop
                set: {ctx.doc.a.b: ["{{ local }}", {c: "{{ ctx.x }}"}], ctx.doc.n: 1}
              - {name: seen, kind: noop, result: "{{ [x, y, local, ctx.doc, workload] }}"}
            set: {iter.gone: "{{ x }}", z.deep: "{{ y }}", wrong: "{{ missing > 1 }}"}
            next: [{step: end, set: {arc: "{{ z.deep + 1 }}", also_wrong: "{{ missing.x + 1 }}"}}]
          - step: end
            tool: {kind: noop, result: "{{ [start.seen, ctx, bad is defined] }}"}
        """)
    seen, context, has_bad = completed(told)
    original = {"x": 1, "y": 2, "doc": {"kept": 1}}
    # A deeper path begins with the context, not with the workload of that name, which stays as it was.
    assert seen == [2, 1, 1, {"a": {"b": [1, {"c": 2}]}, "n": 1}, original]
    assert context == {"x": 2, "y": 1, "doc": seen[3], "gone": 2, "z": {"deep": 1}, "arc": 2}
    assert has_bad is False
    (ended,) = [e for e in told.of_type(kinds.COMMAND_COMPLETED) if e.command_id == "start#1"]
    assert "set bad: " in str(ended.meta["warnings"])
    (decided,) = [e for e in told.of_type(kinds.STEP_DECIDED) if e.meta["step"] == "start"]
    warnings: Any = decided.meta["warnings"]
    assert [warning.split(":")[0] for warning in warnings] == ["set wrong", "set also_wrong"]


@asynchronous
async def test_each_scope_lasts_as_long_as_it_says(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: first
            tool:
              - name: write
                kind: noop
                set: {iter.i: 1, step.s: 2, local: 3, ctx.c: 4}
                spec: {policy: {rules: [{else: {then: {do: continue, set: {iter.r: 5, bare: 6, step.t.u: 7}}}}]}}
              - name: read
                kind: noop
                result: "{{ [iter.i, iter.r, step.s, step.t.u, local, ctx.c, ctx.bare, bare] }}"
            next: second
          - step: second
            tool:
              kind: noop
              result: "{{ [iter.i is defined, step is defined and step.s is defined, local is defined, c, bare] }}"
            next: third
          - step: third
            tool: {kind: noop, result: "{{ [first.read, second.data] }}"}
        """)
    assert completed(told) == [[1, 5, 2, 7, 3, 4, 6, 6], [False, False, False, 4, 6]]


@asynchronous
async def test_a_rule_writes_at_every_match_and_what_it_wrote_survives_a_durable_wait(
    address: str, tmp_path: Path
) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: start
            tool:
              - {name: before, kind: noop, result: {n: 1}, set: {local: kept}}
              - name: flaky
                kind: python
                input: {attempt: "{{ _attempt }}", tries: "{{ iter.tries | default(0) }}", last: "{{ output.status }}",
                        why: "{{ error.message if error else none }}", local: "{{ local }}", n: "{{ before.n }}"}
                code: |
                  if attempt < 3:
                      raise ValueError(f"attempt {attempt}")
                  result = [attempt, tries, last, why, local, n]
                spec:
                  policy:
                    rules:
                      - when: "{{ output.status == 'error' }}"
                        then:
                          do: retry
                          attempts: 3
                          delay: "{{ 0 if _attempt == 1 else 2.1 }}"
                          set: {iter.tries: "{{ (iter.tries | default(0)) + 1 }}", tries: "{{ _attempt }}"}
        """)
    assert completed(told)["flaky"] == [3, 2, "error", "attempt 2", "kept", 1]
    assert len(told.of_type(kinds.TASK_WAITING)) == 1
    assert told.state.variables["tries"].value == 2
