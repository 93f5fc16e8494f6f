"""Folders of jobs: one for every try, and gone with it.

A lock tells a folder that is in use from one that a dead worker left; it ends with the process that holds it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from noetl.core.limits import SPARK_NAME_CHARS_MAX
from noetl.ports.tool import ToolCall

_LOCK = ".lock"
_DRAFT = ".new-"
_UNLOCKED_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class JobFolder:
    path: Path
    _lock: int

    def remove(self) -> None:
        """In any case; blocks."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


class Folders:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._numbers = count(1)

    def new(self, call: ToolCall) -> JobFolder:
        """A new folder, whose name no other try has.  Not for a thread: a call that is cancelled meanwhile would leave
        it behind."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            name = job_id(call, next(self._numbers))
            draft = self._root / f"{_DRAFT}{name}"
            with contextlib.suppress(FileExistsError):
                draft.mkdir(mode=0o700)
                lock = os.open(draft / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                if (folder := _locked(draft, lock, self._root / name)) is not None:
                    return folder

    def remove_left(self) -> int:
        """Remove what dead workers left; how many folders went."""
        if not self._root.is_dir():
            return 0
        before = _now(self._root) - _UNLOCKED_SECONDS
        return sum(_removed(folder, before) for folder in [*self._root.iterdir()])


def job_id(call: ToolCall, number: int) -> str:
    """Fit for a folder and a job group: who asks, which claim, and which of this process's tries."""
    step, label = _word(call.step), _word(call.label)
    what = step if call.label == f"{call.step}_task" else f"{step}.{label}"
    return f"{call.execution_id}-{what}-a{call.attempt}-{os.getpid()}-{number}"


def _word(text: str) -> str:
    kept = "".join(letter if letter.isascii() and (letter.isalnum() or letter == "_") else "_" for letter in text)
    return kept[:SPARK_NAME_CHARS_MAX]


def _locked(draft: Path, lock: int, path: Path) -> JobFolder | None:
    """The draft under its name, which others see only now that it is locked; None if another try has the name."""
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        return JobFolder(draft.rename(path), lock)
    except OSError as error:
        JobFolder(draft, lock).remove()
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return None


def _now(root: Path) -> float:
    """What time it is to the file system that says how old folders are."""
    with tempfile.TemporaryFile(dir=root) as file:
        return os.fstat(file.fileno()).st_mtime


def _removed(folder: Path, before: float) -> bool:
    """Remove a folder that nobody holds.  One that has no lock, or not its name yet, may be in the hands of another
    worker that makes or removes it, unless it has been so since `before`."""
    try:
        is_old = folder.lstat().st_mtime < before
        if folder.name.startswith(_DRAFT) and not is_old:
            return False
        lock = _lock_of(folder)
    except OSError:
        return False  # somebody else has just removed it, or it is no folder of ours
    if lock is None:
        return is_old and _gone(folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return _gone(folder)
    finally:
        os.close(lock)


def _lock_of(folder: Path) -> int | None:
    try:
        return os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _gone(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return True
