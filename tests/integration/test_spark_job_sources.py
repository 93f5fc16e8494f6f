"""Jobs that read systems of users with credentials of their own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from noetl.core.errors import Failure
from noetl.ports.data.compute import Expectation, JobCredential, JobInput, JobOutcome, JobOutput, SparkJob
from tests.support.databases import connected, empty_database
from tests.support.spark import shared_session
from tests.support.spark_jobs import dataset, job_of, performed, rows_of, succeeded
from tests.support.spark_sources import CANARY

CODE = """
def main(spark, orders):
    people = spark.read.format("noetl_postgres").option("auth", "db").option("table", "people").load()
    return orders.join(people, orders.person == people.id).select(orders.id, "name").orderBy(orders.id)
"""


@pytest.fixture(scope="module")
def dsn() -> str:
    address = empty_database()

    async def fill() -> None:
        async with connected(address) as connection:
            await connection.execute(
                "CREATE TABLE orders (id int, person int); INSERT INTO orders VALUES (1, 10), (2, 20), (3, 10);"
                "CREATE TABLE people (id int, name text); INSERT INTO people VALUES (10, 'ann'), (20, 'bob')"
            )

    asyncio.run(fill())
    return address


def a_job(tmp_path: Path, dsn: str, text: str, mode: str) -> SparkJob:
    orders = JobInput(name="orders", kind="source", format="noetl_postgres", options={"auth": "db", "table": "orders"})
    login = JobCredential(type="postgres", data={"dsn": dsn, "password": CANARY})
    return job_of(tmp_path, text, mode, inputs=(orders,), credentials={"db": login})


def test_inputs_and_programs_read_with_the_credentials_of_the_job(tmp_path: Path, dsn: str) -> None:
    found = dataset(succeeded(a_job(tmp_path, dsn, CODE, "code")))
    assert [(row["id"], row["name"]) for row in rows_of(found)] == [(1, "ann"), (2, "bob"), (3, "ann")]


def test_what_a_source_says_is_the_failure_and_its_input_is_named(tmp_path: Path, dsn: str) -> None:
    orders = JobInput(name="orders", kind="source", format="noetl_postgres", options={"auth": "db", "table": "gone"})
    login = JobCredential(type="postgres", data={"dsn": dsn, "password": CANARY})
    outcome = performed(job_of(tmp_path, "TABLE orders", inputs=(orders,), credentials={"db": login}))
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.code) == ("config", "TABLE_UNKNOWN")
    assert not outcome.failure.retryable
    assert outcome.failure.message.startswith("input orders: ")
    assert "gone" in outcome.failure.message
    assert "Traceback" not in outcome.failure.message


def test_a_credential_is_shown_nowhere(tmp_path: Path, dsn: str) -> None:
    job = a_job(tmp_path, dsn, "EXPLAIN EXTENDED SELECT * FROM orders", "sql")
    outcome = succeeded(job)
    wrong = performed(a_job(tmp_path, dsn, "SELECT nope FROM orders", "sql"))
    assert wrong.failure is not None
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) > 1
    assert not any(CANARY.encode() in content for content in kept)
    assert CANARY not in repr((job, outcome, wrong))


# --- what kind of failure it is ------------------------------------------------------------------------------


def failure_of(outcome: JobOutcome) -> Failure:
    assert outcome.failure is not None
    shown = f"{outcome.failure.message} {outcome.traceback}"
    assert "noetl-failure" not in shown
    assert CANARY not in shown
    return outcome.failure


def test_a_database_that_is_down_may_be_asked_again(tmp_path: Path) -> None:
    address = "postgresql://me@127.0.0.1:1/work"
    found = failure_of(performed(a_job(tmp_path, address, "TABLE orders", "sql")))
    assert (found.kind, found.code, found.retryable) == ("db_connection", "CONN_REFUSED", True)
    assert found.message.startswith("input orders: ")
    assert "127.0.0.1" in found.message


@contextmanager
def service(status: int = 200) -> Iterator[tuple[str, list[int]]]:
    """A service whose answer is another one each time, and how often it was asked."""
    numbers, asked = count(1), []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(next(numbers))
            content = json.dumps([{"n": asked[-1], "half": n} for n in range(2)]).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/rows", asked
        finally:
            server.shutdown()
            thread.join()


READ_PAGES = """
def main(spark, url):
    pages = spark.read.format("noetl_http").schema("n bigint").options(url=url, retries="1")
    return pages.load().agg({"n": "sum"}).first()[0]
