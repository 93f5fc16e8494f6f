"""The duckdb tool: real DuckDB in real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from noetl.core.reference import MEDIA_ARROW, reference_from_json
from noetl.core.secret import Secret
from noetl.ports.data.tables import MappedFile, OpenTable
from noetl.ports.secrets import Credential
from noetl.ports.tool import Script
from tests.support.aio import asynchronous
from tests.support.duckdb import OWNER, Duck, KeptTable, duckdb_tool

ENDLESS = "select count(*) from range(1000000000) a, range(1000000000) b where hash(a.range, b.range) = 3"


async def schema_of(duck: Duck, sql: str, **more: Any) -> Any:
    result = await duck.call(sql, **more)
    assert result.failure is None, result.failure
    opened = await duck.tables.open(reference_from_json(result.parts[("rows",)]), **OWNER)
    return opened.schema


# --- statements and results ------------------------------------------------------------------------------


@asynchronous
async def test_each_statement_has_its_own_result_and_the_last_one_stands_at_the_top(tmp_path: Path) -> None:
    async with duckdb_tool(tmp_path) as duck:
        value = await duck.value(
            """
            create table t(a int primary key, b text);
            insert into t values (1, 'x'), (2, 'y');
            update t set b = 'z' where a = 2 returning b;
            select 7 as "Count";
            begin; delete from t where a = 1; commit;
            create table u as select * from t;
            select * from t;
            """
        )
        numbers = {f"command_{number}" for number in range(9)}
        assert value.keys() == {"status", "rows", "row_count", "columns", "statement_count", *numbers}
        assert (value["rows"], value["columns"], value["statement_count"]) == ([{"a": 2, "b": "z"}], ["a", "b"], 9)
        assert value["command_0"] == {"status": "success", "row_count": 0, "affected_rows": 0}
        assert value["command_1"] == {"status": "success", "row_count": 2, "affected_rows": 2}
        assert value["command_2"]["rows"] == [{"b": "z"}]
        assert value["command_3"]["rows"] == [{"Count": 7}]
        assert value["command_5"]["affected_rows"] == 1
        empty = await duck.value("select * from t where false; delete from t where false")
        assert empty["command_0"]["rows"] == []
        assert (empty["row_count"], "rows" in empty) == (0, False)


@asynchronous
async def test_rows_are_tables_with_exact_types(tmp_path: Path) -> None:
    sql = """
        select 12345678901234567890.12::decimal(22, 2) as amount, sum(1) as total, uuid() as id,
               '{"a": [1]}'::json as doc, 'x'::blob as raw, '0101'::bit as flags, 'b'::enum('a', 'b') as word,
               340282366920938463463374607431768211::uhugeint as wide, [{'f': '1'::bit}] as nested,
               timestamptz '2024-02-29 12:00:00+02' as at, union_value(n := 3) as either, 1 as twice, 2 as twice
    """
    async with duckdb_tool(tmp_path) as duck:
        result = await duck.call(sql)
        assert result.failure is None, result.failure
        reference = reference_from_json(result.parts[("rows",)])
        assert (reference.media_type, reference.row_count, reference.compression) == (MEDIA_ARROW, 1, "zstd")
        schema = (await duck.tables.open(reference, **OWNER)).schema
        kinds = {field.name: field.type for field in schema}
        assert kinds["amount"] == pa.decimal128(22, 2)
        assert kinds["total"] == kinds["wide"] == pa.decimal128(38, 0)
        assert (kinds["id"], kinds["doc"], kinds["raw"]) == (pa.uuid(), pa.json_(), pa.binary())
        assert kinds["flags"] == kinds["word"] == kinds["either"] == pa.string()
        assert kinds["at"] == pa.timestamp("us", "UTC")
        assert kinds["nested"].value_type == pa.struct([("f", pa.string())])
        value = await duck.filled(result)
        (row,) = value["rows"]
        assert uuid.UUID(row.pop("id"))
        assert row == {
            "amount": float(Decimal("12345678901234567890.12")),
            "total": 1,
            "doc": {"a": [1]},
            "raw": "eA==",
            "flags": "0101",
            "word": "b",
            "wide": 340282366920938463463374607431768211,
            "nested": [{"f": "1"}],
            "at": "2024-02-29T10:00:00+00:00",
            "either": "3",
            "twice": 2,
        }
        assert value["columns"].count("twice") == 2
        too_wide = await duck.failure("select 340282366920938463463374607431768211455::uhugeint as n")
        assert too_wide.kind == "transform"


@asynchronous
async def test_values_are_bound_and_never_read_as_sql(tmp_path: Path) -> None:
    async with duckdb_tool(tmp_path) as duck:
        hostile = "'; drop table t; --"
        await duck.value("create table t(a int, d date, n decimal(10, 2), l int[], s text)")
        insert = {"query": "insert into t values ($a, :d, %(n)s, $l, $s)"}
        params = {"a": 1, "d": "2024-02-29", "n": "1.50", "l": [1, 2], "s": hostile}
        await duck.value(fields={**insert, "params": params})
        rows = await duck.rows(fields={"query": "select * from t where a = ? and d = ?", "params": [1, "2024-02-29"]})
        assert rows == [{"a": 1, "d": "2024-02-29", "n": 1.5, "l": [1, 2], "s": hostile}]
        wrong = await duck.failure(fields={"query": "select ?", "params": [1, 2]})
        assert wrong.kind == "config"
        assert (await duck.rows(script=Script("s.sql", "select 5 as n"), fields={"query": "select 6"})) == [{"n": 5}]


@asynchronous
async def test_the_first_failing_statement_stops_and_what_was_before_stays(tmp_path: Path) -> None:
    async with duckdb_tool(tmp_path) as duck:
        result = await duck.call("create table t(a int not null); insert into t values (null); create table u(a int)")
        assert result.failure is not None
        assert (result.failure.kind, result.failure.details) == ("db_constraint", {"statement": 1})
        assert isinstance(result.value, dict)
        assert (result.value["status"], result.value["statement_count"]) == ("error", 1)
        assert await duck.rows("select table_name from duckdb_tables()") == [{"table_name": "t"}]
        still_open = await duck.failure("begin; insert into t values (5)")
        assert "leaves a transaction open" in still_open.message
        assert await duck.rows("select * from t") == []
        nowhere = await duck.failure("select * from nowhere", execution=8)
        assert nowhere.kind == "schema"
        assert "must run on one node" in nowhere.message
        pivoted = await duck.value("values ('Count'), ('Count'); checkpoint; copy (select 1) to 'x.csv'", execution=9)
        assert [pivoted[f"command_{number}"]["row_count"] for number in range(3)] == [2, 0, 1]
        assert "must run on one node" not in (await duck.failure("select * from nowhere")).message


# --- tables ----------------------------------------------------------------------------------------------


@asynchronous
async def test_earlier_results_are_tables(tmp_path: Path) -> None:
    async with duckdb_tool(tmp_path) as duck:
        orders = await duck.keep(pa.table({"id": [1, 2], "price": pa.array([Decimal("1.10"), None])}))
        again = await duck.call("select id, price from orders order by id", tables={"orders": orders})
        assert again.failure is None, again.failure
        schema = await schema_of(duck, "select price from orders", tables={"orders": orders})
        assert schema.field("price").type == pa.decimal128(3, 2)
        given = reference_from_json(again.parts[("rows",)])
        rows = await duck.rows(
            'select * from "odd name" join names using (id) join hits on hits.value = id, counts where id::text = n',
            tables={"odd name": given},
            input={
                "names": {"rows": [{"id": 1, "who": "Ada"}], "columns": ["id", "who"], "row_count": 1},
                "hits": [1, 2],
                "counts": [{"n": 1, "of": {"x": [1]}}, {"n": "two", "more": True}],
                "scalar": 5,
            },
        )
        assert rows == [
            {"id": 1, "price": 1.1, "who": "Ada", "value": 1, "n": "1", "of": {"x": [1]}, "more": None},
        ]
        nothing = {"known": {"rows": [], "columns": ["a"]}, "unknown": []}
        counted = "select (select count(a) from known) + (select count(*) from unknown) as n"
        assert await duck.rows(counted, input=nothing) == [{"n": 0}]


@asynchronous
async def test_types_that_duckdb_lacks_come_in_with_the_same_values(tmp_path: Path) -> None:
    fits, wide = Decimal("12345678901234567890.5"), Decimal("9" * 60)
    table = pa.table(
        {
            "fits": pa.array([fits], pa.decimal256(50, 1)),
            "wide": pa.array([wide], pa.decimal256(70, 0)),
            "half": pa.array([1.5], pa.float16()),
        }
    )
    async with duckdb_tool(tmp_path) as duck:
        given = {"t": await duck.keep(table)}
        schema = await schema_of(duck, "select * from t", tables=given)
        assert schema.types == [pa.decimal128(38, 1), pa.string(), pa.float32()]
        assert await duck.rows("select wide, half from t", tables=given) == [{"wide": "9" * 60, "half": 1.5}]


class Vanishing:
    """A stored table whose nearest copy is gone whenever somebody wants to map it, for the first few times."""

    def __init__(self, table: KeptTable, times: int) -> None:
        self._table = table
        self._times = times

    @property
    def reference(self) -> Mapping[str, object]:
        return self._table.reference

    async def open(self) -> OpenTable:
        opened = await self._table.open()
        self._times -= 1
        return GoneTable(opened) if self._times >= 0 else opened  # type: ignore[return-value]


class GoneTable:
    def __init__(self, opened: OpenTable) -> None:
        self.close = opened.close
        self.looked = opened.looked

    def mapped(self) -> MappedFile:
        return MappedFile(path=Path("/nowhere/at/all"), offset=0, length=1)


@pytest.mark.parametrize("times", [2, 3])
@asynchronous
async def test_a_copy_that_went_away_is_replaced_by_another(tmp_path: Path, times: int) -> None:
    async with duckdb_tool(tmp_path) as duck:
        table = KeptTable(duck.tables, await duck.keep(pa.table({"a": [1]})))
        given = {"input": {"t": None}, "given_tables": {("t",): Vanishing(table, times)}}
        if times == 2:
            assert await duck.rows("select * from t", **given) == [{"a": 1}]
        else:
            failure = await duck.failure("select * from t", **given)
            assert (failure.kind, failure.code) == ("missing_reference", "TABLE_GONE")


@asynchronous
async def test_tables_of_the_input_do_not_stay_in_the_database(tmp_path: Path) -> None:
    async with duckdb_tool(tmp_path) as duck:
        await duck.value("create table mine as select * from given", input={"given": [{"a": 1}]})
        assert await duck.rows("select table_name from duckdb_tables()") == [{"table_name": "mine"}]
        assert (await duck.failure("select * from given")).kind == "schema"


@asynchronous
async def test_the_database_belongs_to_the_execution_the_task_or_a_name(tmp_path: Path) -> None:
    async with duckdb_tool(tmp_path) as duck:
        make = "create table t as select 1 as a"
        await duck.value(make)
        assert await duck.rows("select * from t") == [{"a": 1}]
        for other in ({"execution": 8}, {"fields": {"database": ":memory:"}}, {"fields": {"database": "named.db"}}):
            await duck.value(make, **other)
        assert (await duck.failure("select * from t", fields={"database": ":memory:"})).kind == "schema"
        assert await duck.rows("select * from t", fields={"db_path": "/named.db"}, execution=9) == [{"a": 1}]
        other_owner = await duck.failure("select * from t", fields={"database": "named.db"}, tenant_id="other")
        assert other_owner.kind == "schema"


@asynchronous
async def test_another_database_of_the_owner_is_attached_by_a_credential(tmp_path: Path) -> None:
    async with duckdb_tool(tmp_path) as duck:
        await duck.value("create table t as select 1 as a", fields={"database": "past.db"})
        auth = {"past": Credential(name="c", type="duckdb", data=Secret({"database": "past.db"}))}
        assert await duck.rows("select * from past.t", auth=auth) == [{"a": 1}]
        assert (await duck.failure("drop table past.t", auth=auth)).message.count("read-only") >= 1
        absent = {"past": Credential(name="c", type="duckdb", data=Secret({"database": "no.db"}))}
        assert (await duck.failure("select 1", auth=absent)).code == "DUCKDB_DATABASE_MISSING"


# --- the sandbox -----------------------------------------------------------------------------------------


@asynchronous
async def test_nothing_leads_out_of_the_folder_of_the_execution(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.csv").write_text("a\n1\n")
    (tmp_path / "foreign.duckdb").touch()
    attempts = [
        "select * from read_text('/etc/passwd')",
        f"select * from '{outside}/x.csv'",
        "select * from '../../../../../../outside/x.csv'",
        "select * from read_csv('../main.duckdb.lock')",
        "select * from glob('/etc/*')",
        "select * from read_blob('/proc/self/environ')",
        f"copy (select 1) to '{outside}/out.csv'",
        f"attach '{tmp_path}/foreign.duckdb' as f",
        "attach '/etc/passwd' as f",
        f"export database '{outside}/e'",
        "select * from 'https://example.invalid/a.csv'",
        "set enable_external_access = true",
        "set memory_limit = '64GB'",
        "set threads = 64",
        "reset lock_configuration",
        f"set temp_directory = '{outside}'",
        "pragma enable_profiling = 'json'",
        f"set log_query_path = '{outside}/log'",
        "install httpfs",
        "load httpfs",
        "copy (select 1) to program 'cat'",
    ]
    async with duckdb_tool(tmp_path) as duck:
        failures = await asyncio.gather(*(duck.failure(sql, execution=number) for number, sql in enumerate(attempts)))
    wrong = {sql: failure for sql, failure in zip(attempts, failures, strict=True) if failure.kind != "policy"}
    assert wrong == {}
    assert sorted(path.name for path in outside.iterdir()) == ["x.csv"]


@asynchronous
async def test_files_of_the_execution_and_harmless_settings_may_be_used(tmp_path: Path) -> None:
    async with duckdb_tool(tmp_path) as duck:
        await duck.value(
            "copy (select 42 as a) to 'out.parquet'; attach 'side.duckdb' as side; create table side.t(a int)"
        )
        assert await duck.rows("select * from 'out.parquet'") == [{"a": 42}]
        assert await duck.rows("attach 'side.duckdb' as side; select * from side.t") == []
        rows = await duck.rows(
            "set TimeZone = 'Europe/Rome'; select extract(hour from timestamptz '2024-01-01 12:00+00') h"
        )
        assert rows == [{"h": 13}]
        assert (await duck.failure("select * from 'out.parquet'", execution=8)).kind == "storage_access"


@asynchronous
async def test_a_process_knows_nothing_of_the_worker_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with duckdb_tool(tmp_path) as duck:
        await duck.value("create table t as select 1 as a; select * from t")
        run = duck.folder / "default" / "default" / "runs" / "7"
        assert list((run / "tasks").iterdir()) == []
        assert {path.name for path in run.iterdir()} == {".lock", "files", "main.duckdb", "main.duckdb.lock", "tasks"}
        spare = duck.tool._children._spare
        assert spare is not None
        environment = Path(f"/proc/{spare.pid}/environ").read_bytes().split(b"\0")
        assert {entry.partition(b"=")[0] for entry in environment} <= {b"", b"PYTHONPATH"}
    assert spare.returncode is not None


# --- time, memory, death ---------------------------------------------------------------------------------


def tasks_under_way(duck: Duck) -> list[int]:
    """Processes that have a database of this test open."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                files = [os.readlink(link) for link in (entry / "fd").iterdir()]
            except OSError:
                continue
            if any(file.startswith(str(duck.folder)) and file.endswith(".duckdb") for file in files):
                found.append(int(entry.name))
    return found


