"""Commands that must have a session to themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from noetl.engine.placing.connected import Connected, Solitude
from noetl.engine.placing.pools import Pools

SOLITUDE_SECONDS_MAX = 30.0
RESTING_SECONDS = 2.0


class Loners:
    """Commands that must have a session to themselves.  Those that could not yet are tried in turn.

    At most every second session of a pool is given so, and when such a command took its session with it there is a
    rest: much that dies alone must not keep everybody else from working.  What ends well makes room for the next at
    once."""

    def __init__(self, connected: Mapping[int, Connected], pools: Pools) -> None:
        self._connected = connected
        self._pools = pools
        self._resting: set[str] = set()
        # By pool, in the order in which they are tried.
        self._waiting: dict[str, dict[tuple[int, str], None]] = {}

    def find(self, key: tuple[int, str], kinds: Collection[str] | None, pool: str) -> Connected | None:
        """A session that holds nothing, and gets nothing else meanwhile.  When all are busy, one of them gets nothing
        more until it is empty; when that takes too long, any slot will do."""
        found = self._found(kinds, pool) if pool not in self._resting else None
        waiting = self._waiting.setdefault(pool, {})
        waiting.pop(key, None)
        if found is None:
            waiting[key] = None
            return None
        for held in self._connected.values():
            # Somebody else was empty first: nobody waits for this one any more.
            if held.pool == pool and held.solitude is Solitude.AWAITED:
                held.solitude = Solitude.NO
        return found

    def waiting(self, pool: str) -> Collection[tuple[int, str]]:
        return self._waiting.get(pool, {}).keys()

    def first_of(self, pool: str, keys: Collection[tuple[int, str]]) -> tuple[int, str] | None:
        """The one whose turn it is among those that are still in the queue; the others are forgotten."""
        self._waiting[pool] = {key: None for key in self._waiting.get(pool, {}) if key in keys}
        first = next(iter(self._waiting[pool]), None)
        if first is None:
            self._share_again(pool)
        return first

    def freed(self, held: Connected) -> None:
        """What had a session to itself has left it."""
        held.solitude = Solitude.NO
        if self._waiting.get(held.pool):
            self._pools.expect(held.pool)

    def lost(self, held: Connected) -> None:
        """A session is gone with what it held."""
        if held.solitude is Solitude.KEPT and held.pool not in self._resting:
            self._resting.add(held.pool)
            asyncio.get_running_loop().call_later(RESTING_SECONDS, self._rested, held.pool)

    def _share_again(self, pool: str) -> None:
        """A session is empty and what it became empty for is gone: cancelled, or taken by another server."""
        for held in self._connected.values():
            if held.pool == pool and held.solitude is Solitude.AWAITED and held.is_empty:
                held.solitude = Solitude.NO
                self._pools.expect(pool)

    def _rested(self, pool: str) -> None:
        self._resting.discard(pool)
        self._pools.expect(pool)

    def _found(self, kinds: Collection[str] | None, pool: str) -> Connected | None:
        able = [held for held in self._connected.values() if held.slots > 0 and held.serves(kinds, pool)]
        if sum(held.solitude is Solitude.KEPT for held in able) >= max(len(able) // 2, 1):
            return None
        empty = next((held for held in able if held.is_empty and held.solitude is not Solitude.KEPT), None)
        if empty is not None:
            empty.solitude = Solitude.KEPT
            return empty
        in_vain = next((held for held in able if held.solitude is Solitude.IN_VAIN and held.free > 0), None)
        if in_vain is not None:
            in_vain.solitude = Solitude.NO
            return in_vain
        if not any(held.solitude is Solitude.AWAITED for held in able):
            shared = [held for held in able if held.is_shared]
            if shared:
                self._await(min(shared, key=lambda held: held.slots - held.free))
        return None

    def _await(self, held: Connected) -> None:
        held.solitude = Solitude.AWAITED
        held.waits += 1
        later, number = asyncio.get_running_loop().call_later, held.waits

        def become(before: Solitude, after: Solitude) -> None:
            if held.solitude is before and number == held.waits:
                held.solitude = after
                self._pools.expect(held.pool)

        later(SOLITUDE_SECONDS_MAX, become, Solitude.AWAITED, Solitude.IN_VAIN)
        later(SOLITUDE_SECONDS_MAX + RESTING_SECONDS, become, Solitude.IN_VAIN, Solitude.NO)
