"""Time and ids that a test drives: nothing here looks at the machine."""

from __future__ import annotations

import datetime

from noetl.core.ids import following_id, milliseconds_of

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class VirtualClock:
    """Stands still until it is told to move."""

    def __init__(self, start: datetime.datetime = START) -> None:
        self._start = start
        self._elapsed = datetime.timedelta()

    def now(self) -> str:
        return self.moment().isoformat(timespec="microseconds")[:-6] + "Z"

    def moment(self) -> datetime.datetime:
        return self._start + self._elapsed

    def monotonic(self) -> float:
        return self._elapsed.total_seconds()

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "time does not go back"
        self._elapsed += datetime.timedelta(seconds=seconds)

    def seconds_until(self, moment: str) -> float:
        """Seconds from now to a moment in ISO 8601; negative when it has passed."""
        return (datetime.datetime.fromisoformat(moment) - self.moment()).total_seconds()


class VirtualIds:
    """Snowflake ids by the virtual clock."""

    def __init__(self, clock: VirtualClock, *, node: int = 0, last_id: int = 0) -> None:
        self._clock = clock
        self._node = node
        self._last = last_id

    @property
    def last_id(self) -> int:
        return self._last

    def next_id(self) -> int:
        now_ms = milliseconds_of(self._clock.moment())
        self._last = following_id(self._last, now_ms=now_ms, node=self._node)
        return self._last
