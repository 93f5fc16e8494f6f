"""A new connection to a target."""

from __future__ import annotations

from typing import Any

import asyncpg

from noetl.clients.postgres.target import Target


async def connected(target: Target) -> Any:
    """Connect, encrypted as the target asks.  Raises what DRIVER_ERRORS names."""
    ways = target.encryption()
    for number, way in enumerate(ways, 1):
        try:
            return await asyncpg.connect(**target.arguments(), ssl=way, statement_cache_size=0)
        except (ConnectionError, asyncpg.InvalidAuthorizationSpecificationError) as error:
            if number == len(ways) or not _asks_for_another_way(error):
                raise
    raise AssertionError("the last way connects or raises")


def _asks_for_another_way(error: BaseException) -> bool:
    """A server that speaks no TLS, or one that wants it.  A wrong password is not sent a second time."""
    return type(error) in (ConnectionError, asyncpg.InvalidAuthorizationSpecificationError)
