"""Values with parts behave as plain data wherever a playbook puts them: the same playbook gives the same with rows in
columns and with rows as they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from noetl.core.execution.state import Status
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import Running, completed, running_engine

TABLE = "import pyarrow as pa; result = {'t': pa.table({'a': [1, 2, 3]}), 'n': 1}"
PLAIN = "result = {'t': [{'a': 1}, {'a': 2}, {'a': 3}], 'n': 1}"
CHILD = "workflow:\n  - step: start\n    tool: {kind: noop, result: 5}\n"
MADE = """
  - step: s
    tool: {kind: python, code: "CODE"}
    next: [{step: use}]
"""
CASES = {
    "a child behind a mapping with a table": """
  - step: use
    tool:
      - t: {kind: python, code: "CODE"}
      - c: {kind: playbook, path: tests/child}
      - l: {kind: noop, result: ["{{ t.t[1].a }}", "{{ t.n }}", "{{ t }}"]}
""",
    "writes below and beside": """
  - step: use
    tool:
      - l: {kind: noop, result: 1, set: {iter.w: "{{ s }}", step.w: "{{ s }}", w: "{{ s }}", ctx.w: "{{ s }}"}}
      - m: {kind: noop, result: 1, set: {iter.w.q: 1, step.w.q: 1, w.q: 1, ctx.w.q: 1}}
      - z: {kind: noop, result: ["{{ iter.w }}", "{{ step.w }}", "{{ w }}", "{{ ctx.w }}"]}
""",
    "nested writes": """
  - step: use
    tool:
      - o: {kind: noop, result: 1, set: {iter.a.b: "{{ s.t }}", step.c.d: "{{ s.t }}", ctx.a.b: "{{ s.t }}"}}
      - l: {kind: noop, result: ["{{ iter.a }}", "{{ step.c }}", "{{ ctx.a }}"]}
      - p: {kind: python, input: {x: "{{ iter.a }}"}, code: "result = len(x['b'])"}
      - c: {kind: playbook, path: tests/child, input: {rows: "{{ ctx.a }}"}}
      - f: {kind: noop, result: "{% for r in iter.a.b %}{{ r.a }}{% endfor %}"}
""",
    "hints on a task": """
  - step: use
    tool:
      - t: {kind: python, code: "CODE", output: {inline_max_bytes: 0}}
      - l: {kind: noop, result: ["{{ t._store is defined }}", "{{ t.t | length }}"]}
""",
    "a loop of rows that call a child": """
  - step: use
    loop: {in: "{{ [1, 2] }}", iterator: n, spec: {mode: sequential}}
    tool:
      - t: {kind: python, code: "CODE"}
      - k: {kind: noop, result: 1, set: {iter.k: "{{ t.t }}"}}
      - c: {kind: playbook, path: tests/child}
      - l: {kind: noop, result: "{{ t.t | map(attribute='a') | list }}"}
""",
}


@asynccontextmanager
async def running(home: Path, address: str) -> AsyncIterator[Running]:
    async with running_engine(address, home) as engine:
        await engine.register("tests/child", CHILD)
        yield engine


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_ids(item) for key, item in value.items() if key != "execution_id"}
    return [_without_ids(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", CASES)
@asynchronous
async def test_a_table_is_what_its_rows_would_be(tmp_path: Path, name: str) -> None:
    address = await asyncio.to_thread(fresh_database)
    found = []
    async with running(tmp_path, address) as engine:
        for code in (PLAIN, TABLE):
            told = await engine.run("workflow:" + (MADE + CASES[name]).replace("CODE", code))
            found.append(_without_ids(completed(told)))
    assert found[0] == found[1]
    # Whoever reads it later, without what this process remembers, finds every part.
    async with running(tmp_path, address) as engine:
        state = await engine.state(told.state.execution_id)
        assert _without_ids(await engine.engine.service.result(state)) == found[1]


@asynchronous
async def test_a_large_plain_result_has_rules_writes_and_tasks_behind_it(tmp_path: Path) -> None:
    body = """
    workflow:
      - step: s
        tool:
          - b:
              kind: python
              code: "result = [{'n': i, 't': 'x' * 50} for i in range(60000)]"
              spec: {policy: {rules: [{when: "{{ output.data | length == 60000 }}", then: {do: continue}}]}}
              set: {ctx.last: "{{ output[-1].n }}"}
          - l: {kind: noop, result: ["{{ b | length }}", "{{ ctx.last }}", "{{ b._ref is defined }}"]}
        next: [{step: end}]
      - step: end
        tool: {kind: noop, result: "{{ s.l }}"}
    """
    async with running(tmp_path, await asyncio.to_thread(fresh_database)) as engine:
        assert completed(await engine.run(body)) == [60_000, 59_999, True]


@asynchronous
async def test_a_row_that_fails_takes_nothing_from_its_neighbours(tmp_path: Path) -> None:
    body = """
    workflow:
      - step: e
        loop:
          in: "{{ range(100) | list }}"
          iterator: n
          spec: {mode: parallel, max_in_flight: 20, frame: {max_rows: 100}}
        spec: {policy: {failure: {mode: best_effort}}}
        tool:
          kind: python
          input: {n: "{{ n }}"}
          code: |
            import pyarrow as pa
            if n % 2: raise ValueError('odd')
            result = {'t': pa.table({'a': list(range(n, n + 500))}), 'n': n}
    """
    async with running(tmp_path, await asyncio.to_thread(fresh_database)) as engine:
        told = await engine.run(body)
        result: Any = told.result
    assert result["stats"] == {"total": 100, "success": 50, "failed": 50}


@pytest.mark.parametrize(("key", "written"), [("None", "null"), ("True", "true"), ("3", "3")])
@asynchronous
async def test_keys_above_a_table_are_those_of_json(tmp_path: Path, key: str, written: str) -> None:
    body = f"""
    workflow:
      - step: s
        tool: {{kind: python, code: "import pyarrow as pa; result = {{{key}: pa.table({{'a': [1]}})}}"}}
        next: [{{step: end}}]
      - step: end
        tool: {{kind: noop, result: "{{{{ s }}}}"}}
    """
    async with running(tmp_path, await asyncio.to_thread(fresh_database)) as engine:
        assert completed(await engine.run(body)) == {written: [{"a": 1}]}


@asynchronous
async def test_a_table_in_a_list_is_refused(tmp_path: Path) -> None:
    body = """
    workflow:
      - step: s
        tool: {kind: python, code: "import pyarrow as pa; result = [pa.table({'a': [1]})]"}
    """
    async with running(tmp_path, await asyncio.to_thread(fresh_database)) as engine:
        told = await engine.run(body)
    assert told.state.status is Status.FAILED
    assert "a table must be the whole result, or stand in mappings" in str(told.state.failure)


@asynchronous
async def test_what_only_looks_like_a_parted_document_is_given_back_as_it_is(tmp_path: Path) -> None:
    body = """
    workflow:
      - step: s
        tool:
          - p: {kind: artifact, action: put, data: {value: 1, parts: [[1, 2, 3]]}}
          - g: {kind: artifact, action: get, result_ref: "{{ p.uri }}"}
    """
    async with running(tmp_path, await asyncio.to_thread(fresh_database)) as engine:
        found = completed(await engine.run(body))
    assert found["g"]["data"] == {"value": 1, "parts": [[1, 2, 3]]}
