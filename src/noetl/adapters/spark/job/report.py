"""What a job needs from whoever runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class JobReport(Protocol):
    def said(self, text: str, *, stream: str) -> None:
        """Output of an application (`stdout`, `stderr`).  Returns at once; any thread may call it."""
        ...

    def on_cancel(self, action: Callable[[], None]) -> None:
        """Have an action called, once and by any thread, when the job is cancelled: at once if it is already."""
        ...
