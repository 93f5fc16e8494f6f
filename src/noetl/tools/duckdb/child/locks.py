"""Locks of files that end with the process that holds them, however it ends."""

from __future__ import annotations

import fcntl
import os
from typing import BinaryIO


class Removed(Exception):
    """The folder of a lock went away while we waited for it."""


def locked(path: str, *, is_shared: bool = False) -> BinaryIO:
    """Wait for a lock.  Who removes a folder holds its lock, so a lock that is in no folder any more is none."""
    while True:
        try:
            file = open(path, "ab")  # noqa: SIM115 - open for as long as the lock is held
        except FileNotFoundError:
            raise Removed(path) from None
        fcntl.flock(file, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        except FileNotFoundError:
            pass
        file.close()
