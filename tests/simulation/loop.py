"""A seeded event loop in virtual time: tasks that are ready run in an order drawn from the seed, and when all of them
wait, time jumps to the next timer.  No socket, no thread, no machine clock: the same seed gives the same run."""

from __future__ import annotations

import asyncio
import math
import random
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from noetl.adapters.memory.clock import VirtualClock

T = TypeVar("T")


class Stuck(AssertionError):
    """Every task waits and no timer is left: nothing can ever happen again."""


class _Jump(selectors.SelectSelector):
    """Instead of waiting for the world, moves the clock."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("every task waits and no timer is left")
        if timeout > 0:
            # Never less than the clock can tell apart, or the loop would spin on a remainder.
            self._clock.advance(math.ceil(timeout * 1e6) / 1e6)
        return []


class SimulationLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock, chance: random.Random) -> None:
        super().__init__(_Jump(clock))
        self._virtual = clock
        self._chance = chance

    def time(self) -> float:
        return self._virtual.monotonic()

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        if len(ready) > 1:
            handles = list(ready)
            self._chance.shuffle(handles)
            ready.clear()
            ready.extend(handles)
        super()._run_once()  # type: ignore[misc]


def run_simulated(main: Coroutine[Any, Any, T], clock: VirtualClock, chance: random.Random) -> T:
    loop = SimulationLoop(clock, chance)
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()
