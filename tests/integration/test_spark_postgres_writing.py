"""`noetl_postgres` writes what was committed once, and nothing else, whatever Spark repeats and whoever dies."""

from __future__ import annotations

import asyncio
import datetime
import traceback
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import asyncpg
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from noetl.adapters.spark.sources.postgres.source import PostgresSource
from noetl.adapters.spark.sources.postgres.writing import staging
from noetl.adapters.spark.sources.postgres.writing.writer import PostgresWriter, Staged
from noetl.core.errors import ToolFailed
from tests.support.databases import connected, empty_database
from tests.support.spark_sources import postgres_access, source

TARGET = "CREATE TABLE target (id bigint PRIMARY KEY, word text NOT NULL, price numeric(10, 2))"
WORDS = (("id", LongType()), ("word", StringType()))


async def run(dsn: str, *statements: str) -> None:
    async with connected(dsn) as connection:
        for text in statements:
            await connection.execute(text)


async def rows_of(dsn: str, query: str) -> list[tuple[Any, ...]]:
    async with connected(dsn) as connection:
        return [tuple(row) for row in await connection.fetch(query)]


@pytest.fixture(scope="module")
def server_database() -> str:
    return empty_database()


@pytest.fixture
def database(server_database: str) -> Iterator[str]:
    """With an empty table that has a key."""
    asyncio.run(run(server_database, TARGET))
    yield server_database
    asyncio.run(run(server_database, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public"))


def struct(*fields: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields])


def writer_of(
    database: str, *fields: tuple[str, DataType], overwrite: bool = False, **options: object
) -> PostgresWriter:
    made = source(PostgresSource, postgres_access(database), {"auth": "db", "table": "target", **options})
    found: PostgresWriter = made.writer(struct(*(fields or WORDS)), overwrite)
    return found


def batch(*ids: int, word: str = "w") -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "word": [f"{word}{i}" for i in ids]})])


def written(database: str, *ids: int, word: str = "w", overwrite: bool = False, **options: object) -> None:
    writer = writer_of(database, overwrite=overwrite, **options)
    writer.commit([writer.write(batch(*ids, word=word))])


def content(database: str) -> list[str]:
    return [row[0] for row in asyncio.run(rows_of(database, "SELECT word FROM target ORDER BY id, word"))]


def stages(database: str) -> list[str]:
    query = "SELECT relname FROM pg_class WHERE relname LIKE 'noetl_stage%' ORDER BY relname"
    return [row[0] for row in asyncio.run(rows_of(database, query))]


# --- once ----------------------------------------------------------------------------------------------------


def test_repeated_tasks_messages_and_commits_write_nothing_twice(database: str) -> None:
    writer = writer_of(database)
    lost = writer.write(batch(1, 2))
    first, second = writer.write(batch(1, 2)), writer.write(batch(3))
    assert lost.task != first.task, "a second try of the same task"
    assert content(database) == []
    writer.commit([first, second, first, Staged(task="of an empty task", row_count=0)])
    assert content(database) == ["w1", "w2", "w3"]
    writer.commit([first, second])
    assert content(database) == ["w1", "w2", "w3"]
    with pytest.raises(ToolFailed, match="committed already"):
        writer.write(batch(4))
    assert stages(database) == []


def test_a_task_without_rows_stages_nothing(database: str) -> None:
    writer = writer_of(database)
    message = writer.write(iter([]))
    assert message.row_count == 0
    assert stages(database) == []
    writer.commit([message])
    assert content(database) == []


def test_a_task_that_fails_in_the_middle_leaves_nothing(database: str) -> None:
    writer = writer_of(database)

    def breaking() -> Iterator[pa.RecordBatch]:
        yield next(batch(1, 2))
        raise ValueError("the task ends here")

    with pytest.raises(ValueError, match="the task ends here"):
        writer.write(breaking())
    message = writer.write(batch(1))
    writer.commit([message])
    assert content(database) == ["w1"]


def test_an_aborted_write_leaves_nothing(database: str) -> None:
    written(database, 7, word="stays")
    writer = writer_of(database, overwrite=True)
    message = writer.write(batch(1))
    assert len(stages(database)) == 1
    writer.abort([message, None])
    writer.abort([])
    assert stages(database) == []
    with pytest.raises(ToolFailed, match=r"staged rows of .* are gone"):
        writer.commit([message])
    assert content(database) == ["stays7"]


