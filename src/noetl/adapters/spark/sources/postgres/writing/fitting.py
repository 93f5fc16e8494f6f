"""Whether the columns of a DataFrame fit a table, before anything is written.  Pure.

A column fits when every value of its type is a value of the target's, and stays the same one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql.types import ArrayType, DataType, DecimalType, StringType, StructType

from noetl.adapters.spark.sources.postgres.options import wrong
from noetl.adapters.spark.sources.postgres.types import Column, digits_of
from noetl.core.errors import ToolFailed

_FITS: Mapping[str, frozenset[str]] = {
    "boolean": frozenset({"bool"}),
    "tinyint": frozenset({"int2", "int4", "int8", "float4", "float8"}),
    "smallint": frozenset({"int2", "int4", "int8", "float4", "float8"}),
    "int": frozenset({"int4", "int8", "float8"}),
    "bigint": frozenset({"int8"}),
    "float": frozenset({"float4", "float8"}),
    "double": frozenset({"float8"}),
    "binary": frozenset({"bytea"}),
    "date": frozenset({"date"}),
    "timestamp": frozenset({"timestamptz"}),
    "timestamp_ntz": frozenset({"timestamp"}),
}
# Digits that a whole number may have.
_WHOLE_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
# A text is read by the server as what the column is, except where a type of Spark is meant for it.
_NOT_AS_TEXT = frozenset().union(*_FITS.values()) | {"numeric"}


def check_fit(struct: StructType, columns: Sequence[Column], key: Sequence[str], table: str) -> None:
    """Raises ToolFailed with the name of the first column that does not fit."""
    by_name = {column.name: column for column in columns}
    for field in struct.fields:
        column = by_name.get(field.name)
        if column is None:
            raise _misfit(field.name, f"{table} has no such column; it has {', '.join(by_name)}")
        if column.is_generated:
            raise _misfit(field.name, f"{table} makes its values itself: leave it out")
        if not _fits(field.dataType, column):
            kind = field.dataType.simpleString()
            raise _misfit(field.name, f"{kind} does not fit {column.title} of {table}: cast it")
    given = set(struct.fieldNames())
    for column in columns:
        if column.is_required and not column.has_default and not column.is_generated and column.name not in given:
            raise _misfit(column.name, f"{table} requires it, and the DataFrame does not have it")
    for name in key:
        if name not in given:
            raise _misfit(name, "it is in key, and the DataFrame does not have it")


def _fits(kind: DataType, column: Column) -> bool:
    if isinstance(kind, ArrayType):
        return column.element is not None and _fits_scalar(kind.elementType, column.element, column.modifier)
    return column.element is None and _fits_scalar(kind, column.type, column.modifier)


def _fits_scalar(kind: DataType, type_: str, modifier: int) -> bool:
    if isinstance(kind, StringType):
        return type_ not in _NOT_AS_TEXT
    name = kind.typeName() if isinstance(kind, DecimalType) else kind.simpleString()
    if type_ == "numeric":
        digits = digits_of(modifier)
        return _fits_numeric(kind, name, digits)
    return type_ in _FITS.get(name, ())


def _fits_numeric(kind: DataType, name: str, digits: tuple[int, int] | None) -> bool:
    if isinstance(kind, DecimalType):
        whole, scale = kind.precision - kind.scale, kind.scale
    elif name in _WHOLE_DIGITS:
        whole, scale = _WHOLE_DIGITS[name], 0
    else:
        return False
    return digits is None or (digits[0] - digits[1] >= whole and digits[1] >= scale)


def _misfit(name: str, message: str) -> ToolFailed:
    return wrong(f"column {name!r}: {message}", "COLUMN_MISFIT")
