"""What waits for shards that somebody outside has locked.  It waits here, so that nothing else waits with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from noetl.core.errors import LedgerBusy
from noetl.engine.control.inputs import ClaimInput, DecideInput, RestoreInput, TimerInput
from noetl.engine.sharing.waiting import Waiting, patiently
from noetl.ports.ledger import Ledger

LOOK_SECONDS = 0.2
# Whoever told them looks again by itself, and waits for all that it told together.
_FOUND_AGAIN = (ClaimInput, TimerInput)


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

    def put(self, shard_id: int, given: Iterable[Waiting] = ()) -> None:
        if not self._by_shard:
            self._ring_later()
        kept = self._by_shard.setdefault(shard_id, [])
        for waiting in given:
            if isinstance(waiting.input, _FOUND_AGAIN):
                waiting.refuse(LedgerBusy(f"somebody holds a lock on shard {shard_id}"))
                continue
            if isinstance(waiting.input, RestoreInput | DecideInput):
                waiting.succeed()  # it will happen, and whoever restores a shard must not wait for this one
            kept.append(waiting)

    async def freed(self) -> dict[int, list[Waiting]]:
        """What waited for shards that are free now, by shard."""
        locked = await patiently(self._ledger.locked, list(self._by_shard))
        free = [shard_id for shard_id in self._by_shard if shard_id not in locked]
        found = {shard_id: self._by_shard.pop(shard_id) for shard_id in free}
        if self._by_shard:
            self._ring_later()
        return found

    def _ring_later(self) -> None:
        asyncio.get_running_loop().call_later(LOOK_SECONDS, self._ring)
