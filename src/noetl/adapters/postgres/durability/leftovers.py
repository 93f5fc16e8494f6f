"""Rows of the queue that nobody will ever take out again, on Postgres."""

from __future__ import annotations

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.statements import query


class PostgresQueueLeftovers:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def drop_ended(self) -> int:
        return len(await self._reader.fetch(query("durability.sql", "drop_ended_commands")))
