"""`noetl_postgres` reads every row once and every value as it is, or says which column it cannot."""

from __future__ import annotations

import asyncio
import datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType

from noetl.adapters.spark.sources.access import Access
from noetl.adapters.spark.sources.postgres.connecting import server_of
from noetl.adapters.spark.sources.postgres.describing import relation
from noetl.adapters.spark.sources.postgres.snapshot import held_snapshot
from noetl.adapters.spark.sources.postgres.source import PostgresSource
from noetl.core.errors import ToolFailed
from tests.support.databases import connected, empty_database
from tests.support.spark_sources import CANARY, parts_of, postgres_access, source

TABLES = r"""
CREATE TYPE mood AS ENUM ('calm', 'busy');
CREATE DOMAIN cents AS numeric(10, 2);
CREATE TABLE many (id bigint PRIMARY KEY, small int, part numeric(8, 3), day date, at timestamptz, local timestamp,
                   ratio float8, word text, yes bool);
INSERT INTO many SELECT i, CASE WHEN i % 10 = 0 THEN NULL ELSE i % 100 END, i / 8.0, date '2020-01-01' + i % 500,
  timestamptz '2020-01-01 00:00:00+00' + make_interval(mins => i), timestamp '2020-01-01' + make_interval(mins => i),
  i / 7.0::float8, 'w' || i % 50, i % 3 = 0 FROM generate_series(1, 5000) i;
DELETE FROM many WHERE id % 977 = 0;
CREATE TABLE split (id bigint, word text) PARTITION BY RANGE (id);
CREATE TABLE split_a PARTITION OF split FOR VALUES FROM (0) TO (300);
CREATE TABLE split_b PARTITION OF split FOR VALUES FROM (300) TO (100000);
INSERT INTO split SELECT i, repeat('x', 200) FROM generate_series(0, 3999) i;
CREATE VIEW seen AS SELECT id, word FROM many;
CREATE TABLE hollow (id bigint);
CREATE TABLE "Odd name" (id int, "a ""b" text);
INSERT INTO "Odd name" VALUES (1, 'x');
CREATE TABLE kinds (
  id int, yes bool, i2 int2, i4 int4, i8 int8, f4 real, f8 float8, n numeric(12, 3), free numeric, c cents, t text,
  v varchar(9), day date, ts timestamp, tz timestamptz, raw bytea, u uuid, j json, jb jsonb, m mood, iv interval,
  ints int[], texts text[], nums numeric(6, 1)[], days date[], raws bytea[], bools bool[]);
INSERT INTO kinds VALUES
 (1, true, -32768, 2147483647, -9223372036854775808, 1.5, 0.1, -123456789.125, 0.000000000000000001, 12.34,
  E'q"uo\\te,\nline', '', '0001-01-01', '9999-12-31 23:59:59.999999', '1969-12-31 23:59:59.5-02', '\x00ff',
  '00000000-0000-0000-0000-00000000002a', '{"a": 1}', '{"b": [1, null]}', 'busy', '1 day 02:00', '{1,NULL,-3}',
  ARRAY['', 'a"b', NULL, '{,}', '\', E'\n'], '{1.5,2}', '{2020-02-29}', ARRAY['\x01'::bytea, NULL], '{t,f,NULL}'),
 (2, NULL, NULL, NULL, NULL, 'NaN', '-Infinity', NULL, NULL, NULL, '', NULL, NULL, NULL, NULL, '', NULL, NULL, NULL,
  NULL, NULL, '{}', NULL, NULL, NULL, NULL, NULL),
 (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
  NULL, NULL, NULL, NULL, NULL, NULL, NULL);
"""


async def run(dsn: str, *statements: str) -> None:
    async with connected(dsn) as connection:
        for text in statements:
            await connection.execute(text)


async def ids_of(dsn: str, query: str) -> list[int]:
    async with connected(dsn) as connection:
        return [row[0] for row in await connection.fetch(query)]


@pytest.fixture(scope="module")
def database() -> str:
    dsn = empty_database()
    asyncio.run(run(dsn, TABLES))
    return dsn


def table(database: str, **options: object) -> Any:
    return source(PostgresSource, postgres_access(database), {"auth": "db", **options})


def rows(database: str, **options: object) -> list[dict[str, Any]]:
    return [row for part in parts_of(table(database, **options)) for row in part]


