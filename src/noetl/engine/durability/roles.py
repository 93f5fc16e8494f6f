"""Roles: what only one process at a time does.  Each is a lease; whoever has it runs its work and lets go of it when it
ends, or when it cannot be sure any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from noetl.core.errors import LedgerUnavailable
from noetl.ports.clock import Clock
from noetl.ports.data.counters import Sample
from noetl.ports.durability.roles import RoleLease, RoleLeases

REAPER, CHECKPOINTER, PARTITION_KEEPER = "reaper", "checkpointer", "partition_keeper"
RELEASE_SECONDS_MAX = 1.0
# Of the lease, after which a holder that has heard nothing stops by itself.
SURE_SHARE = 2 / 3
log = logging.getLogger("noetl.roles")


class RoleWork(Protocol):
    async def run(self, lease: RoleLease) -> None:
        """Goes on until it is cancelled.  The lease is for fences in what it writes."""
        ...


class _Running(NamedTuple):
    lease: RoleLease
    task: asyncio.Task[None]


class Roles:
    """`run` belongs to the caller's task group.  Work that fails ends the process, as everything that has no name."""

    def __init__(
        self,
        leases: RoleLeases,
        works: Mapping[str, RoleWork],
        *,
        runtime_id: int,
        lease_seconds: float,
        heartbeat_seconds: float,
        clock: Clock,
    ) -> None:
        self._leases = leases
        self._works = works
        self._runtime_id = runtime_id
        self._lease_seconds = lease_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._clock = clock
        self._running: dict[str, _Running] = {}
        self._sure_until = 0.0

    @property
    def held(self) -> frozenset[str]:
        return frozenset(self._running)

    def samples(self) -> Iterator[Sample]:
        for role in self._works:
            yield "noetl_role_held", {"role": role}, float(role in self._running)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._beat(group)
                    await asyncio.sleep(self._heartbeat_seconds)
        finally:
            await self._let_go()

    async def _beat(self, group: asyncio.TaskGroup) -> None:
        asked_at = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._heartbeat_seconds):
                leases = await self._leases.hold(
                    list(self._works), runtime_id=self._runtime_id, lease_seconds=self._lease_seconds
                )
        except (LedgerUnavailable, TimeoutError):
            if self._clock.monotonic() >= self._sure_until:
                await self._stop(list(self._running))
            return
        # Measured from before the question: the database began to count later.
        self._sure_until = asked_at + self._lease_seconds * SURE_SHARE
        held = {lease.role: lease for lease in leases}
        await self._stop([role for role, running in self._running.items() if held.get(role) != running.lease])
        for role, lease in held.items():
            if role not in self._running:
                log.info("a role begins", extra={"event": "role.taken", "role": role, "epoch": lease.epoch})
                self._running[role] = _Running(lease, group.create_task(self._works[role].run(lease)))

    async def _stop(self, roles: list[str]) -> None:
        tasks = [self._running[role].task for role in roles]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for role in roles:
            log.warning("a role was lost", extra={"event": "role.lost", "role": role})
            del self._running[role]

    async def _let_go(self) -> None:
        """The tasks have ended with the group.  If the database is away, the leases run out by themselves."""
        leases = [running.lease for running in self._running.values()]
        self._running.clear()
        if leases:
            with contextlib.suppress(LedgerUnavailable, TimeoutError):
                async with asyncio.timeout(RELEASE_SECONDS_MAX):
                    await self._leases.release(leases)
