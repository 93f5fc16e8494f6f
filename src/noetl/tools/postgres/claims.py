"""A cursor's rows in Postgres: a transaction that is known by its number before it commits."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import asyncpg

from noetl.clients.postgres.failures import (
    DRIVER_ERRORS,
    failed,
    statement_failure,
    timeout_failure,
    unreadable_failure,
    unsupported_failure,
)
from noetl.clients.postgres.target import credential_of
from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import CURSOR_CLAIM_IDLE_SECONDS_MAX, CURSOR_CLAIM_ROWS_MAX
from noetl.ports.cursor import ClaimCall, TransactionStatus
from noetl.tools.postgres.pools import Pool, Pools
from noetl.tools.postgres.request import read_request
from noetl.tools.postgres.results import Result, run_one
from noetl.tools.sql.params import Bound, ParamsInvalid
from noetl.tools.sql.split import first_word


def _statements_in(file: str) -> dict[str, str]:
    """The named statements of a file, without their comments."""
    text = files("noetl.tools.postgres").joinpath("sql", file).read_text("utf-8")
    pieces = re.split(r"^-- name: *(\w+) *$", text, flags=re.MULTILINE)
    bodies = (re.sub(r"^--.*$", "", body, flags=re.MULTILINE).strip() for body in pieces[2::2])
    return dict(zip(pieces[1::2], bodies, strict=True))


_SQL = _statements_in("claims.sql")
_IDLE = f"{CURSOR_CLAIM_IDLE_SECONDS_MAX}s"
_OWN_TRANSACTION = frozenset(
    ("begin", "start", "commit", "end", "rollback", "abort", "prepare", "savepoint", "release")
)
# A number that the server has not given out yet: it was restored to a time before, and nothing of it is there.
_IN_THE_FUTURE = "22023"


class PostgresClaims:
    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    @asynccontextmanager
    async def claim(self, call: ClaimCall) -> AsyncIterator[PostgresClaim]:
        statements = _statements(call.statement)
        pool, until = self._pool(call), _until(call)
        async with pool.connection(until) as connection:
            async with _told(call, pool, until):
                await connection.execute("BEGIN")
                transaction_id = await connection.fetchval(_SQL["begin"], f"{_loop_name(call)}{call.frame}", _IDLE)
                results = [await run_one(connection, one) for one in statements]
            yield PostgresClaim(connection, pool, transaction_id, _rows(results, connection))
            # Given back without a commit, the connection rolls back.

    async def status(self, call: ClaimCall, transaction_id: str, place: str | None) -> TransactionStatus:
        pool, until = self._pool(call), _until(call)
        if place is not None and place != _mark(pool):
            message = f"rows were claimed elsewhere before the cursor led to {pool.place}, which cannot tell their fate"
            raise failed("config", message, "CURSOR_MOVED")
        async with pool.connection(until) as connection, _told(call, pool, until):
            try:
                found = await connection.fetchval(_SQL["status"], transaction_id)
            except asyncpg.PostgresError as error:
                if error.sqlstate == _IN_THE_FUTURE:
                    return TransactionStatus.ABORTED
                raise
        return TransactionStatus.FORGOTTEN if found is None else TransactionStatus(found)

    async def others(self, call: ClaimCall) -> frozenset[str]:
        pool, until = self._pool(call), _until(call)
        async with pool.connection(until) as connection, _told(call, pool, until):
            found = await connection.fetch(_SQL["others"], _loop_name(call))
        return frozenset(row[0] for row in found)

    async def end(self, call: ClaimCall) -> None:
        pool, until = self._pool(call), _until(call)
        async with pool.connection(until) as connection, _told(call, pool, until):
            await connection.fetch(_SQL["end"], f"{_loop_name(call)}{call.frame}")

    def _pool(self, call: ClaimCall) -> Pool:
        credential = credential_of(call.auth, None)
        return self._pools.of(credential, tenant_id=call.tenant_id, organization_id=call.organization_id)


class PostgresClaim:
    """An open claim.  `commit` is called at most once."""

    def __init__(self, connection: Any, pool: Pool, transaction_id: str, rows: list[object]) -> None:
        self._connection = connection
        self._where = pool.place
        self.place = _mark(pool)
        self.transaction_id = transaction_id
        self.rows = rows

    async def commit(self) -> None:
        """What the server refuses is rolled back; whatever else goes wrong leaves it open what became of it."""
        if self._connection.is_closed() or not self._connection.is_in_transaction():
            raise self._in_doubt("CONN_LOST")
        try:
            async with asyncio.timeout(CURSOR_CLAIM_IDLE_SECONDS_MAX):
                tag = await self._connection.execute("COMMIT")
        except asyncpg.PostgresError as error:
            raise ToolFailed(statement_failure(error, self._where, number=0)) from error
        except TimeoutError as error:
            raise self._in_doubt("COMMIT_TIMEOUT") from error
        except DRIVER_ERRORS as error:
            raise self._in_doubt("CONN_LOST") from error
        if tag != "COMMIT":
            # A transaction in which something failed answers ROLLBACK, without an error.
            message = "postgres: the claim was rolled back by the server"
            raise ToolFailed(Failure(kind="db_deadlock", code="CLAIM_ROLLED_BACK", message=message, retryable=True))

    def _in_doubt(self, code: str) -> ToolFailed:
        message = f"postgres: the connection to {self._where} was lost before the claim was known to be committed"
        return ToolFailed(Failure(kind="db_connection", code=code, message=message, retryable=True))


def _loop_name(call: ClaimCall) -> str:
    """By which the open claims of one loop know each other; the number of the frame follows."""
    return f"noetl claim {call.mark} "


def _mark(pool: Pool) -> str:
    """The database in the ledger: enough to see that it is another one, and nothing about where it is."""
    return hashlib.blake2b(pool.place.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _statements(text: str) -> tuple[Bound, ...]:
    """The claim, which is one statement, perhaps behind settings of its transaction."""
    request = read_request({"command": text})
    for number, one in enumerate(request.statements):
        word = first_word(one.text)
        if word in _OWN_TRANSACTION:
            message = f"statement {number} of the claim is {word.upper()}: its transaction belongs to the cursor"
            raise failed("config", message, "CURSOR_CLAIM")
    return request.statements


def _rows(results: list[Result], connection: Any) -> list[object]:
    if not connection.is_in_transaction():
        raise failed("config", "the claim ended its own transaction: it must be one statement", "CURSOR_CLAIM")
    with_rows = [result["rows"] for result in results if "rows" in result]
    if not with_rows:
        raise failed("config", "the claim returns no rows: add RETURNING, or select what it took", "CURSOR_CLAIM")
    rows = with_rows[-1]
    assert isinstance(rows, list)
    if len(rows) > CURSOR_CLAIM_ROWS_MAX:
        message = (
            f"the claim took {len(rows):,} rows at once and was rolled back, the limit is {CURSOR_CLAIM_ROWS_MAX:,}: "
            "end it with LIMIT {{ __frame_max_rows }}"
        )
        raise failed("config", message, "CURSOR_CLAIM")
    return rows


def _until(call: ClaimCall) -> float:
    return asyncio.get_running_loop().time() + call.timeout_seconds


@asynccontextmanager
async def _told(call: ClaimCall, pool: Pool, until: float) -> AsyncIterator[None]:
    """Failures as data; the time limit as one of them."""
    timer = asyncio.timeout_at(until)
    try:
        async with timer:
            yield
    except ParamsInvalid as error:
        raise failed("config", f"the claim has parameters, which a cursor does not give: {error}") from error
    except asyncpg.UnsupportedClientFeatureError as error:
        raise ToolFailed(unsupported_failure(error, number=0)) from error
    except asyncpg.InternalClientError as error:
        # What the driver says when a connection goes away under its hands.
        message = f"postgres: the connection to {pool.place} was lost: {error}"
        raise ToolFailed(Failure(kind="db_connection", code="CONN_LOST", message=message, retryable=True)) from error
    except DRIVER_ERRORS as error:
        if timer.expired():
            raise ToolFailed(timeout_failure(call.timeout_seconds, number=0)) from error
        raise ToolFailed(statement_failure(error, pool.place, number=0)) from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise ToolFailed(unreadable_failure(error, number=0)) from error
