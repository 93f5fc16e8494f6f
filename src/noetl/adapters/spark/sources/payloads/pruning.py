"""What a filter lets out before it is read: parts by the values of their partitioning, row groups by their statistics.

Spark applies every filter again to the rows it gets.  So this may keep too much; it must never leave out too much, and
whatever it does not understand stays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as spark

from noetl.adapters.arrow.datasets.partitions import typed
from noetl.core.dataset import DatasetPart

Filters = Sequence[spark.Filter]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known of the values of a column in some rows."""

    low: Any = None
    high: Any = None
    """None when nothing is known."""
    has_nulls: bool = True
    has_values: bool = True


Look = Callable[[str], Bounds | None]


def may_hold(filters: Filters, look: Look) -> bool:
    """Whether some rows may have one that all filters let pass."""
    return all(_may(one, look) for one in filters)


def needed_parts(parts: Sequence[DatasetPart], types: Mapping[str, pa.DataType], filters: Filters) -> list[DatasetPart]:
    return [part for part in parts if may_hold(filters, _values(part, types))]


def needed_groups(metadata: Any, filters: Filters) -> list[int]:
    """The row groups of a Parquet file that may have such a row."""
    if not filters:
        return list(range(metadata.num_row_groups))
    places = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    groups = range(metadata.num_row_groups)
    return [number for number in groups if may_hold(filters, _statistics(metadata.row_group(number), places))]


def _values(part: DatasetPart, types: Mapping[str, pa.DataType]) -> Look:
    def look(name: str) -> Bounds | None:
        if name not in part.partition or name not in types:
            return None
        text = part.partition[name]
        if text is None:
            return Bounds(has_values=False)
        try:
            value = typed(text, types[name]).as_py()
        except (pa.ArrowException, ValueError, OverflowError):
            return None
        return Bounds(value, value, has_nulls=False)

    return look


def _statistics(group: Any, places: Mapping[str, int]) -> Look:
    def look(name: str) -> Bounds | None:
        place = places.get(name)
        found = None if place is None else group.column(place).statistics
        if found is None:
            return None
        has_nulls = not found.has_null_count or found.null_count > 0
        has_values = not found.has_null_count or found.null_count < group.num_rows
        if not found.has_min_max:
            return Bounds(has_nulls=has_nulls, has_values=has_values)
        try:
            return Bounds(found.min, found.max, has_nulls=has_nulls, has_values=has_values)
        except (pa.ArrowException, ValueError, OverflowError):  # a moment that Python cannot hold
            return Bounds(has_nulls=has_nulls, has_values=has_values)

    return look


def _may(one: spark.Filter, look: Look) -> bool:
    if isinstance(one, spark.Not):
        return True
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    bounds = look(attribute[0]) if len(attribute) == 1 else None
    if bounds is None:
        return True
    if isinstance(one, spark.IsNull):
        return bounds.has_nulls
    if isinstance(one, spark.IsNotNull):
        return bounds.has_values
    if isinstance(one, spark.EqualNullSafe) and one.value is None:
        return bounds.has_nulls
    if not bounds.has_values:
        return False  # nothing is equal to, less or greater than null
    if isinstance(one, spark.In):
        return any(_may_equal(value, bounds) for value in one.value)
    compare = _COMPARISONS.get(type(one))
    return True if compare is None else compare(getattr(one, "value", None), bounds)


def _may_equal(value: Any, bounds: Bounds) -> bool:
    return not (_is_less(value, bounds.low) or _is_less(bounds.high, value))


def _may_be_less(value: Any, bounds: Bounds) -> bool:
    return not (_is_less(value, bounds.low) or _is_equal(value, bounds.low))


def _may_be_at_most(value: Any, bounds: Bounds) -> bool:
    return not _is_less(value, bounds.low)


def _may_be_greater(value: Any, bounds: Bounds) -> bool:
    # A number that is none counts as the greatest in Spark and is in no statistics.
    return isinstance(bounds.high, float) or not (_is_less(bounds.high, value) or _is_equal(value, bounds.high))


def _may_be_at_least(value: Any, bounds: Bounds) -> bool:
    return isinstance(bounds.high, float) or not _is_less(bounds.high, value)


_COMPARISONS: dict[type[spark.Filter], Callable[[Any, Bounds], bool]] = {
    spark.EqualTo: _may_equal,
    spark.EqualNullSafe: _may_equal,
    spark.LessThan: _may_be_less,
    spark.LessThanOrEqual: _may_be_at_most,
    spark.GreaterThan: _may_be_greater,
    spark.GreaterThanOrEqual: _may_be_at_least,
}


def _is_less(one: Any, other: Any) -> bool:
    """Surely less.  What cannot be compared is not."""
    one, other = _comparable(one), _comparable(other)
    if one is None or type(one) is not type(other):
        return False
    try:
        return bool(one < other)
    except TypeError:
        return False


def _is_equal(one: Any, other: Any) -> bool:
    one, other = _comparable(one), _comparable(other)
    return one is not None and type(one) is type(other) and bool(one == other)


def _comparable(value: Any) -> Any:
    """None for what has no order that Spark shares."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")  # Spark orders texts by their bytes
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value
