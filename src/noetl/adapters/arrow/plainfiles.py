"""Opening files that other processes can put in place: user code has the rights of its worker."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int:
    """The descriptor of a plain file and nothing else.  Raises OSError: to open a pipe would wait for its other end,
    and a link leads anywhere."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file")
    return descriptor
