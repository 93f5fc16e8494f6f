"""`noetl_http` reads all pages of a real server once, in the pace that was asked for, and only where it may."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from noetl.adapters.spark.sources.access import Access
from noetl.adapters.spark.sources.http.source import HttpSource
from noetl.core.errors import ToolFailed
from tests.support.spark_sources import CANARY, parts_of, source
from tests.support.standin import standin_process

LOCAL = Access(http_allow=("loopback",), is_one_machine=True)
PAGED = {"data_path": "data", "page_param": "page", "page_size_param": "pageSize"}
ROW = StructType([StructField("id", LongType()), StructField("name", StringType())])


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with standin_process() as address:
        yield address


def call(address: str) -> Any:
    request = urllib.request.Request(address, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def parts(url: str, access: Access = LOCAL, struct: StructType | None = ROW, **options: object) -> list[list[int]]:
    made = source(HttpSource, access, {"url": url, **options})
    return [[row["id"] for row in part] for part in parts_of(made, struct)]


def all_of(cut: list[list[int]]) -> list[int]:
    return sorted(one for part in cut for one in part)


@pytest.mark.parametrize(
    ("path", "options", "count"),
    [
        ("assessments", {**PAGED, "page_size": 10, "total_path": "paging.total"}, 4),
        ("assessments", {**PAGED, "page_size": 5, "pages": 7, "partitions": 3}, 3),
        ("assessments", {**PAGED, "page_size": 10}, 1),
        ("assessments", {**PAGED, "page_size": 10, "more_path": "paging.hasMore"}, 1),
        (
            "users",
            {"data_path": "users", "offset_param": "offset", "page_size_param": "limit", "page_size": 10}
            | {"total_path": "total", "partitions": 2},
            2,
        ),
        ("events", {"data_path": "events", "next_path": "next_cursor", "cursor_param": "cursor"}, 1),
    ],
)
def test_all_pages_are_read_once(server: str, path: str, options: dict[str, Any], count: int) -> None:
    cut = parts(f"{server}/api/v1/{path}", **options)
    assert len(cut) == count
    assert all(cut)
    assert all_of(cut) == list(range(1, 36))


def test_a_single_answer_is_one_page_and_its_schema_is_inferred(server: str) -> None:
    made = source(HttpSource, LOCAL, {"url": f"{server}/posts"})
    assert set(made.schema().fieldNames()) >= {"id", "title"}
    assert made.schema()["id"].dataType == LongType()
    assert len(parts(f"{server}/posts", struct=None)[0]) == 100


def test_pages_that_fail_for_a_while_are_asked_for_again(server: str) -> None:
    call(f"{server}/api/v1/reset")
    flaky = {**PAGED, "params": '{"fail_on": "2,3"}', "page_size": 10, "pages": 4, "partitions": 2}
    assert all_of(parts(f"{server}/api/v1/flaky", **flaky)) == list(range(1, 36))
    call(f"{server}/api/v1/flaky/reset")
    with pytest.raises(ToolFailed, match="answered 500"):
        parts(f"{server}/api/v1/flaky", **flaky, retries=0)


def test_a_server_that_says_when_to_come_back_is_obeyed(server: str) -> None:
    call(f"{server}/api/v1/reset")
    limited = {**PAGED, "params": '{"requests_per_second": 3}', "page_size": 7, "pages": 5, "partitions": 1}
    assert all_of(parts(f"{server}/api/v1/rate-limited", **limited)) == list(range(1, 36))


def test_the_rate_is_kept_by_all_partitions_together(server: str) -> None:
    """The server refuses more than 20 in a second, and nothing is tried again."""
    call(f"{server}/api/v1/reset")
    strict = {**PAGED, "params": '{"requests_per_second": 20}', "page_size": 1, "pages": 25, "partitions": 4}
    with pytest.raises(ToolFailed, match="answered 429"):
        parts(f"{server}/api/v1/rate-limited", **strict, retries=0)
    call(f"{server}/api/v1/reset")
    options = {"url": f"{server}/api/v1/rate-limited", **strict, "retries": 0, "rate_per_s": 8}
    reader = source(HttpSource, LOCAL, options).reader(ROW)
    with ThreadPoolExecutor(4) as pool:
        batches = pool.map(lambda part: list(reader.read(part)), reader.partitions())
        found = [one for some in batches for batch in some for one in batch.column("id").to_pylist()]
    assert sorted(found) == list(range(1, 26))


@pytest.mark.parametrize("error_type", ["401", "403", "404"])
def test_what_will_not_pass_is_not_tried_again(server: str, error_type: str) -> None:
    with pytest.raises(ToolFailed, match=f"answered {error_type}"):
        parts(f"{server}/api/v1/errors", data_path="data", params=json.dumps({"error_type": error_type}))


def test_a_credential_becomes_headers_and_stays_out_of_options(server: str) -> None:
    access = LOCAL.with_secrets("bearer", {"api": {"token": CANARY}})
    made = source(HttpSource, access, {"url": f"{server}/anything", "auth": "api", "headers": '{"X-Kind": "rows"}'})
    struct = StructType([StructField("headers", StringType()), StructField("method", StringType())])
    [[row]] = parts_of(made, struct)
    headers = json.loads(row["headers"])
    assert headers["Authorization"] == f"Bearer {CANARY}"
    assert headers["X-Kind"] == "rows"
    assert CANARY not in f"{made.access!r} {vars(made.reader(struct))!r}"


def test_headers_of_a_step_are_sent_to_the_first_origin(server: str) -> None:
    access = LOCAL.with_secrets("header", {"step": {"headers": {"X-Api-Key": CANARY}}})
    made = source(HttpSource, access, {"url": f"{server}/anything", "auth": "step", "method": "POST", "body": "[1]"})
    struct = StructType([StructField("headers", StringType()), StructField("json", StringType())])
    [[row]] = parts_of(made, struct)
    assert json.loads(row["headers"])["X-Api-Key"] == CANARY
    assert row["json"] == "[1]"


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:{port}/posts", "http://localhost:{port}/posts", "http://169.254.169.254/", "http://10.0.0.1/"],
)
def test_addresses_that_the_installation_does_not_allow_are_refused(server: str, url: str) -> None:
    with pytest.raises(ToolFailed, match="NOETL_HTTP_ALLOW"):
        parts(url.format(port=server.rpartition(":")[2]), Access(), retries=0)


def test_a_server_that_is_not_there_is_named_without_its_query(server: str) -> None:
    with pytest.raises(ToolFailed, match="connection refused") as caught:
        parts("http://127.0.0.1:1/x?since=abc", retries=0)
    assert "abc" not in str(caught.value)


def test_an_answer_that_is_no_json_or_has_no_rows_says_so(server: str) -> None:
    with pytest.raises(ToolFailed, match="data_path: nothing is no list of rows"):
        parts(f"{server}/api/v1/assessments", data_path="nothing")
    with pytest.raises(ToolFailed, match="the first page has no rows"):
        parts(f"{server}/api/v1/assessments", struct=None, data_path="data", params='{"page": 99}')
    struct = StructType([StructField("name", LongType())])
    with pytest.raises(ToolFailed, match=r"GET http://127.0.0.1:\d+/api/v1/assessments: column 'name' has a value"):
        parts(f"{server}/api/v1/assessments", struct=struct, data_path="data")
