"""What a driver has said about one job and nobody has looked at yet.  Bounded: of progress only the latest counts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from noetl.ports.data.compute import JobIntent, JobListener, JobOutcome, JobProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Nothing of the job ran: these settings cannot be those of a session."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The driver is gone."""

    message: str
    has_begun: bool
    """Whether the job may have run."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The driver has confirmed that nothing of the job runs any more."""


JobEnd = JobOutcome | Refused | Lost | Cancelled


class Inbox:
    def __init__(self, listener: JobListener) -> None:
        self.listener = listener
        self.intent: JobIntent | None = None
        self.progress: JobProgress | None = None
        self.end: JobEnd | None = None
        self.has_begun = False
        self._changed = asyncio.Event()

    def note_intent(self, intent: JobIntent) -> None:
        self.intent, self.has_begun = intent, True
        self._changed.set()

    def note_progress(self, progress: JobProgress) -> None:
        self.progress = progress
        self._changed.set()

    def note_end(self, end: JobEnd) -> None:
        """The first one counts."""
        if self.end is None:
            self.end = end
        self._changed.set()

    async def change(self) -> None:
        await self._changed.wait()
        self._changed.clear()
