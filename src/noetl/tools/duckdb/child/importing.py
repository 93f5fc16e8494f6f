"""Tables that a task was given, as Arrow: mapped from a file without copying, or made of plain rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import ipc

# A table needs a column; one of which nothing is known has this one.
_NO_COLUMN = "empty"
_DIGITS_MAX = 38


def arrow_table(source: Mapping[str, Any]) -> Any:
    """The table of one source, as the worker describes it."""
    if "path" in source:
        return _mapped(source["path"], source["offset"], source["length"])
    return _made(source["rows"], source["columns"])


def _mapped(path: str, offset: int, length: int) -> Any:
    """The rows where they lie: the table holds the mapping, not a copy."""
    with pa.memory_map(path) as file:
        file.seek(offset)
        content = file.read_buffer(length)
    return _readable(ipc.open_stream(content).read_all())


def _readable(table: Any) -> Any:
    """The table with the few types that DuckDB does not have as others that hold the same values."""
    for place, field in enumerate(table.schema):
        if pa.types.is_decimal256(field.type):
            table = table.set_column(place, field.name, _decimals(table.column(place)))
        elif pa.types.is_float16(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.float32()))
    return table


def _decimals(column: Any) -> Any:
    """Numbers of at most 38 digits as such, larger ones as text: never as another number."""
    scale = column.type.scale
    if 0 <= scale <= _DIGITS_MAX:
        try:
            return column.cast(pa.decimal128(_DIGITS_MAX, scale))
        except pa.ArrowInvalid:
            pass
    return column.cast(pa.string())


def _made(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    names = dict.fromkeys(columns)
    for row in rows:
        names.update(dict.fromkeys(row))
    arrays = {name: _column([row.get(name) for row in rows]) for name in names or (_NO_COLUMN,)}
    return pa.table(arrays)


def _column(values: list[Any]) -> Any:
    """Values of one type, or their text when they are of several."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([_text(value) for value in values], pa.string())


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
