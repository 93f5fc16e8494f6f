"""The columns of a result: which way each type begins with, and batches of records made into batches of columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from noetl.tools.postgres.tables.numerics import Numerics
from noetl.tools.postgres.tables.ways import (
    Intervals,
    JsonTexts,
    Lists,
    Misfit,
    PlainJson,
    Same,
    Texts,
    Uuids,
    Way,
    dates,
    times,
    timestamps,
    zoned_timestamps,
)
from noetl.tools.postgres.values import converter, plain

_WAYS: Mapping[str, Callable[[], Way]] = {
    "bool": lambda: Same(pa.bool_()),
    "int2": lambda: Same(pa.int16()),
    "int4": lambda: Same(pa.int32()),
    "int8": lambda: Same(pa.int64()),
    "oid": lambda: Same(pa.uint32()),
    "float4": lambda: Same(pa.float32()),
    "float8": lambda: Same(pa.float64()),
    "numeric": Numerics,
    "text": lambda: Same(pa.string()),
    "varchar": lambda: Same(pa.string()),
    "bpchar": lambda: Same(pa.string()),
    "name": lambda: Same(pa.string()),
    "bytea": lambda: Same(pa.binary()),
    "date": dates,
    "time": times,
    "timestamp": timestamps,
    "timestamptz": zoned_timestamps,
    "interval": Intervals,
    "uuid": Uuids,
    "json": JsonTexts,
    "jsonb": JsonTexts,
}


def way_of(type_: Any) -> Way:
    """The way a column of this type begins with."""
    name = type_.name
    if type_.kind == "array":
        return Lists(name, _scalar(name.removesuffix("[]"), type_.schema) or Texts(name))
    if type_.kind == "composite":
        # The driver does not say of which types its members are.
        return PlainJson(name)
    return _scalar(name, type_.schema) or Texts(name, converter(type_) or plain)


def _scalar(name: str, schema: str) -> Way | None:
    make = _WAYS.get(name) if schema == "pg_catalog" else None
    return None if make is None else make()


class Columns:
    """The columns of one result, with the ways that they have so far."""

    def __init__(self, attributes: Sequence[Any]) -> None:
        self.names = [attribute.name for attribute in attributes]
        self.ways = [way_of(attribute.type) for attribute in attributes]

    @property
    def schema(self) -> Any:
        return schema_of(self.names, self.ways)

    def batch(self, records: Sequence[Any]) -> Any:
        """Records as a batch of columns.  Columns whose values do not fit change their way, and so the schema."""
        columns: Any = zip(*records, strict=True) if records else [()] * len(self.names)
        arrays = [self._array(number, values) for number, values in enumerate(columns)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, number: int, values: Sequence[Any]) -> Any:
        while True:
            try:
                return self.ways[number].array(values)
            except Misfit as misfit:
                self.ways[number] = misfit.wider


def schema_of(names: Sequence[str], ways: Sequence[Way]) -> Any:
    pairs = zip(names, ways, strict=True)
    return pa.schema([pa.field(name, way.type, metadata=way.metadata or None) for name, way in pairs])
