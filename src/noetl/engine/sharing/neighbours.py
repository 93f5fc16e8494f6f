"""What a server knows of the others on its ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Protocol

from noetl.engine.control.inputs import Input
from noetl.engine.sharing.aside import Aside
from noetl.engine.sharing.waiting import Waiting
from noetl.ports.clock import Clock
from noetl.ports.serving.roster import Roster

TRUSTED_SHARE = 2 / 3
"""Of the lease: an owner that could not renew it for so long decides nothing more until it could."""


NOTICED_SECONDS = 10.0
TRUST_LOOK_SECONDS = 0.05


class Outward(Protocol):
    """Where inputs go that concern shards of others."""

    async def tell(self, one: Input) -> None: ...

    def take(self, waiting: Waiting) -> None: ...

    @property
    def set_aside(self) -> Aside:
        """What waits there for shards that somebody has locked."""
        ...


class Neighbours:
    """`servers` are those alive, this one counted.  `outward` takes what belongs to others."""

    def __init__(self, *, roster: Roster, runtime_id: int, clock: Clock, outward: Outward) -> None:
        self._roster = roster
        self._clock = clock
        self.runtime_id = runtime_id
        self.outward = outward
        self.servers = 1
        # Set while there is somebody else.
        self.company = asyncio.Event()
        self._trusted_until = float("inf")
        self._noticed_until = 0.0

    @property
    def is_alone(self) -> bool:
        return self.servers <= 1

    @property
    def is_trusted(self) -> bool:
        """Whether this process may believe, by its own clock, that its lease still holds."""
        return self._clock.monotonic() < self._trusted_until

    def renewed(self, *, begun: float, lease_seconds: float, servers: int) -> None:
        """The lease counts from the moment when its renewal was asked for: what the database grants is more."""
        self._trusted_until = begun + lease_seconds * TRUSTED_SHARE
        self.servers = servers
        is_quiet = self.is_alone and self._clock.monotonic() >= self._noticed_until
        (self.company.clear if is_quiet else self.company.set)()

    def notice(self) -> None:
        """Somebody else has appended here, whoever it is: for a while that is looked for as with company, so that what
        they record is decided in small portions."""
        self._noticed_until = self._clock.monotonic() + NOTICED_SECONDS
        self.company.set()

    async def trusted(self) -> None:
        """An owner that could not renew its lease for long decides nothing: another one may do so by now."""
        while not self.is_trusted:  # noqa: ASYNC110 - a clock tells, no event
            await asyncio.sleep(TRUST_LOOK_SECONDS)

    async def elsewhere(self, shards: Collection[int]) -> Mapping[int, frozenset[tuple[str, int]]]:
        """What living sessions of other servers hold in these shards: commands with their attempts, by execution."""
        found: dict[int, set[tuple[str, int]]] = {}
        for held in await self._roster.held_elsewhere(shards, runtime_id=self.runtime_id):
            found.setdefault(held.execution_id, set()).add((held.command_id, held.attempt))
        return {execution_id: frozenset(held) for execution_id, held in found.items()}