# --- partitions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"table": "many", "partitions": 4},
        {"path": "public.many", "partitions": 7},
        {"table": "many", "partition_column": "small", "partitions": 5},
        {"table": "many", "partition_column": "part", "partitions": 3},
        {"table": "many", "partition_column": "day", "partitions": 4},
        {"table": "many", "partition_column": "at", "partitions": 4},
        {"table": "many", "partition_column": "ratio", "partitions": 4},
        {"table": "seen", "partition_column": "id", "partitions": 2},
        {"query": "SELECT id FROM many;", "partition_column": "id", "partitions": 3},
    ],
)
def test_partitions_have_every_row_exactly_once(database: str, options: dict[str, Any]) -> None:
    parts = parts_of(table(database, **options))
    assert len(parts) == options["partitions"]
    assert all(parts), "rows in every partition"
    found = sorted(row["id"] for part in parts for row in part)
    assert found == asyncio.run(ids_of(database, "SELECT id FROM many ORDER BY id"))


@pytest.mark.parametrize("column", ["d", "t", "z"])
def test_times_beyond_those_of_python_are_cut_into_ranges(database: str, column: str) -> None:
    times = ("infinity", "-infinity", "0044-03-15 BC", "2020-01-01", "200000-01-01", None)
    values = ", ".join("(NULL)" if one is None else f"('{one}')" for one in times)
    query = f"SELECT v::date AS d, v::timestamp AS t, v::timestamptz AS z FROM (VALUES {values}) AS given(v)"
    struct = StructType([StructField(column, StringType())])
    parts = parts_of(table(database, query=query, partition_column=column, partitions=1_000), struct)
    assert len(parts) == 1_000
    assert sum(map(len, parts)) == len(times)


def test_a_partitioned_table_is_cut_by_blocks_too(database: str) -> None:
    parts = parts_of(table(database, table="split", partitions=4))
    assert sorted(row["id"] for part in parts for row in part) == list(range(4_000))
    assert all(parts)


def test_rows_that_come_after_the_planning_are_in_a_partition(database: str) -> None:
    asyncio.run(run(database, "CREATE TABLE growing AS SELECT i AS id FROM generate_series(1, 2000) i"))
    made = table(database, table="growing", partitions=3)
    reader = made.reader(made.schema())
    planned = reader.partitions()
    asyncio.run(run(database, "INSERT INTO growing SELECT i FROM generate_series(2001, 9000) i"))
    found = [row["id"] for part in planned for batch in reader.read(part) for row in batch.to_pylist()]
    assert sorted(found) == list(range(1, 9_001))


def test_one_statement_is_the_default_and_a_small_table_needs_no_more(database: str) -> None:
    assert len(parts_of(table(database, table="many"))) == 1
    assert len(parts_of(table(database, table="many", partitions="auto"))) == 1
    assert parts_of(table(database, table="hollow", partitions=5)) == [[]]
    assert parts_of(table(database, table="hollow", partition_column="id", partitions=5)) == [[]]


def test_all_partitions_see_the_moment_of_a_held_snapshot(database: str) -> None:
    asyncio.run(run(database, "CREATE TABLE moving AS SELECT i AS id FROM generate_series(1, 3000) i"))
    with held_snapshot(postgres_access(database), {"auth": "db"}) as snapshot:
        asyncio.run(run(database, "UPDATE moving SET id = -id", "INSERT INTO moving VALUES (9999)"))
        parts = parts_of(table(database, table="moving", partitions=4, snapshot=snapshot))
        assert sorted(row["id"] for part in parts for row in part) == list(range(1, 3_001))
        assert len(rows(database, query="SELECT id FROM moving WHERE id > 0", snapshot=snapshot)) == 3_000
    assert len(rows(database, query="SELECT id FROM moving WHERE id < 0")) == 3_000


