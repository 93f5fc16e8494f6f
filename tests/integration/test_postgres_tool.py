"""The tool `postgres` with a real server: statements, results, values, failures."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from noetl.core.expression import compile_value, render_value
from noetl.engine.work.pipeline.outcome import TaskOutcome, error_document
from tests.support.aio import asynchronous
from tests.support.databases import empty_database
from tests.support.sql import Sql, credential, login, new_tool, running_sql, tool_call


@pytest.fixture(scope="module")
def database() -> str:
    """The name of a database of this module's own."""
    return empty_database().split("/")[3].split("?")[0]


# --- statements and their results ------------------------------------------------------------------------

SCRIPT = """
-- it's a comment; with an apostrophe and a semicolon
CREATE TABLE IF NOT EXISTS readings (
    id integer GENERATED ALWAYS AS IDENTITY, name text, level numeric(10, 2), taken_at timestamptz, body jsonb);
/* a block; /* nested; don't stop */ still; */
CREATE OR REPLACE FUNCTION twice(x numeric) RETURNS numeric LANGUAGE plpgsql AS $body$
BEGIN
    -- 'quoted; in a body
    RETURN x * 2;
END;
$body$;
INSERT INTO readings (name, level, taken_at, body) VALUES
    ('it''s 100%; done', 12.50, '2024-02-29 12:00:00+02', '{"tags": ["a;b", "c''d"], "n": 1.50}'),
    ('plain', 3, '2024-03-01', 'null')
RETURNING id, name, level, taken_at, body;
SELECT count(*) AS total, sum(level) AS sum, avg(id) AS mean, twice(max(level)) AS top, 17 % 5 AS rest
FROM readings WHERE name LIKE '%' -- the end; really
;
-- nothing follows
"""


@asynchronous
async def test_a_script_gives_the_last_result_and_each_of_them(database: str) -> None:
    async with running_sql(database) as sql:
        value = await sql.value(SCRIPT)
    assert value["status"] == "success"
    assert value["statement_count"] == 4
    assert [key for key in value if key.startswith("command_")] == [f"command_{n}" for n in range(4)]
    assert value["command_0"] == {"status": "success", "row_count": 0, "affected_rows": 0}
    inserted = value["command_2"]
    assert inserted["columns"] == ["id", "name", "level", "taken_at", "body"]
    assert inserted["row_count"] == 2
    assert inserted["rows"] == [
        {
            "id": 1,
            "name": "it's 100%; done",
            "level": 12.5,
            "taken_at": "2024-02-29T10:00:00+00:00",
            "body": {"tags": ["a;b", "c'd"], "n": 1.5},
        },
        {"id": 2, "name": "plain", "level": 3.0, "taken_at": "2024-03-01T00:00:00+00:00", "body": None},
    ]
    assert value["rows"] == [{"total": 2, "sum": 15.5, "mean": 1.5, "top": 25.0, "rest": 2}]
    assert value["row_count"] == 1
    assert value["columns"] == ["total", "sum", "mean", "top", "rest"]
    # One set of rows, two names.
    assert value["rows"] is value["command_3"]["rows"]
    json.dumps(value, allow_nan=False)


@asynchronous
async def test_the_first_failing_statement_stops_the_rest_and_the_earlier_ones_stay(database: str) -> None:
    script = """
    CREATE TABLE kept (id integer PRIMARY KEY);
    INSERT INTO kept VALUES (1) RETURNING id;
    INSERT INTO kept VALUES (1);
    INSERT INTO kept VALUES (2)
    """
    async with running_sql(database) as sql:
        result = await sql.run(script)
        assert await sql.scalar("SELECT array_agg(id) FROM kept") == [1]
    failure = result.failure
    assert failure is not None
    assert (failure.kind, failure.code, failure.retryable) == ("db_constraint", "PG_23505", False)
    assert "kept_pkey" in failure.message
    assert "Key (id)=(1) already exists" in failure.message
    assert failure.details == {"statement": 2, "constraint": "kept_pkey", "table": "kept", "schema": "public"} | {
        "sqlstate": "23505"
    }
    assert result.facts == {"pg": {"code": "23505", "sqlstate": "23505"}}
    assert result.value == {
        "status": "error",
        "statement_count": 2,
        "command_0": {"status": "success", "row_count": 0, "affected_rows": 0},
        "command_1": {"status": "success", "rows": [{"id": 1}], "row_count": 1, "columns": ["id"]},
    }
    # What a playbook sees of it.
    assert error_document(failure)["pg_code"] == "23505"
    outcome = TaskOutcome(
        value=result.value, failure=failure, attempt=1, duration_ms=1, started_at="", facts=result.facts
    )
    assert outcome.output()["pg"] == {"code": "23505", "sqlstate": "23505"}


