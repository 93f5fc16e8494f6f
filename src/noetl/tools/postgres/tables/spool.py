"""Batches that wait in a temporary file until the statement is done.

Only then are the types of all columns known; and a transaction of the user's database is not held open by a store that
is slow.  All of this blocks: run it in a thread."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from noetl.tools.postgres.tables.columns import Columns
from noetl.tools.postgres.tables.ways import Way

_OPTIONS = ipc.IpcWriteOptions(compression="lz4")


class Spool:
    """Streams behind each other, a new one whenever a column changed its way."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        self._parts: list[tuple[int, list[Way]]] = []
        self._writer: Any = None

    def add(self, batch: Any, ways: list[Way]) -> None:
        """A batch whose columns were kept in these ways."""
        if not self._parts or self._parts[-1][1] != ways:
            self._end()
            self._parts.append((self._file.tell(), ways))
            self._writer = ipc.new_stream(self._file, batch.schema, options=_OPTIONS)
        self._writer.write_batch(batch)

    def batches(self) -> Iterator[Any]:
        """All batches in order, with the types that the columns have now."""
        self._end()
        schema = self._columns.schema
        for place, ways in self._parts:
            self._file.seek(place)
            with ipc.open_stream(self._file) as reader:
                for batch in reader:
                    yield batch if ways == self._columns.ways else self._changed(batch, ways, schema)

    def _changed(self, batch: Any, ways: Sequence[Way], schema: Any) -> Any:
        triples = zip(batch.columns, ways, self._columns.ways, strict=True)
        arrays = [column if old == new else old.changed(column, new) for column, old, new in triples]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def close(self) -> None:
        """Nothing of it is needed any more, so what cannot be written now hides no failure that came before."""
        with suppress(OSError, pa.ArrowException):
            self._end()
        with suppress(OSError):
            self._file.close()

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
