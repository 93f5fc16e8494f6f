"""The partitions of the ledger."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Protocol

from noetl.core.ids import Quarter

QUARTERS_AHEAD = 5
"""The present quarter and those that are made ahead of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A quarter of the ledger that is there, and whether an execution of it is still open."""

    quarter: Quarter
    has_open: bool


class Partitions(Protocol):
    async def ensure(self, now: datetime.datetime) -> list[str]:
        """Make the partitions of the present and the coming quarters that are missing; returns their names."""
        ...

    async def found(self) -> list[Partition]:
        """All quarters that are there, the oldest first."""
        ...
