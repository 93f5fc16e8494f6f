"""Time and ids as data from outside."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now(self) -> str:
        """UTC now as ISO 8601 with microseconds and `Z`."""
        ...

    def monotonic(self) -> float: ...


class IdSource(Protocol):
    def next_id(self) -> int:
        """A snowflake id that no other process can make."""
        ...
