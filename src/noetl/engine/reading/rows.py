"""The rows of a result, a few at a time.

Rows of a table come from the nearest copy of it, rows of a list from the parts in which they stand, rows of a loop from
the frames that have them: a page costs what it has, not what the whole has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from noetl.core import limits
from noetl.core.expression import ResultRows, View, bare, find
from noetl.core.expression.views import bytes_min
from noetl.core.expression.views.base import part_of
from noetl.engine.stored.reader import Reader
from noetl.engine.stored.sources import settled
from noetl.ports.data.tables import OpenTable

T = TypeVar("T")
_FIRST_ROWS = 16
"""So many are read before it is known how large they are."""


class TableRows:
    """The rows of an open table, which it closes."""

    def __init__(self, table: OpenTable) -> None:
        self._table = table
        self.total = table.row_count
        self.schema = table.schema

    async def chunks(self, first: int, count: int) -> AsyncGenerator[list[Any]]:
        """Some rows as plain data, a few at a time."""
        pace = Pace()
        end = min(first + count, self.total)
        while first < end:
            rows = await self._table.looked(self._table.rows, first, min(pace.rows, end - first))
            yield rows
            first += len(rows)
            pace.measure(rows)

    async def batches(self, first: int, count: int, columns: Sequence[str] | None) -> AsyncGenerator[Any]:
        """The same as record batches."""
        window = self._table.batches(columns, first=first, count=count)
        while (batch := await self._table.looked(next, window, None)) is not None:
            yield batch

    def close(self) -> None:
        self._table.close()


class ListRows:
    """The items of a list, or of a view of one."""

    def __init__(self, items: Any, reader: Reader) -> None:
        self._items = items
        self._reader = reader
        self.total = len(items)

    async def views(self, first: int, count: int) -> AsyncGenerator[list[Any]]:
        """Items as they are, perhaps with parts that are not read."""
        pace = Pace()
        end = min(first + count, self.total)
        while first < end:
            taken = min(pace.rows, end - first)
            items = await settled(lambda low=first, high=first + taken: self._cut(low, high))  # type: ignore[misc]
            yield items
            first += taken
            pace.measure(items)
            self._reader.forget()

    async def chunks(self, first: int, count: int) -> AsyncGenerator[list[Any]]:
        """Some items as plain data, a few at a time."""
        async with aclosing(self.views(first, count)) as views:
            async for items in views:
                yield await settled(lambda found=items: [bare(item) for item in found])  # type: ignore[misc]

    def close(self) -> None:
        self._reader.forget()

    def _cut(self, low: int, high: int) -> list[Any]:
        if not isinstance(self._items, View):
            return list(self._items[low:high])
        if isinstance(self._items, ResultRows):
            # All frames of the window at once; the rows stay views.
            cut: Any = part_of(self._items, slice(low, high))
            return list(cut)
        # One by one: an item of a stored list may be as large as the list.
        return [find(self._items, index) for index in range(low, high)]


Rows = TableRows | ListRows


class Pace:
    """How many rows to take next, so that a chunk has about the bytes that are meant to be held."""

    def __init__(self) -> None:
        self.rows = _FIRST_ROWS

    def measure(self, rows: Sequence[object]) -> None:
        if not rows:
            return
        some = (rows[0], rows[len(rows) // 2], rows[-1])
        largest = max(bytes_min(row, limits.RESULT_CHUNK_BYTES) for row in some)
        self.rows = max(1, min(limits.RESULT_CHUNK_ROWS, limits.RESULT_CHUNK_BYTES // max(largest, 1), self.rows * 8))


async def in_thread(call: Callable[..., T], *arguments: Any) -> T:
    """A call beside the event loop.  Who is cancelled meanwhile still waits for its end: what it uses may be closed
    next."""
    future = asyncio.get_running_loop().run_in_executor(None, call, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
