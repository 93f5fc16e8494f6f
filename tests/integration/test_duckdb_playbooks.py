"""duckdb steps in playbooks: the real engine around the real tool."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from noetl.core.execution.state import Status
from noetl.core.reference import MEDIA_PARTED
from noetl.engine.leftovers import Leftovers
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import completed, running_engine


@pytest.fixture
def address() -> str:
    return fresh_database()


@asynchronous
async def test_rows_go_from_step_to_step_as_tables_and_templates_read_them(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(
            """
            workload: {many: 30000}
            workflow:
              - step: make
                tool:
                  kind: duckdb
                  command: |
                    create table t as select n, (n / 100)::decimal(12, 2) as price from range({{ workload.many }}) r(n);
                    select * from t order by n
                next:
                  arcs:
                    - {step: wrong, when: "{{ make.rows[29999].price != 299.99 }}"}
                    - {step: use, when: "{{ make.row_count == 30000 and make.command_0.affected_rows == 30000 }}"}
              - {step: wrong, tool: {kind: noop}}
              - step: use
                tool:
                  - name: sum
                    kind: duckdb
                    tables: {given: "{{ make }}"}
                    input: {few: "{{ make.rows[:2] }}"}
                    query: |
                      select count(*) n, sum(g.price) total, typeof(max(g.price)) kind, (select count(*) from few) few
                      from given g join t using (n)
                  - name: shape
                    kind: python
                    input: {rows: "{{ sum.rows }}", first: "{{ make.rows[1] }}"}
                    code: "result = {'rows': [dict(row) for row in rows], 'first': dict(first)}"
            """
        )
        result = completed(told)
        assert result["shape"] == {
            "rows": [{"n": 30000, "total": 4499850.0, "kind": "DECIMAL(12,2)", "few": 2}],
            "first": {"n": 1, "price": 0.01},
        }
        (made,) = [event for event in told.of_type("command.completed") if event.command_id == "make#1"]
        # The control plane carries none of the rows.
        assert made.result is not None
        assert made.result["reference"]["media_type"] == MEDIA_PARTED
        assert made.result["reference"]["bytes"] < 4_000


@asynchronous
async def test_a_loop_runs_over_the_rows_of_a_table(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(
            """
            workflow:
              - step: make
                tool: {kind: duckdb, database: ":memory:", query: "select range as n from range(5)"}
                next: each
              - step: each
                loop: {in: "{{ make.rows }}", iterator: row}
                tool: {kind: python, input: {n: "{{ row.n }}"}, code: "result = n * n"}
                next: end
              - {step: end, tool: {kind: noop, result: "{{ each.results }}"}}
            """
        )
        assert completed(told) == [0, 1, 4, 9, 16]


@asynchronous
async def test_a_failure_is_handled_by_an_arc_and_says_its_kind(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(
            """
            workflow:
              - step: read
                tool: {kind: duckdb, query: "select 1 as a; select * from read_text('/etc/passwd')"}
                next: {arcs: [{step: handled, when: "{{ output.status == 'error' }}"}]}
              - step: handled
                tool:
                  kind: noop
                  result:
                    kind: "{{ read.error.kind }}"
                    code: "{{ read.error.code }}"
                    count: "{{ read.statement_count }}"
            """
        )
        assert completed(told) == {"kind": "policy", "code": "DUCKDB_PERMISSION", "count": 1}


@asynchronous
async def test_a_script_holds_the_sql(address: str, tmp_path: Path) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "count.sql").write_text("select {{ workload.n }} as n;\nselect {{ workload.n }} + 1 as n")
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(
            """
            workload: {n: 4}
            workflow:
              - {step: s, tool: {kind: duckdb, script: count.sql, query: "select 0 as n"}}
            """
        )
        result = completed(told)
        assert (result["rows"], result["command_0"]["rows"]) == ([{"n": 5}], [{"n": 4}])


def runs(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "duckdb").glob("*/*/runs/*"))


async def until_under_way(home: Path) -> None:
    async with asyncio.timeout(60):
        while not list((home / "duckdb").glob("*/*/runs/*/main.duckdb")):
            await asyncio.sleep(0.02)


@asynchronous
async def test_a_cancel_ends_the_process_and_ended_executions_leave_no_files(address: str, tmp_path: Path) -> None:
    endless = "select count(*) from range(1000000000) a, range(1000000000) b where hash(a.range, b.range) = 3"
    body = f"""
        workflow:
          - {{step: s, tool: {{kind: duckdb, query: "create table t(a int); {endless}"}}}}
    """
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start(body)
        await until_under_way(tmp_path)
        leftovers = Leftovers(engine.engine.tools.values(), engine.engine.executions)
        assert await leftovers.forget_ended() == 0
        assert runs(tmp_path) == [str(execution_id)]
        await engine.cancel(execution_id)
        told = await engine.finish(execution_id)
        assert told.state.status is Status.CANCELLED
        assert await forgotten(leftovers) == 1
        assert runs(tmp_path) == []
        foreign = tmp_path / "duckdb" / "default" / "default" / "runs" / "123"
        foreign.mkdir(parents=True)
        assert await leftovers.forget_ended() == 0
        assert runs(tmp_path) == ["123"]


async def forgotten(leftovers: Leftovers) -> int:
    """The process may still be on its way out when the execution has ended."""
    async with asyncio.timeout(60):
        while not (count := await leftovers.forget_ended()):
            await asyncio.sleep(0.05)
    return count


@asynchronous
async def test_tables_of_an_execution_are_its_own(address: str, tmp_path: Path) -> None:
    body = """
        workflow:
          - {step: a, tool: {kind: duckdb, query: "create table t as select 1 as a"}, next: b}
          - {step: b, tool: {kind: duckdb, query: "select count(*) n from duckdb_tables()"}}
    """
    async with running_engine(address, tmp_path) as engine:
        told = await asyncio.gather(engine.run(body), engine.run(body), engine.run(body))
        assert [completed(one)["rows"] for one in told] == [[{"n": 1}]] * 3
