"""Bounds of a `range`, compared in the type of the column: exactly, or not at all.

What Spark would make of two types is not what was meant: a float becomes a double that is not the number in the
playbook, a large number loses digits, and a text becomes null."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as kinds

from noetl.adapters.spark.job.expect.telling import invalid
from noetl.ports.data.compute import Expectation

TEXTS = (kinds.StringType, kinds.CharType, kinds.VarcharType)
INEXACT = (kinds.FloatType, kinds.DoubleType)
INTEGRAL_DIGITS: Mapping[type[kinds.DataType], int] = {
    kinds.ByteType: 3,
    kinds.ShortType: 5,
    kinds.IntegerType: 10,
    kinds.LongType: 19,
}
# Room for every number that a column can have.
_WIDE = Context(prec=120)
_LONG = Decimal(2**63)
_DIGITS_MAX = 38


def outside(rule: Expectation, value: Column, kind: kinds.DataType) -> Column:
    """True where a value is below or above the bounds of a rule; null where there is no value."""
    found = F.isnan(value) if isinstance(kind, INEXACT) else F.lit(False)
    if rule.low is not None:
        found = found | _beyond(rule, rule.low, value, kind, is_low=True)
    if rule.high is not None:
        found = found | _beyond(rule, rule.high, value, kind, is_low=False)
    return found


def check_bounds(rule: Expectation, name: str, kind: kinds.DataType, spark: SparkSession) -> None:
    """A bound that is no value of the column's type would fail, or be met by all, after everything was computed."""
    for bound in (rule.low, rule.high):
        if bound is None:
            continue
        if isinstance(bound, list | dict):
            raise invalid(rule, "has a bound that is no single value")
        if not _fits(bound, kind):
            hint = ": write the bound as text, or give the column another type" if isinstance(kind, TEXTS) else ""
            raise invalid(rule, f"has the bound {bound!r}, and {name} is {kind.simpleString()}{hint}")
        if isinstance(bound, float) and math.isnan(bound):
            raise invalid(rule, "has the bound NaN, which nothing is above or below")
        if isinstance(bound, str):
            _check_text(rule, bound, kind, spark)


def _fits(bound: object, kind: kinds.DataType) -> bool:
    """A text may be a value of any type, which is looked at by itself."""
    if isinstance(bound, bool):
        return isinstance(kind, kinds.BooleanType)
    if isinstance(bound, int | float | Decimal):
        return isinstance(kind, kinds.NumericType)
    return isinstance(bound, str) or (isinstance(bound, date) and isinstance(kind, kinds.DatetimeType))


def _check_text(rule: Expectation, bound: str, kind: kinds.DataType, spark: SparkSession) -> None:
    if _places(kind) is not None:
        _exact(rule, bound, kind)
        return
    # A row of its own that Spark evaluates without a job.
    row = spark.sql("VALUES (1)").select(F.lit(bound).try_cast(kind).isNull()).collect()[0]
    if row[0] and not isinstance(kind, kinds.NullType):
        raise _no_value(rule, bound, kind)


def _beyond(rule: Expectation, bound: object, value: Column, kind: kinds.DataType, *, is_low: bool) -> Column:
    places = _places(kind)
    if places is None:
        literal = _literal(bound, kind)
        return value < literal if is_low else value > literal
    digits, scale = places
    exact = _exact(rule, bound, kind)
    if exact.is_finite() and exact.adjusted() < _DIGITS_MAX:
        # A number of the column is below 1.5 if it is below 2, and above 1.5 if it is above 1.
        step = Decimal(1).scaleb(-scale)
        exact = exact.quantize(step, rounding=ROUND_CEILING if is_low else ROUND_FLOOR, context=_WIDE)
    is_whole = not isinstance(kind, kinds.DecimalType)
    if abs(exact) >= (_LONG if is_whole else Decimal(10) ** (digits - scale)):
        # No number of the column is that large: all are beyond it, or none.
        return value.isNotNull() if (exact > 0) == is_low else F.lit(False)
    literal = F.lit(int(exact)) if is_whole else F.lit(str(exact)).cast(kind)
    return value < literal if is_low else value > literal


def _places(kind: kinds.DataType) -> tuple[int, int] | None:
    """How many digits the numbers of a type have, and how many of them behind the point; None if they are not exact."""
    if isinstance(kind, kinds.DecimalType):
        return kind.precision, kind.scale
    digits = INTEGRAL_DIGITS.get(type(kind))
    return None if digits is None else (digits, 0)


def _exact(rule: Expectation, bound: object, kind: kinds.DataType) -> Decimal:
    """The number as it was written: 0.1 is a tenth."""
    try:
        found = Decimal(str(bound).strip())
    except InvalidOperation as error:
        raise _no_value(rule, bound, kind) from error
    if found.is_nan() or (isinstance(bound, str) and not found.is_finite()):
        raise _no_value(rule, bound, kind)
    return found


def _literal(bound: object, kind: kinds.DataType) -> Column:
    if isinstance(kind, INEXACT) and isinstance(bound, int | float | Decimal):
        try:
            bound = float(bound)
        except OverflowError:
            bound = math.inf if bound > 0 else -math.inf
    return F.lit(bound) if isinstance(kind, TEXTS) else F.lit(bound).cast(kind)


def _no_value(rule: Expectation, bound: object, kind: kinds.DataType) -> Exception:
    return invalid(rule, f"has the bound {bound!r}, which is no {kind.simpleString()}")
