"""A folder of segments with a budget that all processes of the node share.

Names, each with the owner's process and an epoch:  `<key>.<owner>.<epoch>` is a segment, `new.…` one that is being
written, `free.…` one whose pages wait to be used again.  The sizes of the files are the accounts, so a killed process
leaves no wrong number behind.

Locks (flock), which end with the process that holds them:
- `lock`, exclusive, for microseconds: while sizes are added up and one file gets a new size.
- a segment, shared, while somebody has it mapped; exclusive while it is written, and by who removes it or takes its
  pages.  So nobody's memory changes under him, and a reader that comes too late finds another header or no lock."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from noetl.adapters.arrow.plainfiles import open_plain
from noetl.adapters.arrow.segments.header import HEADER_BYTES, HeaderInvalid, unpacked
from noetl.adapters.arrow.segments.owners import is_dead, own_token

NEW, FREE, LOCK = "new", "free", "lock"
LOCK_TRIES = 50
LOCK_PAUSE_SECONDS = 0.001
POOL_SECONDS = 300
ABANDONED_SECONDS = 3_600
POOL_SHARE = 4
"""At most a quarter of the budget waits to be used again."""


class SegmentRefused(Exception):
    """No room, or no way to write; `reason` is for the counters."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    path: Path
    kind: str
    owner: str
    size: int
    changed: float


