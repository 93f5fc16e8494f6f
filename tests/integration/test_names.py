"""The names of templates (dsl §7.3) through the real engine: the server's variables, the catalog, who started it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import completed, running_engine

ALLOWED = {"NOETL_ENV_ALLOW": "REGION, ABSENT", "REGION": "eu", "SECRET": "no"}
SHOW = """
workload: {region: "{{ env.REGION }}", secret: "{{ env.SECRET | default('none') }}"}
workflow:
  - step: start
    tool:
      kind: python
      input: {task: "{{ env.REGION }}", all: "{{ env }}", region: "{{ region }}", secret: "{{ secret }}",
              facts: "{{ [catalog_id, version, path, parent_execution_id] }}", parent: "{{ iter.parent }}"}
      code: 'result = {"task": task, "all": all, "region": region, "secret": secret, "facts": facts, "parent": parent}'
    set: {router: "{{ env.REGION }}", facts: "{{ [catalog_id, version, path] }}", index: "{{ iter.parent.index }}"}
    next: finish
  - step: finish
    tool: {kind: python, input: {s: "{{ start }}", c: "{{ ctx }}"}, code: 'result = {"worker": s, "router": c}'}
"""


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


@asynchronous
async def test_only_allowed_variables_are_seen_and_they_are_recorded_with_the_execution(
    address: str, tmp_path: Path
) -> None:
    async with running_engine(address, tmp_path, ALLOWED) as engine:
        told = await engine.run(SHOW)
    result = completed(told)
    assert result["worker"] == {
        "task": "eu",
        "all": {"REGION": "eu"},
        "region": "eu",
        "secret": "none",
        "facts": [None, None, "test", None],
        "parent": None,
    }
    assert result["router"] == {"router": "eu", "facts": [None, None, "test"], "index": None}
    assert told.events[0].meta["env"] == {"REGION": "eu"}
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(SHOW)
    assert completed(told)["worker"]["all"] == {}
    assert "env" not in told.events[0].meta


@asynchronous
async def test_a_child_knows_its_version_of_the_catalog_and_the_row_that_started_it(
    address: str, tmp_path: Path
) -> None:
    async with running_engine(address, tmp_path, ALLOWED) as engine:
        await engine.register("lib/show", SHOW)
        told = await engine.run(
            """
        workflow:
          - step: each
            loop: {in: [{id: 1}, {id: 2}, "LARGE"], iterator: row, spec: {mode: parallel}}
            tool:
              - {name: note, kind: noop, set: {iter.seen: "{{ row.id }}"}}
              - {name: call, kind: playbook, path: lib/show}
        """.replace("LARGE", "x" * 3_000)
        )
        rows = [row["call"]["data"] for row in completed(told)["results"]]
    for number, row in enumerate(rows):
        worker, router = row["worker"], row["router"]
        catalog_id, version, path, parent = worker["facts"]
        assert catalog_id.isdecimal()
        assert (version, path, parent) == (1, "lib/show", str(told.state.execution_id))
        assert router["facts"] == [catalog_id, 1, "lib/show"]
        assert router["index"] == number
        seen = worker["parent"]
        assert (seen["index"], seen["_total"], seen["_first"]) == (number, 3, number == 0)
        # A large item is not there: what is large is given as input.
        assert seen.get("row") == ({"id": number + 1} if number < 2 else None)
        assert seen["seen"] == (number + 1 if number < 2 else None)


@asynchronous
async def test_names_of_tasks_stand_where_the_table_says(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workload: {city: workload, row: workload, first: workload, path: hidden}
        workflow:
          - step: before
            tool: {kind: python, code: 'result = {"n": 5}'}
            next: [{step: each, args: {given: "{{ output.data.n }}"}, set: {city: ctx}}]
          - step: each
            loop: {in: [a], iterator: row}
            tool:
              - name: first
                kind: noop
                result: "{{ [city, row, first, path, args.given, given, result.n, _prev, _attempt, _task] }}"
                set: {local: "{{ output[0] }}", row: local, path: local}
                spec: {policy: {rules: [{else: {then: {do: continue, set: {city: rule, local: rule, first: rule}}}}]}}
              - name: path
                kind: noop
                input: {city: input, row: input, workload: input}
                result: ["{{ city }}", "{{ row }}", "{{ first[0] }}", "{{ path }}", "{{ local }}", "{{ ctx.local }}",
                         "{{ results.first[0] }}", "{{ output.status }}", "{{ workload.city }}"]
              - name: broken
                kind: python
                code: "raise ValueError('boom')"
                spec: {policy: {rules: [{when: "{{ error }}", then: {do: continue}}]}}
              - {name: last, kind: noop, result: "{{ [error.message, output.status, path, results.path[4], _prev] }}"}
        """)
        again = await engine.run("""
        workflow:
          - step: each
            loop: {in: [1, 2], iterator: path}
            tool:
              kind: noop
              result: ["{{ path }}", "{{ iter.path }}", "{{ ctx.path | default('none') }}"]
              set: {ctx.path: "{{ iter.path }}"}
        """)
    # Neither an iterator nor what earlier rows wrote hides a reserved name.
    assert completed(again)["results"] == [["test", 1, "none"], ["test", 2, 1]]
    row = completed(told)["results"][0]
    assert row["first"] == ["ctx", "a", "workload", "test", 5, 5, 5, None, 1, "first"]
    assert row["path"] == ["input", "a", "ctx", "test", "ctx", "rule", "ctx", "ok", "workload"]
    assert row["last"] == ["boom", "error", "test", "ctx", None]
