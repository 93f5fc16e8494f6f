"""The roles of users on the embedded server: `noetl_data` owns a database for their data, `noetl_reader` sees the
published views of the control plane.  Neither can reach a table of the control plane."""

from __future__ import annotations

from typing import Any

import asyncpg

from noetl.adapters.postgres.embedded import ServerAddress, dsn
from noetl.adapters.postgres.pool import CONNECT_SECONDS_MAX, translated_errors
from noetl.adapters.postgres.statements import query

DATA, READER = "noetl_data", "noetl_reader"
# Built-in credentials by name: the role and the database of each.
BUILT_IN = {"noetl_data": (DATA, DATA), "pg_noetl_k8s": (READER, "noetl")}

_FILE = "access.sql"
_ROLE_STATEMENTS = ("make_roles", "limit_data", "limit_reader", "aim_reader", "calm_reader", "bind_reader")
_CLOSING_STATEMENTS = ("close_data", "close_control", "close_others", "forbid_objects")


async def ensure_access(address: ServerAddress) -> None:
    """Make roles and database where they are missing, and close every database to everybody else.

    The socket is private to the user of this server, who is its superuser anyway."""
    async with translated_errors():
        connection = await asyncpg.connect(
            dsn(address, database="noetl", user="postgres"),
            timeout=CONNECT_SECONDS_MAX,
            # Every start does it again, so nothing has to wait for the disk.
            server_settings={"synchronous_commit": "off"},
        )
        try:
            async with connection.transaction():
                await _run(connection, _ROLE_STATEMENTS)
            if not await connection.fetchval(query(_FILE, "data_exists").text):
                await _run(connection, ("make_data",))
            async with connection.transaction():
                await _run(connection, _CLOSING_STATEMENTS)
        finally:
            await connection.close(timeout=2)


async def _run(connection: Any, names: tuple[str, ...]) -> None:
    for name in names:
        await connection.execute(query(_FILE, name).text)


def built_in_fields(address: ServerAddress) -> dict[str, dict[str, object]]:
    """The fields of each built-in credential (dsl §10.2).  No password: whoever opens the socket is trusted."""
    return {
        name: {
            "db_host": str(address.socket_dir),
            "db_port": address.port,
            "db_user": role,
            "db_name": database,
            "sslmode": "disable",
        }
        for name, (role, database) in BUILT_IN.items()
    }
