"""Rows on their way from a statement into a table: read in pieces, never all of them in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from noetl.clients.postgres.failures import storage_failure
from noetl.core.errors import ToolFailed
from noetl.core.limits import POSTGRES_BATCH_BYTES, POSTGRES_BATCH_ROWS_MAX
from noetl.ports.tool import TableSink
from noetl.tools.patience import patiently
from noetl.tools.postgres.tables.bounds import FIRST_ROWS
from noetl.tools.postgres.tables.columns import Columns
from noetl.tools.postgres.tables.pieces import Pieces
from noetl.tools.postgres.tables.spool import Spool
from noetl.tools.postgres.tables.ways import Way

_GROWTH = 8
# What a value costs as an object of Python, beside its bytes.
_VALUE_BYTES = 64


class Taken:
    """The rows of one statement.  One batch stays in memory; from the second one on they wait in a temporary file.

    A thread that nobody waits for any more may still be at work when this is closed: the lock makes closing wait."""

    def __init__(self, attributes: Sequence[Any]) -> None:
        self._columns = Columns(attributes)
        self._lock = threading.Lock()
        self._only: tuple[Any, list[Way]] | None = None
        self._spool: Spool | None = None
        self._is_closed = False
        self._bytes = 0
        self.row_count = 0
        self.rows_next = FIRST_ROWS

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._is_closed = True
            if self._spool is not None:
                self._spool.close()

    async def take(self, records: Sequence[Any], pieces: Pieces) -> None:
        """Take these rows and all that follow.  Raises ValueError or RecursionError for what cannot be read, and
        ToolFailed when there is no room for it."""
        while records and not pieces.is_done:
            # The server makes the next rows while these become columns.
            adding = asyncio.get_running_loop().run_in_executor(None, self._add, records)
            try:
                records = await pieces.next(self.rows_next)
            finally:
                await adding
        if len(records) <= FIRST_ROWS:
            self._add(records)
        else:
            await asyncio.to_thread(self._add, records)

    def _add(self, records: Sequence[Any]) -> None:
        with self._lock:
            if self._is_closed or not records:
                return
            batch = self._columns.batch(records)
            self._measure(batch)
            try:
                self._put(batch)
            except OSError as error:
                raise ToolFailed(storage_failure(error)) from error

    def _measure(self, batch: Any) -> None:
        self.row_count += batch.num_rows
        self._bytes += batch.nbytes + _VALUE_BYTES * batch.num_rows * batch.num_columns
        fitting = POSTGRES_BATCH_BYTES * self.row_count // max(self._bytes, 1)
        self.rows_next = max(1, min(fitting, self.rows_next * _GROWTH, POSTGRES_BATCH_ROWS_MAX))

    def _put(self, batch: Any) -> None:
        if self._only is None and self._spool is None:
            self._only = batch, list(self._columns.ways)
            return
        if self._only is not None:
            self._spool = Spool(self._columns)
            self._spool.add(*self._only)
            self._only = None
        assert self._spool is not None
        self._spool.add(batch, list(self._columns.ways))

    async def keep(self, sink: TableSink) -> Mapping[str, object]:
        """Make the rows durable.  Raises ToolFailed."""
        if self._only is None and self._spool is None:
            self._only = self._columns.batch(()), []
        try:
            if self._only is not None:
                table = pa.Table.from_batches([self._only[0]])
                return await patiently(lambda: sink.keep(table))
            return await patiently(lambda: sink.keep(self._batches()))
        except OSError as error:
            raise ToolFailed(storage_failure(error)) from error

    async def _batches(self) -> AsyncIterator[Any]:
        assert self._spool is not None
        batches = self._spool.batches()
        while (batch := await asyncio.to_thread(self._next, batches)) is not None:
            yield batch

    def _next(self, batches: Any) -> Any:
        with self._lock:
            return None if self._is_closed else next(batches, None)