async def until_under_way(duck: Duck) -> int:
    async with asyncio.timeout(60):
        while not (found := tasks_under_way(duck)):
            await asyncio.sleep(0.02)
    return found[0]


@asynchronous
async def test_a_time_limit_interrupts_and_the_database_is_free_again(tmp_path: Path) -> None:
    async with duckdb_tool(tmp_path) as duck:
        await duck.value("create table t as select 1 as a")
        failure = await duck.failure(f"insert into t values (2); {ENDLESS}", timeout=1.0)
        assert (failure.kind, failure.code, failure.details) == ("timeout", "DUCKDB_INTERRUPT", {"statement": 1})
        assert tasks_under_way(duck) == []
        assert await duck.rows("select count(*) n from t") == [{"n": 2}]


@asynchronous
async def test_a_cancelled_task_ends_its_process_and_the_worker_goes_on_meanwhile(tmp_path: Path) -> None:
    async with duckdb_tool(tmp_path) as duck:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(duck.call(ENDLESS))
            pid = await until_under_way(duck)
            waiting = group.create_task(duck.failure("select 1", timeout=0.2))
            assert (await waiting).code == "DUCKDB_BUSY"
            assert await duck.rows("select 2 as n", execution=8) == [{"n": 2}]
            task.cancel()
            await asyncio.wait([task])
        assert task.cancelled()
        assert not Path(f"/proc/{pid}").exists()
        assert await duck.rows("select 1 as n") == [{"n": 1}]


