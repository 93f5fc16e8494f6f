"""Where a host's files are: its lock, its socket, its log."""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from noetl.core.errors import HostUnavailable

# A Unix socket's path may have 107 bytes; keep a reserve for other systems.
SOCKET_PATH_BYTES_MAX = 100


@dataclass(frozen=True, slots=True)
class Places:
    home: Path
    lock: Path
    socket: Path
    log: Path

    @property
    def seat(self) -> str:
        """Names the lock among all machines: whoever holds it next knows that this process is dead."""
        found = self.lock.stat()
        return f"{platform.node()}:{found.st_dev}:{found.st_ino}:{self.lock}"


def places_of(home: Path, *, seat: int = 0) -> Places:
    """Of the host of this home; servers that share it have further seats."""
    name = "host" if seat == 0 else f"host-{seat}"
    socket = home / f"{name}.sock"
    if len(os.fsencode(socket)) > SOCKET_PATH_BYTES_MAX:
        digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
        socket = Path(tempfile.gettempdir()) / f"noetl-{os.geteuid()}-{digest}" / f"{name}.sock"
    return Places(home, home / f"{name}.lock", socket, home / f"{name}.log")


def make_home(places: Places) -> None:
    """The home and the socket's folder, private.  A folder in the shared temporary directory must be ours."""
    try:
        places.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        places.socket.parent.mkdir(mode=0o700, exist_ok=True)
        found = places.socket.parent.lstat()
    except OSError as error:
        raise HostUnavailable(
            f"cannot make the home {places.home}: {error.strerror}; set NOETL_HOME to a folder you may write"
        ) from error
    if places.socket.parent != places.home and (
        stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077
    ):
        raise HostUnavailable(f"{places.socket.parent} is not a private folder of this user: remove it and try again")
