"""Not more requests than so many in a second, by all tasks of all reads of one service together.

On one machine the tasks share a file that says when the next request may go.  On several machines nobody sees them all,
so each task keeps its share of the rate."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_SLOT = struct.Struct("<d")
# More waiting requests than this there never are: the time is one of an earlier life of the machine.
_QUEUE_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Pace:
    """When to go: not at all soon (`rate_per_s` is None), in step with others (`origin`), or alone."""

    rate_per_s: float | None
    origin: str | None
    """The service, for tasks that share a machine."""

    def opened(self) -> _Alone | _Together | None:
        if self.rate_per_s is None:
            return None
        if self.origin is None:
            return _Alone(1.0 / self.rate_per_s)
        return _Together(1.0 / self.rate_per_s, _file_of(self.origin, self.rate_per_s))


class _Alone:
    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._next_at = 0.0

    async def turn(self) -> None:
        now = time.monotonic()
        at = max(now, self._next_at)
        self._next_at = at + self._step_seconds
        await asyncio.sleep(at - now)


class _Together:
    """The clock of the machine is one for all its processes."""

    def __init__(self, step_seconds: float, path: Path) -> None:
        self._step_seconds = step_seconds
        self._path = path

    async def turn(self) -> None:
        at, now = self._take()
        await asyncio.sleep(at - now)

    def _take(self) -> tuple[float, float]:
        """The time of the next free place, which is taken by this."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            content = os.pread(descriptor, _SLOT.size, 0)
            now = time.monotonic()
            next_at = _SLOT.unpack(content)[0] if len(content) == _SLOT.size else now
            if not now <= next_at <= now + _QUEUE_MAX * self._step_seconds:
                next_at = now
            os.pwrite(descriptor, _SLOT.pack(next_at + self._step_seconds), 0)
        finally:
            os.close(descriptor)
        return next_at, now


def _file_of(origin: str, rate_per_s: float) -> Path:
    """One small file for a service and a rate.  The folder is of this user alone."""
    folder = Path(tempfile.gettempdir()) / f"noetl-pace-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder / hashlib.sha256(f"{origin} {rate_per_s}".encode()).hexdigest()[:32]
