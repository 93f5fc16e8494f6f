"""A connected worker session: its free slots, what it can do, where it is, and what it holds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from noetl.core.locator.locality import NOWHERE, Place
from noetl.ports.session import CommandSink


class Demand(NamedTuple):
    """What a session must be to take a command: of this pool, and able to run these kinds of tasks."""

    pool: str
    kinds: frozenset[str]


class Solitude(Enum):
    """Whether a session is for one command alone."""

    NO = "no"
    AWAITED = "awaited"
    """It gets nothing more until it is empty, for a command that must be alone."""
    KEPT = "kept"
    """It holds that command."""
    IN_VAIN = "in vain"
    """What it holds did not end in time: the command that waits takes a slot like any other."""


@dataclass(slots=True)
class Connected:
    """A session with its free slots and what it holds."""

    sink: CommandSink
    free: int
    kinds: frozenset[str] | None
    pool: str
    is_draining: bool = False
    slots: int = 0
    worker_id: str = ""
    holds: dict[tuple[int, str], int] = field(default_factory=dict)
    solitude: Solitude = Solitude.NO
    waits: int = 0
    """How often it was to become empty for somebody."""
    place: Place = NOWHERE

    @property
    def is_empty(self) -> bool:
        return self.free >= self.slots > 0

    @property
    def is_shared(self) -> bool:
        return self.solitude in (Solitude.NO, Solitude.IN_VAIN)

    def can_take(self, kinds: Collection[str] | None, pool: str) -> bool:
        return self.free > 0 and self.is_shared and self.serves(kinds, pool)

    def can_be_looked_for(self, pool: str) -> int:
        """For how many commands of the queue there is room."""
        if self.solitude is Solitude.AWAITED and self.is_empty and self.serves(None, pool):
            return 1
        return self.free if self.can_take(None, pool) else 0

    def serves(self, kinds: Collection[str] | None, pool: str) -> bool:
        if self.is_draining or self.pool != pool:
            return False
        return self.kinds is None or kinds is None or self.kinds.issuperset(kinds)
