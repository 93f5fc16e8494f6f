"""What others see meanwhile: status over HTTP, how far projections are behind, how old checkpoints are."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from noetl.bench.control.appending import Appends
from noetl.bench.control.asking import Asker

STATUS_EVERY_SECONDS = 0.02
LOOK_EVERY_SECONDS = 0.02
_PROJECTED = "SELECT shard_id, position FROM noetl.projection_checkpoint"
_CHECKPOINTS = "SELECT shard_id, max(position) FROM noetl.checkpoint GROUP BY shard_id"


class Uncovered:
    """Appends that are not behind a mark yet, by shard in order."""

    def __init__(self, appends: Appends) -> None:
        self._appends = appends
        self._known = 0
        self._waiting: dict[int, list[tuple[int, float]]] = {}

    def look(self, marks: Mapping[int, int]) -> tuple[float, list[float]]:
        """Now, and when those were answered that the marks have come to since the last look."""
        calls = self._appends.answered[self._known :]
        self._known += len(calls)
        for call in calls:
            self._waiting.setdefault(call.shard_id, []).append((call.position, call.answered_at))
        covered: list[float] = []
        for shard_id, held in self._waiting.items():
            mark = marks.get(shard_id, 0)
            covered += [at for position, at in held if position <= mark]
            self._waiting[shard_id] = [one for one in held if one[0] > mark]
        return time.monotonic(), covered

    def oldest(self) -> list[float]:
        """When the first of each shard was answered that is still uncovered."""
        return [min(at for _, at in held) for held in self._waiting.values() if held]


@dataclass(slots=True)
class Watch:
    """Figures in milliseconds, one for each look."""

    appends: Appends
    lag_ms: list[float] = field(default_factory=list)
    age_ms: list[float] = field(default_factory=list)
    asked: int = 0

    async def statuses(self, asker: Asker) -> None:
        """Have one execution after the other looked at, those that are being told right now among them."""
        for number in itertools.count():
            await asyncio.sleep(STATUS_EVERY_SECONDS)
            telling = self.appends.telling
            if telling:
                asker.ask(telling[-1 - number * 7 % min(len(telling), 64)])
                self.asked += 1

    async def lags(self, database: Any) -> None:
        """From the answer to an append until the watermark of its shard is beyond it."""
        uncovered = Uncovered(self.appends)
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_SECONDS)
                now, covered = uncovered.look(dict(await database.fetch(_PROJECTED)))
                self.lag_ms += [(now - at) * 1000 for at in covered]
        finally:
            # What is not projected when everything ends is late as well.
            self.lag_ms += [(time.monotonic() - at) * 1000 for at in uncovered.oldest()]

    async def ages(self, database: Any) -> None:
        """How long the first append behind the last checkpoint of a shard has been there, look by look."""
        uncovered = Uncovered(self.appends)
        while True:
            await asyncio.sleep(5 * LOOK_EVERY_SECONDS)
            now, _ = uncovered.look(dict(await database.fetch(_CHECKPOINTS)))
            self.age_ms += [(now - at) * 1000 for at in uncovered.oldest()]

    def forget(self) -> None:
        """What was seen so far was the way there."""
        self.lag_ms.clear()
        self.age_ms.clear()
        self.asked = 0


@contextlib.asynccontextmanager
async def reading(database: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database)
    try:
        yield connection
    finally:
        await connection.close()


def quantile(values: list[float], share: float) -> float:
    assert values, "nothing was seen: a process of this benchmark does not do its work"
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
