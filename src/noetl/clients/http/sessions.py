"""Open connections: one pool for each tenant, organization and kind of verification, guarded by the address policy.

A host is resolved once per connection, all its addresses are judged, and the socket is made only for one of them.
Cookies are never kept and the environment is never asked for a proxy.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from noetl import __version__
from noetl.clients.http.policy import AddressPolicy
from noetl.core.limits import HTTP_CONNECTIONS_MAX, HTTP_DNS_SECONDS_MAX, HTTP_SESSIONS_MAX

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host name."""

_HEADERS = {"User-Agent": f"noetl/{__version__}"}
# The tool names the type of every body itself; a request without a body has none.
_NOT_ADDED = ("Content-Type",)


async def system_resolve(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class GuardedResolver(AbstractResolver):
    """Names to addresses that the policy has judged, all of them or none."""

    def __init__(self, policy: AddressPolicy, resolve: Resolve) -> None:
        self._policy = policy
        self._resolve = resolve

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = await self._resolve(host, port)
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "the name has no address")
        self._policy.check_resolved(host, port, addresses)
        return [
            ResolveResult(
                hostname=host, host=address, port=port, family=family, proto=0, flags=int(socket.AI_NUMERICHOST)
            )
            for address in addresses
        ]

    async def close(self) -> None:
        return None


class _Pool:
    """One session and how many calls use it."""

    __slots__ = ("session", "users")

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.users = 0


class Sessions:
    """The pools, made when they are first needed and closed when they are the oldest of too many."""

    def __init__(self, policy: AddressPolicy, resolve: Resolve = system_resolve) -> None:
        self._policy = policy
        self._resolver = GuardedResolver(policy, resolve)
        self._pools: OrderedDict[tuple[str, str, bool], _Pool] = OrderedDict()

    @contextmanager
    def session(self, tenant_id: str, organization_id: str, *, verify: bool) -> Iterator[aiohttp.ClientSession]:
        """The session of one owner.  It stays open at least as long as the block."""
        key = (tenant_id, organization_id, verify)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = _Pool(self._open(verify=verify))
        else:
            self._pools.move_to_end(key)
        pool.users += 1
        try:
            yield pool.session
        finally:
            pool.users -= 1

    async def trim(self) -> None:
        """Close idle pools beyond the limit; one in use is left for the next time."""
        if len(self._pools) <= HTTP_SESSIONS_MAX:
            return
        idle = [key for key, pool in self._pools.items() if pool.users == 0]
        for key in idle[: len(self._pools) - HTTP_SESSIONS_MAX]:
            await self._pools.pop(key).session.close()

    async def close(self) -> None:
        while self._pools:
            _, pool = self._pools.popitem()
            await pool.session.close()

    def _open(self, *, verify: bool) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            resolver=self._resolver,
            socket_factory=self._socket,
            ssl=verify,
            limit=HTTP_CONNECTIONS_MAX,
            ttl_dns_cache=HTTP_DNS_SECONDS_MAX,
        )
        return aiohttp.ClientSession(
            connector=connector,
            headers=_HEADERS,
            skip_auto_headers=_NOT_ADDED,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    def _socket(self, address_info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, address = address_info
        self._policy.check_connection(address[0], address[1])
        return socket.socket(family, kind, protocol)
