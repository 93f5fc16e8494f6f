"""Appends at a rate, whatever comes of them: a generator that waits for a slow ledger would hide that it is slow."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from noetl.engine.append import GroupAppender
from noetl.ports.ledger import Offer


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was answered."""

    shard_id: int
    position: int
    events: int
    answered_at: float
    seconds: float


@dataclass(slots=True)
class Appends:
    """`stories` are told side by side, each in order.  `answered` is what there is of them so far; `telling` are the
    executions that have begun."""

    appender: GroupAppender
    stories: list[Iterator[Offer]]
    begin: Iterator[Iterator[Offer]]
    answered: list[Call] = field(default_factory=list)
    telling: list[int] = field(default_factory=list)
    late: int = 0

    async def run(self, events_per_second: float, seconds: float) -> float:
        """Events per second that were appended."""
        idle = deque(range(len(self.stories)))
        begun, sent = time.monotonic(), 0
        async with asyncio.TaskGroup() as group:
            while (passed := time.monotonic() - begun) < seconds:
                while sent < passed * events_per_second:
                    if not idle:
                        self.late += 1
                        break
                    lane = idle.popleft()
                    offer = self._next(lane)
                    sent += len(offer.events)
                    group.create_task(self._append(offer, lane, idle))
                await asyncio.sleep(0.002)
        appended = sum(call.events for call in self.answered if call.answered_at >= begun)
        return appended / (time.monotonic() - begun)

    def _next(self, lane: int) -> Offer:
        offer = next(self.stories[lane], None)
        if offer is None:
            self.stories[lane] = next(self.begin)
            offer = next(self.stories[lane])
        return offer

    async def _append(self, offer: Offer, lane: int, idle: deque[int]) -> None:
        begun = time.monotonic()
        appended = await self.appender.append(offer)
        now = time.monotonic()
        execution_id = offer.events[0].event.execution_id
        if not self.telling or execution_id != self.telling[-1]:
            self.telling.append(execution_id)
        self.answered.append(Call(offer.shard_id, appended[-1].position, len(offer.events), now, now - begun))
        idle.append(lane)