@pytest.mark.parametrize("name", ["command", "query", "sql", "cmd", "commands", "queries", "cmds"])
@asynchronous
async def test_every_name_of_the_field_takes_a_text_or_a_list(name: str, database: str) -> None:
    encoded = base64.b64encode(b"SELECT 1 AS x; SELECT 2 AS x").decode()
    async with running_sql(database) as sql:
        for given in (
            {name: "SELECT 1 AS x; SELECT 2 AS x"},
            {name: ["SELECT 1 AS x;", "SELECT 2 AS x"]},
            {f"{name}_b64": encoded},
            {f"{name}_b64": [encoded], name: "SELECT 3"},
        ):
            value = await sql.value(**given)
            assert value["statement_count"] == 2
            assert (value["command_0"]["rows"], value["rows"]) == ([{"x": 1}], [{"x": 2}])


@asynchronous
async def test_affected_rows_are_counted_where_no_rows_come_back(database: str) -> None:
    async with running_sql(database) as sql:
        value = await sql.value(
            """CREATE TABLE counted AS SELECT g AS id FROM generate_series(1, 5) AS g;
            UPDATE counted SET id = id + 10 WHERE id > 2;
            WITH gone AS (DELETE FROM counted WHERE id < 3 RETURNING id) SELECT id FROM gone ORDER BY id;
            DELETE FROM counted"""
        )
        empty = await sql.value("SELECT id FROM counted")
    assert [value[f"command_{n}"]["row_count"] for n in range(4)] == [5, 3, 2, 3]
    assert value["command_2"]["rows"] == [{"id": 1}, {"id": 2}]
    assert "rows" not in value
    assert "columns" not in value
    assert value["affected_rows"] == value["row_count"] == 3
    assert (empty["rows"], empty["row_count"], empty["columns"]) == ([], 0, ["id"])


@asynchronous
async def test_statements_that_refuse_transactions_run(database: str) -> None:
    async with running_sql(database, "postgres") as sql:
        await sql.value(
            """CREATE DATABASE made_by_a_task; ALTER DATABASE made_by_a_task CONNECTION LIMIT 3;
            DROP DATABASE made_by_a_task;
            CREATE TABLE vacuumed (id integer); VACUUM vacuumed;
            CREATE PROCEDURE fill() LANGUAGE plpgsql AS $$
            BEGIN INSERT INTO vacuumed VALUES (1); COMMIT; INSERT INTO vacuumed VALUES (2); ROLLBACK; END $$;
            CALL fill()"""
        )
        assert await sql.scalar("SELECT array_agg(id) FROM vacuumed") == [1]


@asynchronous
async def test_a_transaction_of_the_text_commits_as_a_whole_or_not_at_all(database: str) -> None:
    async with running_sql(database) as sql:
        await sql.value("CREATE TABLE together (id integer PRIMARY KEY)")
        await sql.value("BEGIN; INSERT INTO together VALUES (1); INSERT INTO together VALUES (2); COMMIT")
        failed = await sql.run("BEGIN; INSERT INTO together VALUES (3); INSERT INTO together VALUES (3); COMMIT")
        left_open = await sql.run("BEGIN; INSERT INTO together VALUES (4)")
        assert await sql.scalar("SELECT array_agg(id ORDER BY id) FROM together") == [1, 2]
    assert failed.failure is not None
    assert failed.failure.code == "PG_23505"
    assert left_open.failure is not None
    assert left_open.failure.kind == "config"
    assert "transaction open" in left_open.failure.message


@asynchronous
async def test_rows_are_mappings_also_when_there_are_many_or_names_repeat(database: str) -> None:
    async with running_sql(database) as sql:
        many = await sql.value("SELECT g AS n, g * 1.5 AS m FROM generate_series(1, 5001) AS g")
        twice = await sql.value("SELECT 1 AS x, 2 AS y, 3 AS x")
    assert many["row_count"] == len(many["rows"]) == 5001
    assert many["rows"][5000] == {"n": 5001, "m": 7501.5}
    assert twice["columns"] == ["x", "y", "x"]
    assert twice["rows"] == [{"x": 3, "y": 2}]


