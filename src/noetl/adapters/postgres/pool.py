"""Connections.  The writer has one connection of its own, so that no reader can delay a commit."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from noetl.adapters.postgres.statements import Statement
from noetl.core.errors import EnvelopeInvalid, LedgerBusy, LedgerUnavailable, TransitionConflict

# Generic plans, made once: the hot statements find rows by index whatever the statistics of a young table say.
_WRITER_SETTINGS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
# Every read has its index and its order.  Without this the tail of a shard is sorted out of a whole partition while
# the statistics of a young quarter still say that it is empty.
_READER_SETTINGS = {"enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off"}
_COMMON_SETTINGS = {
    "application_name": "noetl",
    "lock_timeout": "1s",
    "statement_timeout": "5s",
    "idle_in_transaction_session_timeout": "10s",
    "search_path": "pg_catalog",
    # Whatever the database or the role is set to: an answer means that it is on disk.
    "synchronous_commit": "on",
}
CONNECT_SECONDS_MAX = 10.0
CLOSE_SECONDS_MAX = 2.0
PREPARED_STATEMENTS_MAX = 128
CLOSING_ERRORS = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""Who leaves and is not let go in order cuts the connection."""
STILL_TIMEOUT = "1s"
"""For so long a process may stand still in the middle of a short transaction."""
IDLE_SECONDS_MAX = 30.0
"""A connection of a pool that nobody used for so long is closed: an idle process holds few."""


@asynccontextmanager
async def translated_errors() -> AsyncIterator[None]:
    """Driver errors become ours at this edge."""
    try:
        yield
    except asyncpg.UniqueViolationError as error:
        raise TransitionConflict(f"{error.constraint_name}: {error.detail}") from error
    except (
        asyncpg.IntegrityConstraintViolationError,
        asyncpg.DataError,
        asyncpg.ProgramLimitExceededError,
    ) as error:
        raise EnvelopeInvalid(f"the ledger refused a row: {error}", event_id=_refused_event(error)) from error
    except asyncpg.LockNotAvailableError as error:
        raise LedgerBusy(f"Postgres gave no lock in time: {error}") from error
    except (
        OSError,
        TimeoutError,
        asyncpg.InterfaceError,
        # The last words of a Postgres that ends are heard before the end of its connection is.
        asyncpg.InternalClientError,
        asyncpg.PostgresConnectionError,
        asyncpg.OperatorInterventionError,
        asyncpg.TransactionRollbackError,
        asyncpg.IdleInTransactionSessionTimeoutError,
        asyncpg.InsufficientResourcesError,
        asyncpg.InvalidCatalogNameError,
    ) as error:
        raise LedgerUnavailable(f"Postgres gave no answer: {error}") from error


@contextlib.contextmanager
def dropped_when_stuck(connection: Any) -> Iterator[None]:
    """A connection that has heard the last words of its Postgres answers nothing more, and may not know its end yet."""
    try:
        yield
    except asyncpg.InternalClientError:
        connection.terminate()
        raise


# Postgres shows the row that broke a constraint: execution_id, position, shard_id, event_id come first.
_EVENT_ROW = re.compile(r"Failing row contains \((\d+), \d+, \d+, (\d+), ")


def _refused_event(error: asyncpg.PostgresError) -> int | None:
    row = _EVENT_ROW.match(getattr(error, "detail", None) or "")
    return int(row.group(2)) if row and (getattr(error, "table_name", None) or "").startswith("event") else None


# What is derived need not be on disk when its commit returns: it is lost together with its watermark, and made again.
_DERIVED_SETTINGS = {"synchronous_commit": "off"}


