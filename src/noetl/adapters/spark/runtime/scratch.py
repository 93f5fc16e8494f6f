"""A folder for what one session needs only while it lives, and the end of those whose owner was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

_PREFIX = "noetl-spark-"
_LOCK, _FOLDER, _PRIVATE = "lock", "folder", "private"


@dataclass(slots=True)
class Scratch:
    folder: Path
    """Shuffle and spill files: it may grow large, so it is where the home is."""
    private: Path
    """Sockets and what nobody else may read.  Short, because the kernel takes 107 bytes for the path of a socket."""
    _lock: int = field(repr=False)

    def remove(self) -> None:
        shutil.rmtree(self.private, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)
        self._lock = -1


def new_scratch(root: Path) -> Scratch:
    root.mkdir(parents=True, exist_ok=True)
    sweep(root)
    private = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = os.open(private / ".new", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    # Held when it gets its name: what has no lock yet is being made, and what has one that nobody holds is abandoned.
    (private / ".new").rename(private / _LOCK)
    folder = Path(tempfile.mkdtemp(dir=root))
    (private / _FOLDER).write_text(str(folder), "utf-8")
    (folder / _PRIVATE).write_text(str(private), "utf-8")
    return Scratch(folder=folder, private=private, _lock=lock)


def sweep(root: Path) -> None:
    """Remove what is left of owners that are gone, of this root and of roots that are gone themselves.  The kernel
    drops a lock with its process, however that ended."""
    for private in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if _is_ours(private):
            _remove_abandoned(private)
    for folder in root.iterdir():
        private_name = _text(folder / _PRIVATE)
        if private_name is not None and not Path(private_name).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(private: Path) -> None:
    try:
        lock = os.open(private / _LOCK, os.O_RDWR)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # its owner lives
    else:
        name = _text(private / _FOLDER)
        # Only what says that it belongs to this one.
        if name is not None and _text(Path(name) / _PRIVATE) == str(private):
            shutil.rmtree(name, ignore_errors=True)
        shutil.rmtree(private, ignore_errors=True)
    finally:
        os.close(lock)


def _is_ours(private: Path) -> bool:
    """Others may make names in the folder for temporary files too."""
    try:
        state = private.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except OSError:
        return None


def keep_newest(folder: Path, count: int) -> None:
    """Of the entries of a folder only the newest stay."""
    dated: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                dated.append((entry.stat().st_mtime, entry))
    for _, entry in sorted(dated, reverse=True)[count:]:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
