"""Waiting for an execution to change or to end, without polling."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Watchers:
    """Who waits for which execution.  Those who wait for the end are not woken by every step on the way."""

    def __init__(self) -> None:
        self._changes: dict[int, set[asyncio.Event]] = {}
        self._ends: dict[int, set[asyncio.Event]] = {}
        # With other servers on the ledger not every change is heard of here: then whoever waits looks so often.
        self.look_seconds: float | None = None

    def notify(self, changed: Iterable[int], ended: Iterable[int]) -> None:
        for waiting, execution_ids in ((self._changes, changed), (self._ends, ended)):
            if waiting:
                for execution_id in execution_ids:
                    for event in waiting.get(execution_id, ()):
                        event.set()

    def watch(self, execution_id: int, *, until_end: bool = False) -> Watch:
        return Watch(self, self._ends if until_end else self._changes, execution_id)


class Watch:
    """`with watchers.watch(id) as watch:` then look, then `await watch.changed(…)`: no change is missed between."""

    def __init__(self, watchers: Watchers, waiting: dict[int, set[asyncio.Event]], execution_id: int) -> None:
        self._watchers = watchers
        self._waiting = waiting
        self._execution_id = execution_id
        self._event = asyncio.Event()

    def __enter__(self) -> Watch:
        self._waiting.setdefault(self._execution_id, set()).add(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        events = self._waiting.get(self._execution_id)
        if events is not None:
            events.discard(self._event)
            if not events:
                del self._waiting[self._execution_id]

    async def changed(self, timeout_seconds: float) -> bool:
        look_seconds = self._watchers.look_seconds
        try:
            async with asyncio.timeout(timeout_seconds if look_seconds is None else min(timeout_seconds, look_seconds)):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
