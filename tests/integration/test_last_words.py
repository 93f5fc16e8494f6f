"""A Postgres that ends says so, and its connection ends a moment later: who asks between the two waits and does
not fall."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from noetl.adapters.postgres.pool import Reader, Transactions, Writer
from noetl.adapters.postgres.statements import query
from noetl.core.errors import LedgerUnavailable
from tests.support.aio import asynchronous

STATEMENT = query("permits.sql", "look_at_limits")
VALUES = {"tenant_id": "acme", "organization_id": "sales"}


def message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("!i", len(content) + 4) + content


WELCOME = (
    message(b"R", struct.pack("!i", 0))
    + message(b"S", b"server_version\x0017.0\x00")
    + message(b"S", b"client_encoding\x00UTF8\x00")
    + message(b"Z", b"I")
)
LAST_WORDS = message(b"E", b"SFATAL\x00VFATAL\x00C57P02\x00Mthe postmaster has gone\x00\x00")


@asynccontextmanager
async def ending() -> AsyncIterator[tuple[str, list[int]]]:
    """A server that lets everybody in, says its last words and then nothing; and who came."""
    came: list[int] = []
    over = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (size,) = struct.unpack("!i", await reader.readexactly(4))
        await reader.readexactly(size - 4)
        came.append(size)
        writer.write(WELCOME + LAST_WORDS)
        await over.wait()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"postgresql://noetl@127.0.0.1:{server.sockets[0].getsockname()[1]}/noetl?sslmode=disable", came
    finally:
        over.set()
        server.close()


async def nothing_begins(begin: Callable[[], AbstractAsyncContextManager[object]]) -> None:
    for _ in range(3):
        with pytest.raises(LedgerUnavailable):
            async with begin():
                raise AssertionError("nothing can begin")


@asynchronous
async def test_a_reader_says_that_the_ledger_is_away_and_asks_a_new_connection() -> None:
    async with ending() as (dsn, came):
        reader = Reader(dsn, size_max=1)
        await reader.open()
        for _ in range(3):
            with pytest.raises(LedgerUnavailable):
                await reader.fetch(STATEMENT, **VALUES)
        assert len(came) > 1
        await reader.close()


@asynchronous
async def test_a_writer_says_that_the_ledger_is_away_and_asks_a_new_connection() -> None:
    async with ending() as (dsn, came):
        writer = Writer(dsn)
        for _ in range(3):
            with pytest.raises(LedgerUnavailable):
                await writer.fetch(STATEMENT, VALUES)
        await nothing_begins(writer.transaction)
        assert len(came) == 6
        await writer.close()


@asynchronous
async def test_a_short_transaction_says_that_the_ledger_is_away_and_asks_a_new_connection() -> None:
    async with ending() as (dsn, came):
        transactions = Transactions(dsn, size_max=1)
        await nothing_begins(transactions.begin)
        assert len(came) == 3
        await transactions.close()
