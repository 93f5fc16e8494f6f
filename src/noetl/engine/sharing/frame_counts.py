"""What a server counts about frames, from the events that it commits and records: how they end, how often they are
taken from the dead, how long they are held, and how far from their data they, and all other commands, are run."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from noetl.core import kinds
from noetl.core.event import Event, Sealed
from noetl.ports.data.counters import Histogram, Sample

LAST_FRAMES = 1_000
# Whose claims are remembered until they end; of more than so many at a time the oldest are not measured.
HELD_FRAMES_MAX = 20_000
_BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_ENDED = {kinds.FRAME_COMMITTED: "committed", kinds.FRAME_FAILED: "failed"}


class FrameCounts:
    def __init__(self) -> None:
        self._ended: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._reclaimed = 0
        self._placed: Counter[tuple[str, str]] = Counter()
        self._taken_at: dict[tuple[int, str, object], str] = {}
        self._held = Histogram("noetl_frame_lease_seconds", _BOUNDS)
        self._last: deque[float] = deque(maxlen=LAST_FRAMES)

    def see(self, events: Iterable[Sealed]) -> None:
        for sealed in events:
            event = sealed.event
            if "placement" in event.meta:
                self._place(event.meta["placement"])
            if event.frame_id is None:
                continue
            key = (event.execution_id, event.frame_id, event.meta.get("attempt"))
            if event.event_type == kinds.FRAME_STARTED:
                self._taken_at[key] = event.event_time
                if len(self._taken_at) > HELD_FRAMES_MAX:
                    del self._taken_at[next(iter(self._taken_at))]
            elif event.event_type == kinds.FRAME_ABANDONED:
                self._reclaimed += 1
                self._taken_at.pop(key, None)
            elif event.event_type in _ENDED:
                self._end(_ENDED[event.event_type], event, self._taken_at.pop(key, None))

    def _place(self, placement: Any) -> None:
        self._placed[placement["distance"], str(placement["within_max_distance"]).lower()] += 1

    def _end(self, status: str, event: Event, taken_at: str | None) -> None:
        outcomes: Any = event.meta["outcomes"]
        self._ended[status] += 1
        self._rows.update({name: count for name, count in outcomes.items() if count})
        if taken_at is not None:
            held = datetime.fromisoformat(event.event_time) - datetime.fromisoformat(taken_at)
            seconds = max(held.total_seconds(), 0.0)  # the clock may have been set back meanwhile
            self._held.add(seconds)
            self._last.append(seconds)

    def samples(self) -> Iterator[Sample]:
        for status in _ENDED.values():
            yield "noetl_frames_ended_total", {"status": status}, self._ended[status]
        for outcome in ("success", "failed", "skipped"):
            yield "noetl_frame_rows_total", {"outcome": outcome}, self._rows[outcome]
        yield "noetl_frames_reclaimed_total", {}, self._reclaimed
        for (distance, is_within), count in sorted(self._placed.items()):
            labels = {"distance": distance, "within_max_distance": is_within}
            yield "noetl_claims_placed_total", labels, count
        yield from self._held.samples()
        if self._last:
            ordered = sorted(self._last)
            yield "frame_p95_lease_duration", {}, ordered[min(int(len(ordered) * 0.95), len(ordered) - 1)]