@asynchronous
async def test_a_killed_process_fails_its_task_and_nothing_else(tmp_path: Path) -> None:
    async with duckdb_tool(tmp_path) as duck:
        await duck.value("create table t as select 1 as a")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(duck.failure(f"insert into t values (2); begin; delete from t; {ENDLESS}"))
            pid = await until_under_way(duck)
            async with asyncio.timeout(60):
                # Until its first statement is done.
                while not list(duck.folder.glob("*/*/runs/7/*.wal")):
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.3)
            os.kill(pid, signal.SIGKILL)
        failure = task.result()
        assert (failure.code, "SIGKILL" in failure.message) == ("DUCKDB_CRASHED", True)
        assert await duck.rows("select count(*) n from t") == [{"n": 2}]


@asynchronous
async def test_tasks_with_the_same_file_wait_for_each_other_also_between_workers(tmp_path: Path) -> None:
    async with duckdb_tool(tmp_path) as duck, duckdb_tool(tmp_path) as other:
        await duck.value("create table t(a int)")
        add = "insert into t select coalesce(max(a), 0) + 1 from t"
        await asyncio.gather(*((duck, other)[number % 2].value(add) for number in range(10)))
        assert await duck.rows("select count(distinct a) n, max(a) m from t") == [{"n": 10, "m": 10}]


