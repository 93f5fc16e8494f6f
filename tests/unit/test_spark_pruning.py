"""What filters let out: never a row that Spark would have let pass."""

from __future__ import annotations

import datetime
import io
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from noetl.adapters.spark.sources.payloads.pruning import needed_groups, needed_parts
from noetl.core.dataset import DatasetPart
from noetl.core.reference import Reference

COLUMN = ("x",)
NAN = float("nan")
DAY = datetime.date(2026, 1, 31)
MOMENT = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)


def groups_of(values: list[Any], kind: pa.DataType, *filters: spark.Filter) -> list[int]:
    """The row groups of one row each that are left."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array(values, kind)}), sink, row_group_size=1)
    return needed_groups(pq.read_metadata(sink), filters)


def part(**partition: str | None) -> DatasetPart:
    reference = Reference(kind="payload", uri="noetl://x", sha256="0" * 64, media_type="", bytes=1, store="file")
    return DatasetPart(reference=reference, row_count=1, partition=partition)


@pytest.mark.parametrize(
    ("one", "left"),
    [
        (spark.EqualTo(COLUMN, 2), [1]),
        (spark.EqualNullSafe(COLUMN, 2), [1]),
        (spark.EqualNullSafe(COLUMN, None), [3]),
        (spark.LessThan(COLUMN, 2), [0]),
        (spark.LessThanOrEqual(COLUMN, 2), [0, 1]),
        (spark.GreaterThan(COLUMN, 2), [2]),
        (spark.GreaterThanOrEqual(COLUMN, 2), [1, 2]),
        (spark.In(COLUMN, (1, 3)), [0, 2]),
        (spark.IsNull(COLUMN), [3]),
        (spark.IsNotNull(COLUMN), [0, 1, 2]),
        (spark.Not(spark.EqualTo(COLUMN, 2)), [0, 1, 2, 3]),
        (spark.EqualTo(("y",), 2), [0, 1, 2, 3]),
        (spark.EqualTo(("x", "inner"), 2), [0, 1, 2, 3]),
        (spark.EqualTo(COLUMN, "2"), [0, 1, 2]),
    ],
)
def test_row_groups_are_left_out_by_their_statistics(one: spark.Filter, left: list[int]) -> None:
    assert groups_of([1, 2, 3, None], pa.int64(), one) == left


@pytest.mark.parametrize(
    ("values", "kind", "value"),
    [
        (["a", "b", "ü"], pa.string(), "b"),
        ([DAY - datetime.timedelta(1), DAY, DAY + datetime.timedelta(1)], pa.date32(), DAY),
        ([MOMENT - datetime.timedelta(1), MOMENT, MOMENT], pa.timestamp("us", "UTC"), MOMENT),
        ([Decimal("1.10"), Decimal("1.20"), Decimal("-1.00")], pa.decimal128(5, 2), Decimal("1.20")),
        ([False, True, True], pa.bool_(), True),
        ([b"a", b"b", b"\xff"], pa.binary(), b"b"),
    ],
)
def test_no_type_loses_the_rows_that_are_equal(values: list[Any], kind: pa.DataType, value: Any) -> None:
    left = groups_of(values, kind, spark.EqualTo(COLUMN, value))
    assert {place for place, one in enumerate(values) if one == value} <= set(left)


def passes(value: float | None, name: str, bound: float) -> bool:
    """As Spark compares: a number that is none is equal to itself and greater than all others."""
    if value is None:
        return False
    one, other = (math.isnan(value), 0.0 if math.isnan(value) else value), (math.isnan(bound), bound)
    other = (True, 0.0) if math.isnan(bound) else other
    return {
        "EqualTo": one == other,
        "LessThan": one < other,
        "LessThanOrEqual": one <= other,
        "GreaterThan": one > other,
        "GreaterThanOrEqual": one >= other,
    }[name]


@given(
    st.lists(st.one_of(st.none(), st.floats(width=64)), min_size=1, max_size=5),
    st.sampled_from(["EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"]),
    st.floats(width=64),
)
@example([NAN], "GreaterThan", 1.0)
@example([1.0, NAN], "GreaterThanOrEqual", 2.0)
@example([0.0], "EqualTo", -0.0)
def test_floats_are_never_lost(values: list[float | None], name: str, bound: float) -> None:
    left = groups_of(values, pa.float64(), getattr(spark, name)(COLUMN, bound))
    assert {place for place, one in enumerate(values) if passes(one, name, bound)} <= set(left)


def test_parts_are_left_out_by_the_values_they_are_partitioned_by() -> None:
    parts = [part(day="2026-01-30"), part(day="2026-01-31"), part(day=None)]
    types = {"day": pa.date32()}
    assert needed_parts(parts, types, [spark.EqualTo(("day",), DAY)]) == [parts[1]]
    assert needed_parts(parts, types, [spark.IsNull(("day",))]) == [parts[2]]
    assert needed_parts(parts, types, [spark.LessThan(("day",), DAY), spark.IsNotNull(("day",))]) == [parts[0]]
    assert needed_parts(parts, types, [spark.EqualTo(("other",), 1)]) == parts
    assert needed_parts([part(day="no day")], types, [spark.EqualTo(("day",), DAY)]) == [part(day="no day")]
