"""The formats by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from noetl.adapters.arrow.files.columnar import ArrowWriter, ParquetWriter
from noetl.adapters.arrow.files.delimited import CsvWriter
from noetl.adapters.arrow.files.inferred import batch_of, schema_of
from noetl.adapters.arrow.files.screen import ScreenWriter
from noetl.core.results.columns import ColumnType
from noetl.ports.data.formats import TableWriter

_WRITERS: Mapping[str, type[ArrowWriter] | type[ParquetWriter] | type[CsvWriter] | type[ScreenWriter]] = {
    "arrow": ArrowWriter,
    "parquet": ParquetWriter,
    "csv": CsvWriter,
    "table": ScreenWriter,
}


class ArrowFormats:
    def writer(self, name: str, schema: Any, columns: Sequence[str] | None = None) -> TableWriter:
        if columns is not None:
            schema = pa.schema([schema.field(column) for column in columns], metadata=schema.metadata)
        return _WRITERS[name](schema)

    def schema_of(self, columns: Mapping[str, ColumnType]) -> Any:
        return schema_of(columns)

    def batch_of(self, rows: Sequence[Mapping[str, object]], schema: Any) -> Any:
        return batch_of(rows, schema)
