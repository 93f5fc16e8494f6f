"""Fresh databases in the shared server, made by the superuser and owned by `noetl`."""

from __future__ import annotations

import asyncio
import datetime
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from noetl.adapters.postgres.migrate import migrate
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
    address = empty_database()
    asyncio.run(migrate(address, shard_count=shards, now=datetime.datetime.now(datetime.UTC)))
    return address


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(address)
    try:
        yield connection
    finally:
        await connection.close()


async def _create(address: str, name: str) -> None:
    async with connected(address) as connection:
        await connection.execute(f"CREATE DATABASE {name} OWNER noetl")
