"""Arrow streams as Parquet files that Spark reads natively."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from noetl.adapters.spark.job.failures import JobInvalid
from noetl.adapters.spark.types import TypePlan, plan_of

# Below this a table is one file: a second task would cost more than it saves.
_FILE_BYTES_MIN = 8 * 1024 * 1024
_ROW_GROUP_BYTES = 64 * 1024 * 1024
_ROW_GROUP_ROWS_MIN = 8_192
_ROW_GROUP_ROWS_MAX = 1_000_000


def batches_of(path: str, offset: int, length: int) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """The batches of a stream inside of a file.  They are views of the mapped file: nothing is read yet."""
    with pa.memory_map(path) as mapped:
        mapped.seek(offset)
        stream = pa.ipc.open_stream(pa.BufferReader(mapped.read_buffer(length or None)))
        return stream.schema, list(stream)


def table_of(name: str, rows: Sequence[dict[str, object]]) -> pa.Table:
    """Rows of plain data; a key that a row lacks is null.  Raises JobInvalid naming the column without one type."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    columns = []
    for column in names:
        try:
            columns.append(pa.array([row.get(column) for row in rows]))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            message = f"input {name}: the values of {column!r} have no type in common: give them one in the step before"
            raise JobInvalid(message, "SPARK_TYPE_UNSUPPORTED", kind="schema") from error
    return pa.table(columns, names=names)


def store(schema: pa.Schema, batches: Sequence[pa.RecordBatch], folder: Path, *, cores: int) -> TypePlan:
    """Write the rows as some files of about the same size, two for every core.  Raises TypeUnsupported."""
    plan = plan_of(schema)
    folder.mkdir(parents=True)
    rows, size = sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches)
    count = max(1, min(2 * cores, size // _FILE_BYTES_MIN, rows))
    bounds = [rows * number // count for number in range(count + 1)]
    group = _group_rows(rows, size)

    def write(number: int) -> None:
        cut = _between(batches, bounds[number], bounds[number + 1])
        # Plain pages without compression: they are read once, soon, from the page cache.
        with pq.ParquetWriter(
            folder / f"part-{number:05d}.parquet",
            plan.stored,
            compression="none",
            use_dictionary=False,
            write_page_checksum=False,
        ) as writer:
            for table in _groups(plan, cut, group):
                writer.write_table(table, row_group_size=group)

    with ThreadPoolExecutor(max_workers=max(1, min(cores, count))) as threads:
        for _ in threads.map(write, range(count)):
            pass
    return plan


def _group_rows(rows: int, size: int) -> int:
    per_row = max(1, size // rows) if rows else 1
    return max(_ROW_GROUP_ROWS_MIN, min(_ROW_GROUP_ROWS_MAX, _ROW_GROUP_BYTES // per_row))


def _groups(plan: TypePlan, batches: Iterator[pa.RecordBatch], group: int) -> Iterator[pa.Table]:
    """Tables of about one row group; converted one at a time, so that little is held."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(plan.stored_batch(batch))
        if sum(one.num_rows for one in held) >= group:
            yield pa.Table.from_batches(held, plan.stored)
            held = []
    if held:
        yield pa.Table.from_batches(held, plan.stored)


def _between(batches: Sequence[pa.RecordBatch], first: int, end: int) -> Iterator[pa.RecordBatch]:
    """The rows from `first` up to `end`, counted over all batches."""
    place = 0
    for batch in batches:
        start, stop = max(first, place), min(end, place + batch.num_rows)
        if start < stop:
            yield batch.slice(start - place, stop - start)
        place += batch.num_rows