class Writer:
    """The connection that commits.  It is opened again after it broke.  `is_derived`: it writes nothing that could not
    be made again from the ledger."""

    def __init__(self, dsn: str, *, is_derived: bool = False) -> None:
        self._dsn = dsn
        self._settings = {**_COMMON_SETTINGS, **_WRITER_SETTINGS, **(_DERIVED_SETTINGS if is_derived else {})}
        self._connection: Any = None
        self._prepared: OrderedDict[str, Any] = OrderedDict()
        self._lock = asyncio.Lock()
        # Whose transaction is open.
        self._holder: asyncio.Task[Any] | None = None

    async def fetch(self, statement: Statement, values: dict[str, object]) -> Sequence[Any]:
        async with contextlib.nullcontext() if self._is_holder() else self._lock, translated_errors():
            return await self._fetch(statement, values)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """What the task that asks for it fetches inside is one commit, and durable when this ends; others wait for it.
        Whatever goes wrong inside, the connection is dropped: that rolls back, also when nobody has time to wait."""
        async with self._lock:
            async with translated_errors():
                await self._connect()
                with dropped_when_stuck(self._connection):
                    await self._connection.execute("BEGIN")
            self._holder, is_committed = asyncio.current_task(), False
            try:
                yield
                async with translated_errors():
                    await self._connection.execute("COMMIT")
                is_committed = True
            finally:
                self._holder = None
                if not is_committed:
                    self._connection.terminate()

    def _is_holder(self) -> bool:
        return self._holder is not None and self._holder is asyncio.current_task()

    async def _fetch(self, statement: Statement, values: dict[str, object]) -> Sequence[Any]:
        prepared = self._prepared.get(statement.text)
        if prepared is None or self._connection.is_closed():
            prepared = await self._prepare(statement)
        self._prepared.move_to_end(statement.text)
        with dropped_when_stuck(self._connection):
            rows: Sequence[Any] = await prepared.fetch(*statement.bind(values))
        return rows

    async def _connect(self) -> None:
        if self._connection is not None and not self._connection.is_closed():
            return
        if self._is_holder():
            raise LedgerUnavailable("the connection broke in a transaction")
        self._prepared.clear()
        self._connection = await asyncpg.connect(
            self._dsn,
            server_settings=self._settings,
            timeout=CONNECT_SECONDS_MAX,
        )

    async def _prepare(self, statement: Statement) -> Any:
        await self._connect()
        with dropped_when_stuck(self._connection):
            prepared = await self._connection.prepare(statement.text)
        self._prepared[statement.text] = prepared
        # A commit has a statement of its own for every combination of parts, and Postgres keeps a plan of each.  One
        # that nobody holds any more is closed by the driver.
        while len(self._prepared) > PREPARED_STATEMENTS_MAX:
            self._prepared.popitem(last=False)
        return prepared

    async def close(self) -> None:
        if self._connection is not None and not self._connection.is_closed():
            try:
                await self._connection.close(timeout=CLOSE_SECONDS_MAX)
            except CLOSING_ERRORS:
                self._connection.terminate()


async def _as_it_is(_connection: Any) -> None:
    """A transaction leaves no settings behind that were to be put back, and every round trip counts."""


class Transactions:
    """A few connections for short transactions on what could be made again, opened with the first one.  Nobody who
    reads or commits waits for them; a process that stands still within one loses its connection, and its locks."""

    def __init__(self, dsn: str, *, size_max: int) -> None:
        self._dsn = dsn
        self._size_max = size_max
        self._pool: Any = None

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Transaction]:
        if self._pool is None:
            self._pool = asyncpg.create_pool(
                self._dsn,
                min_size=0,
                max_size=self._size_max,
                max_inactive_connection_lifetime=IDLE_SECONDS_MAX,
                reset=_as_it_is,
                timeout=CONNECT_SECONDS_MAX,
                server_settings={
                    **_COMMON_SETTINGS,
                    **_WRITER_SETTINGS,
                    **_DERIVED_SETTINGS,
                    "idle_in_transaction_session_timeout": STILL_TIMEOUT,
                },
            )
        async with translated_errors():
            await self._pool
            async with self._pool.acquire(timeout=CONNECT_SECONDS_MAX) as connection:
                with dropped_when_stuck(connection):
                    async with connection.transaction():
                        yield Transaction(connection)

    async def close(self) -> None:
        if self._pool is not None:
            try:
                await asyncio.wait_for(self._pool.close(), timeout=CLOSE_SECONDS_MAX)
            except CLOSING_ERRORS:
                self._pool.terminate()


class Transaction:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: Statement, values: dict[str, object]) -> Sequence[Any]:
        rows: Sequence[Any] = await self._connection.fetch(statement.text, *statement.bind(values))
        return rows


class Reader:
    """A small pool for everything that only reads, and for the rare writes outside the hot path."""

    def __init__(self, dsn: str, *, size_max: int) -> None:
        self._dsn = dsn
        self._size_max = size_max
        self._pool: Any = None

    async def open(self) -> None:
        async with translated_errors():
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=1,
                max_size=self._size_max,
                max_inactive_connection_lifetime=IDLE_SECONDS_MAX,
                server_settings={**_COMMON_SETTINGS, **_READER_SETTINGS},
            )

    async def fetch(self, statement: Statement, **values: object) -> Sequence[Any]:
        async with translated_errors():
            rows: Sequence[Any] = await self._pool.fetch(statement.text, *statement.bind(values))
            return rows

    async def close(self) -> None:
        if self._pool is not None:
            try:
                await asyncio.wait_for(self._pool.close(), timeout=CLOSE_SECONDS_MAX)
            except CLOSING_ERRORS:
                self._pool.terminate()
