"""The rows of a statement, some at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from noetl.tools.postgres.tables.bounds import FIRST_ROWS

_LITTLE_BYTES_MAX = 16_384
_VALUE_BYTES = 16
_PREFETCHED_ROWS = 512


class Pieces(Protocol):
    """The records of a prepared statement."""

    is_done: bool

    async def next(self, count: int) -> Sequence[Any]:
        """So many records, or those that are left; then it is done."""
        ...


class ThroughPortal:
    """In a transaction that ends with the statement: the portal ends with it too."""

    def __init__(self, statement: Any, values: Sequence[object]) -> None:
        self._statement = statement
        self._values = values
        self._cursor: Any = None
        self.is_done = False

    async def next(self, count: int) -> Sequence[Any]:
        if self._cursor is None:
            self._cursor = await self._statement.cursor(*self._values)
        records: Sequence[Any] = await self._cursor.fetch(count)
        self.is_done = len(records) < count
        return records


class ThroughClosedPortal:
    """In a transaction that goes on: an open portal would be in the way of whoever changes the table next.  Only the
    driver's iterator closes it behind the last row."""

    def __init__(self, statement: Any, values: Sequence[object]) -> None:
        self._records = aiter(statement.cursor(*values, prefetch=_PREFETCHED_ROWS))
        self.is_done = False

    async def next(self, count: int) -> Sequence[Any]:
        records: list[Any] = []
        while len(records) < count and not self.is_done:
            try:
                records.append(await anext(self._records))
            except StopAsyncIteration:
                self.is_done = True
        return records


class AtOnce:
    """Everything in one answer, as the server gives it outside of any transaction."""

    def __init__(self, statement: Any, values: Sequence[object]) -> None:
        self._statement = statement
        self._values = values
        self._held: Sequence[Any] | None = None
        self.is_done = False

    async def next(self, count: int) -> Sequence[Any]:
        if self._held is None:
            self._held = await self._statement.fetch(*self._values)
        records, self._held = self._held[:count], self._held[count:]
        self.is_done = not self._held
        return records


def is_little(records: Sequence[Any]) -> bool:
    """A guess whether records are so few and small that a table of them would cost more than they do."""
    if len(records) > FIRST_ROWS:
        return False
    size = 0
    for record in records:
        for value in record:
            size += _VALUE_BYTES + (len(value) if isinstance(value, str | bytes | list) else 0)
        if size > _LITTLE_BYTES_MAX:
            return False
    return True
