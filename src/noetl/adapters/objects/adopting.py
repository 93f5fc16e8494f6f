"""Files that become payloads as they are, and payloads that are read as the files they are.

Such a file is hashed once: when it is taken over, or when this process first reads it."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from threading import Lock

from noetl.adapters.objects.blobs import READ_BYTES

VERIFIED_MAX = 65_536
_WRITING = 0o222
Identity = tuple[int, int, int, int]


class TakenFile:
    """A closed file of somebody else's, under a name of ours until it has its own: from here on nobody can put another
    one in its place.  `drop_now` it in any case; one that was not settled goes back."""

    def __init__(self, given: Path, path: Path, descriptor: int) -> None:
        self.path = path
        self._given = given
        self._descriptor = descriptor

    def digest(self) -> tuple[str, int]:
        """The digest and the size of what is in it."""
        return _hashed(self._descriptor)

    def end(self, head: bytes, *, is_synced: bool) -> None:
        assert not head, "a sealed file is a new one"
        # Whoever has a link to it later can read it, and does not write to it by mistake.
        os.fchmod(self._descriptor, stat.S_IMODE(os.fstat(self._descriptor).st_mode) & ~_WRITING)
        if is_synced:
            os.fsync(self._descriptor)

    def identity(self) -> Identity:
        return _identity(os.fstat(self._descriptor))

    def forget_now(self) -> None:
        """What it holds is stored already."""
        self.path.unlink(missing_ok=True)

    def drop_now(self) -> None:
        os.close(self._descriptor)
        with suppress(FileNotFoundError):  # it has its name, or the folder that it came from is gone
            self.path.rename(self._given)
        if not self._given.parent.exists():
            self.path.unlink(missing_ok=True)


def taken(given: Path, path: Path) -> TakenFile | None:
    """Take a file over by renaming it; None when it has to be copied: it is on another file system, or it has other
    names, by which it could be changed.  Raises OSError, for anything but a plain file too."""
    descriptor = os.open(given, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        is_taken = found.st_nlink == 1 and _is_moved(given, path)
        if is_taken:
            os.utime(path)  # what is old here counts as left by a process that ended
            if not os.path.samestat(os.lstat(path), found):
                path.rename(given)
                raise OSError(errno.ESTALE, "it was replaced meanwhile")
            return TakenFile(given, path, os.dup(descriptor))
    finally:
        os.close(descriptor)
    return None


def _is_moved(given: Path, path: Path) -> bool:
    try:
        given.rename(path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


class VerifiedFiles:
    """Which files this process has hashed.  A file that was changed since has another time."""

    def __init__(self) -> None:
        self._known: OrderedDict[Identity, str] = OrderedDict()
        self._lock = Lock()

    def note(self, identity: Identity, sha256: str) -> None:
        with self._lock:
            self._known[identity] = sha256
            while len(self._known) > VERIFIED_MAX:
                self._known.popitem(last=False)

    def digest(self, path: Path) -> tuple[str, int]:
        """The digest and the size of a file, as read by this process once."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            identity = _identity(os.fstat(descriptor))
            with self._lock:
                known = self._known.get(identity)
            if known is not None:
                return known, identity[2]
            sha256, size = _hashed(descriptor)
            self.note(identity, sha256)
            return sha256, size
        finally:
            os.close(descriptor)


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _hashed(descriptor: int) -> tuple[str, int]:
    digest = hashlib.sha256()
    size = 0
    buffer = bytearray(READ_BYTES)
    view = memoryview(buffer)
    while count := os.preadv(descriptor, [buffer], size):
        digest.update(view[:count])
        size += count
    return digest.hexdigest(), size


async def chunks_of(path: Path) -> AsyncIterator[bytes]:
    """The bytes of a plain file."""
    descriptor = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        place = 0
        while chunk := await asyncio.to_thread(os.pread, descriptor, READ_BYTES, place):
            place += len(chunk)
            yield chunk
    finally:
        os.close(descriptor)