def test_rows_that_a_crash_of_the_server_took_from_the_stage_are_missed(database: str) -> None:
    written(database, 7, word="stays")
    writer = writer_of(database, overwrite=True)
    message = writer.write(batch(1, 2))
    asyncio.run(run(database, f"TRUNCATE {stages(database)[0]}"))
    with pytest.raises(ToolFailed, match=r"staged rows of .* are gone"):
        writer.commit([message])
    assert content(database) == ["stays7"]


def test_a_commit_whose_connection_broke_is_asked_for_again(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has committed, and the answer does not arrive."""
    writer = writer_of(database)
    message = writer.write(batch(1))
    real, calls = staging.commit, []

    async def losing(connection: Any, *given: Any) -> bool:
        calls.append(given)
        done = await real(connection, *given)
        if len(calls) == 1:
            raise ConnectionResetError("the answer is lost")
        return done

    monkeypatch.setattr(staging, "commit", losing)
    writer.commit([message])
    assert len(calls) == 2
    assert content(database) == ["w1"]


def test_what_a_dead_run_left_goes_with_the_next_write(database: str) -> None:
    dead, living = writer_of(database), writer_of(database)
    dead_message, living_message = dead.write(batch(1)), living.write(batch(2))
    old = f"UPDATE {staging.BOOK} SET touched_at = now() - interval '2 days' WHERE run_id = '{dead._write.run_id}'"
    asyncio.run(run(database, old))
    written(database, 3)
    assert stages(database) == [living._write.stage_name]
    with pytest.raises(ToolFailed, match="are gone"):
        dead.commit([dead_message])
    living.commit([living_message])
    assert content(database) == ["w2", "w3"]
    assert stages(database) == []


def test_a_write_with_an_id_is_committed_by_one_of_its_runs(database: str) -> None:
    one, other = writer_of(database, write_id="monday"), writer_of(database, write_id="monday")
    first, second = one.write(batch(1, word="one")), other.write(batch(1, 2, word="other"))
    one.commit([first])
    other.commit([second])
    written(database, 1, 2, 3, word="third", write_id="monday")
    assert content(database) == ["one1"]
    assert stages(database) == []
    written(database, 2, word="next", write_id="tuesday")
    assert content(database) == ["one1", "next2"]


def test_a_write_id_counts_for_one_table(database: str) -> None:
    asyncio.run(run(database, "CREATE SCHEMA spare", "CREATE TABLE spare.target (LIKE public.target)"))
    asyncio.run(run(database, "CREATE TABLE second (LIKE target)"))
    for name in ("target", "second", "spare.target", "target", "second"):
        written(database, 1, write_id="monday", table=name, stage_schema="public")
    for name in ("target", "second", "spare.target"):
        assert asyncio.run(rows_of(database, f"SELECT word FROM {name}")) == [("w1",)]
    book = f"INSERT INTO {staging.BOOK} SELECT 'other', write_id, target, '', now(), now(), now() FROM {staging.BOOK}"
    with pytest.raises(asyncpg.UniqueViolationError):
        asyncio.run(run(database, f"{book} LIMIT 1"))
    asyncio.run(run(database, "DROP SCHEMA spare CASCADE"))
    with pytest.raises(ToolFailed, match="write_id must be a text of at most"):
        writer_of(database, write_id="x" * 501)


def test_many_tasks_begin_at_once(database: str) -> None:
    async def all_at_once() -> list[Staged]:
        tasks = [asyncio.to_thread(writer.write, batch(number)) for number in range(8)]
        return list(await asyncio.gather(*tasks))

    writer = writer_of(database)
    writer.commit(asyncio.run(all_at_once()))
    assert content(database) == [f"w{number}" for number in range(8)]


def test_the_stage_may_be_in_another_schema(database: str) -> None:
    asyncio.run(run(database, "CREATE SCHEMA spare"))
    writer = writer_of(database, stage_schema="spare")
    message = writer.write(batch(1))
    query = "SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname LIKE 'noetl%' AND relkind = 'r'"
    assert {row[0] for row in asyncio.run(rows_of(database, query))} == {"spare"}
    writer.commit([message])
    assert content(database) == ["w1"]
    asyncio.run(run(database, "DROP SCHEMA spare CASCADE"))


# --- keys and modes ------------------------------------------------------------------------------------------


def test_rows_are_appended_replaced_and_joined_by_key(database: str) -> None:
    written(database, 1, 2)
    written(database, 2, 3, word="new", key="id")
    assert content(database) == ["w1", "new2", "new3"]
    written(database, 3, 4, word="late", key="id", on_conflict="nothing")
    assert content(database) == ["w1", "new2", "new3", "late4"]
    written(database, 9, word="over", overwrite=True)
    assert content(database) == ["over9"]
    written(database, 8, word="cut", overwrite=True, overwrite_by="truncate")
    assert content(database) == ["cut8"]
    writer_of(database, overwrite=True).commit([])
    assert content(database) == []


def test_a_clash_of_keys_fails_the_write_as_a_whole(database: str) -> None:
    written(database, 2)
    with pytest.raises(ToolFailed, match="duplicate key"):
        written(database, 1, 2, word="x")
    with pytest.raises(ToolFailed, match=r"same key \(id\) twice"):
        written(database, 1, 5, 5, word="x", key="id")
    assert content(database) == ["w2"]


def test_a_row_without_its_key_is_refused_by_the_stage(database: str) -> None:
    asyncio.run(run(database, "CREATE TABLE loose (id bigint UNIQUE, word text)"))
    writer = writer_of(database, table="loose", key="id")
    rows = pa.RecordBatch.from_pydict({"id": pa.array([None], pa.int64()), "word": ["canary"]})
    with pytest.raises(ToolFailed, match="column 'id': it is in key") as caught:
        writer.write(iter([rows]))
    assert "canary" not in str(caught.value)


def test_a_row_that_breaks_a_rule_of_the_table_is_not_shown(database: str) -> None:
    asyncio.run(run(database, "ALTER TABLE target ADD CHECK (id < 5)"))
    writer = writer_of(database)
    message = writer.write(batch(9, word="canary"))
    with pytest.raises(ToolFailed, match="violates check constraint") as caught:
        writer.commit([message])
    assert "canary" not in "".join(traceback.format_exception(caught.value))


def test_other_columns_keep_their_defaults_and_their_values(database: str) -> None:
    asyncio.run(run(database, "ALTER TABLE target ADD COLUMN made text DEFAULT 'by default'"))
    written(database, 1)
    asyncio.run(run(database, "UPDATE target SET made = 'by hand'"))
    written(database, 1, word="new", key="id")
    found = asyncio.run(rows_of(database, "SELECT word, made FROM target"))
    assert found == [("new1", "by hand")]


# --- columns -------------------------------------------------------------------------------------------------

PRICE = ("price", DecimalType(10, 2))


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ([*WORDS, ("extra", LongType())], {}, "column 'extra': target has no such column"),
        ([WORDS[0], ("word", LongType())], {}, "column 'word': bigint does not fit text"),
        ([*WORDS, ("price", DecimalType(12, 3))], {}, r"column 'price': decimal\(12,3\) does not fit numeric\(10,2\)"),
        ([*WORDS, ("price", LongType())], {}, "column 'price': bigint does not fit"),
        ([*WORDS, ("price", DoubleType())], {}, "column 'price': double does not fit"),
        ([WORDS[0]], {}, "column 'word': target requires it"),
        ([("id", StringType()), WORDS[1]], {}, "column 'id': string does not fit bigint"),
        ([("id", TimestampType()), WORDS[1]], {}, "column 'id': timestamp does not fit bigint"),
        ([("id", ArrayType(LongType())), WORDS[1]], {}, "column 'id': array<bigint> does not fit bigint"),
        ([*WORDS], {"key": "word"}, "no unique index on exactly word"),
        ([*WORDS], {"key": "word", "table": "late"}, "no unique index on exactly word"),
        ([*WORDS], {"key": "other"}, "column 'other': it is in key"),
        ([*WORDS], {"on_conflict": "update"}, "on_conflict needs key"),
        ([*WORDS], {"table": "missing"}, "there is no table 'missing'"),
        ([*WORDS], {"table": "looking"}, "is no table"),
        ([*WORDS], {"mode": "x"}, "mode: there is no such option"),
    ],
)
def test_columns_are_compared_before_anything_is_written(
    database: str, fields: list[tuple[str, DataType]], options: dict[str, str], message: str
) -> None:
    asyncio.run(run(database, "CREATE VIEW looking AS SELECT id, word FROM target"))
    asyncio.run(run(database, "CREATE TABLE late (id bigint, word text UNIQUE DEFERRABLE)"))
    with pytest.raises(ToolFailed, match=message):
        writer_of(database, *fields, **options)
    found = asyncio.run(rows_of(database, "SELECT relname FROM pg_class WHERE relname LIKE 'noetl%'"))
    assert found == [], "not even a book was made"


def test_a_smaller_type_fits_a_larger_one(database: str) -> None:
    writer = writer_of(database, ("id", IntegerType()), WORDS[1], PRICE)
    rows = {"id": pa.array([1], pa.int32()), "word": ["a"], "price": pa.array([Decimal("1.50")], pa.decimal128(10, 2))}
    writer.commit([writer.write(iter([pa.RecordBatch.from_pydict(rows)]))])
    assert asyncio.run(rows_of(database, "SELECT id, word, price FROM target")) == [(1, "a", Decimal("1.50"))]


def test_a_float_is_the_same_number_in_a_double(database: str) -> None:
    asyncio.run(run(database, "CREATE TABLE floats (r real, d float8, ds float8[])"))
    fields = (("r", FloatType()), ("d", FloatType()), ("ds", ArrayType(FloatType())))
    values = pa.array([0.1, 1e-45, 3.4028235e38, -0.0], pa.float32())
    lists = pa.ListArray.from_arrays(pa.array([0, 4, 4, 4, 4], pa.int32()), values)
    writer = writer_of(database, *fields, table="floats")
    rows = pa.RecordBatch.from_pydict({"r": values, "d": values, "ds": lists})
    writer.commit([writer.write(iter([rows]))])
    expected = values.to_pylist()
    found = asyncio.run(rows_of(database, "SELECT r, d, ds FROM floats"))
    assert [row[0] for row in found] == [row[1] for row in found] == expected == found[0][2]


TIME = datetime.datetime(1960, 5, 1, 12, 0, 0, 500_000)


@pytest.mark.parametrize(
    ("type_", "kind", "good", "bad"),
    [
        ("varchar(3)", StringType(), ["", "ü😀c", None], "abc "),
        ("char(3)", StringType(), ["abc"], "abc "),
        ("varchar(2)[]", ArrayType(StringType()), [["ab", None], [], None], ["a", "ab "]),
        ("timestamp(1)", TimestampNTZType(), [TIME, None], TIME.replace(microsecond=510_000)),
        ("timestamp(0)[]", ArrayType(TimestampNTZType()), [[TIME.replace(microsecond=0)]], [TIME]),
    ],
)
def test_what_the_server_would_cut_or_round_is_refused(
    database: str, type_: str, kind: DataType, good: list[Any], bad: Any
) -> None:
    asyncio.run(run(database, f"CREATE TABLE narrow (v {type_})"))
    schema = to_arrow_schema(struct(("v", kind)), timezone="UTC")

    def rows(values: list[Any]) -> Iterator[pa.RecordBatch]:
        return iter([pa.RecordBatch.from_pylist([{"v": value} for value in values], schema=schema)])

    writer = writer_of(database, ("v", kind), table="narrow")
    message = writer.write(rows(good))
    with pytest.raises(ToolFailed, match=r"column 'v': a (text is longer|time has more digits) than"):
        writer.write(rows([*good, bad]))
    writer.commit([message])
    assert [row[0] for row in asyncio.run(rows_of(database, "SELECT v FROM narrow"))] == good


def test_tables_of_other_schemas_with_odd_names_are_written(database: str) -> None:
    asyncio.run(run(database, 'CREATE SCHEMA "Odd one"', 'CREATE TABLE "Odd one"."a ""b" (id bigint, word text)'))
    written(database, 1, table='"Odd one"."a ""b"')
    assert asyncio.run(rows_of(database, 'SELECT id FROM "Odd one"."a ""b"')) == [(1,)]
    asyncio.run(run(database, 'DROP SCHEMA "Odd one" CASCADE'))
