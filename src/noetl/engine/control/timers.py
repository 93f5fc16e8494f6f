"""The firing loop: a timer whose due time the database's clock has passed becomes a `timer.fired` event."""

from __future__ import annotations

import asyncio

from noetl.core.errors import LedgerUnavailable, NoetlError
from noetl.engine.control.decider import Decider
from noetl.engine.control.inputs import TimerInput
from noetl.ports.queue import Queue

FIRED_AT_ONCE_MAX = 200
LOOK_SECONDS_MAX = 1.0
LOOK_SECONDS_MIN = 0.01


class Timers:
    def __init__(self, *, decider: Decider, queue: Queue) -> None:
        self._decider = decider
        self._queue = queue

    async def run(self) -> None:
        while True:
            try:
                await self.fire_due()
                due_in = await self._queue.next_due_in(shards=list(self._decider.free_shards))
            except LedgerUnavailable:
                due_in = None
            wait = LOOK_SECONDS_MAX if due_in is None else min(max(due_in, LOOK_SECONDS_MIN), LOOK_SECONDS_MAX)
            await asyncio.sleep(wait)

    async def fire_due(self) -> int:
        due = await self._queue.due_timers(limit=FIRED_AT_ONCE_MAX, shards=list(self._decider.free_shards))
        told = [self._decider.tell(TimerInput(execution_id=timer.execution_id, name=timer.name)) for timer in due]
        for outcome in await asyncio.gather(*told, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, NoetlError):
                raise outcome
        return len(due)
