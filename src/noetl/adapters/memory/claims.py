"""A work table in memory that rows can be claimed in, able to lose connections at every step of a claim."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from noetl.adapters.memory.faults import Faults
from noetl.core.errors import Failure, LedgerUnavailable, ToolFailed
from noetl.ports.cursor import ClaimCall, TransactionStatus
from noetl.ports.tool import ToolCall, ToolResult

T = TypeVar("T")


class WorkTable:
    """The database of the user, which outlives every process: a row is pending, locked by an open transaction, or
    taken."""

    def __init__(self) -> None:
        self.pending: list[dict[str, object]] = []
        self.taken: list[dict[str, object]] = []
        self._open: dict[str, list[dict[str, object]]] = {}
        self._frames: dict[str, int] = {}
        self._ended: dict[str, TransactionStatus] = {}

    def add(self, *rows: dict[str, object]) -> None:
        self.pending.extend(rows)

    def begin(self, limit: int, frame: int) -> tuple[str, list[dict[str, object]]]:
        xid = str(700 + len(self._frames))
        self._frames[xid] = frame
        self._open[xid], self.pending = self.pending[:limit], self.pending[limit:]
        return xid, self._open[xid]

    def commit(self, xid: str) -> bool:
        """Whether it could be: a transaction that the server has ended is not."""
        rows = self._open.pop(xid, None)
        if rows is not None:
            self.taken.extend(rows)
            self._ended[xid] = TransactionStatus.COMMITTED
        return self._ended[xid] is TransactionStatus.COMMITTED

    def roll_back(self, xid: str) -> None:
        rows = self._open.pop(xid, None)
        if rows is not None:
            self.pending[:0] = rows
            self._ended[xid] = TransactionStatus.ABORTED

    def open_claims(self) -> frozenset[str]:
        return frozenset(self._open)

    def end(self, frame: int) -> None:
        for xid in [xid for xid in self._open if self._frames[xid] == frame]:
            self.roll_back(xid)

    def status(self, xid: str) -> TransactionStatus:
        if xid in self._open:
            return TransactionStatus.IN_PROGRESS
        return self._ended.get(xid, TransactionStatus.FORGOTTEN)


class MemoryClaims:
    """One process' way to a table.  The statement ends with the number of rows to take; that a connection is lost the
    server notices `linger_seconds` later."""

    kind = "postgres"

    def __init__(self, table: WorkTable, faults: Faults | None = None, *, linger_seconds: float = 0.0) -> None:
        self._table = table
        self._faults = faults or Faults()
        self._linger = linger_seconds

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def run(self, call: ToolCall) -> ToolResult:
        raise AssertionError(f"nothing but claims: {call.step}")

    @asynccontextmanager
    async def claim(self, call: ClaimCall) -> AsyncIterator[MemoryClaim]:
        begun: list[str] = []

        def begin() -> list[dict[str, object]]:
            xid, rows = self._table.begin(int(call.statement.split()[-1]), call.frame)
            begun.append(xid)
            return rows

        try:
            rows = await self._asked("claim", begin)
            yield MemoryClaim(self, begun[0], rows)
        finally:
            for xid in begun:
                asyncio.get_running_loop().call_later(self._linger, self._table.roll_back, xid)

    async def status(self, _call: ClaimCall, transaction_id: str, _place: str | None) -> TransactionStatus:
        return await self._asked("claim_status", lambda: self._table.status(transaction_id))

    async def others(self, _call: ClaimCall) -> frozenset[str]:
        return await self._asked("claim_status", self._table.open_claims)

    async def end(self, call: ClaimCall) -> None:
        await self._asked("claim_end", lambda: self._table.end(call.frame))

    async def commit(self, transaction_id: str) -> None:
        if not await self._asked("claim_commit", lambda: self._table.commit(transaction_id)):
            raise _lost("the transaction was ended by the server")

    async def _asked(self, operation: str, work: Callable[[], T]) -> T:
        try:
            return await self._faults.around(operation, work)
        except LedgerUnavailable as error:
            raise _lost(str(error)) from error


class MemoryClaim:
    place = "memory"

    def __init__(self, claims: MemoryClaims, transaction_id: str, rows: list[dict[str, object]]) -> None:
        self._claims = claims
        self.transaction_id = transaction_id
        self.rows = rows

    async def commit(self) -> None:
        await self._claims.commit(self.transaction_id)


def _lost(message: str) -> ToolFailed:
    return ToolFailed(Failure(kind="db_connection", code="CONN_LOST", message=message, retryable=True))
