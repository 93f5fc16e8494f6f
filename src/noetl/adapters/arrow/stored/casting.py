"""Columns on their way into Parquet parts and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from noetl.adapters.arrow.stored.types import TypeUnsupported, is_list, stored_schema

_MICROSECONDS = pa.duration("us")
# What Arrow raises for values that a type does not have, and Python for those that it has no object for.
_UNFIT = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OverflowError, ValueError)


def to_stored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in the types that parts have.  Raises TypeUnsupported for what would change."""
    schema = stored_schema(batch.schema)
    columns = [_stored(column, field.type, field.name) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def from_stored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of a part in the types that their readers expect.  Raises TypeUnsupported for what does not fit."""
    if batch.schema.equals(schema):
        return batch
    columns = [restored(batch.column(field.name), field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def restored(column: pa.Array, field: pa.Field) -> pa.Array:
    kind = field.type
    if column.type.equals(kind):
        return column
    try:
        if kinds.is_null(kind):
            return _nulls(column, field.name)
        if kinds.is_run_end_encoded(kind):
            values = pc.run_end_encode(column.cast(kind.value_type), run_end_type=kind.run_end_type)
            # The encoder names its fields, and so may the type that is asked for.
            return values if values.type.equals(kind) else values.cast(kind)
        if isinstance(kind, pa.BaseExtensionType):
            storage = restored(column, pa.field(field.name, kind.storage_type))
            return pa.ExtensionArray.from_storage(kind, storage)
        if kinds.is_duration(kind):
            return column.cast(_MICROSECONDS).cast(kind)
        if kinds.is_dictionary(kind):
            return _encoded(column, kind)
        found = _rebuilt(column, kind) if _is_odd(kind) else column.cast(kind)
        if kinds.is_float16(kind) and not _same(found.cast(pa.float32()), column.cast(pa.float32())):
            raise TypeUnsupported(field.name, "a value has more digits than a half float")
    except _UNFIT as error:
        raise TypeUnsupported(field.name, f"a value is no {kind}: {error}") from error
    else:
        return found


def _stored(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    if column.type.equals(kind):
        return column
    try:
        if isinstance(column, pa.ExtensionArray):
            return _stored(column.storage, kind, name)
        if kinds.is_run_end_encoded(column.type):
            return _stored(pc.run_end_decode(column), kind, name)
        if kinds.is_duration(column.type):
            return column.cast(_MICROSECONDS).cast(kind)
        return _rebuilt(column, kind) if _is_odd(column.type) else column.cast(kind)
    except _UNFIT as error:
        message = f"a value of type {column.type} cannot be kept by Spark ({error}): convert it in the step before"
        raise TypeUnsupported(name, message) from error


def _same(column: pa.Array, other: pa.Array) -> bool:
    """Whether all values are equal, as every NaN is to another."""
    no_number, other_no_number = pc.is_nan(column), pc.is_nan(other)
    known, other_known = pc.if_else(no_number, 0.0, column), pc.if_else(other_no_number, 0.0, other)
    return bool(no_number.equals(other_no_number) and known.equals(other_known))


def _encoded(column: pa.Array, kind: pa.DataType) -> pa.Array:
    values = column.cast(kind.value_type).dictionary_encode()
    indices = values.indices.cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(indices, values.dictionary, ordered=kind.ordered)


def _nulls(column: pa.Array, name: str) -> pa.Array:
    if column.null_count < len(column):
        raise TypeUnsupported(name, "a value is not null")
    return pa.nulls(len(column))


def _is_odd(kind: pa.DataType) -> bool:
    """Whether Arrow's own cast does not reach all the way down: then the values are built anew, one by one."""
    if isinstance(kind, pa.BaseExtensionType) or kinds.is_list_view(kind) or kinds.is_large_list_view(kind):
        return True
    if kinds.is_struct(kind):
        return any(_is_odd_inside(field.type) for field in kind)
    if kinds.is_map(kind):
        return _is_odd_inside(kind.key_type) or _is_odd_inside(kind.item_type)
    return is_list(kind) and _is_odd_inside(kind.value_type)


def _is_odd_inside(kind: pa.DataType) -> bool:
    is_single = kinds.is_null(kind) or kinds.is_run_end_encoded(kind) or kinds.is_duration(kind)
    is_viewed = kinds.is_string_view(kind) or kinds.is_binary_view(kind)
    return is_single or is_viewed or kinds.is_dictionary(kind) or kinds.is_float16(kind) or _is_odd(kind)


def _rebuilt(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.array([_value(one, column.type, kind) for one in column], kind)


def _value(scalar: Any, source: pa.DataType, kind: pa.DataType) -> Any:
    """One value as `pa.array` takes it for the other type."""
    if isinstance(source, pa.BaseExtensionType):
        return None if not scalar.is_valid else _value(scalar.value, source.storage_type, kind)
    if not scalar.is_valid:
        return None
    if kinds.is_struct(source):
        return {f.name: _value(scalar[f.name], f.type, kind.field(f.name).type) for f in source}
    if kinds.is_map(source):
        pairs = zip(scalar.values.field(0), scalar.values.field(1), strict=True)
        key, item = (source.key_type, kind.key_type), (source.item_type, kind.item_type)
        return [(_value(one, *key), _value(other, *item)) for one, other in pairs]
    if is_list(source):
        return [_value(one, source.value_type, kind.value_type) for one in scalar.values]
    if kinds.is_duration(source) and kinds.is_integer(kind):
        return scalar.cast(_MICROSECONDS).value
    if kinds.is_integer(source) and kinds.is_duration(kind):
        return scalar.cast(_MICROSECONDS).cast(kind).value
    if kinds.is_dictionary(source) or kinds.is_run_end_encoded(source):
        return _value(scalar.value, source.value_type, kind)
    if kinds.is_timestamp(source) or kinds.is_time(source) or kinds.is_date(source):
        # Python's moments have microseconds and 9999 years; the number is exact, and the cast says what it would lose.
        return scalar.cast(kind).value
    return scalar.as_py()
