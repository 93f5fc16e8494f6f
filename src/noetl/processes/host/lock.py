"""The lock of a home: whoever holds it is the host.  The kernel frees it when the process dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class HostLock:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Try once.  The file is never deleted: a new file would be a second lock."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> int | None:
        """The pid that the holder wrote; a hint for messages only."""
        try:
            return int(self._path.read_text().strip())
        except (OSError, ValueError):
            return None