class SegmentFolder:
    """Used by several threads: everything that lasts is in the file system."""

    def __init__(self, root: Path, *, budget_bytes: int, grace_seconds: float, is_evicting: bool = False) -> None:
        self.root = root
        self.budget_bytes = budget_bytes
        self.grace_seconds = grace_seconds
        self._is_evicting = is_evicting
        self._owner = own_token()
        self._epochs = count(time.time_ns())
        prepare(root)

    @property
    def new_prefix(self) -> str:
        """What the name of a new file begins with; an epoch follows."""
        return f"{NEW}.{self._owner}."

    def new_path(self) -> Path:
        return self.root / f"{self.new_prefix}{next(self._epochs)}"

    def segment_path(self, key: str, path: Path) -> Path:
        """The name that a new file gets when it is published."""
        return self.root / f"{key}.{self._owner}.{path.name.rpartition('.')[2]}"

    def find(self, key: str) -> list[str]:
        """The names of segments of a payload, the youngest first."""
        return sorted((entry.path.name for entry in self._entries() if entry.kind == key), reverse=True)

    def bytes_in_use(self) -> int:
        return sum(entry.size for entry in self._entries())

    def create(self, size: int) -> tuple[Path, int]:
        """A file of ours for so many bytes, and its descriptor with an exclusive lock.  Raises SegmentRefused."""
        with self._accounts():
            taken = self._from_pool(size)
            if taken is not None:
                return taken
            self._make_room(size)
            path = self.new_path()
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(descriptor, size)
            except OSError as error:
                path.unlink(missing_ok=True)
                raise SegmentRefused("system") from error
            return path, descriptor

    def grow(self, descriptor: int, size: int) -> None:
        """More room for a file that is being written.  Raises SegmentRefused."""
        with self._accounts():
            more = size - os.fstat(descriptor).st_size
            if more <= 0:
                return
            self._make_room(more)
            try:
                os.ftruncate(descriptor, size)
            except OSError as error:
                raise SegmentRefused("system") from error

    def sweep(self) -> int:
        """Remove what is over: leases and graces that ended, and files of processes that are gone.  How many."""
        try:
            with self._accounts():
                return self._sweep(self._entries())
        except SegmentRefused:
            return 0  # somebody else is at it

    def stale_sizes(self) -> list[int]:
        """The sizes of what belongs to processes that are gone."""
        return [entry.size for entry in self._entries() if is_dead(entry.owner)]

    def has_own(self) -> bool:
        return any(entry.owner == self._owner for entry in self._entries())

    def remove_own(self) -> None:
        """Give back what this process has published, at its end: nobody would renew it, and memory is for the living.
        What others have mapped stays until they let go."""
        if self._owner != own_token():
            return  # a process that was forked off this one
        for entry in self._entries():
            if entry.owner == self._owner:
                self._remove(entry.path, is_pooled=False)
        self.remove_if_empty()

    def remove_if_empty(self) -> None:
        """Leave no trace of a home that is used no more.  Who comes at this moment makes the folder again."""
        with suppress(OSError, SegmentRefused), self._accounts():
            if not self._entries():
                (self.root / LOCK).unlink()
                self.root.rmdir()

    @contextmanager
    def _accounts(self) -> Iterator[None]:
        """Alone with the sizes.  A holder that does not let go must not stop anybody: then there is no room."""
        try:
            prepare(self.root)
            descriptor = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise SegmentRefused("system") from error
        try:
            for _ in range(LOCK_TRIES):
                if locked(descriptor, fcntl.LOCK_EX):
                    break
                time.sleep(LOCK_PAUSE_SECONDS)
            else:
                raise SegmentRefused("busy")
            yield
        finally:
            os.close(descriptor)

    def _make_room(self, size: int) -> None:
        entries = self._entries()
        used = sum(entry.size for entry in entries)
        if used + size <= self.budget_bytes:
            return
        self._sweep(entries)
        entries = self._entries()
        used = sum(entry.size for entry in entries)
        for entry in sorted(entries, key=lambda one: (one.kind != FREE, one.changed)):
            if used + size <= self.budget_bytes:
                return
            may_go = entry.kind == FREE or (self._is_evicting and entry.kind != NEW)
            if may_go and self._remove(entry.path, is_pooled=False):
                used -= entry.size
        if used + size > self.budget_bytes:
            raise SegmentRefused("budget")

    def _sweep(self, entries: list[_Entry]) -> int:
        pooled = sum(entry.size for entry in entries if entry.kind == FREE)
        removed = 0
        now_us = time.time_ns() // 1000
        for entry in entries:
            if not self._is_over(entry, now_us):
                continue
            has_place = entry.kind != FREE and pooled + entry.size <= self.budget_bytes // POOL_SHARE
            if self._remove(entry.path, is_pooled=has_place):
                removed += 1
                pooled += entry.size if has_place else 0
        return removed

    def _is_over(self, entry: _Entry, now_us: int) -> bool:
        if is_dead(entry.owner):
            return True
        if entry.kind in (NEW, FREE):
            # A file that nobody writes to any more was forgotten, and pages that nobody needs are for others.
            return entry.changed + (ABANDONED_SECONDS if entry.kind == NEW else POOL_SECONDS) < now_us / 1_000_000
        try:
            with os.fdopen(open_plain(entry.path), "rb") as file:
                header = unpacked(file.read(HEADER_BYTES))
        except FileNotFoundError:
            return False
        except (HeaderInvalid, OSError):
            return True
        return header.until_us + int(self.grace_seconds * 1_000_000) < now_us

    def _remove(self, path: Path, *, is_pooled: bool) -> bool:
        """Take a file out of use, unless somebody has it mapped: its memory would not come back anyway."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            if not locked(descriptor, fcntl.LOCK_EX) or not _is_at(descriptor, path):
                return False
            if is_pooled:
                path.rename(self.root / f"{FREE}.{self._owner}.{next(self._epochs)}")
            else:
                path.unlink()
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _from_pool(self, size: int) -> tuple[Path, int] | None:
        """Pages that have been in use cost a third less to write than fresh ones."""
        fitting = [entry for entry in self._entries() if entry.kind == FREE and size <= entry.size]
        for entry in sorted(fitting, key=lambda one: one.size):
            try:
                descriptor = os.open(entry.path, os.O_RDWR | os.O_NOFOLLOW)
            except OSError:
                continue
            # Its readers are gone: it was put here under the same lock, and nobody finds it under its new name.
            if locked(descriptor, fcntl.LOCK_EX) and _is_at(descriptor, entry.path):
                path = self.new_path()
                with suppress(OSError):
                    os.pwrite(descriptor, bytes(HEADER_BYTES), 0)
                    entry.path.rename(path)
                    return path, descriptor
            os.close(descriptor)
        return None

    def _entries(self) -> list[_Entry]:
        found: list[_Entry] = []
        try:
            listing = list(os.scandir(self.root))
        except OSError:
            return found
        for item in listing:
            kind, _, rest = item.name.partition(".")
            if not rest:
                continue
            with suppress(OSError):  # it may vanish at any time
                facts = item.stat(follow_symlinks=False)
                owner = rest.rpartition(".")[0]
                found.append(
                    _Entry(path=Path(item.path), kind=kind, owner=owner, size=facts.st_size, changed=facts.st_ctime)
                )
        return found


def locked(descriptor: int, kind: int) -> bool:
    """Take a lock if it can be had at once."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether a path still names the file that was opened by it: somebody may have been quicker."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def prepare(root: Path) -> None:
    """A folder that is ours alone.  Raises SegmentRefused: in a place where everybody may write, somebody else may
    have been there first."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = os.lstat(root)
    except OSError as error:
        raise SegmentRefused("system") from error
    # A folder may inherit more bits from the one it is in (setgid); they let nobody in.
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o777 != 0o700:
        raise SegmentRefused("foreign_folder")
