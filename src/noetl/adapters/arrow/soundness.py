"""Whether a table that somebody else made may be touched at all.

Arrow follows the numbers in a batch without asking again, and its own full check leaves a few places out.  What passes
here was read to its end by every means that this package uses, whatever bytes it was made of."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import types

from noetl.core.limits import TABLE_GIVEN_ROWS_MAX

_WITHOUT_ARRAYS = (pa.lib.Type_INTERVAL_MONTHS, pa.lib.Type_INTERVAL_DAY_TIME)
"""Types of the format that this library does not read."""


def check_schema(schema: Any) -> None:
    """Raises ValueError.  Arrow looks at a name only when somebody asks for it."""
    for field in schema:
        _check_type(field.name, field.type)


def check_batch(batch: Any) -> None:
    """Raises ValueError, also as one of Arrow's errors, or MemoryError."""
    # Without columns, Arrow itself believes any number.
    if not 0 <= batch.num_rows <= TABLE_GIVEN_ROWS_MAX:
        raise ValueError(f"a batch may have {TABLE_GIVEN_ROWS_MAX:,} rows, and one has {batch.num_rows:,}")
    batch.validate(full=True)
    for column in batch.columns:
        if column.type.num_fields or isinstance(column.type, pa.BaseExtensionType | pa.DictionaryType):
            _check_empty_lists(column)


def _check_type(name: str, kind: Any) -> None:
    if kind.id in _WITHOUT_ARRAYS:
        raise ValueError(f"nothing here can read the column {name!r}")
    getattr(kind, "tz", None)
    if isinstance(kind, pa.BaseExtensionType):
        _check_type(name, kind.storage_type)
    elif types.is_dictionary(kind):
        _check_type(name, kind.value_type)
    for place in range(kind.num_fields):
        field = kind.field(place)
        _check_type(field.name, field.type)


def _check_empty_lists(array: Any) -> None:
    """Arrow does not check where the lists of a column without lists begin, and goes there all the same."""
    kind = array.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        offsets = array.buffers()[1]
        width = 8 if types.is_large_list(kind) else 4
        if not len(array) and offsets is not None and offsets.size:
            first = offsets[array.offset * width : (array.offset + 1) * width].to_pybytes()
            if not 0 <= int.from_bytes(first, "little", signed=True) <= len(array.values):
                raise ValueError("a list begins outside of its values")
    for child in children(array):
        _check_empty_lists(child)


def batch_bytes(batch: Any) -> int:
    """About how many bytes a batch has, also when it is a part of a larger one.

    Arrow's own `nbytes` reads the offsets of lists that are not there, and columns without lists need not have any."""
    return sum(_array_bytes(column) for column in batch.columns)


def _array_bytes(array: Any) -> int:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _array_bytes(array.storage)
    if types.is_dictionary(kind):
        return _array_bytes(array.indices) + _array_bytes(array.dictionary)
    if types.is_struct(kind):
        return sum(_array_bytes(child) for child in children(array))
    if not kind.num_fields:
        return int(array.nbytes)
    whole = int(array.get_total_buffer_size())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        offsets = array.buffers()[1]
        rows = 0 if offsets is None else offsets.size // (8 if types.is_large_list(kind) else 4) - 1
        return whole * len(array) // rows if rows > len(array) else whole
    return whole


def children(array: Any) -> list[Any]:
    """The arrays that a nested one consists of, also those behind a dictionary or an extension."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return [array.storage]
    if types.is_dictionary(kind):
        return [array.dictionary]
    if types.is_struct(kind) or types.is_union(kind):
        return [array.field(place) for place in range(kind.num_fields)]
    return [array.values] if kind.num_fields else []
