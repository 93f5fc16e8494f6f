"""Events that this process has committed, handed over in memory: they need not be read again.  The ledger stays the
source: whatever is not here, or does not follow what was projected, is read from it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from noetl.core.event import Event
from noetl.core.kinds import KINDS
from noetl.ports.clock import Clock

WAITING_EVENTS_MAX = 20_000


class Told(NamedTuple):
    event: Event
    at: float


class Feed:
    """`news` is set when the first event waits, `urgent` when somebody may be waiting for what one of them says."""

    def __init__(self, clock: Clock, *, full_at: int = 500) -> None:
        self._clock = clock
        self._full_at = full_at
        self._waiting: dict[int, deque[Told]] = {}
        self._count = 0
        self.news = asyncio.Event()
        self.urgent = asyncio.Event()

    def follow(self, shard_ids: Iterable[int]) -> None:
        """From now on only these shards are wanted."""
        wanted = set(shard_ids)
        self._waiting = {shard: self._waiting.get(shard, deque()) for shard in wanted}
        self._count = sum(map(len, self._waiting.values()))

    def tell(self, events: Iterable[Event]) -> None:
        now, is_urgent = self._clock.monotonic(), False
        for event in events:
            waiting = self._waiting.get(event.shard_id)
            if waiting is None:
                continue
            waiting.append(Told(event, now))
            self._count += 1
            # Somebody waits for an end, and whoever has started something looks at it at once.
            is_urgent = is_urgent or KINDS[event.event_type].closes
        if self._count > WAITING_EVENTS_MAX:
            # Too much to keep: it is in the ledger.
            for waiting in self._waiting.values():
                waiting.clear()
            self._count = 0
        if self._count:
            self.news.set()
        if is_urgent or self._count >= self._full_at:
            self.urgent.set()

    def hurry(self) -> None:
        """Somebody waits."""
        if self._count:
            self.urgent.set()

    def take(self, shard_id: int, *, after: int, limit: int) -> list[Told]:
        """What follows a position without a gap."""
        waiting = self._waiting.get(shard_id)
        if not waiting:
            return []
        while waiting and waiting[0].event.position <= after:
            waiting.popleft()
            self._count -= 1
        taken: list[Told] = []
        while waiting and len(taken) < limit and waiting[0].event.position == after + 1:
            taken.append(waiting.popleft())
            self._count -= 1
            after += 1
        return taken

    @property
    def stuck(self) -> set[int]:
        """Shards of which something waits although all that could be taken was taken: others have appended before it,
        or there is more than one batch."""
        return {shard_id for shard_id, waiting in self._waiting.items() if waiting} if self._count else set()

    def nudge(self) -> None:
        """Look again."""
        self.news.set()
        self.urgent.set()

    async def wait(self, *, window_seconds: float, timeout_seconds: float) -> None:
        """Until there is something worth a commit: a full batch, something urgent, or the end of a window that began
        with the first event; at the latest after the timeout."""
        if not self._count:
            self.news.clear()
            self.urgent.clear()
            await _set(self.news, timeout_seconds)
        if self._count:
            await _set(self.urgent, min(window_seconds, timeout_seconds))
        self.urgent.clear()


async def _set(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
