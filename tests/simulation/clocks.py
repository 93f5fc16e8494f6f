"""The clock of one machine: it may be wrong, and somebody may set it.  Leases and timers run out by the clock of the
database, which is right."""

from __future__ import annotations

import datetime
import random

from noetl.adapters.memory.clock import VirtualClock


class SkewedClock(VirtualClock):
    """Shows the time of the world with an error.  What it measures between two moments is right: no process may measure
    by the time of day."""

    def __init__(self, world: VirtualClock, chance: random.Random, *, seconds_max: float) -> None:
        super().__init__()
        self._world = world
        self._chance = chance
        self._seconds_max = seconds_max
        self._error = datetime.timedelta()
        self.set_wrong()

    def set_wrong(self) -> None:
        """Somebody sets the clock, perhaps back."""
        if self._seconds_max:
            self._error = datetime.timedelta(seconds=self._chance.uniform(-1, 1) * self._seconds_max)

    def moment(self) -> datetime.datetime:
        if self._seconds_max and self._chance.random() < 0.01:
            self.set_wrong()
        return self._world.moment() + self._error

    def monotonic(self) -> float:
        return self._world.monotonic()

    def advance(self, seconds: float) -> None:
        raise AssertionError(f"a machine's clock does not move the world by {seconds}")
