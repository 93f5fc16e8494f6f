"""Pools of sessions: whose slots are free, and where commands wait."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from noetl.engine.placing.connected import Connected, Demand


class Pools:
    """Whose slots are free, and where commands may wait in the queue (`backlog`): behind those a new one waits too, a
    chain must not keep its slot for ever.  What nobody serves is looked at when somebody comes."""

    def __init__(self, connected: Mapping[int, Connected]) -> None:
        self._connected = connected
        self._backlog: set[str] = set()
        # Where other servers may have left something: worth a look, and no reason to let a new command wait.
        self._curious: set[str] = set()
        # Set when more can be claimed than before: a slot is free, or a command waits.
        self.changed = asyncio.Event()

    @property
    def served(self) -> frozenset[str]:
        return frozenset(held.pool for held in self._connected.values() if not held.is_draining)

    @property
    def backlog(self) -> frozenset[str]:
        return frozenset(self._backlog)

    def expect(self, pool: str | None = None) -> None:
        """Commands may wait in this pool, or in any that is served."""
        self._backlog.update(self.served if pool is None else (pool,))
        self.changed.set()

    def look_for_others(self) -> None:
        """Other servers may have queued commands that are for sessions here."""
        found = {pool for pool in self.served if self.free_in(pool) > 0}
        if found:
            self._curious |= found
            self.changed.set()

    def looked_at(self, pool: str) -> None:
        self._backlog.discard(pool)
        self._curious.discard(pool)

    def free_in(self, pool: str) -> int:
        return sum(held.can_be_looked_for(pool) for held in self._connected.values())

    def claimable(self) -> list[str]:
        """The pools in which commands may wait while a slot is free, always in the same order."""
        return [pool for pool in sorted(self._backlog | self._curious) if self.free_in(pool) > 0]

    def resize(self, session_id: int, slots: int) -> None:
        """How many commands a session wants at a time.  Fewer than it holds take nothing away: it gets no more until
        enough have ended."""
        held = self._connected.get(session_id)
        if held is not None and slots != held.slots:
            more, held.slots = slots - held.slots, slots
            held.free += more
            if more > 0 and not held.is_draining:
                self.expect(held.pool)

    def is_served(self, demand: Demand) -> bool:
        """Whether somebody takes such commands, now or when a slot is free."""
        return any(held.serves(demand.kinds, demand.pool) for held in self._connected.values())
