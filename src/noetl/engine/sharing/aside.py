"""What waits for shards that somebody outside has locked.  It waits here, so that nothing else waits with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from noetl.engine.sharing.waiting import Waiting, patiently
from noetl.ports.ledger import Ledger

LOOK_SECONDS = 0.2


class Aside:
    """`ring` is called when it is time to ask for what is `freed`.  That asks and does not try: to try would be to wait
    for the lock."""

    def __init__(self, ledger: Ledger, ring: Callable[[], None]) -> None:
        self._ledger = ledger
        self._ring = ring
        self._by_shard: dict[int, list[Waiting]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_shard.values()))

    @property
    def shards(self) -> Collection[int]:
        return self._by_shard.keys()

    def put(self, shard_id: int, *waiting: Waiting) -> None:
        if not self._by_shard:
            self._ring_later()
        self._by_shard.setdefault(shard_id, []).extend(waiting)

    async def freed(self) -> list[Waiting]:
        """What waited for shards that are free now."""
        locked = await patiently(self._ledger.locked, list(self._by_shard))
        found = [
            one for shard_id in [*self._by_shard] if shard_id not in locked for one in self._by_shard.pop(shard_id)
        ]
        if self._by_shard:
            self._ring_later()
        return found

    def _ring_later(self) -> None:
        asyncio.get_running_loop().call_later(LOOK_SECONDS, self._ring)