@asynchronous
async def test_a_process_does_not_outlive_its_worker(tmp_path: Path) -> None:
    program = f"""
        import asyncio
        from pathlib import Path
        from tests.support.duckdb import duckdb_tool

        async def main():
            async with duckdb_tool(Path({str(tmp_path)!r})) as duck:
                await duck.call({ENDLESS!r})

        asyncio.run(main())
    """
    worker = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], cwd=Path(__file__).parents[2])
    try:
        async with duckdb_tool(tmp_path) as duck:
            await until_under_way(duck)
            worker.kill()
            assert await duck.rows("select 1 as n") == [{"n": 1}]
            assert tasks_under_way(duck) == []
    finally:
        worker.kill()
        worker.wait()


@asynchronous
async def test_memory_is_bounded_and_what_does_not_fit_is_spilled(tmp_path: Path) -> None:
    async with duckdb_tool(tmp_path, duckdb_memory_bytes=64 * 1024**2, duckdb_threads=1) as duck:
        large = "select range as a, md5(range::text) as b from range(1000000)"
        value = await duck.call(f"{large} order by b")
        assert value.failure is None, value.failure
        assert reference_from_json(value.parts[("rows",)]).row_count == 1_000_000
        failure = await duck.failure(f"select list(b) from ({large})")
        assert (failure.kind, failure.code) == ("storage_quota", "DUCKDB_OUTOFMEMORY")
        assert "NOETL_DUCKDB_MEMORY_MB" in failure.message


@pytest.mark.parametrize("folder", [None])
@asynchronous
async def test_without_a_folder_the_tool_says_so(tmp_path: Path, folder: None) -> None:
    async with duckdb_tool(tmp_path) as duck:
        duck.tool._places = folder
        assert (await duck.failure("select 1")).kind == "unsupported"


def test_the_worker_itself_loads_no_duckdb() -> None:
    code = "import sys, noetl.tools.duckdb.tool; print([n for n in ('duckdb', 'pyarrow') if n in sys.modules])"
    answer = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
