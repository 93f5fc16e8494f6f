"""The data sources for databases and web services inside Spark, planned, read, written and committed by it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support.databases import connected, empty_database
from tests.support.spark import ROOT, shared_session
from tests.support.spark_sources import CANARY, activate, postgres, postgres_access, read, registered, save
from tests.support.standin import standin_process

TABLES = """
CREATE TABLE kinds (id int PRIMARY KEY, yes bool, n numeric(12, 3), t text, day date, ts timestamp, tz timestamptz,
  raw bytea, u uuid, jb jsonb, f8 float8, ints int[], texts text[]);
INSERT INTO kinds SELECT i, i % 2 = 0, i / 8.0, CASE WHEN i % 5 = 0 THEN NULL ELSE 'q"' || i || E'\\n' END,
  date '2020-01-01' + i % 500, timestamp '0001-01-01' + make_interval(secs => i),
  timestamptz '1969-12-31 23:59:59.5-02' + make_interval(mins => i), decode('00ff', 'hex'),
  '00000000-0000-0000-0000-00000000002a', jsonb_build_object('i', i), CASE WHEN i % 7 = 0 THEN 'NaN' ELSE i / 3.0 END,
  ARRAY[i, NULL], ARRAY['{"', NULL, ''] FROM generate_series(1, 3000) i;