@asynchronous
async def test_a_value_as_json_between_quotes_is_a_valid_literal(database: str) -> None:
    awkward = {"text": 'it\'s "quoted" \\ and\nnew; -- %s {{ x }} é', "list": [1, None, {"a": "''"}]}
    source = """SELECT '{{ v | tojson | replace("'", "''") }}'::jsonb AS body,
        '{{ v.text | replace("'", "''") }}' AS text"""
    text = render_value(compile_value(source), {"v": awkward})
    async with running_sql(database) as sql:
        (row,) = (await sql.value(text))["rows"]
    assert row == {"body": awkward, "text": awkward["text"]}


# --- values ----------------------------------------------------------------------------------------------

VALUES = [
    ("1::int2", 1),
    ("9223372036854775807::int8", 9223372036854775807),
    ("true", True),
    ("NULL", None),
    ("10::numeric", 10),
    ("10.00::numeric", 10.0),
    ("-0.000000001::numeric", -1e-9),
    ("1e30::numeric", 10**30),
    ("sum(x) FROM (VALUES (1::int8), (2)) AS t (x)", 3),
    ("avg(x) FROM (VALUES (1), (2)) AS t (x)", 1.5),
    ("'NaN'::numeric", None),
    ("'-Infinity'::numeric", None),
    ("('1' || repeat('0', 500))::numeric", None),
    ("1.1::float4", 1.1),
    ("'NaN'::float4", None),
    ("16777216::float4", 16777216.0),
    ("3.4028235e38::float4", 3.4028235e38),
    ("0.1::float8", 0.1),
    ("'Infinity'::float8", None),
    ("'é%s'::text", "é%s"),
    ("'ab'::char(4)", "ab  "),
    ("'a'::\"char\"", "a"),
    ("date '2024-02-29'", "2024-02-29"),
    ("date 'infinity'", "infinity"),
    ("date '0044-03-15 BC'", "-0043-03-15"),
    ("date '0001-01-01 BC'", "0000-01-01"),
    ("date '12024-02-29'", "+12024-02-29"),
    ("timestamp '2024-02-29 23:59:59.5'", "2024-02-29T23:59:59.500000"),
    ("timestamp '-infinity'", "-infinity"),
    ("timestamp '0044-03-15 12:00 BC'", "-0043-03-15T12:00:00"),
    ("timestamptz '2024-02-29 12:00+05:30'", "2024-02-29T06:30:00+00:00"),
    ("timestamptz 'infinity'", "infinity"),
    ("time '24:00'", "24:00:00"),
    ("time '01:02:03.000004'", "01:02:03.000004"),
    ("timetz '10:00-02:30'", "10:00:00-02:30"),
    ("timetz '10:00+00:00:01'", "10:00:00+00:00:01"),
    ("interval '1 year 2 months 3 days 04:05:06.5'", "P1Y2M3DT4H5M6.5S"),
    ("interval '-1 month 2 days -00:00:30'", "P-1M2DT-30S"),
    ("interval '0'", "PT0S"),
    ("interval '90 seconds'", "PT1M30S"),
    ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("'\\x00ff'::bytea", base64.b64encode(b"\x00\xff").decode()),
    ('\'{"a": [1, 2.0, null, "x"]}\'::json', {"a": [1, 2.0, None, "x"]}),
    ("'[1e400, 1]'::json", [None, 1]),
    ("'\"text\"'::jsonb", "text"),
    ("'\"half \\ud800 a character\"'::json", "half � a character"),
    ("'\"whole \\ud83d\\ude00\"'::json", "whole 😀"),
    ("('1' || repeat('0', 5000))::jsonb", None),
    ("'{1,NULL,3}'::int4[]", [1, None, 3]),
    ("ARRAY[[1.5, 2], [3, 4]]::numeric[]", [[1.5, 2], [3, 4]]),
    ("ARRAY['{\"a\": 1}'::jsonb]", [{"a": 1}]),
    ("ARRAY[date '2024-02-29', NULL]", ["2024-02-29", None]),
    ("ARRAY[timestamptz '2024-01-01Z']", ["2024-01-01T00:00:00+00:00"]),
    ("ARRAY[1.1::float4]", [1.1]),
    ("ARRAY['NaN'::float8]", [None]),
    ("ARRAY['\\x00'::bytea]", ["AA=="]),
    ("'{}'::text[]", []),
    ("int4range(1, 5)", "[1,5)"),
    ("int4range(NULL, 5)", "(,5)"),
    ("'empty'::int4range", "empty"),
    ("numrange(1.5, 2, '(]')", "(1.5,2]"),
    ("daterange('2024-01-01', '2024-02-01')", "[2024-01-01,2024-02-01)"),
    ("tstzrange('2024-01-01Z', NULL)", "[2024-01-01T00:00:00+00:00,)"),
    ("'{[1,2),[5,6)}'::int4multirange", "{[1,2),[5,6)}"),
    ("'10.0.0.1/24'::inet", "10.0.0.1/24"),
    ("'10.0.0.1'::inet", "10.0.0.1"),
    ("'10.0.0.0/8'::cidr", "10.0.0.0/8"),
    ("'08:00:2b:01:02:03'::macaddr", "08:00:2b:01:02:03"),
    ("B'10100101011'", "10100101011"),
    ("point(1, 2)", [1.0, 2.0]),
    ("'((1,2),(3,4),(5,6))'::polygon", [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
    ("ROW(1, '{\"a\": 1}'::jsonb, date '2024-01-01', 1.5)", [1, {"a": 1}, "2024-01-01", 1.5]),
    ("'16/B374D848'::pg_lsn", "16/B374D848"),
    ("'a b'::tsvector", "'a' 'b'"),
    ("'pg_class'::regclass", "pg_class"),
    ("1::oid", 1),
]


@asynchronous
async def test_values_become_plain_json(database: str) -> None:
    async with running_sql(database) as sql:
        script = ";".join(f"SELECT {expression}" for expression, _ in VALUES)
        value = await sql.value(script)
    found = []
    for number in range(len(VALUES)):
        (row,) = value[f"command_{number}"]["rows"]
        found.append((VALUES[number][0], *row.values()))
    assert found == VALUES
    assert all(type(got[1]) is type(expected) for got, (_, expected) in zip(found, VALUES, strict=True))
    json.dumps(value, allow_nan=False)


@asynchronous
async def test_types_of_the_user_become_plain_json(database: str) -> None:
    async with running_sql(database) as sql:
        await sql.value(
            """CREATE TYPE mood AS ENUM ('glad', 'sad'); CREATE DOMAIN amount AS numeric CHECK (value > 0);
            CREATE TYPE order_line AS (item text, price numeric, body jsonb, at date);
            CREATE DOMAIN body AS jsonb"""
        )
        (row,) = (
            await sql.value(
                """SELECT 'glad'::mood AS a, ARRAY['sad'::mood] AS b, 1.50::amount AS c,
                ROW('x', 2, '{"a": 1}', '2024-01-01')::order_line AS d,
                ARRAY[ROW('y', 2.5, NULL, NULL)::order_line] AS e,
                '{"b": 2}'::body AS f, ARRAY['[3]'::body] AS g"""
            )
        )["rows"]
    assert row == {
        "a": "glad",
        "b": ["sad"],
        "c": 1.5,
        "d": {"item": "x", "price": 2, "body": {"a": 1}, "at": "2024-01-01"},
        "e": [{"item": "y", "price": 2.5, "body": None, "at": None}],
        "f": {"b": 2},
        "g": [[3]],
    }


# --- bound values ----------------------------------------------------------------------------------------

PARAMS = [
    ("int2", 5, 5),
    ("int4", "5", 5),
    ("int4", 5.0, 5),
    ("int8", 2**62, 2**62),
    ("float4", 1.5, 1.5),
    ("float8", 3, 3.0),
    ("float8", "1e3", 1000.0),
    ("numeric(10, 2)", 1.1, 1.1),
    ("numeric", "7", 7),
    ("numeric", 0.1, 0.1),
    ("boolean", True, True),
    ("boolean", "off", False),
    ("text", 5, "5"),
    ("text", {"a": 1}, '{"a": 1}'),
    ("varchar(5)", "abc", "abc"),
    ("char(4)", "ab", "ab  "),
    ("date", "2024-02-29", "2024-02-29"),
    ("timestamp", "2024-02-29T12:00:00", "2024-02-29T12:00:00"),
    ("timestamptz", "2024-02-29T12:00:00+02:00", "2024-02-29T10:00:00+00:00"),
    ("time", "12:30", "12:30:00"),
    ("timetz", "12:30+01", "12:30:00+01:00"),
    ("interval", "P1M2DT3S", "P1M2DT3S"),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("json", {"a": [1, None]}, {"a": [1, None]}),
    ("jsonb", [1, {"é": "x"}], [1, {"é": "x"}]),
    ("jsonb", '{"a": 1}', {"a": 1}),
    ("jsonb", 1.5, 1.5),
    ("bytea", base64.b64encode(b"\x00\xff").decode(), base64.b64encode(b"\x00\xff").decode()),
    ("bytea", "\\x00ff", base64.b64encode(b"\x00\xff").decode()),
    ("inet", "10.0.0.1", "10.0.0.1"),
    ("int4range", "[1,5)", "[1,5)"),
    ("int4[]", [1, None, "3"], [1, None, 3]),
    ("int4[]", [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
    ("text[]", ['a"b', "c\\d", "NULL", "", "e,f", "{}"], ['a"b', "c\\d", "NULL", "", "e,f", "{}"]),
    ("jsonb[]", [{"a": [1]}, "[2]"], [{"a": [1]}, [2]]),
    ("date[]", ["2024-02-29"], ["2024-02-29"]),
    ("point", "(1,2)", [1.0, 2.0]),
    ("bit(3)", "101", "101"),
]


@asynchronous
async def test_bound_values_adapt_to_the_type_of_their_column(database: str) -> None:
    async with running_sql(database) as sql:
        columns = ", ".join(f"c{number} {name}" for number, (name, _, _) in enumerate(PARAMS))
        await sql.value(f"CREATE TABLE typed ({columns})")
        places = ", ".join("%s" for _ in PARAMS)
        (row,) = (
            await sql.value(f"INSERT INTO typed VALUES ({places}) RETURNING *", params=[v for _, v, _ in PARAMS])
        )["rows"]
        nulls = await sql.value(f"INSERT INTO typed VALUES ({places}) RETURNING *", params=[None] * len(PARAMS))
    found = [(name, value, row[f"c{number}"]) for number, (name, value, _) in enumerate(PARAMS)]
    assert found == PARAMS
    assert set(nulls["rows"][0].values()) == {None}


@asynchronous
async def test_bound_values_are_data_whatever_they_look_like(database: str) -> None:
    nasty = "'; DROP TABLE nothing; -- $1 %s :a \\ \" é"
    async with running_sql(database) as sql:
        for text, params in (
            ("SELECT $1 AS v", [nasty]),
            ("SELECT %s AS v", [nasty]),
            ("SELECT :a AS v", {"a": nasty}),
            ("SELECT %(a)s AS v -- it's; here", {"a": nasty}),
        ):
            value = await sql.value(text, params=params)
            assert value["rows"] == [{"v": nasty}]
            assert value["statement_count"] == 1


@asynchronous
async def test_bound_values_of_user_types_and_several_statements(database: str) -> None:
    async with running_sql(database) as sql:
        await sql.value(
            """CREATE SCHEMA "odd name"; CREATE TYPE "odd name"."Colour" AS ENUM ('red', 'green');
            CREATE DOMAIN positive AS integer CHECK (value > 0);
            CREATE TABLE painted (c "odd name"."Colour", cs "odd name"."Colour"[], n positive)"""
        )
        value = await sql.value(
            [
                "INSERT INTO painted VALUES (:c, :cs, :n)",
                "SELECT c, cs, n FROM painted WHERE n = :n AND c = :c -- ; one statement",
            ],
            params={"c": "red", "cs": ["green", "red"], "n": "3"},
        )
        assert value["rows"] == [{"c": "red", "cs": ["green", "red"], "n": 3}]
        refused = await sql.run("INSERT INTO painted (n) VALUES (%s)", params=[-1])
    assert refused.failure is not None
    assert refused.failure.kind == "db_constraint"


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"command": "SELECT $1", "params": [1, 2]}, "config", "1 placeholders"),
        ({"command": "SELECT $1::int4 + 1"}, "config", "1 placeholders"),
        ({"command": "SELECT :a", "params": {"b": 1}}, "config", "no value for :a"),
        ({"command": ["SELECT %s", "SELECT %s"], "params": [1]}, "config", "by name"),
        ({"command": "SELECT %s::int4", "params": ["five"]}, "transform", 'integer: "five"'),
        ({"command": "SELECT %s::bytea", "params": ["not base64!"]}, "config", "base64"),
        ({"command": "SELECT 1; SELECT %s", "params": [1]}, "schema", "multiple commands"),
        ({"command": "SELECT 1", "params": 5}, "config", "list or a mapping"),
        ({"command": "SELECT %s", "params": ["a\0b"]}, "transform", "0x00"),
    ],
)
@asynchronous
async def test_values_that_cannot_be_bound_are_failures(
    fields: dict[str, object], kind: str, message: str, database: str
) -> None:
    async with running_sql(database) as sql:
        failure = (await sql.run(**fields)).failure
        assert await sql.scalar("SELECT 1") == 1
    assert failure is not None
    assert (failure.kind, message in failure.message) == (kind, True), failure


