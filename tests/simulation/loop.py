"""A seeded event loop in virtual time: tasks that are ready run in an order drawn from the seed, and when all of them
wait, time jumps to the next timer.  No socket, no thread, no machine clock: the same seed gives the same run.

A process of the simulation is all that runs in a context with its `PROCESS`.  It can be stopped where it stands, as
SIGSTOP does, go on later with timers that have long run out, or never go on, as after SIGKILL: no `finally` runs."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import math
import random
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from noetl.adapters.memory.clock import VirtualClock

T = TypeVar("T")
PROCESS: contextvars.ContextVar[object | None] = contextvars.ContextVar("PROCESS", default=None)


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


class NumberedTask(asyncio.Task[Any]):
    """Sets of tasks, as task groups keep them, are in the order of hashes: by number and not by address, or the same
    seed would cancel in another order."""

    def __init__(self, number: int, work: Any, **given: Any) -> None:
        self._number = number
        super().__init__(work, **given)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimulationLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock, chance: random.Random) -> None:
        super().__init__(_Jump(clock))
        self._virtual = clock
        self._chance = chance
        # What stopped processes would do next, in the order in which it came up.
        self._stopped: dict[object, list[Any]] = {}
        self._turns_to_look = 0
        numbers = itertools.count()
        self.set_task_factory(lambda loop, work, **given: NumberedTask(next(numbers), work, loop=loop, **given))

    def stop_process(self, process: object) -> None:
        self._stopped.setdefault(process, [])
        self._turns_to_look = 2

    def continue_process(self, process: object) -> None:
        """Timers that have run out meanwhile are all due at once."""
        for handle in self._stopped.pop(process, ()):
            if isinstance(handle, asyncio.TimerHandle) and handle.when() > self.time():
                heapq.heappush(self._scheduled, handle)  # type: ignore[attr-defined]
                handle._scheduled = True  # type: ignore[attr-defined]
            elif not handle.cancelled():
                self._ready.append(handle)  # type: ignore[attr-defined]

    def continue_all(self) -> None:
        for process in list(self._stopped):
            self.continue_process(process)

    def is_stopped(self, process: object) -> bool:
        return process in self._stopped

    def time(self) -> float:
        return self._virtual.monotonic()

    def _set_aside(self) -> None:
        """Take what belongs to stopped processes out of the loop's hands.  Their timers were all set before or in the
        turn in which they were stopped."""
        self._keep_others(self._ready)  # type: ignore[attr-defined]
        if self._turns_to_look:
            self._turns_to_look -= 1
            if self._keep_others(self._scheduled):  # type: ignore[attr-defined]
                heapq.heapify(self._scheduled)  # type: ignore[attr-defined]

    def _keep_others(self, handles: Any) -> bool:
        kept = []
        for handle in handles:
            own = self._stopped.get(handle._context.get(PROCESS))
            (kept if own is None else own).append(handle)
        is_less = len(kept) < len(handles)
        if is_less:
            handles.clear()
            handles.extend(kept)
        return is_less

    def _run_once(self) -> None:
        if self._stopped:
            self._set_aside()
        ready: Any = self._ready  # type: ignore[attr-defined]
        if len(ready) > 1:
            handles = list(ready)
            self._chance.shuffle(handles)
            ready.clear()
            ready.extend(handles)
        super()._run_once()  # type: ignore[misc]


def begin(process: object, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run something as a part of a process; None is nobody's."""
    context = contextvars.copy_context()
    context.run(PROCESS.set, process)
    return asyncio.get_running_loop().create_task(work, context=context)


def the_loop() -> SimulationLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulationLoop)
    return loop


def run_simulated(main: Coroutine[Any, Any, T], clock: VirtualClock, chance: random.Random) -> T:
    loop = SimulationLoop(clock, chance)
    try:
        return loop.run_until_complete(main)
    finally:
        # The story is over: whatever stands still is only cleared away.
        loop.continue_all()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()
