"""Arrow streams and Parquet files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import ipc, parquet

from noetl.adapters.arrow.codec import COMPRESSION, first_line
from noetl.adapters.arrow.files.sink import Pieces
from noetl.adapters.arrow.soundness import batch_bytes
from noetl.core.errors import ResultNotTabular

GROUP_ROWS = 131_072
GROUP_BYTES = 32 * 1024 * 1024
"""What of a Parquet file is held until it is written."""


class ArrowWriter:
    def __init__(self, schema: Any) -> None:
        self._sink = Pieces()
        options = ipc.IpcWriteOptions(compression=COMPRESSION)
        self._writer = ipc.new_stream(pa.PythonFile(self._sink, mode="w"), schema, options=options)

    def write(self, batch: Any) -> bytes:
        self._writer.write_batch(batch)
        return self._sink.take()

    def finish(self) -> bytes:
        self._writer.close()
        return self._sink.take()


class ParquetWriter:
    def __init__(self, schema: Any) -> None:
        """Raises ResultNotTabular."""
        self._schema = schema
        self._sink = Pieces()
        self._held: list[Any] = []
        self._rows = self._bytes = 0
        try:
            self._writer = parquet.ParquetWriter(pa.PythonFile(self._sink, mode="w"), schema, compression=COMPRESSION)
        except (pa.ArrowException, ValueError) as error:
            raise _refused(error) from error

    def write(self, batch: Any) -> bytes:
        self._held.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch_bytes(batch)
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write_group()
        return self._sink.take()

    def finish(self) -> bytes:
        self._write_group()
        self._writer.close()
        return self._sink.take()

    def _write_group(self) -> None:
        held, self._held, self._rows, self._bytes = self._held, [], 0, 0
        if not held:
            return
        try:
            self._writer.write_table(pa.Table.from_batches(held, self._schema))
        except (pa.ArrowException, ValueError) as error:
            raise _refused(error) from error


def _refused(error: BaseException) -> ResultNotTabular:
    return ResultNotTabular(f"Parquet cannot hold these columns ({first_line(error)}): ask for arrow, csv or ndjson")