# --- failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "kind", "code"),
    [
        ("SELECT * FROM nowhere", "schema", "PG_42P01"),
        ("SELEC 1", "schema", "PG_42601"),
        ("SELECT 1/0", "transform", "PG_22012"),
        ("INSERT INTO nulls VALUES (NULL)", "db_constraint", "PG_23502"),
        ("DO $$ BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = '40P01'; END $$", "db_deadlock", "PG_40P01"),
        ("DO $$ BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = '40001'; END $$", "db_deadlock", "PG_40001"),
        ("DO $$ BEGIN RAISE EXCEPTION 'mine'; END $$", "unknown", "PG_P0001"),
        ("SET statement_timeout = 20; SELECT pg_sleep(5)", "db_timeout", "PG_57014"),
        ("CREATE ROLE not_allowed", "auth", "PG_42501"),
        ("CREATE EXTENSION nonsense", "unsupported", "PG_0A000"),
        ("BEGIN; SELECT 1/0; SELECT 1", "transform", "PG_22012"),
    ],
)
@asynchronous
async def test_errors_of_the_server_have_their_kind_and_sqlstate(
    command: str, kind: str, code: str, database: str
) -> None:
    async with running_sql(database) as sql:
        await sql.value("CREATE TABLE IF NOT EXISTS nulls (id integer NOT NULL)")
        result = await sql.run(command)
        assert await sql.scalar("SELECT 1") == 1
    failure = result.failure
    assert failure is not None
    assert (failure.kind, failure.code) == (kind, code)
    assert failure.retryable is (kind in ("db_deadlock", "db_timeout"))
    assert failure.details["sqlstate"] == code.removeprefix("PG_")


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({}, "config", "no SQL"),
        ({"command": None}, "config", "may not be null"),
        ({"command": ""}, "config", "no statement"),
        ({"command": "-- nothing"}, "config", "no statement"),
        ({"command": ["SELECT 1", None]}, "config", "text or a list of texts"),
        ({"command": {"a": 1}}, "config", "text or a list of texts"),
        ({"command": "SELECT 1", "query": "SELECT 2"}, "config", "command and query"),
        ({"command_b64": "!"}, "config", "base64"),
        ({"command": "SELECT 'a\0'"}, "config", "NUL"),
        ({"command": "SELECT '\ud800'"}, "config", "surrogate"),
        ({"command": ";".join(["SELECT 1"] * 10_001)}, "config", "at most 10000"),
        ({"command": "COPY t FROM STDIN"}, "unsupported", "COPY"),
        ({"command": "SELECT 1", "db_host": "x", "db_password": "hidden"}, "config", "use auth"),
        ({"command": "SELECT 1", "dsn": "postgresql://a:hidden@b/c"}, "config", "use auth"),
        ({"command": "SELECT 1", "schema": "a,,b"}, "config", "schema"),
    ],
)
@asynchronous
async def test_fields_that_make_no_sense_are_refused_with_what_to_do(
    fields: dict[str, object], kind: str, message: str, database: str
) -> None:
    async with running_sql(database) as sql:
        result = await sql.run(**fields)
    assert result.failure is not None
    assert (result.failure.kind, message in result.failure.message) == (kind, True), result.failure
    assert "hidden" not in result.failure.message
    assert result.value is None


