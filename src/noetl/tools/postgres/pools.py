"""Connections to the databases of users: a small pool for each credential of an organization.

A connection is given on only after the server has forgotten everything about its last use."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from noetl.clients.postgres.connection import connected
from noetl.clients.postgres.failures import DRIVER_ERRORS, connect_failure, failed
from noetl.clients.postgres.target import Target, check_private, data_of, target_of
from noetl.core.errors import ToolFailed
from noetl.core.limits import (
    POSTGRES_CONNECT_SECONDS_MAX,
    POSTGRES_CONNECTIONS_MAX,
    POSTGRES_IDLE_SECONDS_MAX,
    POSTGRES_POOLS_MAX,
    POSTGRES_RESET_SECONDS_MAX,
)
from noetl.ports.secrets import Credential
from noetl.tools.postgres.values import install_codecs

# Roles, settings, temporary tables, advisory locks, cursors, prepared statements, notifications: all of it.
_FORGET = "DISCARD ALL"


class Pool:
    """The connections to one target.  They are made when needed and closed when nobody needs them."""

    def __init__(self, target: Target, *, private_hosts: tuple[str, ...]) -> None:
        self._target = target
        self._private_hosts = private_hosts
        self._free = asyncio.Semaphore(POSTGRES_CONNECTIONS_MAX)
        self._idle: list[tuple[float, Any]] = []
        self._sweeping: asyncio.TimerHandle | None = None
        self._is_retired = False
        self.users = 0

    @property
    def place(self) -> str:
        return self._target.place

    @asynccontextmanager
    async def connection(self, until: float) -> AsyncIterator[Any]:
        """A connection for one call.  Raises ToolFailed when there is none before `until`."""
        self.users += 1
        try:
            await self._wait_for_turn(until)
            try:
                connection = self._take_idle() or await self._connect(until)
                try:
                    yield connection
                finally:
                    await self._give_back(connection)
            finally:
                self._free.release()
        finally:
            self.users -= 1

    def retire(self) -> None:
        """Close what is idle; what is in use is closed when it comes back."""
        self._is_retired = True
        for connection in self._take_all():
            connection.terminate()

    async def close(self) -> None:
        """As `retire`, and say goodbye to the server."""
        self._is_retired = True
        idle = self._take_all()
        await asyncio.gather(*(_close(connection) for connection in idle))

    async def _wait_for_turn(self, until: float) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout_at(until):
                await self._free.acquire()
        except TimeoutError:
            message = f"all {POSTGRES_CONNECTIONS_MAX} connections to {self.place} were busy until the time limit"
            raise failed("timeout", message, "POOL_TIMEOUT") from None

    def _take_idle(self) -> Any:
        """The connection used last: the others may reach their end."""
        while self._idle:
            _, connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def _take_all(self) -> list[Any]:
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        idle = [connection for _, connection in self._idle if not connection.is_closed()]
        self._idle.clear()
        return idle

    async def _connect(self, until: float) -> Any:
        check_private(self._target, self._private_hosts)
        seconds = min(POSTGRES_CONNECT_SECONDS_MAX, until - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(seconds):
                return await connect(self._target)
        except DRIVER_ERRORS as error:
            raise ToolFailed(connect_failure(error, self.place)) from error

    async def _give_back(self, connection: Any) -> None:
        is_clean = False
        try:
            if not self._is_retired and not connection.is_closed():
                async with asyncio.timeout(POSTGRES_RESET_SECONDS_MAX):
                    if connection.is_in_transaction():
                        await connection.execute("ROLLBACK")
                    await connection.execute(_FORGET)
                is_clean = True
        except DRIVER_ERRORS:
            pass  # nobody waits for this connection: it is closed below
        finally:
            if is_clean and not self._is_retired:
                self._keep(connection)
            else:
                connection.terminate()

    def _keep(self, connection: Any) -> None:
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time(), connection))
        if self._sweeping is None:
            self._sweeping = loop.call_later(POSTGRES_IDLE_SECONDS_MAX, self._sweep)

    def _sweep(self) -> None:
        """Close what was idle for too long; look again when the next one can be due."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - POSTGRES_IDLE_SECONDS_MAX
        for since, connection in self._idle:
            if since <= oldest:
                connection.terminate()
        self._idle = [kept for kept in self._idle if kept[0] > oldest]
        self._sweeping = None
        if self._idle:
            self._sweeping = loop.call_at(self._idle[0][0] + POSTGRES_IDLE_SECONDS_MAX, self._sweep)


class Pools:
    """The pool of each tenant, organization and credential; the ones not used for the longest time are closed."""

    def __init__(self, private_hosts: tuple[str, ...]) -> None:
        self._private_hosts = private_hosts
        self._pools: OrderedDict[tuple[str, str, bytes], Pool] = OrderedDict()
        self._known: OrderedDict[tuple[str, str, str], tuple[Mapping[str, Any], tuple[str, str, bytes]]] = OrderedDict()

    def of(self, credential: Credential, *, tenant_id: str, organization_id: str) -> Pool:
        """Raises ToolFailed when the credential does not say where to connect."""
        name = (tenant_id, organization_id, credential.name)
        data = data_of(credential)
        known = self._known.get(name)
        if known is not None and known[0] == data:
            key = known[1]
            pool = self._pools.get(key)
            if pool is not None:
                self._pools.move_to_end(key)
                return pool
        target = target_of(credential)
        key = (tenant_id, organization_id, target.fingerprint())
        pool = self._pools.get(key) or Pool(target, private_hosts=self._private_hosts)
        self._pools[key] = pool
        self._pools.move_to_end(key)
        self._known[name] = (dict(data), key)
        self._known.move_to_end(name)
        self._trim()
        return pool

    async def close(self) -> None:
        pools = list(self._pools.values())
        self._pools.clear()
        self._known.clear()
        await asyncio.gather(*(pool.close() for pool in pools))

    def _trim(self) -> None:
        while len(self._pools) > POSTGRES_POOLS_MAX:
            unused = (key for key, pool in self._pools.items() if pool.users == 0)
            self._pools.pop(next(unused, next(iter(self._pools)))).retire()
        while len(self._known) > 2 * POSTGRES_POOLS_MAX:
            self._known.popitem(last=False)


async def connect(target: Target) -> Any:
    """A new connection that reads values in our way."""
    connection = await connected(target)
    await install_codecs(connection)
    return connection


async def _close(connection: Any) -> None:
    try:
        await connection.close(timeout=POSTGRES_RESET_SECONDS_MAX)
    except DRIVER_ERRORS:
        connection.terminate()