def test_many_wide_rows_come_in_batches_of_whole_rows(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl.adapters.spark.sources.postgres.reading.SOURCE_BATCH_BYTES", 10_000)
    query = "SELECT i AS id, repeat(E'a\"\\n,', i % 700) AS t FROM generate_series(1, 3000) i"
    made = table(database, query=query)
    reader = made.reader(made.schema())
    batches = list(reader.read(reader.partitions()[0]))
    assert len(batches) > 10
    found = [row for batch in batches for row in batch.to_pylist()]
    assert found == [{"id": i, "t": 'a"\n,' * (i % 700)} for i in range(1, 3_001)]


def test_who_stops_early_ends_the_copying(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl.adapters.spark.sources.postgres.reading.SOURCE_BATCH_BYTES", 10_000)
    made = table(database, query="SELECT a.id FROM many a, many b")
    reader = made.reader(made.schema())
    reading = reader.read(reader.partitions()[0])
    next(reading)
    reading.close()
    busy = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%many a, many b%' AND pid <> pg_backend_pid()"
    assert asyncio.run(_until_none(database, busy))


async def _until_none(dsn: str, query: str) -> bool:
    async with connected(dsn) as connection, asyncio.timeout(60):
        while await connection.fetchval(query):
            await asyncio.sleep(0.01)
    return True


# --- types ---------------------------------------------------------------------------------------------------


def test_every_type_is_read_as_it_is(database: str) -> None:
    made = table(database, table="kinds")
    assert made.schema().simpleString() == (
        "struct<id:int,yes:boolean,i2:smallint,i4:int,i8:bigint,f4:float,f8:double,n:decimal(12,3),"
        "free:decimal(38,18),c:decimal(10,2),t:string,v:string,day:date,ts:timestamp_ntz,tz:timestamp,raw:binary,"
        "u:string,j:string,jb:string,m:string,iv:string,ints:array<int>,texts:array<string>,"
        "nums:array<decimal(6,1)>,days:array<date>,raws:array<binary>,bools:array<boolean>>"
    )
    [[first, second, third]] = parts_of(made)
    assert first == {
        "id": 1,
        "yes": True,
        "i2": -32768,
        "i4": 2147483647,
        "i8": -(2**63),
        "f4": 1.5,
        "f8": 0.1,
        "n": Decimal("-123456789.125"),
        "free": Decimal("0.000000000000000001"),
        "c": Decimal("12.34"),
        "t": 'q"uo\\te,\nline',
        "v": "",
        "day": datetime.date(1, 1, 1),
        "ts": datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
        "tz": datetime.datetime(1970, 1, 1, 1, 59, 59, 500_000, tzinfo=datetime.UTC),
        "raw": b"\x00\xff",
        "u": "00000000-0000-0000-0000-00000000002a",
        "j": '{"a": 1}',
        "jb": '{"b": [1, null]}',
        "m": "busy",
        "iv": "1 day 02:00:00",
        "ints": [1, None, -3],
        "texts": ["", 'a"b', None, "{,}", "\\", "\n"],
        "nums": [Decimal("1.5"), Decimal("2.0")],
        "days": [datetime.date(2020, 2, 29)],
        "raws": [b"\x01", None],
        "bools": [True, False, None],
    }
    assert (second["t"], second["v"], second["raw"], second["ints"]) == ("", None, b"", [])
    assert second["f4"] != second["f4"], "NaN"
    assert second["f8"] == float("-inf")
    assert {name for name, value in third.items() if value is not None} == {"id"}


def test_a_column_of_nulls_alone_keeps_its_rows(database: str) -> None:
    assert rows(database, query="SELECT NULL::text AS a FROM generate_series(1, 3)") == [{"a": None}] * 3


def test_columns_are_chosen_and_odd_names_are_no_trouble(database: str) -> None:
    assert table(database, table="many", columns="word, id").schema().fieldNames() == ["word", "id"]
    assert rows(database, table="Odd name") == rows(database, table='"Odd name"') == [{"id": 1, 'a "b': "x"}]


def test_a_schema_decides_how_values_are_read(database: str) -> None:
    fields = [("id", LongType()), ("n", StringType()), ("free", DecimalType(38, 20))]
    struct = StructType([StructField(name, kind) for name, kind in fields])
    [part] = parts_of(table(database, table="kinds"), struct)
    assert part[0] == {"id": 1, "n": "-123456789.125", "free": Decimal("1E-18")}


@pytest.mark.parametrize(
    ("query", "column"),
    [
        ("SELECT 1 AS a, 'infinity'::timestamptz AS never", "never"),
        ("SELECT '4000-01-01 BC'::date AS old", "old"),
        ("SELECT 'NaN'::numeric AS unknown", "unknown"),
        ("SELECT 1 AS a, 1.0 / 3 AS third", "third"),
        ("SELECT ARRAY[[1, 2], [3, 4]] AS square", "square"),
        ("SELECT 1::numeric(60, 2) AS long", "long"),
    ],
)
def test_what_spark_cannot_hold_is_an_error_with_the_name_of_the_column(database: str, query: str, column: str) -> None:
    with pytest.raises(ToolFailed, match=f"column '{column}'"):
        rows(database, query=query)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "absent"}, "there is no table 'absent'"),
        ({"table": "many", "query": "SELECT 1"}, "table or query is required, and not both"),
        ({}, "table or query is required"),
        ({"table": "many", "tabel": "x"}, "tabel: there is no such option"),
        ({"table": "many", "columns": "id, nothing"}, "column 'nothing' is not there"),
        ({"table": "seen", "partitions": 2}, "view or foreign"),
        ({"table": "many", "partitions": 0}, "partitions must be a whole number from 1"),
        ({"table": "many", "partition_column": "id"}, "partition_column needs partitions"),
        ({"table": "many", "partition_column": "word", "partitions": 2}, "must be a number, date or timestamp"),
        ({"table": "many", "partition_column": "none", "partitions": 2}, "no column of what is read"),
        ({"query": "SELECT 1 AS a", "partitions": 2}, "partitions of a query need partition_column"),
        ({"query": "SELECT 1 AS twin, 2 AS twin"}, "column 'twin' is there twice|specified more than once"),
        ({"query": "SELECT nonsense"}, 'column "nonsense" does not exist'),
        ({"query": "SELECT lo_create(0) AS a"}, "read-only transaction"),
        ({"table": "many", "snapshot": "00000000-00000000-1"}, "snapshot"),
    ],
)
def test_a_read_that_cannot_be_says_why(database: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolFailed, match=message):
        rows(database, **options)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 AS id -- one",
        "SELECT 1 AS id; -- one; of; them",
        "SELECT 1 AS id ; ; /* one /* in */ ; another */ ;\n",
        "SELECT 1 AS id FROM (SELECT ';' || $a$;--$a$ || E'\\';--' AS \";\") AS t WHERE \";\" LIKE '%;--' -- ;",
    ],
)
def test_a_query_may_end_with_semicolons_and_comments(database: str, query: str) -> None:
    assert rows(database, query=query) == [{"id": 1}]
    assert len(parts_of(table(database, query=query, partition_column="id", partitions=1))) == 1


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 AS id) AS q) TO STDOUT; COMMIT; INSERT INTO hollow VALUES (1); COPY (SELECT 1 FROM (SELECT 1 AS id",
        "SELECT 1 AS id) AS q) AS r; COMMIT; INSERT INTO hollow VALUES (1); SELECT FROM (SELECT FROM (SELECT 1 AS id",
        "SELECT 1 AS id; COMMIT; INSERT INTO hollow VALUES (1); SELECT 1 AS id",
        "INSERT INTO hollow VALUES (1) RETURNING id",
        "SELECT writing() AS id",
    ],
)
@pytest.mark.parametrize("options", [{}, {"partition_column": "id", "partitions": 2}], ids=["one", "ranges"])
@pytest.mark.parametrize("is_given", [True, False], ids=["schema given", "schema asked for"])
def test_no_query_changes_anything(database: str, query: str, options: dict[str, Any], is_given: bool) -> None:
    text = "INSERT INTO hollow VALUES (1) RETURNING id"
    asyncio.run(run(database, f"CREATE OR REPLACE FUNCTION writing() RETURNS bigint LANGUAGE sql AS '{text}'"))
    struct = StructType([StructField("id", LongType())]) if is_given else None
    with pytest.raises(ToolFailed):
        parts_of(table(database, query=query, **options), struct)
    assert asyncio.run(ids_of(database, "SELECT id FROM hollow")) == []


