"""All processes of a session: a driver, its JVM, and the Python workers, which leave the driver's process group."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator


def members(session: int) -> Iterator[int]:
    try:
        entries = os.listdir("/proc")
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(OSError):
            if entry.isdigit() and os.getsid(int(entry)) == session:
                yield int(entry)


def kill_session(session: int, *, but: int | None = None) -> None:
    """SIGKILL for everybody in it.  The number must still be that of the session: its leader lives, or has not been
    waited for."""
    for pid in members(session):
        if pid != but:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
