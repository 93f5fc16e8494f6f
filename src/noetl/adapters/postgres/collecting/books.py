"""Candidates and remembered names, by the clock of the database; and the turn of the one collector."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from noetl.adapters.postgres.pool import (
    CLOSE_SECONDS_MAX,
    CLOSING_ERRORS,
    CONNECT_SECONDS_MAX,
    Reader,
    translated_errors,
)
from noetl.adapters.postgres.statements import query
from noetl.core.errors import CollectionBusy, LeaseLost, LedgerUnavailable
from noetl.ports.data.collection import Owner


class PostgresBooks:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def now(self) -> float:
        rows = await self._reader.fetch(query("collection.sql", "now"))
        return float(rows[0]["seconds"])

    async def working_since(self) -> float | None:
        rows = await self._reader.fetch(query("collection.sql", "working_since"))
        found: float | None = rows[0]["seconds"]
        return found

    async def candidates(self, store: str, owner: Owner, digests: Sequence[str]) -> Mapping[str, float]:
        rows = await self._reader.fetch(
            query("collection.sql", "candidates"), store=store, digests=list(digests), **owner._asdict()
        )
        return {row["sha256"]: row["candidate_at"] for row in rows}

    async def record(self, store: str, owner: Owner, candidates: Mapping[str, float], *, now: float) -> None:
        await self._reader.fetch(
            query("collection.sql", "record_candidates"),
            store=store,
            digests=list(candidates),
            times=list(candidates.values()),
            now=now,
            **owner._asdict(),
        )

    async def forget(self, stores: Collection[str], *, before: float) -> None:
        await self._reader.fetch(query("collection.sql", "forget_candidates"), stores=sorted(stores), before=before)

    async def names(self, digests: Sequence[str]) -> Mapping[str, Sequence[str]]:
        rows = await self._reader.fetch(query("collection.sql", "names"), digests=list(digests))
        return {row["sha256"]: row["names"] for row in rows}

    async def remember(self, names: Mapping[str, Sequence[str]]) -> None:
        await self._reader.fetch(
            query("collection.sql", "remember_names"),
            digests=list(names),
            names=[" ".join(found) for found in names.values()],
        )

    async def forget_names(self, digests: Sequence[str]) -> None:
        await self._reader.fetch(query("collection.sql", "forget_names"), digests=list(digests))


class PostgresTurn:
    """Held by an open transaction on a connection of its own: with the connection, the turn is lost."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def check(self) -> None:
        try:
            async with translated_errors():
                await self._connection.execute(query("collection.sql", "keep_turn").text)
        except LedgerUnavailable as error:
            raise LeaseLost(
                "the connection that says whose turn it is to collect broke: run `noetl gc` again"
            ) from error


@asynccontextmanager
async def only_collector(dsn: str) -> AsyncIterator[PostgresTurn]:
    """Raises CollectionBusy when another one is at work."""
    async with translated_errors():
        connection = await asyncpg.connect(dsn, timeout=CONNECT_SECONDS_MAX)
    try:
        async with translated_errors():
            await connection.execute("BEGIN")
            await connection.execute(query("collection.sql", "wait_for_ever").text)
            is_taken = await connection.fetchval(query("collection.sql", "take_turn").text)
        if not is_taken:
            raise CollectionBusy("another `noetl gc` is at work on this database: wait for its end")
        turn = PostgresTurn(connection)
        # The answer of a prepared statement keeps its snapshot until the next statement.
        await turn.check()
        yield turn
    finally:
        try:
            await connection.close(timeout=CLOSE_SECONDS_MAX)
        except CLOSING_ERRORS:
            connection.terminate()
