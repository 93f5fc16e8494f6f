"""CSV: a header, then a line for each row.

Text stands in quotes, so that an empty one is not null, which is nothing at all.  Numbers and decimals keep their
digits.  Dates, times and bytes are written as templates see them (dsl §8.6), lists and mappings as JSON."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import csv, types

from noetl.adapters.arrow.files.inferred import text_of
from noetl.adapters.arrow.files.sink import Pieces
from noetl.adapters.arrow.rows import values_of


class CsvWriter:
    def __init__(self, schema: Any) -> None:
        self._sink = Pieces()
        self._has_columns = len(schema) > 0
        fields = [(field.name, field.type if _is_simple(field.type) else pa.string()) for field in schema]
        if self._has_columns:
            options = csv.WriteOptions(eol="\n")
            self._writer = csv.CSVWriter(pa.PythonFile(self._sink, mode="w"), pa.schema(fields), write_options=options)

    def write(self, batch: Any) -> bytes:
        if self._has_columns:
            columns = [_written(column) for column in batch.columns]
            self._writer.write(pa.RecordBatch.from_arrays(columns, names=batch.schema.names))
        return self._sink.take()

    def finish(self) -> bytes:
        if self._has_columns:
            self._writer.close()
        return self._sink.take()


def _is_simple(kind: Any) -> bool:
    """Whether Arrow writes it as we would."""
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_decimal128(kind)
        or types.is_string(kind)
        or types.is_null(kind)
    )


def _written(column: Any) -> Any:
    if _is_simple(column.type):
        return column
    return pa.array(map(text_of, values_of(column)), pa.string())
