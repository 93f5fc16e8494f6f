"""Keys of tables that no statement of ours runs into, because something before them refuses the same.  They are the
last word when that something is lost."""

from __future__ import annotations

import asyncpg
import pytest

from tests.support.aio import asynchronous
from tests.support.databases import connected, fresh_database


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


CHECKPOINT = (
    "INSERT INTO noetl.checkpoint (execution_id, shard_id, epoch, position, last_event_id) VALUES (3, 2, $1, $2, 5)"
)
RUNTIME = (
    "INSERT INTO noetl.runtime (runtime_id, node_number, instance, kind, leased_until, alive_until)"
    " VALUES ($1, $2, 'one', 'server', 'infinity', 'infinity')"
)


@asynchronous
async def test_an_epoch_of_a_shard_has_one_checkpoint(address: str) -> None:
    async with connected(address) as connection:
        await connection.execute(CHECKPOINT, 1, 10)
        await connection.execute(CHECKPOINT, 2, 20)
        with pytest.raises(asyncpg.UniqueViolationError):
            await connection.execute(CHECKPOINT, 2, 30)


@asynchronous
async def test_a_node_number_has_one_row(address: str) -> None:
    async with connected(address) as connection:
        await connection.execute(RUNTIME, 1, 7)
        with pytest.raises(asyncpg.UniqueViolationError):
            await connection.execute(RUNTIME, 2, 7)