@asynchronous
async def test_a_message_is_bounded_and_one_line(database: str) -> None:
    async with running_sql(database) as sql:
        failure = (await sql.run("DO $$ BEGIN RAISE EXCEPTION E'%\\nsecond', repeat('x', 5000); END $$")).failure
    assert failure is not None
    assert len(failure.message) <= 1000
    assert "\n" not in failure.message


@asynchronous
async def test_a_schema_is_a_name_and_nothing_else(database: str) -> None:
    async with running_sql(database) as sql:
        await sql.value("""CREATE SCHEMA "a""; b"; CREATE TABLE "a""; b".here AS SELECT 7 AS n; CREATE SCHEMA second""")
        assert await sql.scalar("SELECT n FROM here", schema='a"; b') == 7
        assert await sql.scalar("SELECT current_schemas(false)", search_path='second, "public"') == ["second", "public"]
        assert await sql.scalar("SELECT current_schemas(false)") == ["public"]
        assert (await sql.run("SELECT n FROM here")).failure is not None


# --- time limits -----------------------------------------------------------------------------------------


async def wait_until_quiet(sql: Sql, marker: str) -> None:
    """Until no statement with this marker is running any more."""
    async with asyncio.timeout(60):
        while await sql.scalar(running(marker)):
            await asyncio.sleep(0.01)


