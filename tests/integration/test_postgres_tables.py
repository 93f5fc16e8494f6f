"""Rows of the tool `postgres` as Arrow tables: exact types, the same plain values as before, bounded memory."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.test_postgres_tool import VALUES
from tests.support.aio import asynchronous
from tests.support.databases import empty_database
from tests.support.sql import KeptTables, Sql, running_sql, tool_call


@pytest.fixture(scope="module")
def database() -> str:
    return empty_database().split("/")[3].split("?")[0]


# --- the same values -------------------------------------------------------------------------------------


@asynchronous
async def test_every_value_is_seen_as_without_a_table(database: str) -> None:
    script = ";".join(f"SELECT {expression}" for expression, _ in VALUES)
    async with running_sql(database, tables=KeptTables()) as sql:
        value = await sql.value(script)
    found = []
    for number, (expression, _) in enumerate(VALUES):
        (row,) = value[f"command_{number}"]["rows"]
        found.append((expression, *row.values()))
    assert found == VALUES
    assert all(type(got[1]) is type(expected) for got, (_, expected) in zip(found, VALUES, strict=True))


# Columns of several values: each alone would have another type than all together.
COLUMNS = [
    "(10.00::numeric), (2.50), (-3.25), (NULL)",
    "(10::numeric), (20), (NULL)",
    "(10::numeric), (2.5), (0.0000001)",
    "(1e30::numeric), (0.000000000000000000001)",
    "(1e60::numeric), (0.5)",
    "(1::numeric), ('NaN'), (2.50)",
    "(1.5::numeric), ('Infinity'), ('-Infinity')",
    "(('1' || repeat('0', 120))::numeric), (2.5)",
    "(1.1::float4), ('NaN'), (NULL), ('-Infinity'), (1e-45)",
    "(0.1::float8), ('NaN'), (1e308), (-0.0)",
    "(date '2024-02-29'), ('infinity'), ('0044-03-15 BC'), ('12024-01-01'), ('0001-01-01'), ('9999-12-31'), (NULL)",
    "(date '0001-01-01'), ('9999-12-31')",
    "(timestamp '2024-02-29 23:59:59.5'), ('-infinity'), ('0044-03-15 12:00 BC'), ('294276-12-31 23:59:59.999999')",
    "(timestamp '0001-01-01'), ('9999-12-31 23:59:59.999999'), ('2024-01-01 00:00:00.000001')",
    "(timestamptz '2024-02-29 12:00+05:30'), ('infinity'), (NULL)",
    "(timestamptz '2024-02-29 12:00+05:30'), ('1969-12-31 23:59:59.999999Z')",
    "(time '24:00'), ('00:00'), ('23:59:59.999999')",
    "(time '00:00'), ('23:59:59.999999')",
    "(timetz '10:00-02:30'), ('24:00+01')",
    "(interval '1 year 2 months 3 days 04:05:06.5'), ('-1 month 2 days -00:00:30'), ('0'), (NULL)",
    "(interval '3000000 hours'), ('1 day'), ('-00:00:00.000001')",
    "('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid), (NULL)",
    "('\\x00ff'::bytea), (''), (NULL)",
    "('{\"a\": [1, 2.0, 1e400]}'::json), ('null'), ('\"half \\ud800\"'), (NULL), (' [1]'), ('12345678901234567890.5')",
    "('{\"a\": 1, \"b\": {}}'::jsonb), ('3'), ('\"x\"')",
    "('{1,NULL,3}'::int4[]), ('{}'), (NULL), ('{4}')",
    "('{1,2}'::int4[]), ('{{1,2},{3,4}}'), ('[0:1]={7,8}'), (NULL)",
    "('{1.5,2}'::numeric[]), ('{NaN}'), (NULL)",
    "('{1,2}'::numeric[]), ('{3.5}')",
    "('{2024-02-29,infinity}'::date[]), ('{}')",
    "('{2024-02-29}'::date[]), (NULL)",
    "('{\"{}\"}'::jsonb[]), (NULL)",
    "('{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,NULL}'::uuid[]), (NULL)",
    "('{10.0.0.1/24,NULL}'::inet[]), (NULL)",
    "('{1 day,NULL}'::interval[]), (NULL)",
    "('{1.1,NaN}'::float4[]), (NULL)",
    "(ROW(1, 'x', NULL, date 'infinity')), (NULL)",
    "(int4range(1, 5)), ('empty'), (NULL)",
    "('{[1,2),[5,6)}'::int4multirange), ('{}'), (NULL)",
    "('10.0.0.1/24'::inet), ('::1'), (NULL)",
    "(point(1, 2)), (NULL)",
    "(B'101'), (B'0'), (NULL)",
    "('16/B374D848'::pg_lsn), (NULL)",
    "('a'::\"char\"), (NULL)",
    "(true), (false), (NULL)",
    "(''::text), ('é😀'), (NULL)",
    "('12.34'::money), (NULL)",
    "('1'::xid), (NULL)",
    "('(0,1)'::tid), (NULL)",
    "(NULL::numeric), (NULL)",
    "(NULL::text), (NULL)",
]


@asynchronous
async def test_columns_are_seen_as_without_a_table(database: str) -> None:
    script = ";".join(f"SELECT * FROM (VALUES {column}) AS t (x)" for column in COLUMNS)
    async with running_sql(database) as sql:
        plain = await sql.value(script)
    async with running_sql(database, tables=KeptTables()) as sql:
        kept = await sql.value(script)
    for number, column in enumerate(COLUMNS):
        seen, expected = kept[f"command_{number}"], plain[f"command_{number}"]
        # As JSON, because 1 and 1.0 are equal and printed otherwise.
        assert json.dumps(seen, allow_nan=False) == json.dumps(expected), column


@asynchronous
async def test_types_of_the_user_are_seen_as_without_a_table(database: str) -> None:
    types = """CREATE TYPE mood AS ENUM ('glad', 'sad'); CREATE DOMAIN amount AS numeric(10, 2);
        CREATE TYPE order_line AS (item text, price numeric, body jsonb, at date); CREATE DOMAIN body AS jsonb"""
    query = """SELECT 'glad'::mood AS a, ARRAY['sad'::mood] AS b, 1.50::amount AS c,
        ROW('x', 2, '{"a": 1}', '2024-01-01')::order_line AS d, ARRAY[ROW('y', 2.5, NULL, NULL)::order_line] AS e,
        '{"b": 2}'::body AS f, ARRAY['[3]'::body] AS g"""
    async with running_sql(database) as sql:
        await sql.value(types)
        plain = await sql.value(query)
    tables = KeptTables()
    async with running_sql(database, tables=tables) as sql:
        assert json.dumps(await sql.value(query)) == json.dumps(plain)
    assert tables.all[-1].schema.field("c").type == pa.decimal128(38, 2)
    assert tables.all[-1].schema.field("a").type == pa.string()


# --- exact types -----------------------------------------------------------------------------------------

TYPES = [
    ("true", pa.bool_()),
    ("1::int2", pa.int16()),
    ("1::int4", pa.int32()),
    ("1::int8", pa.int64()),
    ("1::oid", pa.uint32()),
    ("1::float4", pa.float32()),
    ("1::float8", pa.float64()),
    ("1.50::numeric(10, 2)", pa.decimal128(38, 2)),
    ("1::numeric", pa.decimal128(38, 0)),
    ("1e40::numeric", pa.decimal256(76, 0)),
    ("'NaN'::numeric", pa.string()),
    ("'x'::text", pa.string()),
    ("'x'::char(3)", pa.string()),
    ("'x'::bytea", pa.binary()),
    ("date '2024-01-01'", pa.date32()),
    ("date 'infinity'", pa.string()),
    ("time '12:00'", pa.time64("us")),
    ("timetz '12:00+01'", pa.string()),
    ("timestamp '2024-01-01'", pa.timestamp("us")),
    ("timestamptz '2024-01-01'", pa.timestamp("us", "UTC")),
    ("interval '1 day'", pa.month_day_nano_interval()),
    ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid", pa.uuid()),
    ("'{}'::json", pa.json_()),
    ("'{}'::jsonb", pa.json_()),
    ("'{1}'::int4[]", pa.list_(pa.int32())),
    ("'{{1}}'::int4[]", pa.json_()),
    ("'{1.25}'::numeric[]", pa.list_(pa.decimal128(38, 2))),
    ("ROW(1, 2)", pa.json_()),
    ("int4range(1, 2)", pa.string()),
    ("'10.0.0.1'::inet", pa.string()),
]


@asynchronous
async def test_columns_have_exact_types(database: str) -> None:
    tables = KeptTables()
    async with running_sql(database, tables=tables) as sql:
        await sql.value(";".join(f"SELECT {expression} AS x" for expression, _ in TYPES))
    found = [
        (expression, table.schema.field("x").type) for (expression, _), table in zip(TYPES, tables.all, strict=True)
    ]
    assert found == TYPES


@asynchronous
async def test_nothing_is_lost_that_a_template_does_not_see(database: str) -> None:
    """Digits beyond a float, NaN and Infinity are in the table."""
    tables = KeptTables()
    async with running_sql(database, tables=tables) as sql:
        await sql.value(
            """SELECT 12345678901234567890.123456789::numeric AS a, 'NaN'::float8 AS b, 'Infinity'::numeric AS c,
            '{"n": 1.00000000000000000000001}'::json AS d"""
        )
    (table,) = tables.all
    (row,) = table.to_pylist()
    assert str(row["a"]) == "12345678901234567890.123456789"
    assert row["b"] != row["b"]
    assert row["c"] == "Infinity"
    assert table.column("d").chunk(0).storage.to_pylist() == ['{"n": 1.00000000000000000000001}']


# --- many rows -------------------------------------------------------------------------------------------

# The first odd value comes late: by then most rows are waiting with another type.
LATE = """SELECT g AS n,
    CASE WHEN g = 30000 THEN date 'infinity' ELSE date '2024-01-01' + g % 100 END AS d,
    CASE WHEN g = 20000 THEN timestamptz '0044-03-15 BC' ELSE timestamptz '2024-01-01Z' + g * interval '1 s' END AS t,
    CASE WHEN g = 10000 THEN 0.125 WHEN g = 35000 THEN 1.5e-20 ELSE g::numeric END AS m,
    CASE WHEN g = 25000 THEN 'NaN'::numeric ELSE g / 4.0 END AS x,
    CASE WHEN g = 28000 THEN '{{1},{2}}'::int4[] ELSE ARRAY[g] END AS a,
    CASE WHEN g = 15000 THEN time '24:00' ELSE time '12:00' END AS c,
    CASE WHEN g = 16000 THEN interval '3000000 hours' ELSE g * interval '1 s' END AS i,
    'text ' || g AS s
    FROM generate_series(1, 40000) AS g"""


@asynchronous
async def test_a_type_that_stops_fitting_late_is_changed_for_all_rows(database: str) -> None:
    async with running_sql(database) as sql:
        plain = await sql.value(LATE)
    tables = KeptTables()
    async with running_sql(database, tables=tables) as sql:
        kept = await sql.value(LATE)
    assert kept["row_count"] == 40000
    assert json.dumps(kept["rows"]) == json.dumps(plain["rows"])
    (table,) = tables.all
    names = {"d": pa.string(), "t": pa.string(), "m": pa.decimal128(38, 21), "x": pa.string(), "a": pa.json_()}
    assert {name: table.schema.field(name).type for name in names} == names


@asynchronous
async def test_rows_of_the_last_statement_are_stored_once(database: str) -> None:
    tables = KeptTables()
    async with running_sql(database, tables=tables) as sql:
        result = await sql.run("SELECT 1 AS a; CREATE TEMP TABLE t (x int); SELECT 2 AS b WHERE false")
    value: Any = result.value
    assert len(tables.all) == 2
    assert set(result.parts) == {("rows",), ("command_0", "rows"), ("command_2", "rows")}
    assert result.parts[("rows",)] is result.parts[("command_2", "rows")]
    assert (value["row_count"], value["columns"], value["rows"]) == (0, ["b"], None)
    assert value["command_1"] == {"status": "success", "row_count": 0, "affected_rows": 0}
    assert tables.all[1].schema.names == ["b"]


@asynchronous
async def test_earlier_rows_stay_when_a_later_statement_fails(database: str) -> None:
    tables = KeptTables()
    async with running_sql(database, tables=tables) as sql:
        result = await sql.run("SELECT 1 AS a; SELECT 1 / (g - 5000) AS b FROM generate_series(1, 9000) AS g; SELECT 3")
        assert (await sql.value("SELECT 4 AS x"))["rows"] == [{"x": 4}]
    assert result.failure is not None
    assert result.failure.code == "PG_22012"
    assert result.failure.details["statement"] == 1
    assert set(result.parts) == {("command_0", "rows")}
    assert isinstance(result.value, dict)
    assert result.value["statement_count"] == 1


@pytest.mark.parametrize("count", [10, 5_000])
@asynchronous
async def test_changes_with_returning_are_made_once_and_committed(count: int, database: str) -> None:
    name, even = f"made_{count}", count // 2 - 1
    async with running_sql(database, tables=KeptTables()) as sql:
        value = await sql.value(
            f"""CREATE TABLE {name} (id serial, n int);
            INSERT INTO {name} (n) SELECT g FROM generate_series(1, {count}) AS g RETURNING id, n;
            UPDATE {name} SET n = n + 1 WHERE n > 1 RETURNING n;
            WITH gone AS (DELETE FROM {name} WHERE n % 2 = 0 RETURNING n) SELECT n FROM gone;
            INSERT INTO {name} (n) VALUES (-1), (-2) RETURNING id"""
        )
        left = await sql.scalar(f"SELECT count(*) FROM {name}")
        ids = await sql.scalar(f"SELECT max(id) FROM {name}")
    assert [value[f"command_{n}"]["row_count"] for n in range(1, 5)] == [count, count - 1, even, 2]
    assert [row["n"] for row in value["command_1"]["rows"]] == list(range(1, count + 1))
    assert (left, ids) == (count - even + 2, count + 2)


@asynchronous
async def test_a_transaction_of_the_text_is_left_alone(database: str) -> None:
    async with running_sql(database, tables=KeptTables()) as sql:
        value = await sql.value(
            """BEGIN; CREATE TABLE whole (n int); INSERT INTO whole SELECT generate_series(1, 100) RETURNING n;
            SELECT n FROM whole; ROLLBACK; SELECT to_regclass('whole') AS there"""
        )
        half = await sql.run("BEGIN; SELECT generate_series(1, 500)")
    assert [value[f"command_{n}"]["row_count"] for n in (2, 3)] == [100, 100]
    assert value["rows"] == [{"there": None}]
    assert half.failure is not None
    assert "transaction open" in half.failure.message


@pytest.mark.parametrize("count", [3, 5_000])
@asynchronous
async def test_a_table_that_was_read_in_a_transaction_of_the_text_can_be_changed_in_it(
    count: int, database: str
) -> None:
    name = f"read_{count}"
    async with running_sql(database, tables=KeptTables()) as sql:
        value = await sql.value(
            f"""BEGIN; CREATE TABLE {name} AS SELECT generate_series(1, {count}) AS n; SELECT n FROM {name};
            ALTER TABLE {name} ADD COLUMN m int; DROP TABLE {name}; COMMIT"""
        )
    assert value["command_2"]["row_count"] == count
    assert [row["n"] for row in value["command_2"]["rows"]] == list(range(1, count + 1))


@asynchronous
async def test_statements_that_refuse_transactions_run_and_give_their_rows(database: str) -> None:
    async with running_sql(database, tables=KeptTables()) as sql:
        value = await sql.value(
            """CREATE TABLE filled (n int); VACUUM filled;
            CREATE PROCEDURE fill(INOUT n int) LANGUAGE plpgsql AS $$
            BEGIN INSERT INTO filled VALUES (n); COMMIT; INSERT INTO filled VALUES (2); ROLLBACK; n := 7; END $$;
            CALL fill(1); SHOW server_encoding; EXPLAIN SELECT 1; SELECT array_agg(n) AS n FROM filled"""
        )
    assert value["command_3"]["rows"] == [{"n": 7}]
    assert value["command_4"]["rows"] == [{"server_encoding": "UTF8"}]
    assert value["command_5"]["rows"][0]["QUERY PLAN"].startswith("Result")
    assert value["rows"] == [{"n": [1]}]


@asynchronous
async def test_values_are_bound_to_statements_that_are_read_in_pieces(database: str) -> None:
    async with running_sql(database, tables=KeptTables()) as sql:
        value = await sql.value("SELECT g, $2::date AS d FROM generate_series(1, $1) AS g", params=[1000, "2024-02-29"])
        wrong = await sql.run("SELECT $1::int AS a", params=[1, 2])
        assert (await sql.value("SELECT 1 AS x"))["rows"] == [{"x": 1}]
    assert value["row_count"] == 1000
    assert value["rows"][999] == {"g": 1000, "d": "2024-02-29"}
    assert wrong.failure is not None
    assert wrong.failure.kind == "config"


@asynchronous
async def test_what_cannot_be_read_is_told_and_what_was_done_stays(database: str) -> None:
    deep = "repeat('[', 2000) || repeat(']', 2000)"
    async with running_sql(database, tables=KeptTables()) as sql:
        await sql.value("CREATE TABLE deep (id int, body json)")
        failed = await sql.run(f"INSERT INTO deep SELECT 1, ({deep})::json RETURNING body")
        assert await sql.scalar("SELECT array_agg(id) FROM deep") == [1]
    assert failed.failure is not None
    assert failed.failure.kind == "parse"
    assert "cast the column to text" in failed.failure.message


async def _connections(sql: Sql) -> list[str]:
    rows = (
        await sql.value(
            """SELECT state FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
            AND backend_type = 'client backend' AND state <> 'idle'"""
        )
    )["rows"]
    return [str(row["state"]) for row in rows]


@asynchronous
async def test_a_time_limit_in_the_middle_of_the_rows_leaves_nothing_open(database: str) -> None:
    slow = "SELECT g, pg_sleep(CASE WHEN g > 3000 THEN 5 ELSE 0 END)::text FROM generate_series(1, 1000000) AS g"
    async with running_sql(database, tables=KeptTables()) as sql:
        result = await sql.tool.run(tool_call(sql.auth, {"command": slow}, timeout_seconds=0.7, tables=sql.tables))
        assert await _connections(sql) == []
    assert result.failure is not None
    assert result.failure.kind == "timeout"
    assert result.parts == {}


# --- when there is no table ------------------------------------------------------------------------------


@asynchronous
async def test_few_rows_of_one_of_many_calls_are_held(database: str) -> None:
    tables = KeptTables()
    query = "SELECT g, 1.50 AS m, date '2024-01-01' AS d, repeat('x', {size}) AS t FROM generate_series(1, {rows}) AS g"
    async with running_sql(database, tables=tables) as sql:
        results = [
            await sql.tool.run(tool_call(sql.auth, {"command": text}, tables=tables, is_row=True))
            for text in (
                query.format(rows=2, size=3),
                query.format(rows=100, size=3),
                query.format(rows=2, size=50_000),
            )
        ]
        changed = await sql.tool.run(
            tool_call(sql.auth, {"command": "CREATE TEMP TABLE t (x int)"}, tables=tables, is_row=True)
        )
    few: Any = results[0].value
    assert results[0].parts == changed.parts == {}
    assert few["rows"] == [{"g": number, "m": 1.5, "d": "2024-01-01", "t": "xxx"} for number in (1, 2)]
    assert few["rows"] is few["command_0"]["rows"]
    assert [set(result.parts) for result in results[1:]] == [{("rows",), ("command_0", "rows")}] * 2
    assert [table.num_rows for table in tables.all] == [100, 2]


class Broken(KeptTables):
    async def keep(self, source: Any) -> dict[str, object]:
        del source
        raise OSError(errno.ENOSPC, "full")


@asynchronous
async def test_a_store_that_fails_is_not_taken_for_the_server(database: str) -> None:
    async with running_sql(database, tables=Broken()) as sql:
        result = await sql.run("CREATE TABLE stays (n int); INSERT INTO stays SELECT 1 RETURNING n")
    assert result.failure is not None
    assert (result.failure.kind, result.failure.code) == ("storage_quota", "NO_SPACE")
    assert "was carried out" in result.failure.message
    async with running_sql(database) as sql:
        assert await sql.scalar("SELECT n FROM stays") == 1


def test_the_tool_loads_no_arrow_before_there_are_rows() -> None:
    code = "import sys, noetl.tools.postgres.tool; print('pyarrow' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
