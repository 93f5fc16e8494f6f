"""Which process a segment belongs to, so that anybody can see whether that one still lives."""

from __future__ import annotations

import os
from pathlib import Path

_PROCESSES = Path("/proc")
_DEAD_STATES = frozenset("ZX")


def own_token() -> str:
    """Process, start time and process namespace: a number that is used again names another process."""
    return f"{os.getpid()}-{_started(os.getpid()) or 0}-{_namespace()}"


def is_dead(token: str) -> bool:
    """Whether the process surely is gone.  One of another namespace is judged by its leases alone."""
    try:
        pid, started, namespace = (int(part) for part in token.split("-"))
    except ValueError:
        return True  # a name that nobody of us has given
    if namespace != _namespace():
        return False
    if _PROCESSES.exists():
        return _started(pid) != started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _started(pid: int) -> int | None:
    """Clock ticks between the start of the machine and that of the process; None when it has ended."""
    try:
        text = (_PROCESSES / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name of the program is in brackets and may hold anything.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in _DEAD_STATES else int(fields[19])


def _namespace() -> int:
    try:
        return (_PROCESSES / "self" / "ns" / "pid").stat().st_ino
    except OSError:
        return 0
