"""Rows of a table as plain data: what `normalise` says of Python's values, column by column."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from noetl.adapters.arrow.rows import rows_of, values_of
from noetl.core.expression.values import normalise
from tests.support.arrow import UUID, batches, column_types


@settings(max_examples=150, deadline=None)
@given(batches(column_types(pa.float32(), pa.month_day_nano_interval())))
def test_rows_are_what_normalise_makes_of_pythons_values(batch: Any) -> None:
    expected = [normalise(row) for row in batch.to_pylist(maps_as_pydicts="lossy")]
    if not batch.num_columns:
        expected = [{}] * batch.num_rows
    found = rows_of(batch)
    assert found == expected
    assert [list(map(type, row.values())) for row in found] == [list(map(type, row.values())) for row in expected]  # type: ignore[union-attr]
    json.dumps(found, allow_nan=False)


def column(values: list[Any], kind: Any) -> list[Any]:
    return values_of(pa.array(values, type=kind))


@pytest.mark.parametrize(
    ("kind", "values", "plain"),
    [
        (pa.decimal128(5, 0), [Decimal(7), None], [7, None]),
        (pa.decimal128(5, 2), [Decimal("7.00"), Decimal("0.10")], [7.0, 0.1]),
        (pa.decimal128(38, 18), [Decimal("0.123456789012345678")], [0.12345678901234568]),
        (pa.float64(), [float("nan"), float("inf"), 1.5, None], [None, None, 1.5, None]),
        (pa.binary(), [b"\x00\xff", b""], ["AP8=", ""]),
        (pa.timestamp("us"), [dt.datetime(2024, 2, 29, 1, 2, 3)], ["2024-02-29T01:02:03"]),
        (pa.timestamp("ms"), [dt.datetime(2024, 2, 29, 1, 2, 3, 450000)], ["2024-02-29T01:02:03.450000"]),
        (pa.timestamp("s", "UTC"), [0], ["1970-01-01T00:00:00+00:00"]),
        (pa.timestamp("s", "Europe/Berlin"), [0], ["1970-01-01T01:00:00+01:00"]),
        (pa.date32(), [dt.date(2024, 2, 29)], ["2024-02-29"]),
        (pa.time64("us"), [dt.time(1, 2, 3, 4)], ["01:02:03.000004"]),
        (pa.duration("s"), [-1], ["-1 day, 23:59:59"]),
        (pa.month_day_nano_interval(), [pa.MonthDayNano([1, 2, 3_000])], ["P1M2DT0.000003S"]),
        (pa.float32(), [1.1, None], [1.1, None]),
        (pa.uuid(), [UUID], [str(UUID)]),
        (pa.map_(pa.int64(), pa.bool_()), [[(1, True), (2, None)]], [{"1": True, "2": None}]),
    ],
    ids=str,
)
def test_values_of_a_type(kind: Any, values: list[Any], plain: list[Any]) -> None:
    assert column(values, kind) == plain


def test_what_pythons_dates_cannot_hold_keeps_its_digits() -> None:
    assert column([1_000_000_001], pa.timestamp("ns")) == ["1970-01-01T00:00:01.000000001"]
    assert column([1], pa.time64("ns")) == ["00:00:00.000000001"]
    assert column([1001], pa.duration("ns")) == ["0:00:00.000001001"]
    assert column([2**40], pa.timestamp("s"))[0].startswith("36812-")
    assert column([-(2**30)], pa.date32())[0].startswith("-")
    assert column([2**62], pa.duration("s")) == ["53375995583650 days, 7:45:04"]


def test_a_zone_that_nobody_knows_gives_the_same_moment_in_utc() -> None:
    assert column([0], pa.timestamp("s", "Mars/Olympus")) == ["1970-01-01T00:00:00+00:00"]


def test_json_columns_are_parsed_and_what_is_no_json_stays_text() -> None:
    texts = ['{"a": [1, NaN]}', "3", "null", "not json", None]
    array = pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts))
    assert values_of(array) == [{"a": [1, None]}, 3, None, "not json", None]


def test_of_several_columns_with_one_name_the_last_is_seen() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array(["b"])], names=["a", "a"])
    assert rows_of(batch) == [{"a": "b"}]


def test_unions_run_ends_and_views_have_values_too() -> None:
    union = pa.UnionArray.from_dense(
        pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array([1, 2]), pa.array([b"x"])]
    )
    assert values_of(union) == [1, "eA==", 2]
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([Decimal("1.5"), None]))
    assert values_of(runs) == [1.5, 1.5, None]
    assert values_of(runs.slice(1)) == [1.5, None]
    views = pa.array([[1, None], None, []], type=pa.list_view(pa.float64()))
    assert values_of(views) == [[1.0, None], None, []]


def test_a_slice_of_a_nested_column_is_the_slice_of_its_values() -> None:
    array = pa.array([[place, {"deep": place}["deep"]] for place in range(1000)], type=pa.list_(pa.int64()))
    assert values_of(array.slice(990, 3)) == [[990, 990], [991, 991], [992, 992]]
    words = pa.array(["a", "b", None, "a"]).dictionary_encode()
    assert values_of(words.slice(1, 3)) == ["b", None, "a"]
    pairs = pa.array([(1, 2), None, (3, 4)], type=pa.list_(pa.int64(), 2))
    assert values_of(pairs.slice(1)) == [None, [3, 4]]
