"""The database of a process: the private Postgres, or one that it is told."""

from __future__ import annotations

import asyncio
import logging

from noetl.adapters.postgres.access.data_access import ensure_access
from noetl.adapters.postgres.embedded import EmbeddedPostgres, ServerAddress, dsn
from noetl.adapters.postgres.migrate import check_schema, migrate
from noetl.adapters.system.clock import SystemClock
from noetl.core.errors import HostUnavailable
from noetl.settings import Settings

POSTGRES_LOOK_SECONDS = 0.5
log = logging.getLogger("noetl.host")


def embedded_postgres(settings: Settings) -> EmbeddedPostgres:
    return EmbeddedPostgres(settings.home, os_user=settings.postgres_os_user)


def control_dsn(address: ServerAddress) -> str:
    return dsn(address, database="noetl", user="noetl")


async def keep_alive(postgres: EmbeddedPostgres, address: ServerAddress) -> None:
    """Start the private Postgres again when it died.  Meanwhile the engine waits; it has lost nothing."""
    while True:
        await asyncio.sleep(POSTGRES_LOOK_SECONDS)
        if not postgres.has_ended(address):
            continue
        log.error("Postgres ended, starting it again", extra={"event": "postgres.ended"})
        started = await asyncio.to_thread(postgres.start)
        if control_dsn(started) != control_dsn(address):
            raise HostUnavailable("Postgres came back at another address: start the host again")
        address = started


async def prepare_database(settings: Settings, address: str, *, is_embedded: bool) -> None:
    """The embedded database migrates itself; any other is only checked."""
    if is_embedded:
        server = await asyncio.to_thread(embedded_postgres(settings).running)
        if server is not None:
            await ensure_access(server)
        await migrate(address, shard_count=settings.shard_count, now=SystemClock().moment())
    else:
        await check_schema(address)


async def migrate_database(settings: Settings, address: str) -> list[str]:
    return await migrate(address, shard_count=settings.shard_count, now=SystemClock().moment())
