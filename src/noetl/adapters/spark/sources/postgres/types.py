"""Columns of Postgres as columns of Spark.

A type of the server has one type of Spark that holds its values as they are, or it is read as text; what neither can
hold is refused with the name of the column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from noetl.adapters.spark.sources.postgres.options import wrong

DECIMAL_DIGITS_MAX = 38
FREE_NUMERIC = DecimalType(38, 18)
"""A `numeric` without digits.  A value that does not fit fails the read with the name of the column."""

_SCALARS: Mapping[str, Callable[[], DataType]] = {
    "bool": BooleanType,
    "int2": ShortType,
    "int4": IntegerType,
    "int8": LongType,
    "oid": LongType,
    "float4": FloatType,
    "float8": DoubleType,
    "date": DateType,
    "timestamp": TimestampNTZType,
    "timestamptz": TimestampType,
    "bytea": BinaryType,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a relation, as the catalogue describes it."""

    name: str
    type: str
    """The name of its type in pg_catalog; empty for a type that is not there."""
    modifier: int
    element: str | None
    """Of an array, as `type`."""
    title: str
    """The type as people write it."""
    is_textual: bool = False
    is_required: bool = False
    has_default: bool = False
    is_generated: bool = False


def column_of(row: Mapping[str, Any]) -> Column:
    """From a row of `describe_relation`."""
    return Column(
        name=row["name"],
        type=_built_in(row["type"], row["schema"]),
        modifier=row["modifier"],
        element=None if row["element"] is None else _built_in(row["element"], row["element_schema"]),
        title=row["title"],
        is_textual=row["is_textual"],
        is_required=row["is_required"],
        has_default=row["has_default"],
        is_generated=row["is_generated"],
    )


def column_of_attribute(attribute: Any) -> Column:
    """From what the driver knows of a prepared statement, which is less: no digits of numerics."""
    type_ = attribute.type
    is_array = type_.kind == "array"
    name = type_.name.removesuffix("[]")
    return Column(
        name=attribute.name,
        type="" if is_array else _built_in(name, type_.schema),
        modifier=-1,
        element=_built_in(name, type_.schema) if is_array else None,
        title=type_.name,
    )


def _built_in(name: str, schema: str) -> str:
    return name if schema == "pg_catalog" else ""


def digits_of(modifier: int) -> tuple[int, int] | None:
    """Precision and scale of a numeric; None when it has none."""
    if modifier < 4:
        return None
    packed = modifier - 4
    # Eleven bits with a sign, since a scale may be below zero.
    return packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024


def struct_of(columns: Sequence[Column], wanted: Sequence[str] = ()) -> StructType:
    """The schema of these columns, or of those that are wanted, in their order.  Raises ToolFailed."""
    by_name = {column.name: column for column in columns}
    if len(by_name) != len(columns):
        names = [column.name for column in columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise wrong(f"column {twice[0]!r} is there twice: give the columns of the query different names")
    missing = [name for name in wanted if name not in by_name]
    if missing:
        raise wrong(f"column {missing[0]!r} is not there; there are {', '.join(by_name)}")
    chosen = [by_name[name] for name in wanted] if wanted else columns
    return StructType([StructField(column.name, spark_type(column)) for column in chosen])


def spark_type(column: Column) -> DataType:
    if column.element is not None:
        return ArrayType(_scalar(column.element, column))
    return _scalar(column.type, column)


def _scalar(type_: str, column: Column) -> DataType:
    if type_ == "numeric":
        return _decimal(column)
    return _SCALARS.get(type_, StringType)()


def _decimal(column: Column) -> DecimalType:
    digits = digits_of(column.modifier)
    if digits is None:
        return FREE_NUMERIC
    precision, scale = digits
    # numeric(3, 5) is 0.00xxx, and numeric(3, -2) is xxx00.
    precision, scale = (max(precision, scale), scale) if scale >= 0 else (precision - scale, 0)
    if precision > DECIMAL_DIGITS_MAX:
        way_out = "cast it in a query, or give a schema where it is a string"
        raise wrong(f"column {column.name!r}: {column.title} has more digits than Spark's decimal: {way_out}")
    return DecimalType(precision, scale)
