"""Bringing a database to the schema of this release: numbered migrations, partitions, shard rows."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import asyncpg

from noetl.adapters.postgres.pool import CONNECT_SECONDS_MAX, translated_errors
from noetl.adapters.postgres.statements import Statement, query
from noetl.core.errors import SchemaOutdated
from noetl.core.ids import quarters_from
from noetl.core.shards import SHARD_COUNT_MAX
from noetl.ports.durability.partitions import QUARTERS_AHEAD

POSTGRES_VERSION_MIN = 150000


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    text: str


def migrations() -> list[Migration]:
    folder = files("noetl.adapters.postgres").joinpath("migrations")
    found = [entry for entry in folder.iterdir() if entry.name.endswith(".sql")]
    ordered = sorted(found, key=lambda entry: entry.name)
    return [Migration(int(e.name[:4]), e.name.removesuffix(".sql"), e.read_text("utf-8")) for e in ordered]


async def migrate(dsn: str, *, shard_count: int, now: datetime.datetime) -> list[str]:
    """Apply what is missing, all in one transaction.  Returns the names of the applied migrations."""
    async with translated_errors():
        connection = await asyncpg.connect(dsn, timeout=CONNECT_SECONDS_MAX)
        try:
            await _check_server(connection)
            async with connection.transaction():
                await connection.execute(_sql("limit_waiting").text)
                await connection.execute(_sql("lock").text)
                await connection.execute(_sql("make_schema").text)
                await connection.execute(_sql("make_table").text)
                applied = await _apply(connection)
                await _ensure_partitions(connection, now)
                await _ensure_shards(connection, shard_count)
                await connection.execute(_sql("publish").text)
            return applied
        finally:
            await connection.close(timeout=2)


async def check_schema(dsn: str) -> None:
    """Refuse to start on a database that lacks a migration or is newer than this release."""
    wanted = {migration.number for migration in migrations()}
    async with translated_errors():
        connection = await asyncpg.connect(dsn, timeout=CONNECT_SECONDS_MAX)
        try:
            await _check_server(connection)
            try:
                rows: Sequence[Any] = await connection.fetch(_sql("applied").text)
            except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
                rows = []
        finally:
            await connection.close(timeout=2)
    present = {row["number"] for row in rows}
    if present != wanted:
        what = "lacks migrations" if wanted - present else "was migrated by a newer release"
        raise SchemaOutdated(f"the database {what}: run `noetl migrate` of the release that shall use it")


async def _check_server(connection: Any) -> None:
    version = int(await connection.fetchval(_sql("server_version").text))
    if version < POSTGRES_VERSION_MIN:
        raise SchemaOutdated(f"Postgres {version // 10000} is too old: version 15 or newer is needed")


async def _apply(connection: Any) -> list[str]:
    rows = await connection.fetch(_sql("applied").text)
    present = {row["number"] for row in rows}
    applied = []
    for migration in migrations():
        if migration.number in present:
            continue
        await connection.execute(migration.text)
        await connection.execute(_sql("record").text, migration.number, migration.name)
        applied.append(migration.name)
    return applied


async def ensure_partitions(dsn: str, now: datetime.datetime) -> list[str]:
    """Make what is missing of the current and the coming quarters while others append; returns their names."""
    async with translated_errors():
        connection = await asyncpg.connect(dsn, timeout=CONNECT_SECONDS_MAX)
        try:
            async with connection.transaction():
                await connection.execute(_sql("limit_waiting").text)
                await connection.execute(_sql("lock").text)
                return await _ensure_partitions(connection, now)
        except asyncpg.InsufficientPrivilegeError as error:
            raise SchemaOutdated(
                "partitions of coming quarters are missing and this role may not make them: run `noetl migrate` as the "
                "owner of the database"
            ) from error
        finally:
            await connection.close(timeout=2)


async def _ensure_partitions(connection: Any, now: datetime.datetime) -> list[str]:
    """The current and the coming quarters.  There is no default partition: it would block every later attach.

    Made apart and then attached: that lets appends go on, while `CREATE … PARTITION OF` would wait for all of them and
    hold up those that come after."""
    made = []
    for quarter in quarters_from(now, QUARTERS_AHEAD):
        first, after = quarter.id_bounds()
        name = f"noetl.event_{quarter.name}"
        if await connection.fetchval(_sql("exists").text, name) is None:
            await connection.execute(f"CREATE TABLE {name} (LIKE noetl.event INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
            await connection.execute(
                f"ALTER TABLE noetl.event ATTACH PARTITION {name} FOR VALUES FROM ({first}) TO ({after})"
            )
            made.append(f"event_{quarter.name}")
    return made


async def _ensure_shards(connection: Any, shard_count: int) -> None:
    assert 1 <= shard_count <= SHARD_COUNT_MAX, "shard count out of range"
    await connection.execute(_sql("make_shards").text, shard_count)


def _sql(name: str) -> Statement:
    return query("migrate.sql", name)
