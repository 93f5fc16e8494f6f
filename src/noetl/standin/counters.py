"""What the stand-in remembers between requests: attempts, windows of requests, probes in flight, a journal."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable

JOURNAL_ENTRIES_MAX = 1_000_000
FLAKY_PAGES_MAX = 100_000
WINDOW_SECONDS = 1.0


class SlidingWindow:
    """At most so many requests in any second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._admitted: deque[float] = deque()

    def admit(self, requests_per_second: int) -> int | None:
        """None when the request may pass, else the whole seconds to wait."""
        now, admitted = self._clock(), self._admitted
        while admitted and now - admitted[0] >= WINDOW_SECONDS:
            admitted.popleft()
        if len(admitted) >= requests_per_second:
            return max(1, math.ceil(admitted[0] + WINDOW_SECONDS - now))
        admitted.append(now)
        return None

    def reset(self) -> None:
        self._admitted.clear()


class Probes:
    """How many probes run at the same time, and how many ever did."""

    def __init__(self) -> None:
        self._generation = 0
        self.reset()

    def reset(self) -> None:
        self._generation += 1
        self.started = self.completed = self.active = self.max_active = 0
        self.labels: Counter[str] = Counter()

    def enter(self, label: str) -> int:
        """Gives what `leave` needs: a probe from before a reset is counted no more."""
        self.started += 1
        self.active += 1
        self.max_active = max(self.max_active, self.active)
        if label:
            self.labels[label] += 1
        return self._generation

    def leave(self, generation: int) -> None:
        if generation == self._generation:
            self.completed += 1
            self.active -= 1

    def document(self) -> dict[str, object]:
        return {
            "started": self.started,
            "completed": self.completed,
            "active": self.active,
            "max_active": self.max_active,
            "labels": dict(self.labels),
        }


class FlakyPages:
    """Attempts by page, for an endpoint that fails the first time."""

    def __init__(self) -> None:
        self._attempts: Counter[int] = Counter()

    def attempt(self, page: int) -> int:
        if len(self._attempts) < FLAKY_PAGES_MAX or page in self._attempts:
            self._attempts[page] += 1
        return self._attempts[page]

    def reset(self) -> None:
        self._attempts.clear()


class Journal:
    """Which items really ran, in order: the witness of a test that counts effects."""

    def __init__(self) -> None:
        self._entries: list[str] = []
        self._counts: Counter[str] = Counter()

    def note(self, item: str) -> int | None:
        """How often the item was noted, or None when the journal is full."""
        if len(self._entries) >= JOURNAL_ENTRIES_MAX:
            return None
        self._entries.append(item)
        self._counts[item] += 1
        return self._counts[item]

    def document(self) -> dict[str, object]:
        repeated = {item: count for item, count in self._counts.items() if count > 1}
        return {
            "total": len(self._entries),
            "distinct": len(self._counts),
            "repeated": repeated,
            "entries": self._entries,
        }

    def reset(self) -> None:
        self._entries.clear()
        self._counts.clear()
