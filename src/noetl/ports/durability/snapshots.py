"""Where snapshots are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from noetl.core.snapshot.snapshot import Snapshot

SNAPSHOTS_KEPT = 2
"""Of an execution: the newest, and one before it in case that one does not fit."""


class Snapshots(Protocol):
    async def newest(self, execution_id: int) -> list[Snapshot]:
        """What is kept of an execution, newest first."""
        ...

    async def save(self, snapshots: Sequence[Snapshot]) -> None:
        """Keep these, at most one of each execution, and let go of what is older than the last two of theirs.  One
        that is there already stays as it is."""
        ...
