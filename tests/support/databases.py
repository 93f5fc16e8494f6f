"""Fresh databases in the shared server, made by the superuser and owned by `noetl`.

Most tests want one with our schema: `fresh_database()` is a copy of one that was migrated once for each test process.
`empty_database()` is for tests of migrations and for databases of users."""

from __future__ import annotations

import asyncio
import datetime
import functools
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from noetl.adapters.postgres.migrate import migrate
from noetl.ports.ledger import ShardHead
from tests.support.postgres import RunningServer, shared_server

SHARDS = 16
_numbers = itertools.count(1)


def empty_database(server: RunningServer | None = None) -> str:
    """A database without our schema; returns its address for the role `noetl`."""
    server = server or shared_server()
    name = f"test_{next(_numbers)}"
    asyncio.run(_create(server.dsn(database="postgres", user="postgres"), name))
    return server.dsn(database=name)


def fresh_database(*, shards: int = SHARDS) -> str:
    """A database with our schema and without events; returns its address for the role `noetl`."""
    server, name = shared_server(), f"test_{next(_numbers)}"
    asyncio.run(_create(server.dsn(database="postgres", user="postgres"), name, template=_migrated(shards)))
    address = server.dsn(database=name)
    asyncio.run(_begin_a_life(address))
    return address


@functools.cache
def _migrated(shards: int) -> str:
    """The name of a database that nobody but copies uses."""
    address = empty_database()
    asyncio.run(migrate(address, shard_count=shards, now=datetime.datetime.now(datetime.UTC)))
    return urlsplit(address).path.strip("/")


async def _begin_a_life(address: str) -> None:
    """No two ledgers are the same one, not even copies."""
    async with connected(address) as connection:
        await connection.execute(
            "UPDATE noetl.ledger SET ledger_incarnation = gen_random_uuid(), created_at = clock_timestamp()"
        )


OWN_SHARDS = """
UPDATE noetl.execution_shard
SET epoch = epoch + 1, owner_runtime_id = $1, owner_instance = $2, updated_at = clock_timestamp()
RETURNING shard_id, next_position, decided_position, epoch
"""


async def own_shards(address: str, runtime_id: int = 1, instance: str = "test") -> list[ShardHead]:
    """Take every shard of the database, whoever owns it."""
    async with connected(address) as connection:
        rows = await connection.fetch(OWN_SHARDS, runtime_id, instance)
    return [ShardHead(r["shard_id"], r["next_position"], r["decided_position"], r["epoch"]) for r in rows]


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(address)
    try:
        yield connection
    finally:
        await connection.close()


async def _create(address: str, name: str, *, template: str = "template1") -> None:
    async with connected(address) as connection:
        await connection.execute(f"CREATE DATABASE {name} OWNER noetl TEMPLATE {template}")
