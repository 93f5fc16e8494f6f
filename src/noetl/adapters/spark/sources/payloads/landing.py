"""The files that a task writes before the store takes them over."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from noetl.adapters.arrow.stored.casting import to_stored
from noetl.adapters.spark.types import written_schema
from noetl.core.errors import RequestInvalid
from noetl.ports.data.datasets import LandedPart

GROUP_ROWS = 262_144
GROUP_BYTES = 64 * 1024**2
PART_BYTES_AIM = 512 * 1024**2
OPEN_FILES_MAX = 128
"""Of one task: each of them holds rows back until they make a row group."""
PART_MARK = b"noetl.part"
"""Which partition and file a part is, in its footer: parts of equal rows are still different payloads, and a task that
runs again writes the same ones."""

Values = tuple[str | None, ...]


class Landing:
    """`async with` nothing: it is used in a task, which waits for its disk."""

    def __init__(self, folder: Path | None, struct: StructType, partition_by: tuple[str, ...], *, mark: str) -> None:
        unknown = [name for name in partition_by if name not in struct.names]
        if unknown or len(partition_by) >= len(struct.names):
            raise RequestInvalid(f"partition_by: {unknown or list(partition_by)} must be some columns of the rows")
        self._folder = Path(tempfile.gettempdir()) if folder is None else folder
        self._struct = struct
        self._partition_by = partition_by
        self._mark = mark
        self._files: dict[Values, _File] = {}
        self._done: list[_File] = []

    def __enter__(self) -> Landing:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        for file in (*self._files.values(), *self._done):
            file.drop()

    def add(self, batch: pa.RecordBatch) -> None:
        stored = to_stored(batch)
        for values, rows in _divided(stored, self._partition_by):
            file = self._files.get(values)
            if file is None:
                if len(self._files) >= OPEN_FILES_MAX:
                    raise RequestInvalid(
                        f"a task has rows of more than {OPEN_FILES_MAX} values of {', '.join(self._partition_by)}: "
                        "repartition the rows by these columns before writing"
                    )
                file = self._files[values] = self._begun(values, rows.schema)
            file.add(rows)
            if file.is_full():
                self._done.append(self._files.pop(values))

    def finish(self) -> list[LandedPart]:
        """Everything that was written, closed."""
        self._done += self._files.values()
        self._files = {}
        for file in self._done:
            file.close()
        return [
            LandedPart(
                path=file.path,
                row_count=file.rows,
                partition=dict(zip(self._partition_by, file.values, strict=True)),
            )
            for file in self._done
        ]

    def schema(self) -> pa.Schema:
        """Of the rows as readers shall see them, after a look at those that were written."""
        return written_schema(self._struct, [str(file.path) for file in self._done], partition_by=self._partition_by)

    def _begun(self, values: Values, schema: pa.Schema) -> _File:
        mark = f"{self._mark}.{len(self._files) + len(self._done)}"
        return _File(self._folder / secrets.token_hex(16), values, schema.with_metadata({PART_MARK: mark.encode()}))


@dataclass(slots=True)
class _Held:
    batches: list[Any]
    rows: int = 0
    size: int = 0


class _File:
    """One Parquet file, written row group by row group."""

    def __init__(self, path: Path, values: Values, schema: pa.Schema) -> None:
        self.path = path
        self.values = values
        self.rows = 0
        self._schema = schema
        self._held = _Held([])
        self._sink = path.open("xb")
        self._writer = pq.ParquetWriter(self._sink, schema, compression="snappy")

    def add(self, batch: pa.RecordBatch) -> None:
        held = self._held
        held.batches.append(batch)
        held.rows += batch.num_rows
        held.size += batch.nbytes
        self.rows += batch.num_rows
        if held.rows >= GROUP_ROWS or held.size >= GROUP_BYTES:
            self._flush()

    def is_full(self) -> bool:
        return self._sink.tell() >= PART_BYTES_AIM

    def close(self) -> None:
        if self._sink.closed:
            return
        self._flush()
        self._writer.close()
        self._sink.close()

    def drop(self) -> None:
        """What the store has taken over is not here any more."""
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
        with suppress(OSError):
            self._sink.close()
        self.path.unlink(missing_ok=True)

    def _flush(self) -> None:
        held, self._held = self._held, _Held([])
        if held.rows:
            table = pa.Table.from_batches(held.batches).replace_schema_metadata(self._schema.metadata)
            self._writer.write_table(table, row_group_size=held.rows)


def _divided(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """The rows by the values of some columns, which they do not have any more."""
    if not batch.num_rows:
        return
    if not names:
        yield (), batch
        return
    texts: Mapping[str, pa.Array] = {name: _texts(batch.column(name), name) for name in names}
    rest = batch.drop_columns(list(names))
    groups = pa.table({**texts, "": pa.array(range(batch.num_rows))}).group_by(list(names), use_threads=False)
    for row in groups.aggregate([("", "list")]).to_pylist():
        yield tuple(row[name] for name in names), rest.take(pa.array(row["_list"]))


def _texts(column: pa.Array, name: str) -> pa.Array:
    try:
        return pc.cast(column, pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RequestInvalid(
            f"partition_by: the values of column {name!r} ({column.type}) have no text form"
        ) from error
