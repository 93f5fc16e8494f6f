"""The reaper: gives back what dead sessions hold, and clears what nobody will ever take."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Protocol

from noetl.core.errors import LedgerUnavailable
from noetl.ports.data.counters import Sample
from noetl.ports.durability.leftovers import QueueLeftovers
from noetl.ports.durability.roles import RoleLease

LOOK_SECONDS = 1.0
# Leftovers are rare and hold nobody up.
LOOKS_BETWEEN_CLEARINGS = 10
log = logging.getLogger("noetl.reaper")


class DeadSessions(Protocol):
    async def release_dead(self) -> int:
        """Give back what sessions hold that nobody vouches for any more; returns how many commands."""
        ...


class Reaper:
    def __init__(self, sessions: DeadSessions, leftovers: QueueLeftovers) -> None:
        self._sessions = sessions
        self._leftovers = leftovers
        self._released = 0
        self._cleared = 0

    async def run(self, _lease: RoleLease) -> None:
        looks = 0
        while True:
            try:
                await self.look(clears=looks % LOOKS_BETWEEN_CLEARINGS == 0)
            except LedgerUnavailable as error:
                log.warning("the reaper waits", extra={"event": "reaper.unavailable", "reason": str(error)})
            looks += 1
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self, *, clears: bool = True) -> None:
        released = await self._sessions.release_dead()
        if released:
            log.info("commands of dead sessions went back", extra={"event": "reaper.released", "commands": released})
        cleared = await self._leftovers.drop_ended() if clears else 0
        if cleared:
            log.info("ended commands were taken out", extra={"event": "reaper.cleared", "commands": cleared})
        self._released += released
        self._cleared += cleared

    def samples(self) -> Iterator[Sample]:
        yield "noetl_reaper_released_total", {}, self._released
        yield "noetl_reaper_cleared_total", {}, self._cleared
