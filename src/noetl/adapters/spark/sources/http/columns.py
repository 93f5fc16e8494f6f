"""JSON rows as Arrow batches of a schema.  A value that its column cannot hold is an error with the column's name."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from noetl.adapters.spark.sources.http.options import wrong
from noetl.adapters.spark.sources.http.shapes import VALUE


class Misfit(ValueError):
    """A value that a type cannot hold; its text says where and what, and not the value."""


Read = Callable[[Any], object]


class Encoder:
    """Makes batches of one schema.  Members that it does not have are left out, unless it is strict."""

    def __init__(self, struct: StructType, *, is_strict: bool = False) -> None:
        self._struct = struct
        self._schema = to_arrow_schema(struct, timezone="UTC")
        self._reads = [_reader(field.dataType, is_strict) for field in struct.fields]
        self._names = frozenset(struct.fieldNames()) if is_strict else None
        self._is_bare = struct.fieldNames() == [VALUE]

    def batch(self, items: Sequence[object], *, where: str) -> pa.RecordBatch:
        """Raises ToolFailed."""
        if not all(isinstance(item, Mapping) for item in items):
            if not self._is_bare:
                raise wrong(f"{where}: a row is no object, and the schema has named columns", "ROW_MISFIT")
            items = [{VALUE: item} for item in items]
        self._check_names(items, where)
        arrays = [self._array(number, items, where) for number in range(len(self._reads))]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _check_names(self, items: Sequence[Any], where: str) -> None:
        if self._names is None:
            return
        for item in items:
            for name in item:
                if name not in self._names:
                    message = f"{where}: column {name!r} is not on the first page, which tells the schema"
                    raise wrong(f"{message}: give a schema, with it or without it", "COLUMN_UNKNOWN")

    def _array(self, number: int, items: Sequence[Any], where: str) -> Any:
        field, read = self._struct.fields[number], self._reads[number]
        try:
            values = [read(item.get(field.name)) for item in items]
            return pa.array(values, self._schema.field(number).type)
        except (Misfit, pa.ArrowInvalid, OverflowError, ValueError, TypeError) as error:
            kind = field.dataType.simpleString()
            detail = f" ({error})" if isinstance(error, Misfit) and str(error) else ""
            message = f"{where}: column {field.name!r} has a value that {kind} cannot hold{detail}: give another schema"
            raise wrong(message, "VALUE_MISFIT") from None


def _reader(kind: DataType, is_strict: bool) -> Read:
    """A function from a JSON value to what Arrow takes for this type.  It raises Misfit."""
    if isinstance(kind, ArrayType):
        return _list_reader(_reader(kind.elementType, is_strict))
    if isinstance(kind, StructType):
        return _struct_reader({field.name: _reader(field.dataType, is_strict) for field in kind.fields}, is_strict)
    if isinstance(kind, MapType):
        return _map_reader(_reader(kind.valueType, is_strict))
    for types, read in _READERS:
        if isinstance(kind, types):
            return _or_null(read)
    raise wrong(f"a column of type {kind.simpleString()} cannot be read from JSON: use string")


def _or_null(read: Read) -> Read:
    return lambda value: None if value is None else read(value)


def _list_reader(read: Read) -> Read:
    def lists(value: Any) -> object:
        if value is None:
            return None
        if not isinstance(value, list):
            raise Misfit("it is no list")
        return [read(item) for item in value]

    return lists


def _struct_reader(members: Mapping[str, Read], is_strict: bool) -> Read:
    def struct(value: Any) -> object:
        # An empty object had no members to tell its schema by.
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise Misfit("it is no object")
        if is_strict and not value.keys() <= members.keys():
            name = next(name for name in value if name not in members)
            raise Misfit(f"its member {str(name)[:100]!r} is not on the first page")
        return {name: read(value.get(name)) for name, read in members.items()}

    return struct


def _map_reader(read: Read) -> Read:
    def pairs(value: Any) -> object:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise Misfit("it is no object")
        return [(str(name), read(member)) for name, member in value.items()]

    return pairs


def _text(value: Any) -> object:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _flag(value: Any) -> object:
    if not isinstance(value, bool):
        raise Misfit("it is neither true nor false")
    return value


def _whole(value: Any) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Misfit("it is no whole number")
    return value


def _fraction(value: Any) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misfit("it is no number")
    number = float(value)
    if not math.isfinite(number) or (isinstance(value, int) and int(number) != value):
        raise Misfit("it has more digits")
    return number


def _decimal(value: Any) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Misfit("it is no number")
    try:
        return Decimal(str(value))
    except InvalidOperation:
        raise Misfit("it is no number") from None


def _date(value: Any) -> object:
    try:
        return datetime.date.fromisoformat(value)
    except (ValueError, TypeError):
        raise Misfit("it is no date like 2026-01-31") from None


def _moment(value: Any) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(value)
    except (ValueError, TypeError):
        raise Misfit("it is no time like 2026-01-31T12:00:00Z") from None


def _zoned(value: Any) -> object:
    found = _moment(value)
    return found.replace(tzinfo=datetime.UTC) if found.tzinfo is None else found.astimezone(datetime.UTC)


def _local(value: Any) -> object:
    found = _moment(value)
    if found.tzinfo is not None:
        raise Misfit("it has a zone: use timestamp")
    return found


_READERS: tuple[tuple[tuple[type, ...], Read], ...] = (
    ((StringType,), _text),
    ((BooleanType,), _flag),
    ((ByteType, ShortType, IntegerType, LongType), _whole),
    ((FloatType, DoubleType), _fraction),
    ((DecimalType,), _decimal),
    ((DateType,), _date),
    ((TimestampType,), _zoned),
    ((TimestampNTZType,), _local),
)
