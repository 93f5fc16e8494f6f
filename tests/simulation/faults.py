"""What a seed lets go wrong: delays everywhere, lost connections before and after the commit, commits that land late,
and at any await of an adapter a process that dies, stands still or has its clock set."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from noetl.adapters.memory.faults import Faults, Mishap, Outcome

# Everything may fail; what writes may also have happened all the same, at once or later.
WRITES = frozenset(
    (
        *("advance", "append", "own_shards", "release", "release_all", "take", "put", "claim", "claim_commit"),
        *("register", "renew", "leave", "claim_shards", "hand_over", "keep_sessions", "end_session", "release_dead"),
        *("project", "projector_heartbeat", "claim_projections", "let_projections_go", "rebuild_projection"),
        *("hold_roles", "release_roles", "commit_checkpoints", "save_snapshots", "drop_ended", "heal_projection"),
    )
)
# A file is there when its writer is told so, or not at all.
NEVER_LATE = frozenset(("put", "claim", "own_shards", "register"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How bad a run is.  All zero is a fair day."""

    seconds_max: float = 0.0
    trouble: float = 0.0
    crash: float = 0.0
    crashes_max: int = 0
    duplicate: float = 0.0
    """How many facts are told twice, and how many commands are handed over twice or out of turn."""
    drop_derived: float = 0.0
    stop: float = 0.0
    """Of the processes that die, how many only stand still and go on when another one has their work."""
    skew_seconds_max: float = 0.0
    """How far the clock of a process may be set, again and again."""
    locks: int = 0
    """How often somebody outside holds a lock on a shard for seconds."""


class SeededFaults(Faults):
    def __init__(self, chance: random.Random, weather: Weather, *, crash: Callable[[], None]) -> None:
        super().__init__()
        self._chance = chance
        self._weather = weather
        self._crash = crash
        self.is_active = True
        self.seen: Counter[str] = Counter()

    def draw(self, operation: str) -> Mishap:
        if not self.is_active:
            return Mishap()
        before, after = (self._chance.random() ** 3 * self._weather.seconds_max for _ in range(2))
        outcome = self._outcome(operation)
        if outcome is not Outcome.DONE:
            self.seen[f"{operation} {outcome}"] += 1
        return Mishap(
            outcome=outcome,
            seconds_before=before,
            seconds_after=after,
            late_seconds=self._chance.random() ** 2 * 2.0,
        )

    def _outcome(self, operation: str) -> Outcome:
        if self._chance.random() >= self._weather.trouble:
            return Outcome.DONE
        if operation not in WRITES:
            return Outcome.NOT_DONE
        late = () if operation in NEVER_LATE else (Outcome.COMMITS_LATE,)
        return self._chance.choice((Outcome.NOT_DONE, Outcome.REPLY_LOST, *late))

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        weather = self._weather
        if self.is_active and self.seen["crash"] < weather.crashes_max and self._chance.random() < weather.crash:
            self.seen["crash"] += 1
            self._crash()
            await asyncio.sleep(0)  # here a dead process stands still


class CountedFaults(Faults):
    """Counts the awaits of all adapters, and ends the process at one of them."""

    def __init__(self, *, crash_at: int | None, crash: Callable[[], None]) -> None:
        super().__init__()
        self._crash_at = crash_at
        self._crash = crash
        self.awaits = 0
        self.is_active = True
        self.seen: Counter[str] = Counter()

    async def pause(self, seconds: float) -> None:
        self.awaits += self.is_active
        if self.awaits == self._crash_at and self.is_active:
            self._crash_at = None
            self.seen["crash"] += 1
            self._crash()
        await asyncio.sleep(seconds)