def test_a_lost_connection_is_not_a_missing_table(database: str) -> None:
    async def looked_up() -> None:
        server = server_of(postgres_access(database), {"auth": "db"})
        async with server.connection() as connection:
            await run(database, f"SELECT pg_terminate_backend({connection.get_server_pid()})")
            await relation(connection, "many")

    with pytest.raises(ToolFailed) as caught:
        asyncio.run(looked_up())
    assert caught.value.failure.kind == "db_connection"
    assert caught.value.failure.retryable


# --- filters -------------------------------------------------------------------------------------------------

UTC = datetime.UTC
FILTERS: list[tuple[Filter, str]] = [
    (EqualTo(("id",), 17), "id = 17"),
    (Not(EqualTo(("small",), 7)), "small <> 7"),
    (In(("id",), (3, 4, 977)), "id IN (3, 4, 977)"),
    (EqualTo(("word",), "w7"), "word = 'w7'"),
    (StringStartsWith(("word",), "w1"), "word LIKE 'w1%'"),
    (Not(StringEndsWith(("word",), "9")), "word NOT LIKE '%9'"),
    (StringContains(("word",), "4"), "word LIKE '%4%'"),
    (GreaterThan(("word",), "w3"), "word > 'w3' COLLATE \"C\""),
    (IsNull(("small",)), "small IS NULL"),
    (IsNotNull(("small",)), "small IS NOT NULL"),
    (LessThan(("part",), Decimal("13.125")), "part < 13.125"),
    (EqualTo(("day",), datetime.date(2020, 3, 1)), "day = '2020-03-01'"),
    (GreaterThanOrEqual(("at",), datetime.datetime(2020, 1, 2, 12, tzinfo=UTC)), "at >= '2020-01-02 12:00+00'"),
    (LessThanOrEqual(("local",), datetime.datetime(2020, 1, 2, 12)), "local <= '2020-01-02 12:00'"),
    (GreaterThan(("ratio",), 700.5), "ratio > 700.5"),
    (EqualNullSafe(("small",), 5), "small IS NOT DISTINCT FROM 5"),
    (EqualTo(("yes",), True), "yes"),
]


