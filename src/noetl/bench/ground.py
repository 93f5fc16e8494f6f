"""Where benchmarks run: a database of their own on the embedded Postgres of this home."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg

from noetl.adapters.postgres.embedded import ServerAddress, dsn
from noetl.settings import Settings
from noetl.wiring.databases import embedded_postgres, prepare_database
from noetl.wiring.engine import Engine

DATABASE = "noetl_bench"


@dataclass(frozen=True, slots=True)
class Ground:
    """A running engine on an empty ledger, and the address for plain driver loops beside it."""

    engine: Engine
    database: str
    postgres_pid: int
    settings: Settings


@dataclass(frozen=True, slots=True)
class BareGround:
    """An empty ledger without an engine."""

    database: str
    postgres_pid: int


@asynccontextmanager
async def bare_grounds(settings: Settings, *names: str) -> AsyncIterator[list[BareGround]]:
    """Databases of these names on one Postgres."""
    postgres = embedded_postgres(settings)
    address = await asyncio.to_thread(postgres.start)
    try:
        found = []
        for name in names:
            await _drop(address, name)
            await _as_superuser(address, f"CREATE DATABASE {name} OWNER noetl")
            database = dsn(address, database=name, user="noetl")
            await prepare_database(settings, database, is_embedded=True)
            found.append(BareGround(database, address.pid))
        yield found
        for name in names:
            await _drop(address, name)
    finally:
        await asyncio.to_thread(postgres.stop)


@asynccontextmanager
async def ground(settings: Settings) -> AsyncIterator[Ground]:
    async with bare_grounds(settings, DATABASE) as (bare,), running(settings, bare) as place:
        yield place


@asynccontextmanager
async def running(settings: Settings, bare: BareGround) -> AsyncIterator[Ground]:
    """The embedded engine on one of them."""
    engine = Engine(settings, bare.database, instance="bench")
    await engine.open()
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(engine.run())
            await engine.is_restored.wait()
            yield Ground(engine, bare.database, bare.postgres_pid, settings)
            task.cancel()
    finally:
        await engine.close()


async def _drop(address: ServerAddress, name: str) -> None:
    await _as_superuser(address, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


async def _as_superuser(address: ServerAddress, statement: str) -> None:
    connection = await asyncpg.connect(dsn(address, database="postgres", user="postgres"))
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
