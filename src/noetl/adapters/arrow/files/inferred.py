"""Plain rows as record batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from noetl.core.codec import ordered_bytes
from noetl.core.results.columns import ColumnType, Kind

_SCALARS = {
    Kind.NULL: pa.null(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.INTEGER: pa.int64(),
    Kind.UNSIGNED: pa.uint64(),
    Kind.FLOAT: pa.float64(),
    Kind.TEXT: pa.string(),
    Kind.MIXED: pa.string(),
}


def schema_of(columns: Mapping[str, ColumnType]) -> Any:
    return pa.schema([(name, _type(column)) for name, column in columns.items()])


def _type(column: ColumnType) -> Any:
    if column.kind is Kind.LIST:
        return pa.list_(_type(column.item or ColumnType()))
    if column.kind is Kind.MAPPING:
        return pa.struct([(name, _type(member)) for name, member in column.members.items()])
    return _SCALARS[column.kind]


def batch_of(rows: Sequence[Mapping[str, object]], schema: Any) -> Any:
    """What a row does not have is null; what the schema does not have is left out; what is no text in a column of texts
    is written as JSON."""
    if not len(schema):
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    columns = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        columns.append(pa.array(map(text_of, values) if types.is_string(field.type) else values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def text_of(value: object) -> str | None:
    """Plain data as text."""
    if value is None or isinstance(value, str):
        return value
    return ordered_bytes(value).decode("utf-8")
