"""Which type a column of a dataset has inside its Parquet parts.

Spark knows fewer types than Arrow.  A column of a type that it lacks is stored in the next wider one and the manifest
keeps the type it had; a type for which there is no such one is refused by the name of its column."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types as kinds

from noetl.core.errors import NoetlError

DECIMAL_DIGITS_MAX = 38
_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
_MICROSECONDS = "us"


class TypeUnsupported(NoetlError):
    """A column whose type, or one of whose values, cannot be kept."""

    code = "type_unsupported"

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(f"column {column!r}: {reason}")
        self.column = column


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Raises TypeUnsupported."""
    return pa.schema([pa.field(field.name, stored_type(field.type, field.name)) for field in schema])


def stored_type(kind: pa.DataType, column: str) -> pa.DataType:
    """Raises TypeUnsupported."""
    nested = _nested(kind, column)
    return _flat(kind, column) if nested is None else nested


def _nested(kind: pa.DataType, column: str) -> pa.DataType | None:
    if isinstance(kind, pa.BaseExtensionType):
        return stored_type(kind.storage_type, column)
    if kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind):
        return stored_type(kind.value_type, column)
    if kinds.is_map(kind):
        values = pa.field("value", stored_type(kind.item_type, f"{column}.value"))
        return pa.map_(stored_type(kind.key_type, f"{column}.key"), values)
    if is_list(kind):
        return pa.list_(pa.field("element", stored_type(kind.value_type, f"{column}[]")))
    if kinds.is_struct(kind):
        if kind.num_fields == 0:
            raise TypeUnsupported(column, "a struct without fields has no place in Parquet: drop the column")
        names = [field.name for field in kind]
        if len({name.lower() for name in names}) < len(names):
            raise TypeUnsupported(column, "has two fields of one name: rename one of them")
        return pa.struct([pa.field(f.name, stored_type(f.type, f"{column}.{f.name}")) for f in kind])
    return None


def is_list(kind: pa.DataType) -> bool:
    """Any of the ways in which Arrow lays out lists."""
    return bool(
        kinds.is_list(kind)
        or kinds.is_large_list(kind)
        or kinds.is_fixed_size_list(kind)
        or kinds.is_list_view(kind)
        or kinds.is_large_list_view(kind)
    )


def _flat(kind: pa.DataType, column: str) -> pa.DataType:
    if kind in _UNSIGNED:
        return _UNSIGNED[kind]
    if kinds.is_boolean(kind) or kinds.is_integer(kind) or kind in (pa.float32(), pa.float64()):
        return kind
    if kinds.is_float16(kind):
        return pa.float32()
    if kinds.is_null(kind) or kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return pa.string()
    if kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind):
        return pa.binary()
    if kinds.is_fixed_size_binary(kind):
        return pa.binary()
    if kinds.is_decimal(kind):
        return _decimal(kind, column)
    if kinds.is_date(kind):
        return pa.date32()
    if kinds.is_time(kind):
        return pa.time64(_MICROSECONDS)
    if kinds.is_timestamp(kind):
        return pa.timestamp(_MICROSECONDS, "UTC" if kind.tz is not None else None)
    if kinds.is_duration(kind):
        # Parquet has no type for it.  Spark writes and reads intervals as whole microseconds.
        return pa.int64()
    message = f"type {kind} has no counterpart in Spark and Parquet: convert it in the step before, or drop the column"
    raise TypeUnsupported(column, message)


def _decimal(kind: pa.DataType, column: str) -> pa.DataType:
    if kind.precision > DECIMAL_DIGITS_MAX or not 0 <= kind.scale <= kind.precision:
        message = (
            f"type {kind} does not fit a decimal of at most {DECIMAL_DIGITS_MAX} digits: cast it to one, or to text"
        )
        raise TypeUnsupported(column, message)
    return pa.decimal128(kind.precision, kind.scale)
