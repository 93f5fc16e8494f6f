"""Connections of one use each: a process of Spark opens one, does its part and closes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from noetl.adapters.spark.sources.access import Access, Carried
from noetl.adapters.spark.sources.postgres.options import wrong
from noetl.adapters.spark.sources.postgres.statements import literal, statement
from noetl.clients.postgres.connection import connected
from noetl.clients.postgres.failures import DRIVER_ERRORS, connect_failure, statement_failure
from noetl.clients.postgres.target import check_private, credential_of, target_of
from noetl.core.errors import ToolFailed
from noetl.core.limits import POSTGRES_RESET_SECONDS_MAX, SOURCE_CONNECT_SECONDS_MAX

_CONSTRAINT = "23"


@dataclass(frozen=True, slots=True)
class Server:
    """Where to connect.  It travels with the tasks, so the credential is carried."""

    carried: Carried
    private_hosts: tuple[str, ...]

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """A new connection.  What the driver raises in the block becomes ToolFailed."""
        target = target_of(self.carried.opened())
        check_private(target, self.private_hosts)
        try:
            async with asyncio.timeout(SOURCE_CONNECT_SECONDS_MAX):
                connection = await connected(target)
        except DRIVER_ERRORS as error:
            raise ToolFailed(connect_failure(error, target.place)) from error
        is_done = False
        try:
            await connection.fetch(statement("reading.sql", "session"))
            yield connection
            is_done = True
        except DRIVER_ERRORS as error:
            if str(getattr(error, "sqlstate", None))[:2] == _CONSTRAINT:
                # It quotes the row, here and in the traceback that Spark shows.
                error.detail = None  # type: ignore[union-attr]
            raise ToolFailed(statement_failure(error, target.place, number=1)) from error
        finally:
            if is_done:
                await _close(connection)
            else:
                # There may be rows on their way that nobody wants.
                connection.terminate()

    @asynccontextmanager
    async def reading(self, snapshot: str | None = None) -> AsyncIterator[Any]:
        """A connection in a transaction that changes nothing and sees one moment."""
        async with self.connection() as connection:
            await connection.execute(statement("reading.sql", "begin"))
            if snapshot is not None:
                await connection.execute(statement("reading.sql", "snapshot", snapshot=literal(snapshot)))
            yield connection


def server_of(access: Access, options: Any) -> Server:
    """Where the options lead.  Raises ToolFailed."""
    credential = access.credential(options)
    if credential is None:
        raise wrong("auth or dsn_env is required: the name of a credential, or of a variable that holds a dsn")
    return Server(Carried.of(credential_of(credential, credential.name)), access.private_hosts)


async def _close(connection: Any) -> None:
    try:
        await connection.close(timeout=POSTGRES_RESET_SECONDS_MAX)
    except DRIVER_ERRORS:
        connection.terminate()
