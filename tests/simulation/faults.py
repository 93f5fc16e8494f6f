"""What a seed lets go wrong: delays everywhere, lost connections before and after the commit, commits that land late,
and the death of the process at any await of an adapter."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from noetl.adapters.memory.faults import Faults, Mishap, Outcome

# A read may fail; a write may also have happened all the same.
READS = frozenset(
    (
        *("read_execution", "read_shard", "heads", "waiting", "due_timers", "next_due_in", "open_ids", "idempotent"),
        *("get", "claim_status", "claim_end"),
    )
)
WRITES = frozenset(("advance", "own_shards", "release", "release_all", "put", "claim", "claim_commit"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How bad a run is.  All zero is a fair day."""

    seconds_max: float = 0.0
    trouble: float = 0.0
    crash: float = 0.0
    crashes_max: int = 0
    duplicate: float = 0.0
    drop_derived: float = 0.0


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
        if operation in ("advance", "claim_commit"):
            return self._chance.choice((Outcome.NOT_DONE, Outcome.REPLY_LOST, Outcome.COMMITS_LATE))
        if operation in WRITES:
            return self._chance.choice((Outcome.NOT_DONE, Outcome.REPLY_LOST))
        return Outcome.NOT_DONE if operation in READS else Outcome.DONE

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        weather = self._weather
        if self.is_active and self.seen["crash"] < weather.crashes_max and self._chance.random() < weather.crash:
            self.seen["crash"] += 1
            self._crash()
            await asyncio.get_running_loop().create_future()  # a dead process does not go on
