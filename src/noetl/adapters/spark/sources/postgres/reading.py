"""The rows of one partition as batches: the server copies them out while earlier ones are used."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import StructType

from noetl.adapters.spark.sources.postgres.connecting import Server
from noetl.adapters.spark.sources.postgres.decoding import Decoder
from noetl.adapters.spark.sources.postgres.statements import statement
from noetl.core.errors import ToolFailed
from noetl.core.limits import SOURCE_BATCH_BYTES, SOURCE_BATCHES_AHEAD_MAX

_LOOK_SECONDS = 0.2


def batches(server: Server, query: str, struct: StructType, *, snapshot: str | None) -> Iterator[pa.RecordBatch]:
    """Raises ToolFailed.  A caller that stops early ends the copying."""
    feed = _Feed(server, query, Decoder(struct), snapshot)
    feed.start()
    try:
        while True:
            item = feed.next()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                return
            yield item
    finally:
        feed.stop()


class _Stopped(Exception):
    """Nobody wants more rows."""


class _Feed(threading.Thread):
    """A thread with a loop of its own, since the caller is plain code that waits for rows."""

    def __init__(self, server: Server, query: str, decoder: Decoder, snapshot: str | None) -> None:
        super().__init__(name="noetl-postgres-read", daemon=True)
        self._server = server
        self._query = query
        self._decoder = decoder
        self._snapshot = snapshot
        self._held = bytearray()
        self._ready: queue.Queue[pa.RecordBatch | BaseException | None] = queue.Queue(SOURCE_BATCHES_AHEAD_MAX)
        self._is_stopped = threading.Event()

    def next(self) -> pa.RecordBatch | BaseException | None:
        """The next batch, the error that ended the copying, or None at its end."""
        return self._ready.get()

    def stop(self) -> None:
        self._is_stopped.set()
        self.join()

    def run(self) -> None:
        try:
            asyncio.run(self._copy())
            self._flush()
            self._put(None)
        except _Stopped:
            pass
        except (ToolFailed, OSError, ValueError, MemoryError) as error:
            self._put_last(error)

    async def _copy(self) -> None:
        async with self._server.reading(self._snapshot) as connection:
            # COPY is sent as plain text, which may be several statements, one of which could end the transaction that
            # changes nothing.  A text that can be prepared is one.
            await connection.prepare(statement("reading.sql", "prepared_rows", rows=self._query))
            await connection.copy_from_query(self._query, output=self._take, format="csv")

    async def _take(self, rows: bytes) -> None:
        """The driver gives whole messages, and the server sends a row in one message: so these are whole rows."""
        self._held += rows
        if len(self._held) >= SOURCE_BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            batch = self._decoder.batch(bytes(self._held))
            self._held.clear()
            self._put(batch)

    def _put(self, item: pa.RecordBatch | None) -> None:
        while not self._is_stopped.is_set():
            try:
                self._ready.put(item, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
            return
        raise _Stopped

    def _put_last(self, error: BaseException) -> None:
        while not self._is_stopped.is_set():
            try:
                self._ready.put(error, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
            return
