"""What the outer world saw, kept outside the system: plain tables without a unique index in another database.

`effect` is written by the tools of playbooks, `request` by the driver.  An answer that did not come is neither good nor
bad: it is `unknown`."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import asyncpg

TABLES = """
CREATE TABLE effect (run text, item integer, part integer, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE request (run text, outcome text, execution_id bigint, at timestamptz DEFAULT clock_timestamp());
"""
NOTE = "INSERT INTO request (run, outcome, execution_id) VALUES ($1, $2, $3)"
CONNECTIONS = 16
ACKNOWLEDGED, UNKNOWN, REFUSED = "ok", "unknown", "refused"


class Oracle:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        # The playbooks need connections too: hundreds of clients must not take them all.
        self._places = asyncio.Semaphore(CONNECTIONS)

    async def make(self) -> None:
        await self._run(TABLES)

    async def note(self, run: str, outcome: str, execution_id: int | None = None) -> None:
        """One answer, or its absence."""
        while True:
            try:
                await self._run(NOTE, run, outcome, execution_id)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(0.2)
            else:
                return

    async def requests(self) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        for row in await self._rows("SELECT run, outcome FROM request"):
            found.setdefault(row["run"], Counter())[row["outcome"]] += 1
        return found

    async def executions(self) -> dict[str, set[int]]:
        """The executions that were acknowledged, by run: more than one is a duplicate."""
        found: dict[str, set[int]] = {}
        for row in await self._rows("SELECT DISTINCT run, execution_id FROM request WHERE execution_id IS NOT NULL"):
            found.setdefault(row["run"], set()).add(row["execution_id"])
        return found

    async def effects(self) -> dict[str, Counter[int]]:
        """By run: how often each item had its whole effect."""
        found: dict[str, Counter[int]] = {}
        for row in await self._rows("SELECT run, item, count(*) AS n FROM effect WHERE part = 1 GROUP BY 1, 2"):
            found.setdefault(row["run"], Counter())[row["item"]] = row["n"]
        return found

    async def rows(self) -> int:
        (row,) = await self._rows("SELECT count(*) AS n FROM effect")
        return int(row["n"])

    async def _rows(self, text: str) -> list[Any]:
        connection = await asyncpg.connect(self._dsn)
        try:
            return list(await connection.fetch(text))
        finally:
            await connection.close()

    async def _run(self, text: str, *values: object) -> None:
        async with self._places:
            connection = await asyncpg.connect(self._dsn)
            try:
                await connection.execute(text, *values)
            finally:
                await connection.close()
