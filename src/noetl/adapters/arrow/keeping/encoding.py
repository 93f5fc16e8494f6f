"""One table on its way into a store: batches in, durable bytes out, never more than a few batches at once.

Reading, looking through, compressing and copying happen in threads; the store hashes and writes one piece while the
next one is made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Protocol

import pyarrow as pa

from noetl.adapters.arrow.codec import (
    DAMAGE,
    Regrouping,
    StreamWriter,
    first_line,
    invalid,
    schema_digest,
)
from noetl.adapters.arrow.keeping.landed import LandedStream, open_landed
from noetl.adapters.arrow.keeping.scrubbing import Scrubbing
from noetl.adapters.arrow.opening.ranges import IndexBuilder
from noetl.adapters.arrow.soundness import batch_bytes, check_batch, check_schema
from noetl.adapters.arrow.threads import Call, in_thread
from noetl.core.limits import TABLE_BATCH_BYTES_AIM, TABLE_BATCH_ROWS_AIM
from noetl.ports.data.tables import LandedTable, TableFacts

_GATHERED = 4


class RawSink(Protocol):
    """Takes the batches of a table without compression."""

    def begin(self, schema: Any) -> None: ...

    def write(self, batch: Any) -> None: ...


class Encoding:
    """The durable bytes of one table, and what is known about it at the end.  Used by one thread at a time."""

    def __init__(
        self, *, scrubbing: Scrubbing | None = None, sink: RawSink | None = None, uses_threads: bool = True
    ) -> None:
        self._uses_threads = uses_threads
        self._scrubbing = scrubbing
        self._sink = sink
        self._groups = Regrouping()
        self._index = IndexBuilder()
        self._writer: StreamWriter | None = None
        self._given: Any = None
        self._schema: Any = None
        self._raw_bytes = 0

    def begin(self, schema: Any) -> None:
        """What all batches look like; known before the first one, or with it."""
        sound(check_schema, schema)
        self._given = schema
        self._schema = self._scrubbing.schema(schema) if self._scrubbing else schema
        self._writer = StreamWriter(self._schema, uses_threads=self._uses_threads)
        self._index.begin(self._schema)
        if self._sink is not None:
            self._sink.begin(self._schema)

    def pieces(self, batches: Iterable[Any]) -> Iterator[bytes]:
        """The durable bytes of some more batches: one piece at a time, whatever the size of a batch."""
        for batch in batches:
            if self._given is None:
                self.begin(_schema_of(batch))
            self._check(batch)
            for group in self._groups.add(self._scrubbing.batch(batch) if self._scrubbing else batch):
                yield self._written(group)

    def rest(self) -> Iterator[bytes]:
        """The last durable bytes."""
        if self._writer is None:
            self.begin(pa.schema([]))
        assert self._writer is not None
        for group in self._groups.rest():
            yield self._written(group)
        self._writer.close()
        yield self._writer.take()

    def facts(self) -> TableFacts:
        return TableFacts(
            row_count=self._index.row_count, schema_digest=schema_digest(self._schema), raw_bytes=self._raw_bytes
        )

    def index(self) -> bytes | None:
        """Where each batch is in the durable bytes; None when they can only be read from the start."""
        return self._index.content()

    def _check(self, batch: Any) -> None:
        if not isinstance(batch, pa.RecordBatch):
            raise invalid(f"a table consists of record batches, and one of them is a {type(batch).__name__}")
        if not batch.schema.equals(self._given):
            raise invalid("the batches of a table must have one schema, and one of them has another")
        sound(check_batch, batch)

    def _written(self, batch: Any) -> bytes:
        assert self._writer is not None
        self._raw_bytes += batch_bytes(batch)
        self._writer.write(batch)
        piece = self._writer.take()
        self._index.add(piece, batch.num_rows)
        if self._sink is not None:
            self._sink.write(batch)
        return piece


def sound(check: Callable[[Any], None], given: Any) -> None:
    """Raises ToolFailed."""
    try:
        check(given)
    except DAMAGE as error:
        raise invalid(f"the table is damaged: {first_line(error)}") from error


def _schema_of(batch: object) -> Any:
    if not isinstance(batch, pa.RecordBatch):
        raise invalid(f"a table consists of record batches, and the first one is a {type(batch).__name__}")
    return batch.schema


class Source:
    """What a table is made of."""

    def __init__(self, given: object) -> None:
        self.given = given
        self.landed: LandedStream | None = None
        """Known when the file was opened."""

    def reader(self) -> Any:
        """A reader of batches over something that is at hand.  Raises ToolFailed."""
        if isinstance(self.given, LandedTable):
            self.landed = open_landed(self.given.path, self.given.offset)
            return self.landed.reader
        if not hasattr(self.given, "__arrow_c_stream__"):
            raise invalid(f"no table can be made of a {type(self.given).__name__}")
        try:
            return pa.RecordBatchReader.from_stream(self.given)
        except DAMAGE as error:
            raise invalid(f"the table cannot be read: {first_line(error)}") from error

    def remove(self) -> None:
        """A file that was handed over is ours, and gone when it was kept; one that became a segment has its name from
        there."""
        if isinstance(self.given, LandedTable):
            with suppress(OSError):  # what is no file was refused, and that is what is told
                self.given.path.unlink()


async def encoded_chunks(source: Source, encoding: Encoding) -> AsyncGenerator[bytes, None]:
    """The durable bytes of a source, piece by piece.  One piece is made while the last one is used."""
    ahead = _Ahead()
    chunks = _from_batches if hasattr(source.given, "__aiter__") else _from_reader
    try:
        async for piece in chunks(source, encoding, ahead):
            yield piece
    finally:
        await ahead.settle()


async def _from_reader(source: Source, encoding: Encoding, ahead: _Ahead) -> AsyncIterator[bytes]:
    reader = await in_thread(source.reader)
    try:
        encoding.begin(reader.schema)
        async for piece in ahead.each(encoding.pieces(_read(reader))):
            yield piece
        async for piece in ahead.each(encoding.rest()):
            yield piece
    finally:
        await ahead.settle()
        reader.close()


def _read(reader: Any) -> Iterator[Any]:
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except DAMAGE as error:
            raise invalid(f"the table cannot be read: {first_line(error)}") from error
        yield batch


async def _from_batches(source: Source, encoding: Encoding, ahead: _Ahead) -> AsyncIterator[bytes]:
    async for batches in _gathered(source.given):
        async for piece in ahead.each(encoding.pieces(batches)):
            yield piece
    async for piece in ahead.each(encoding.rest()):
        yield piece


async def _gathered(given: Any) -> AsyncIterator[list[Any]]:
    """Enough batches for some pieces: a way into a thread for every small one would cost more than its work."""
    held: list[Any] = []
    rows = size = 0
    async for batch in given:
        held.append(batch)
        rows += getattr(batch, "num_rows", 0)
        size += batch.get_total_buffer_size() if isinstance(batch, pa.RecordBatch) else 0
        if rows >= _GATHERED * TABLE_BATCH_ROWS_AIM or size >= _GATHERED * TABLE_BATCH_BYTES_AIM:
            yield held
            held, rows, size = [], 0, 0
    yield held


class _Ahead:
    """Takes the next item of an iterator in a thread while the last one is used."""

    def __init__(self) -> None:
        self._call: Call[bytes | None] | None = None

    async def each(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        self._call = Call(next, pieces, None)
        while (piece := await self._call.result()) is not None:
            self._call = Call(next, pieces, None)
            yield piece

    async def settle(self) -> None:
        """Wait for what nobody asks for any more: it still uses the files."""
        call, self._call = self._call, None
        if call is not None:
            await call.settle()
