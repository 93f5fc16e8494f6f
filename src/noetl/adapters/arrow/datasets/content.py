"""The rows of a dataset: read from its parts row group by row group, and never more of them than somebody looks at."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from threading import Lock
from typing import Any

import pyarrow as pa

from noetl.adapters.arrow.codec import DAMAGE, first_line
from noetl.adapters.arrow.datasets.files import PartFiles
from noetl.adapters.arrow.datasets.partitions import constant
from noetl.adapters.arrow.opening.waiting import check_thread
from noetl.adapters.arrow.soundness import check_batch
from noetl.adapters.arrow.stored.casting import restored
from noetl.adapters.arrow.stored.types import TypeUnsupported
from noetl.core.dataset import DatasetPart, Manifest
from noetl.core.errors import PayloadCorrupt
from noetl.core.limits import TABLE_BATCH_BYTES_MAX, TABLE_BATCH_ROWS_MAX
from noetl.ports.data.tables import MappedFile

CURSORS_MAX = 2
"""Places at which readers were last: who goes on there need not begin at the row group's first row again."""


class DatasetContent:
    """As a table's content, over parts that are somewhere else."""

    file: MappedFile | None = None
    until_us: int | None = None
    holds_files = True

    def __init__(self, manifest: Manifest, schema: Any, files: PartFiles, *, size: int) -> None:
        self.schema = schema
        self.row_count = manifest.row_count
        self.size = size
        self._partition_by = frozenset(manifest.partition_by)
        self._parts = [part for part in manifest.parts if part.row_count]
        self._starts = [0, *accumulate(part.row_count for part in self._parts)]
        self._files = files
        self._cursors: list[_Cursor] = []
        self._lock = Lock()

    def each(self, columns: Sequence[str] | None, first: int, count: int) -> Iterator[Any]:
        schema = self.schema if columns is None else _chosen(self.schema, columns)
        for number, low, high in self._span(first, count):
            for start, batch in self._batches(number, schema, low):
                taken = _cut(batch, start, low, high)
                if taken is None:
                    break
                if taken.num_rows:
                    yield taken

    def window(self, first: int, count: int) -> Iterator[Any]:
        for number, low, high in self._span(first, count):
            cursor = self._cursor(number, low)
            while True:
                taken = _cut(cursor.batch, cursor.start, low, high)
                if taken is None:
                    break
                if taken.num_rows:
                    yield taken
                # The last batch is kept as it is: it may have the next rows too.
                if cursor.end >= high or not cursor.advance():
                    break
            self._leave(cursor)

    def _span(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """The parts that have some rows, with the numbers of these rows in them."""
        check_thread()
        last = min(first + count, self.row_count)
        number = bisect_right(self._starts, first) - 1
        while first < last:
            start, end = self._starts[number], self._starts[number + 1]
            yield number, first - start, min(last, end) - start
            first, number = end, number + 1

    # --- one part ------------------------------------------------------------------------------------------

    def _batches(self, number: int, schema: Any, low: int) -> Iterator[tuple[int, Any]]:
        """Batches of a part from the row group on that has a row, each with the number of its first row."""
        part = self._parts[number]
        names = [field.name for field in schema if field.name not in self._partition_by]
        if not names:
            yield from self._constants(part, schema, low)
            return
        reader = self._files.reader(part)
        groups, start = _groups(reader.metadata, low)
        try:
            rows = _batch_rows(reader.metadata)
            for batch in reader.iter_batches(rows, row_groups=groups, columns=names):
                found = self._found(part, schema, batch)
                yield start, found
                start += found.num_rows
            if start != part.row_count:
                raise PayloadCorrupt(f"{part.reference.uri} has {start:,} rows and not {part.row_count:,}")
        except (*DAMAGE, TypeUnsupported, KeyError) as error:
            raise PayloadCorrupt(f"{part.reference.uri} cannot be read: {first_line(error)}") from error
        finally:
            reader.close()

    def _found(self, part: DatasetPart, schema: Any, batch: Any) -> Any:
        """A batch of a part as readers see it."""
        check_batch(batch)
        rows = batch.num_rows
        columns = [
            constant(part.partition[field.name], field.type, rows)
            if field.name in self._partition_by
            else restored(batch.column(field.name), field)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _constants(self, part: DatasetPart, schema: Any, low: int) -> Iterator[tuple[int, Any]]:
        """No column of these is in a file."""
        for start in range(low, part.row_count, TABLE_BATCH_ROWS_MAX):
            rows = min(TABLE_BATCH_ROWS_MAX, part.row_count - start)
            try:
                columns = [constant(part.partition[field.name], field.type, rows) for field in schema]
            except DAMAGE as error:
                raise PayloadCorrupt(f"a value of the partitioning is damaged: {first_line(error)}") from error
            if columns:
                yield start, pa.RecordBatch.from_arrays(columns, schema=schema)
            else:
                yield start, pa.RecordBatch.from_struct_array(pa.array([{}] * rows, type=pa.struct([])))

    # --- going on ------------------------------------------------------------------------------------------

    def _cursor(self, number: int, row: int) -> _Cursor:
        """A cursor at the batch that has a row."""
        with self._lock:
            known = [one for one in self._cursors if one.number == number and one.start <= row]
            found = max(known, key=lambda one: one.start, default=None)
            if found is not None:
                self._cursors.remove(found)
        group = _groups_start(self._files, self._parts[number], row) if found is not None and row >= found.end else 0
        if found is None or group > found.end:
            # A row group further on is nearer than what lies between.
            found = _Cursor(number, self._batches(number, self.schema, row))
        while row >= found.end and found.advance():
            pass
        return found

    def _leave(self, cursor: _Cursor) -> None:
        with self._lock:
            self._cursors.append(cursor)
            del self._cursors[:-CURSORS_MAX]


class _Cursor:
    """A place in a part."""

    def __init__(self, number: int, batches: Iterator[tuple[int, Any]]) -> None:
        self.number = number
        self._batches = batches
        self.start, self.batch = next(batches)

    @property
    def end(self) -> int:
        return self.start + int(self.batch.num_rows)

    def advance(self) -> bool:
        following = next(self._batches, None)
        if following is None:
            return False
        self.start, self.batch = following
        return True


def _chosen(schema: Any, columns: Sequence[str]) -> Any:
    return pa.schema([schema.field(name) for name in columns], metadata=schema.metadata)


def _cut(batch: Any, start: int, low: int, high: int) -> Any:
    """The rows of a batch that are wanted; None behind the last of them."""
    if start >= high:
        return None
    first, last = max(low - start, 0), min(high - start, batch.num_rows)
    if (first, last) == (0, batch.num_rows):
        return batch
    return batch.slice(first, max(last - first, 0))


def _groups(metadata: Any, low: int) -> tuple[list[int], int]:
    """The row groups from the one on that has a row, and the number of its first row."""
    start = 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if low < start + rows:
            return list(range(group, metadata.num_row_groups)), start
        start += rows
    return [], start


def _groups_start(files: PartFiles, part: DatasetPart, row: int) -> int:
    with files.reader(part) as reader:
        return _groups(reader.metadata, row)[1]


def _batch_rows(metadata: Any) -> int:
    """How many rows make a batch of a useful size."""
    size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    per_row = max(size // max(metadata.num_rows, 1), 1)
    return int(max(1, min(TABLE_BATCH_ROWS_MAX, TABLE_BATCH_BYTES_MAX // per_row)))
