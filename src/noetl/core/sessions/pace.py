"""How many commands a worker wants under way at a time: half as many after trouble, then step by step more again.

A control plane that is too slow gets slower by every command that is pushed through it.  Nobody has to tell its
workers: each sees its own refusals and slow commits, and together they end up at what can be carried."""

from __future__ import annotations

from dataclasses import dataclass, replace

SLOW_SECONDS = 2.0
"""A report that took longer is trouble, like one that was refused for now."""
STEP_SECONDS = 1.0
STEPS_TO_FULL = 8
"""After so many steps without trouble even one slot has become all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A value: `slots` says what holds at a moment, `slowed` is the pace after trouble.

    Rising needs no event: a worker that has nothing to report must get its slots back too."""

    slots_max: int
    base: int
    since: float = float("-inf")

    @classmethod
    def full(cls, slots_max: int) -> Pace:
        assert slots_max > 0, "a worker has slots"
        return cls(slots_max=slots_max, base=slots_max)

    def slots(self, now: float) -> int:
        if self.base >= self.slots_max:
            return self.slots_max
        steps = max(int((now - self.since) / STEP_SECONDS), 0)
        return min(self.slots_max, self.base + steps * self._step)

    @property
    def _step(self) -> int:
        return max(1, -(-self.slots_max // STEPS_TO_FULL))

    def slowed(self, *, begun: float, now: float) -> Pace:
        """After trouble with a report that was sent at `begun`.  One that was sent before the last change says nothing
        about what came of it."""
        if begun < self.since:
            return self
        return replace(self, base=max(1, self.slots(now) // 2), since=now)