CREATE TABLE again (LIKE kinds INCLUDING ALL);
CREATE TABLE target (id bigint PRIMARY KEY, word text NOT NULL);
"""


async def run(dsn: str, text: str) -> None:
    async with connected(dsn) as connection:
        await connection.execute(text)


async def values(dsn: str, query: str) -> list[Any]:
    async with connected(dsn) as connection:
        return [row[0] for row in await connection.fetch(query)]


@pytest.fixture(scope="module")
def database() -> str:
    dsn = empty_database()
    asyncio.run(run(dsn, TABLES))
    return dsn


@pytest.fixture
def spark(database: str) -> Iterator[SparkSession]:
    session = registered(postgres_access(database))
    yield session
    activate(shared_session())


def test_a_table_goes_through_spark_and_back_without_a_change(spark: SparkSession, database: str) -> None:
    frame = postgres(spark, table="kinds", partitions=3)
    assert frame.rdd.getNumPartitions() == 3
    save(frame, table="again", key="id")
    save(frame.where("id > 1500"), table="again", key="id")
    query = "SELECT r::text FROM {} r ORDER BY id"
    written = asyncio.run(values(database, query.format("again")))
    assert len(written) == 3_000
    assert written == asyncio.run(values(database, query.format("kinds")))
    stages = "SELECT relname FROM pg_class WHERE relname LIKE 'noetl_stage%'"
    assert asyncio.run(values(database, stages)) == []


def test_a_task_that_fails_leaves_the_target_as_it_was(spark: SparkSession, database: str) -> None:
    asyncio.run(run(database, "INSERT INTO target VALUES (-1, 'stays')"))
    frame = spark.range(0, 2_000, 1, 2)
    broken = frame.selectExpr("id", "IF(id = 1500, raise_error('enough'), 'w') AS word")
    with pytest.raises(PySparkException, match="enough"):
        save(broken, mode="overwrite", table="target")
    with pytest.raises(PySparkException, match=r"column 'word': bigint does not fit text"):
        save(frame.selectExpr("id", "id AS word"), mode="overwrite", table="target")
    assert asyncio.run(values(database, "SELECT word FROM target")) == ["stays"]
    # A task that was stopped together with the failed one may make its stage behind the end: then the book knows of it,
    # and it is swept like that of a dead run.
    stages = (
        "SELECT relname FROM pg_class WHERE relname LIKE 'noetl_stage%'"
        " AND NOT EXISTS (SELECT 1 FROM noetl_writes WHERE stage = relname)"
    )
    assert asyncio.run(values(database, stages)) == []
    save(frame.selectExpr("id", "'new' AS word"), mode="overwrite", table="target")
    assert asyncio.run(values(database, "SELECT count(*) FROM target WHERE word = 'new'")) == [2_000]


def test_filters_go_to_the_server_where_the_session_gives_them(database: str) -> None:
    session = registered(postgres_access(database, pushes_filters=True))
    try:
        frame = postgres(session, table="kinds")
        mine = "id < 100 AND t LIKE 'q%' AND tz > timestamp'1970-01-01 02:30:00 UTC' AND n >= 5"
        mine += " AND day <> date'2020-02-20'"
        plan = frame.where(mine)._jdf.queryExecution().optimizedPlan().toString()
        assert "Filter" not in plan
        found = sorted(row.id for row in frame.where(mine + " AND id % 2 = 0").select("id").collect())
        query = f"SELECT id FROM kinds WHERE {mine.replace('timestamp', '')} AND id % 2 = 0 ORDER BY id"
        assert found == asyncio.run(values(database, query.replace("date'", "'")))
        assert found
    finally:
        activate(shared_session())


def test_pages_of_a_service_are_read_by_tasks(database: str) -> None:
    access = postgres_access(database)
    session = registered(_with_loopback(access))
    try:
        with standin_process() as server:
            options = {"data_path": "data", "page_param": "page", "page_size_param": "pageSize", "page_size": 5}
            options |= {"total_path": "paging.total", "partitions": 3, "rate_per_s": 50, "auth": "api"}
            frame = read(session, "noetl_http", url=f"{server}/api/v1/assessments", **options)
            assert frame.schema.simpleString() == "struct<id:bigint,name:string,score:bigint>"
            assert frame.rdd.getNumPartitions() == 3
            assert sorted(row.id for row in frame.collect()) == list(range(1, 36))
            seen = frame._jdf.queryExecution().toString()
        assert CANARY not in seen
    finally:
        activate(shared_session())


def _with_loopback(access: Any) -> Any:
    made = type(access)(http_allow=("loopback",), is_one_machine=True, credentials=access.credentials)
    return made.with_secrets("bearer", {"api": {"token": CANARY}})


def test_plans_settings_and_errors_hold_no_secret_and_other_sessions_no_source(
    spark: SparkSession, database: str, capfd: pytest.CaptureFixture[str]
) -> None:
    frame = postgres(spark, table="kinds")
    frame.explain("extended")
    frame.explain("formatted")
    settings = [f"{name}={value}" for name, value in spark.sparkContext.getConf().getAll()]
    with pytest.raises(PySparkException, match="division by zero") as caught:
        postgres(spark, query="SELECT 1 / (id - id) AS a FROM kinds").collect()
    seen = "".join(settings) + str(caught.value) + "".join(capfd.readouterr())
    assert "noetl_postgres" in seen
    assert CANARY not in seen
    other = shared_session().newSession()
    activate(other)
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        postgres(other, table="kinds")


@pytest.mark.long
def test_the_event_log_holds_no_secret(database: str, tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from noetl.adapters.spark.session import open_session
from noetl.adapters.spark.sources.access import granted
from noetl.adapters.spark.sources.postgres.source import PostgresSource
from tests.support.spark import quick_options
from tests.support.spark_sources import postgres, postgres_access, save
conf = {{"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false", "spark.eventLog.dir": {str(tmp_path)!r}}}
opened = open_session(quick_options(Path({str(tmp_path / "spark")!r})), conf, name="events")
opened.spark.dataSource.register(granted(PostgresSource, postgres_access({database!r})))
frame = postgres(opened.spark, table="kinds", partitions=2)
save(frame, table="again", key="id")
opened.close()
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=240, capture_output=True)
    logs = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file() and "events" in file.name]
    assert any(b"noetl_postgres" in log for log in logs), "the plan is in the log"
    assert not any(CANARY.encode() in log for log in logs)
