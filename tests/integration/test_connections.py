"""What a process keeps in Postgres is bounded: plans of the writer's statements."""

from __future__ import annotations

import pytest

from noetl.adapters.postgres import pool
from noetl.adapters.postgres.pool import Writer
from noetl.adapters.postgres.statements import Statement
from tests.support.aio import asynchronous
from tests.support.databases import empty_database


def test_a_writer_keeps_the_statements_that_it_uses_and_lets_the_others_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "PREPARED_STATEMENTS_MAX", 8)
    address = empty_database()

    @asynchronous
    async def kept() -> int:
        writer = Writer(address)
        try:
            for number in [*range(50), *range(45, 50), *range(5)]:
                (row,) = await writer.fetch(Statement(f"SELECT {number} AS n", ()), {})
                assert row["n"] == number
            count = Statement("SELECT count(*) AS n FROM pg_prepared_statements", ())
            for _ in range(2):
                (row,) = await writer.fetch(count, {})
            return int(row["n"])
        finally:
            await writer.close()

    assert kept() <= 9
