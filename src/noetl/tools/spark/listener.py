"""What a job says while it runs, handed on to the run."""

from __future__ import annotations

from noetl.ports.data.compute import JobIntent, JobProgress
from noetl.ports.tool import ToolCall


class Listener:
    """Remembers the last of everything for the end of the task."""

    def __init__(self, call: ToolCall) -> None:
        self._jobs = call.jobs
        self._log = call.log
        self.intent: JobIntent | None = None
        self.progress: JobProgress | None = None

    async def intended(self, intent: JobIntent) -> None:
        if self._jobs is not None:
            await self._jobs.intended(intent)
        self.intent = intent

    async def progressed(self, progress: JobProgress) -> None:
        self.progress = progress
        if self._jobs is not None:
            await self._jobs.progressed(progress)

    def said(self, text: str, *, stream: str) -> None:
        if self._log is not None:
            self._log(text, stream=stream)
