"""The folder that a driver works in, and the end of those whose worker is gone.

A folder has a lock that the kernel lets go with the process that holds it, so it can be removed exactly when the lock
is free: the number of a process would mean nothing to another container, or be somebody else's by now."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_LOCK = ".lock"
_PREFIX = "driver-"


class DriverFolder:
    """A new one, held by this process."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        remove_left(root)
        draft = Path(tempfile.mkdtemp(prefix=".new-", dir=root))
        self._lock = os.open(draft / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever removes what was left sees it only now that it is locked.
        self.path = draft.rename(root / f"{_PREFIX}{draft.name.removeprefix('.new-')}")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_left(root: Path) -> int:
    """Remove folders whose worker is gone; how many went."""
    return sum(_removed(folder) for folder in sorted(root.glob(f"{_PREFIX}*")))


def _removed(folder: Path) -> bool:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # somebody else has just removed it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        shutil.rmtree(folder, ignore_errors=True)
        return True
    finally:
        os.close(lock)
