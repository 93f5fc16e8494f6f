"""Pages, schemas and values of `noetl_http`, without any network."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from noetl.adapters.spark.sources.http.columns import Encoder
from noetl.adapters.spark.sources.http.fetching import Service
from noetl.adapters.spark.sources.http.options import HttpOptions, http_options
from noetl.adapters.spark.sources.http.pace import Pace
from noetl.adapters.spark.sources.http.paging import Measure, items_of, measured, next_of, page_params, ranges
from noetl.adapters.spark.sources.http.shapes import struct_of
from noetl.core.errors import ToolFailed


def options(**given: object) -> HttpOptions:
    return http_options({"url": "http://x/", **{name: str(value) for name, value in given.items()}})


# --- pages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 100])
def test_every_page_is_in_exactly_one_partition(count: int) -> None:
    cut = ranges(options(page_param="p", partitions=8), Measure(pages=count))
    numbers = [number for part in cut for number in range(part.first, part.first + (part.count or 0))]
    assert numbers == list(range(count))
    sizes = [part.count for part in cut]
    assert max(sizes) - min(sizes) <= 1  # type: ignore[type-var,operator]
    assert {part.share for part in cut} == {len(cut)}


def test_how_many_pages_there_are_is_said_by_options_or_by_the_first_page() -> None:
    page = {"paging": {"total": 35, "pages": "4"}, "rows": [1] * 10}
    counted = {"page_param": "p", "page_size": 50, "data_path": "rows", "partitions": 1}
    assert [part.count for part in ranges(options(**counted, pages=3), Measure())] == [3]
    assert measured(options(**counted, pages_path="paging.pages"), page).pages == 4
    assert measured(options(**counted, total_path="paging.total"), page).pages == 4
    assert [part.count for part in ranges(options(page_param="p"), Measure())] == [None]
    with pytest.raises(ToolFailed, match=r"total_path: the first page has no number at paging\.sum"):
        measured(options(**counted, total_path="paging.sum"), page)


def test_pages_are_asked_for_by_number_or_by_offset() -> None:
    assert page_params(options(page_param="page"), 2) == {"page": 3}
    assert page_params(options(page_param="page", page_start=0, page_size=5, page_size_param="n"), 2) == {
        "page": 2,
        "n": 5,
    }
    assert page_params(options(offset_param="from", page_size=10), 3) == {"from": 30}
    assert page_params(options(offset_param="from", page_size=10), 3, 4) == {"from": 12}


def test_the_next_page_is_named_by_the_body_or_by_a_header() -> None:
    assert next_of(options(next_path="meta.next"), {"meta": {"next": 7}}, {}) == "7"
    assert next_of(options(next_path="meta.next"), {"meta": {"next": None}}, {}) is None
    assert next_of(options(next_path="meta.next"), {}, {}) is None
    link = '<http://x/?p=1>; rel="prev", <http://x/?p=3>; rel="next"; title="more"'
    assert next_of(options(next_link="true"), None, {"link": link}) == "http://x/?p=3"
    assert next_of(options(next_link="true"), None, {"link": '<http://x/?p=1>; rel="prev"'}) is None


def test_a_path_that_is_not_there_is_a_mistake_and_null_is_no_row() -> None:
    assert items_of({"a": {"rows": [1]}}, ("a", "rows")) == [1]
    assert items_of({"rows": None}, ("rows",)) == []
    assert items_of([{"a": 1}], ()) == [{"a": 1}]
    assert items_of({"a": 1}, ()) == [{"a": 1}]
    with pytest.raises(ToolFailed, match=r"data_path: a\.row is no list of rows"):
        items_of({"a": {"rows": [1]}}, ("a", "row"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"urll": "x"}, "urll: there is no such option"),
        ({"page_param": "p", "offset_param": "o", "page_size": 5}, "pages have one order"),
        ({"offset_param": "o"}, "page_size is required"),
        ({"pages": 3}, "pages needs page_param or offset_param"),
        ({"pages": 3, "total_path": "t", "page_size": 2, "page_param": "p"}, "pages and total_path are given"),
        ({"cursor_param": "c"}, "cursor_param needs next_path"),
        ({"rate_per_s": "0"}, "rate_per_s must be a number above 0"),
        ({"headers": '{"Authorization": "Bearer x"}'}, "header 'Authorization' may be a secret"),
        ({"headers": '{"X-Api-Key": "x"}'}, "may be a secret"),
        ({"url": "http://me:secret@x/"}, "url has a user in it"),
        ({"url": "http://x/?day=1&api_key=canary"}, "url: api_key may be a secret.*use auth"),
        ({"params": '{"accessToken": "canary"}'}, "params: accessToken may be a secret"),
        ({"body": '{"login": {"password": "canary"}}'}, "body: login.password may be a secret"),
        ({"method": "DELETE"}, "method must be GET or POST, not 'DELETE'"),
        ({"method": "PUT"}, "method must be GET or POST"),
        ({"params": "[1]"}, "params must be a JSON object"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(given: dict[str, object], message: str) -> None:
    with pytest.raises(ToolFailed, match=message) as caught:
        options(**given)
    assert "Bearer" not in str(caught.value)
    assert "canary" not in str(caught.value)
    assert "secret@" not in str(caught.value)


def test_words_of_paging_are_no_secrets() -> None:
    given = options(url="http://x/?page_token=5", params='{"next_token": "a", "key": "b"}', method="post")
    assert given.fields["method"] == "POST"


# --- schemas and values --------------------------------------------------------------------------------------


def test_the_schema_of_rows_holds_all_their_values() -> None:
    items: list[object] = [
        {"id": 1, "x": 1, "tags": ["a"], "who": {"name": "n"}, "mixed": 1, "none": None, "bare": {}, "big": 2**70},
        {"id": 2, "x": 1.5, "tags": [], "who": {"name": None, "age": 3}, "mixed": "b", "late": True},
    ]
    assert struct_of(items).simpleString() == (
        "struct<id:bigint,x:double,tags:array<string>,who:struct<name:string,age:bigint>,mixed:string,none:string,"
        "bare:string,big:string,late:boolean>"
    )
    assert struct_of([1, 2]).simpleString() == "struct<value:bigint>"


def test_inferred_rows_come_back_as_they_are() -> None:
    items = [{"id": 1, "deep": {"list": [{"a": 1}, {"b": "x"}]}, "any": {"k": [1]}}, {"id": 2, "any": "text"}]
    batch = Encoder(struct_of(items)).batch(items, where="page")
    assert batch.to_pylist() == [
        {"id": 1, "deep": {"list": [{"a": 1, "b": None}, {"a": None, "b": "x"}]}, "any": '{"k":[1]}'},
        {"id": 2, "deep": None, "any": "text"},
    ]


KINDS: list[tuple[DataType, object, object]] = [
    (LongType(), 5.0, 5),
    (DoubleType(), 2, 2.0),
    (DecimalType(10, 2), "1.50", Decimal("1.50")),
    (DecimalType(10, 2), 1.5, Decimal("1.50")),
    (StringType(), {"a": [1, "ü"]}, '{"a":[1,"ü"]}'),
    (StringType(), True, "true"),
    (BooleanType(), False, False),
    (DateType(), "2026-01-31", datetime.date(2026, 1, 31)),
    (TimestampType(), "2026-01-31T12:00:00+02:00", datetime.datetime(2026, 1, 31, 10, tzinfo=datetime.UTC)),
    (TimestampType(), "2026-01-31T12:00:00Z", datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)),
    (TimestampNTZType(), "2026-01-31T12:00:00", datetime.datetime(2026, 1, 31, 12)),
    (ArrayType(LongType()), [1, None], [1, None]),
    (MapType(StringType(), LongType()), {"a": 1}, [("a", 1)]),
]


@pytest.mark.parametrize(("kind", "given", "expected"), KINDS)
def test_values_become_what_the_schema_says(kind: DataType, given: Any, expected: object) -> None:
    encoder = Encoder(StructType([StructField("v", kind)]))
    batch = encoder.batch([{"v": given}, {"v": None}, {}], where="page")
    assert batch.column(0).to_pylist() == [expected, None, None]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (LongType(), "5"),
        (LongType(), 5.5),
        (LongType(), True),
        (LongType(), 2**70),
        (DoubleType(), 2**60 + 1),
        (DoubleType(), "x"),
        (DecimalType(4, 2), "1.505"),
        (BooleanType(), 1),
        (DateType(), "yesterday"),
        (TimestampType(), 5),
        (TimestampNTZType(), "2026-01-31T12:00:00Z"),
        (ArrayType(LongType()), {"a": 1}),
        (StructType([StructField("a", LongType())]), [1]),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_with_the_columns_name(kind: DataType, given: object) -> None:
    encoder = Encoder(StructType([StructField("v", kind)]))
    with pytest.raises(ToolFailed, match="GET http://x/p: column 'v' has a value"):
        encoder.batch([{"v": given}], where="GET http://x/p")


# --- the pace ------------------------------------------------------------------------------------------------


def test_tasks_of_one_machine_share_the_places_of_a_rate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    one, other, elsewhere = (Pace(0.01, origin).opened() for origin in ("http://x", "http://x", "http://y"))
    places = [taker._take() for taker in (one, other, one, elsewhere)]  # type: ignore[union-attr]
    waits = [round((at - now) / 100.0) for at, now in places]
    assert waits == [0, 1, 2, 0]


def test_tasks_of_several_machines_keep_their_share_of_a_rate() -> None:
    given = options(rate_per_s=10, page_param="p")
    here, there = (Service(options=given, carried=None, allow=(), is_one_machine=one) for one in (True, False))
    assert here.pace(4) == Pace(10.0, "http://x")
    assert there.pace(4) == Pace(2.5, None)
    assert Service(options=options(), carried=None, allow=(), is_one_machine=True).pace(4).opened() is None