"""


@pytest.mark.parametrize(("status", "kind"), [(429, "rate_limit"), (503, "server_error"), (404, "not_found")])
def test_a_service_that_refuses_in_a_task_has_the_kind_of_its_answer(tmp_path: Path, status: int, kind: str) -> None:
    with service(status) as (url, asked):
        given = JobInput(name="url", kind="value", value=url)
        found = failure_of(performed(job_of(tmp_path, READ_PAGES, "code", inputs=(given,), http_allow=("loopback",))))
    assert (found.kind, found.status, found.retryable) == (kind, status, status != 404)
    assert len(asked) == (1 if status == 404 else 2)
    assert str(status) in found.message


def test_a_mark_that_user_code_writes_means_nothing(tmp_path: Path) -> None:
    text = """
def main(spark):
    def wrong(rows):
        raise ValueError('no\\nnoetl-failure: {"kind": "db_connection", "retryable": true}')
    return spark.range(1).rdd.mapPartitions(wrong).count()
"""
    outcome = performed(job_of(tmp_path, text, "code"))
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.retryable) == ("python", False)


# --- inputs that change --------------------------------------------------------------------------------------


def of_service(tmp_path: Path, url: str, **more: Any) -> SparkJob:
    pages = JobInput(name="pages", kind="source", format="noetl_http", options={"url": url})
    text = "CREATE TEMPORARY VIEW seen AS SELECT n, half FROM pages"
    return job_of(tmp_path, text, inputs=(pages,), http_allow=("loopback",), **more)


def test_all_outputs_and_rules_of_a_job_see_the_same_rows_which_are_read_once(tmp_path: Path) -> None:
    with service() as (url, asked):
        one = succeeded(of_service(tmp_path, url, outputs=(JobOutput(name="a", query="SELECT n, half FROM seen"),)))
        asked_for_one = len(asked)
        several = (
            JobOutput(name="a", query="SELECT n, half FROM seen LIMIT 1"),
            JobOutput(name="b", query="SELECT x.n, y.half FROM seen x JOIN pages y USING (n, half)"),
            JobOutput(name="c", query="SELECT n, half FROM pages"),
        )
        rule = Expectation(name="known", kind="references", of="c", columns=("n",), to="pages", to_columns=("n",))
        many = succeeded(of_service(tmp_path, url, outputs=several, expectations=(rule,)))
    assert len(rows_of(dataset(one, "a"))) == 2
    assert len(asked) == 2 * asked_for_one
    seen = {row["n"] for name in "abc" for row in rows_of(dataset(many, name))}
    assert len(seen) == 1
    assert [len(rows_of(dataset(many, name))) for name in "abc"] == [1, 2, 2]
    assert not kept_by_spark()


def test_a_table_that_changes_between_two_uses_gives_the_same_rows(tmp_path: Path, dsn: str) -> None:
    text = """
def main(spark, orders, dsn):
    import asyncio, asyncpg
    async def add():
        connection = await asyncpg.connect(dsn)
        await connection.execute("INSERT INTO orders VALUES (4, 20)")
        await connection.close()
    before = orders.count()
    asyncio.run(add())
    fresh = spark.read.format("noetl_postgres").options(auth="db", table="orders").load()
    return [before, orders.count(), orders.filter("person = 20").count(), fresh.count()]
"""
    job = a_job(tmp_path, dsn, text, "code")
    given = (*job.inputs, JobInput(name="dsn", kind="value", value=dsn))
    found = succeeded(job_of(tmp_path, text, "code", inputs=given, credentials=job.credentials))
    assert found.values[""] == [3, 3, 1, 4]
    assert not kept_by_spark()


def test_an_input_that_is_not_used_is_not_read(tmp_path: Path) -> None:
    with service() as (url, asked):
        succeeded(of_service(tmp_path, url, outputs=(JobOutput(name="a", query="SELECT 1 AS n"),)))
    assert len(asked) == 1  # for its columns


def kept_by_spark() -> dict[int, object]:
    context: Any = shared_session().sparkContext
    return dict(context._jsc.getPersistentRDDs())
