"""`noetl_http` reads all rows of services that keep pages in their own way, or says what is missing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StructField, StructType

from noetl.adapters.spark.sources.access import Access
from noetl.adapters.spark.sources.http.source import HttpSource
from noetl.core.errors import ToolFailed
from tests.support.spark_sources import parts_of, source

LOCAL = Access(http_allow=("loopback",), is_one_machine=True)
ROW = StructType([StructField("id", LongType())])
IDS = [{"id": number} for number in range(35)]
Answer = Callable[[dict[str, int]], object]
"""What the service answers to the numbers in a query; None is a page that is not there."""


@contextmanager
def service(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = {name: int(value) for name, value in parse_qsl(urlsplit(self.path).query)}
            page = answer(asked)
            self.send_response(404 if page is None else 200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(page).encode())

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/rows"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ids(answer: Answer, struct: StructType | None = ROW, **options: object) -> list[int]:
    with service(answer) as url:
        made = source(HttpSource, LOCAL, {"url": url, "data_path": "items", "retries": 0, **options})
        return [row["id"] for part in parts_of(made, struct) for row in part]


def capped(rows: list[Any], size: int, **more: object) -> Answer:
    """Pages have `size` rows at most, whatever is asked for."""

    def answer(asked: dict[str, int]) -> object:
        step = min(size, asked.get("per", size))
        first = asked["from"] if "from" in asked else (asked.get("page", 1) - 1) * step
        return {"items": rows[first : first + step], "total": len(rows), **more}

    return answer


NUMBERED = {"page_param": "page", "page_size_param": "per"}
OFFSET = {"offset_param": "from", "page_size_param": "per"}


@pytest.mark.parametrize("way", [NUMBERED, OFFSET], ids=["page", "offset"])
@pytest.mark.parametrize("count", [{"total_path": "total"}, {}, {"pages": 4}], ids=["total", "until short", "pages"])
def test_a_service_that_gives_smaller_pages_than_asked_for_is_read_whole(
    way: dict[str, object], count: dict[str, object]
) -> None:
    assert ids(capped(IDS, 10), **way, **count, page_size=100, partitions=3) == list(range(35))


def test_a_single_page_that_is_short_is_the_last_one_when_there_is_no_second() -> None:
    def answer(asked: dict[str, int]) -> object:
        return {"items": IDS[:7]} if asked["page"] == 1 else None

    assert ids(answer, **NUMBERED, page_size=10) == list(range(7))
    with pytest.raises(ToolFailed, match="answered 404"):
        ids(answer, **NUMBERED, page_size=7)


@pytest.mark.parametrize(
    ("sizes", "total", "message"),
    [
        ((10, 9, 10, 6), 35, "page 2 has 9 rows instead of 10: pages have 10 rows, and the total is 35"),
        ((10, 10, 10, 4), 35, "page 4 has 4 rows instead of 5"),
        ((10, 10, 10, 6), 35, "page 4 has 6 rows instead of 5"),
        ((0,), 35, "the first page has 0 rows, and total says 35"),
        ((10,), 9, "the first page has 10 rows, and total says 9"),
    ],
)
def test_rows_are_as_many_as_the_total_says(sizes: tuple[int, ...], total: int, message: str) -> None:
    def answer(asked: dict[str, int]) -> object:
        number = asked["page"] - 1
        first = sum(sizes[:number])
        return {"items": [{"id": first + one} for one in range(sizes[number])], "total": total}

    with pytest.raises(ToolFailed, match=message):
        ids(answer, **NUMBERED, page_size=10, total_path="total", partitions=2)


def test_a_short_page_in_the_middle_of_offsets_is_an_error() -> None:
    def answer(asked: dict[str, int]) -> object:
        return {"items": IDS[asked["from"] :][: 10 if asked["from"] != 10 else 8], "more": asked["from"] < 30}

    with pytest.raises(ToolFailed, match="page 2 has 8 rows, the first one 10, and more are to follow"):
        ids(answer, **OFFSET, page_size=10, more_path="more")


@pytest.mark.parametrize("words", [(1, 0), ("true", "false"), ("True", ""), (True, None), (True, False)])
def test_whether_there_is_more_is_said_in_many_ways(words: tuple[object, object]) -> None:
    def answer(asked: dict[str, int]) -> object:
        return {"items": [{"id": asked["page"]}], "more": words[0] if asked["page"] < 3 else words[1]}

    assert ids(answer, page_param="page", more_path="more") == [1, 2, 3]


@pytest.mark.parametrize("more", [{}, {"more": 2}, {"more": "http://x/"}, {"more": [1]}, {"more": 1.5}])
def test_a_page_that_does_not_say_whether_there_is_more_is_an_error(more: dict[str, object]) -> None:
    with pytest.raises(ToolFailed, match="more_path: a page has neither true nor false at more"):
        ids(lambda asked: {"items": [{"id": asked["page"]}], **more}, page_param="page", more_path="more")


@pytest.mark.parametrize(
    "options",
    [
        {"page_param": "page"},
        {"page_param": "page", "more_path": "more"},
        {"next_path": "next", "cursor_param": "page"},
        {"page_param": "page", "pages_path": "count"},
        {"page_param": "page", "total_path": "count", "page_size": 1},
    ],
)
def test_more_pages_than_can_be_are_an_error(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fetching", "paging"):
        monkeypatch.setattr(f"noetl.adapters.spark.sources.http.{name}.SOURCE_PAGES_MAX", 3)

    def answer(asked: dict[str, int]) -> object:
        number = asked.get("page", 0)
        return {"items": [{"id": number}], "more": True, "next": number + 1, "count": 4}

    with pytest.raises(ToolFailed, match="there are more than 3 pages"):
        ids(answer, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"page_param": "wrong"},
        {"page_param": "wrong", "pages": 3, "partitions": 1},
        {"page_param": "wrong", "pages_path": "pages", "partitions": 3},
        {"offset_param": "wrong", "page_size": 10},
    ],
)
def test_the_same_page_again_is_an_error(options: dict[str, object]) -> None:
    with pytest.raises(ToolFailed, match="page 2 has the same rows as page 1"):
        ids(lambda _: {"items": IDS[:10], "pages": 3}, **options)


def test_a_column_that_comes_later_is_an_error_unless_a_schema_leaves_it_out() -> None:
    def answer(asked: dict[str, int]) -> object:
        return {
            "items": [{"id": asked["page"], **({"late": 1} if asked["page"] > 1 else {})}],
            "more": asked["page"] < 2,
        }

    def deep(asked: dict[str, int]) -> object:
        return {"items": [{"id": 1, "in": {"late" if asked["page"] > 1 else "a": 1}}], "more": asked["page"] < 2}

    paged = {"page_param": "page", "more_path": "more"}
    with pytest.raises(ToolFailed, match=r"column 'late' is not on the first page.*give a schema"):
        ids(answer, None, **paged)
    with pytest.raises(ToolFailed, match=r"column 'in' .*its member 'late' is not on the first page"):
        ids(deep, None, **paged)
    assert ids(answer, ROW, **paged) == [1, 2]


def test_a_source_that_was_sent_on_still_knows_whose_schema_it_is() -> None:
    """Spark asks one process for the schema and another one for the plan."""
    with service(lambda _: {"items": IDS[:1]}) as url:
        made = source(HttpSource, LOCAL, {"url": url, "data_path": "items"})
        assert not made.reader(ROW)._is_inferred
        struct = made.schema()
        assert cloudpickle.loads(cloudpickle.dumps(made)).reader(struct)._is_inferred
