"""The rows of one task, in Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

from noetl.adapters.arrow.codec import DAMAGE, first_line
from noetl.adapters.arrow.stored.casting import to_stored
from noetl.adapters.spark.sources.payloads.fitting import fitted, repeated
from noetl.adapters.spark.sources.payloads.opening import opened_bytes, opened_ranges
from noetl.adapters.spark.sources.payloads.planning import PartSlice, Rows, Slice, TableSlice, of_slice
from noetl.adapters.spark.sources.payloads.pruning import Filters, needed_groups
from noetl.core.errors import PayloadCorrupt
from noetl.ports.data.sources import SourceAccess

BATCH_ROWS = 65_536
BATCH_BYTES_AIM = 16 * 1024**2
"""A batch is copied as a whole on its way to the JVM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How tasks of one plan read.  It is sent to each of them."""

    access: SourceAccess = field(repr=False)
    target: pa.Schema
    is_verified: bool = True
    filters: Filters = ()

    def batches(self, task: Slice) -> Iterator[pa.RecordBatch]:
        """Raises PayloadMissing or PayloadCorrupt with the name of the payload."""
        if isinstance(task, PartSlice):
            yield from self._part(task)
        elif isinstance(task, TableSlice):
            yield from self._table(task)
        elif isinstance(task, Rows):
            with ipc.open_stream(task.content) as reader:
                for batch in reader:
                    yield from self._tabular(batch, "the rows")

    # --- Parquet -------------------------------------------------------------------------------------------

    def _part(self, task: PartSlice) -> Iterator[pa.RecordBatch]:
        reference, uri = task.part.reference, task.part.reference.uri
        opened = opened_bytes if self.is_verified else opened_ranges
        with opened(self.access, reference, task.owner) as file:
            try:
                parquet = pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
                if parquet.metadata.num_rows != task.part.row_count:
                    found = f"{parquet.metadata.num_rows:,} rows and not {task.part.row_count:,}"
                    raise PayloadCorrupt(f"{uri} has {found}")
                for batch in self._groups(parquet, task):
                    constants = repeated(task.part.partition, task.types, batch.num_rows)
                    yield fitted(batch, self.target, constants, uri)
            except DAMAGE as error:
                raise PayloadCorrupt(f"{uri} is no readable part of a dataset: {first_line(error)}") from error

    def _groups(self, parquet: Any, task: PartSlice) -> Iterator[pa.RecordBatch]:
        metadata = parquet.metadata
        own = of_slice(metadata.num_row_groups, task.number, task.count)
        groups = [number for number in needed_groups(metadata, self.filters) if number in own]
        if not groups:
            return
        names = [name for name in self.target.names if name not in task.types]
        # A point in a name would be taken for a way into a struct.
        columns = None if any("." in name for name in names) else names
        rows = _rows(metadata, groups)
        yield from parquet.iter_batches(batch_size=rows, row_groups=groups, columns=columns, use_threads=False)

    # --- Arrow ---------------------------------------------------------------------------------------------

    def _table(self, task: TableSlice) -> Iterator[pa.RecordBatch]:
        uri = task.reference.uri
        # One stream has no places to jump to, so all of it is read and checked in any case.
        with opened_bytes(self.access, task.reference, task.owner) as file:
            try:
                for batch in _sliced(file, task) if task.count > 1 else ipc.open_stream(file):
                    batch.validate()
                    yield from self._tabular(batch, uri)
            except DAMAGE as error:
                raise PayloadCorrupt(f"{uri} is no readable table: {first_line(error)}") from error

    def _tabular(self, batch: pa.RecordBatch, uri: str) -> Iterator[pa.RecordBatch]:
        chosen = batch.select(self.target.names)
        yield fitted(to_stored(chosen), self.target, {}, uri)


def _rows(metadata: Any, groups: Sequence[int]) -> int:
    """How many rows of these groups are about as many bytes as are meant to be held."""
    chosen = [metadata.row_group(number) for number in groups]
    rows: int = sum(group.num_rows for group in chosen)
    size: int = sum(group.total_byte_size for group in chosen)
    return max(1, min(BATCH_ROWS, BATCH_BYTES_AIM * max(rows, 1) // max(size, 1)))


def _sliced(file: pa.NativeFile, task: TableSlice) -> Iterator[pa.RecordBatch]:
    """Some batches of a mapped stream; those before them are stepped over and not unpacked."""
    schema = ipc.open_stream(file).schema
    file.seek(0)
    total = sum(1 for message in ipc.MessageReader.open_stream(file) if message.type == "record batch")
    file.seek(0)
    own = of_slice(total, task.number, task.count)
    number = 0
    for message in ipc.MessageReader.open_stream(file):
        if message.type == "record batch":
            if number in own:
                yield ipc.read_record_batch(message, schema)
            number += 1