def running(marker: str) -> str:
    return (
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'"
        f" AND query LIKE '%{marker}%' AND pid <> pg_backend_pid()"
    )


@asynchronous
async def test_a_statement_over_its_time_limit_is_cancelled_at_the_server(database: str) -> None:
    async with running_sql(database) as sql:
        pid = await sql.scalar("SELECT pg_backend_pid()")
        call = tool_call(sql.auth, {"command": "SELECT 1 AS x; SELECT pg_sleep(30) /* slow */"}, timeout_seconds=0.2)
        async with asyncio.timeout(20):
            result = await sql.tool.run(call)
        await wait_until_quiet(sql, "slow")
        # The connection was not lost over it.
        assert await sql.scalar("SELECT pg_backend_pid()") == pid
    failure = result.failure
    assert failure is not None
    assert (failure.kind, failure.code, failure.retryable) == ("timeout", "PG_57014", True)
    assert "0.2 s" in failure.message
    assert result.value is not None
    assert result.value["command_0"]["rows"] == [{"x": 1}]  # type: ignore[index]


@asynchronous
async def test_a_cancelled_call_stops_its_statement(database: str) -> None:
    async with running_sql(database) as sql:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(sql.run("SELECT pg_sleep(30) /* given up */"))
            while not await sql.scalar(running("given up")):
                await asyncio.sleep(0.01)
            task.cancel()
        assert task.cancelled()
        await wait_until_quiet(sql, "given up")