@pytest.mark.parametrize(("given", "sql"), FILTERS, ids=[sql for _, sql in FILTERS])
def test_a_filter_is_decided_by_the_server(database: str, given: Filter, sql: str) -> None:
    access = postgres_access(database, pushes_filters=True)
    made = source(PostgresSource, access, {"auth": "db", "table": "many", "columns": "id", "partitions": 2})
    reader = made.reader(made.schema())
    assert list(reader.pushFilters([given])) == []
    found = [row["id"] for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    expected = asyncio.run(ids_of(database, f"SELECT id FROM many WHERE {sql} ORDER BY id"))
    assert sorted(found) == expected
    assert 0 < len(expected) < 5_000


@pytest.mark.parametrize(
    "given",
    [
        EqualTo(("j",), '{"a": 1}'),
        EqualTo(("u",), "00000000-0000-0000-0000-00000000002a"),
        EqualTo(("f4",), 1.5),
        EqualTo(("f8",), float("nan")),
        EqualTo(("t", "inner"), "x"),
        EqualTo(("t",), "a\0b"),
        EqualTo(("i4",), "1"),
        In(("i4",), (1, None)),
        StringContains(("u",), "0"),
        EqualTo(("elsewhere",), 1),
    ],
)
def test_a_filter_that_might_mean_something_else_stays_with_spark(database: str, given: Filter) -> None:
    access = postgres_access(database, pushes_filters=True)
    made = source(PostgresSource, access, {"auth": "db", "table": "kinds"})
    assert list(made.reader(made.schema()).pushFilters([given])) == [given]


# --- credentials ---------------------------------------------------------------------------------------------


def test_without_a_credential_the_error_says_what_is_missing(database: str) -> None:
    bare = Access()
    with pytest.raises(ToolFailed, match="auth or dsn_env is required"):
        source(PostgresSource, bare, {"table": "many"}).schema()
    with pytest.raises(ToolFailed, match=r"register the sources by noetl\.spark\.register"):
        source(PostgresSource, bare, {"table": "many", "auth": "db"}).schema()
    with pytest.raises(ToolFailed, match="auth and dsn_env are given"):
        source(PostgresSource, bare, {"table": "many", "auth": "db", "dsn_env": "X"}).schema()


def test_the_server_of_the_control_plane_is_refused_to_other_roles_than_those_for_tools(database: str) -> None:
    folder = database.partition("host=")[2].partition("&")[0]
    access = Access(private_hosts=(folder,)).with_secrets("postgres", {"db": {"dsn": database}})
    with pytest.raises(ToolFailed, match="NoETL's own server"):
        source(PostgresSource, access, {"table": "many", "auth": "db"}).schema()


def test_what_travels_shows_no_secret(database: str) -> None:
    made = table(database, table="many")
    reader = made.reader(made.schema())
    assert CANARY not in f"{made.access!r} {reader._server!r} {vars(reader)!r}"
