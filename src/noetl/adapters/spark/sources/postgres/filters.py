"""Filters of Spark as conditions of SQL, where both mean exactly the same.  Everything else stays with Spark.  Pure."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from noetl.adapters.spark.sources.postgres.statements import identifier, literal
from noetl.adapters.spark.sources.postgres.types import Column

_COMPARED: Mapping[type, str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    EqualNullSafe: "IS NOT DISTINCT FROM",
}
_TEXTUAL: Mapping[type, Callable[[str, str], str]] = {
    StringStartsWith: lambda column, text: f"starts_with({column}, {text})",
    StringContains: lambda column, text: f"strpos({column}, {text}) > 0",
    StringEndsWith: lambda column, text: f"right({column}, length({text})) = {text}",
}
# Padded and case-blind texts are compared in another way by the server than by Spark, and are not here.
_TEXTS = frozenset(("text", "varchar"))


def condition(filter_: Filter, columns: Mapping[str, Column]) -> str | None:
    """The same in SQL; None when Spark has to do it."""
    if isinstance(filter_, Not):
        inner = condition(filter_.child, columns)
        return None if inner is None else f"NOT ({inner})"
    path: tuple[str, ...] = getattr(filter_, "attribute", ())
    column = columns.get(path[0]) if len(path) == 1 else None
    if column is None:
        return None
    quoted = identifier(column.name)
    if isinstance(filter_, IsNull | IsNotNull):
        return f"{quoted} IS {'NOT ' if isinstance(filter_, IsNotNull) else ''}NULL"
    return _with_value(filter_, column, quoted)


def _with_value(filter_: Any, column: Column, quoted: str) -> str | None:
    if column.type in _TEXTS:
        # Spark compares bytes; the collation of a column may order, or even equate, in another way.
        quoted = f'{quoted} COLLATE "C"'
    if isinstance(filter_, In):
        values = [_constant(value, column) for value in filter_.value]
        known = [value for value in values if value is not None]
        return f"{quoted} IN ({', '.join(known)})" if known and len(known) == len(values) else None
    value = _constant(filter_.value, column)
    if value is None:
        return None
    made = _TEXTUAL.get(type(filter_))
    if made is not None:
        return made(quoted, value) if column.type in _TEXTS else None
    operator = _COMPARED.get(type(filter_))
    return None if operator is None else f"{quoted} {operator} {value}"


def _constant(value: object, column: Column) -> str | None:
    """A constant of the column's type; None for what is not certain to be the same value there."""
    read = _CONSTANTS.get(column.type)
    text = None if read is None or value is None else read(value)
    return None if text is None else f"{literal(text)}::{column.type}"


def _whole(value: object) -> str | None:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _decimal(value: object) -> str | None:
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() else None
    return _whole(value)


def _fraction(value: object) -> str | None:
    return repr(value) if isinstance(value, float) and math.isfinite(value) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and "\0" not in value else None


def _flag(value: object) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None


def _date(value: object) -> str | None:
    is_date = isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    return value.isoformat() if is_date else None  # type: ignore[attr-defined]


def _moment(value: object) -> str | None:
    is_local = isinstance(value, datetime.datetime) and value.tzinfo is None
    return value.isoformat(" ") if is_local else None  # type: ignore[attr-defined]


def _zoned(value: object) -> str | None:
    is_zoned = isinstance(value, datetime.datetime) and value.tzinfo is not None
    return value.isoformat(" ") if is_zoned else None  # type: ignore[attr-defined]


_CONSTANTS: Mapping[str, Callable[[object], str | None]] = {
    "bool": _flag,
    "int2": _whole,
    "int4": _whole,
    "int8": _whole,
    "numeric": _decimal,
    "float8": _fraction,
    "text": _text,
    "varchar": _text,
    "date": _date,
    "timestamp": _moment,
    "timestamptz": _zoned,
}