@asynchronous
async def test_waiting_for_a_free_connection_has_the_same_time_limit(database: str) -> None:
    async with running_sql(database) as sql:
        async with asyncio.TaskGroup() as group:
            held = [group.create_task(sql.run("SELECT pg_sleep(30)")) for _ in range(10)]
            await asyncio.sleep(0.2)
            late = await sql.tool.run(tool_call(sql.auth, {"command": "SELECT 1"}, timeout_seconds=0.1))
            for task in held:
                task.cancel()
        assert late.failure is not None
        assert (late.failure.kind, late.failure.code) == ("timeout", "POOL_TIMEOUT")
        assert await sql.scalar("SELECT 1") == 1


# --- who may ask -----------------------------------------------------------------------------------------


@asynchronous
async def test_a_call_needs_one_credential_of_the_right_type(database: str) -> None:
    pg = login(database)
    bearer = credential("api", "bearer", token="hidden")
    tool = new_tool()
    try:
        for auth, named, kind, message in (
            (None, None, "config", "auth is required"),
            (None, "gone", "auth", "not resolved"),
            ({"a": pg, "b": pg}, None, "config", "one credential, not 2"),
            (bearer, "api", "auth", "'api' has type 'bearer'"),
        ):
            result = await tool.run(tool_call(auth, {"command": "SELECT 1", "auth": named}))
            assert result.failure is not None
            assert (result.failure.kind, message in result.failure.message) == (kind, True)
            assert "hidden" not in result.failure.message
        result = await tool.run(tool_call({"only": pg}, {"command": "SELECT 1 AS x"}))
        assert result.failure is None
    finally:
        await tool.close()
