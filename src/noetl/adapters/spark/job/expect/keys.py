"""Keys of rows, and when two of them are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as kinds

from noetl.adapters.spark.job.expect.bounds import INEXACT, INTEGRAL_DIGITS, TEXTS
from noetl.adapters.spark.job.expect.telling import invalid
from noetl.adapters.spark.job.inputs import quoted
from noetl.ports.data.compute import Expectation

Others = Callable[[str], DataFrame]
_DIGITS_MAX = 38
_MOMENTS = (kinds.DateType, kinds.TimestampType, kinds.TimestampNTZType)


@dataclass(frozen=True, slots=True)
class Matching:
    """How the keys of rows are held against those that they refer to."""

    own: tuple[Column, ...]
    """The key of a row, in the types of the other side."""
    known: DataFrame
    """The keys that there are, each once, with the given column names."""


def column(name: str, frame: DataFrame) -> Column:
    """A column by its name, or a member of one by its path."""
    return F.col(quoted(name)) if name in frame.columns or "." not in name else F.col(name)


def complete(columns: Sequence[str], frame: DataFrame) -> Column:
    """Whether a row has a value in all of them."""
    return reduce(lambda one, other: one & other, [column(name, frame).isNotNull() for name in columns])


def keys(frame: DataFrame, columns: Sequence[str], prefix: str) -> DataFrame:
    """The key columns of all rows whose key is complete."""
    return frame.where(complete(columns, frame)).select(
        *[column(name, frame).alias(f"{prefix}_{n}") for n, name in enumerate(columns)]
    )


def matching(rule: Expectation, frame: DataFrame, others: Others, prefix: str) -> Matching:
    """Of a `references`.  Raises JobInvalid for keys of which nobody can say whether they are the same."""
    columns = rule.to_columns or rule.columns
    if rule.to is None or len(columns) != len(rule.columns):
        raise invalid(rule, "must name as many columns in `to` as it has itself")
    target = others(rule.to)
    own: list[Column] = []
    known: list[Column] = []
    for number, (name, to_name) in enumerate(zip(rule.columns, columns, strict=True)):
        value, kind = column(name, frame), frame.select(column(name, frame)).schema[0].dataType
        to_value, to_kind = column(to_name, target), target.select(column(to_name, target)).schema[0].dataType
        if not _comparable(kind, to_kind):
            what = (
                f"compares {name}, which is {kind.simpleString()}, with {to_name} of {rule.to}, which is "
                f"{to_kind.simpleString()}: give both the same type"
            )
            raise invalid(rule, what)
        if isinstance(kind, INEXACT) and not isinstance(to_kind, INEXACT):
            value = _exact(value, kind, to_kind)
        elif isinstance(to_kind, INEXACT) and not isinstance(kind, INEXACT):
            to_value = _exact(to_value, to_kind, kind)
        own.append(value)
        known.append(to_value.alias(f"{prefix}_{number}"))
    found = target.select(*known)
    filled = [F.col(name).isNotNull() for name in found.columns]
    return Matching(tuple(own), found.where(reduce(lambda one, other: one & other, filled)).distinct())


def pairs(own: Sequence[Column], prefix: str) -> Column:
    found = [value == F.col(f"{prefix}_{number}") for number, value in enumerate(own)]
    return reduce(lambda one, other: one & other, found)


def _exact(value: Column, kind: kinds.DataType, wanted: kinds.DataType) -> Column:
    """A number of an inexact type in an exact one; null if it is none of those.  The other way two large numbers would
    become one."""
    found = value.try_cast(wanted)
    return F.when(found.cast(kind) == value, found)


def _comparable(one: kinds.DataType, other: kinds.DataType) -> bool:
    if isinstance(one, kinds.NullType) or isinstance(other, kinds.NullType):
        return True
    if isinstance(one, kinds.NumericType) and isinstance(other, kinds.NumericType):
        return isinstance(one, INEXACT) or isinstance(other, INEXACT) or _digits(one, other) <= _DIGITS_MAX
    for family in (TEXTS, _MOMENTS):
        if isinstance(one, family) and isinstance(other, family):
            return True
    return one.typeName() == other.typeName()


def _digits(one: kinds.NumericType, other: kinds.NumericType) -> int:
    """How many digits a type needs that has all numbers of both."""
    if one == other:
        return 0
    sizes = [
        (kind.precision - kind.scale, kind.scale)
        if isinstance(kind, kinds.DecimalType)
        else (INTEGRAL_DIGITS.get(type(kind), _DIGITS_MAX), 0)
        for kind in (one, other)
    ]
    return max(size[0] for size in sizes) + max(size[1] for size in sizes)
