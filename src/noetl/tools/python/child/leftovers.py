"""What a task may leave behind in its child, and the cheap question whether it did.

A child whose answer is "yes" is not used again.  This is hygiene between tasks of one tenant, not a wall: the
wall is that no child ever serves two tenants.  It costs microseconds and is asked after every task.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` builds an enum member for each answer
import _thread
import builtins
import gc
import os
import resource
import shutil
import signal
import sys

# A child that once needed this much keeps parts of it; a fresh one is cheaper than thirty-two swollen ones.
RESIDENT_BYTES_MAX = 512 * 1024 * 1024

# Sweeping more entries than this takes longer than a new child.
_FILES_MAX = 1_000

_SIGNALS = tuple(range(1, 32))
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


class Baseline:
    """The state of a child before its first task."""

    def __init__(self) -> None:
        self.environ = dict(os.environ)
        self._environ_bytes = _copied(_environ_bytes())
        self._path = list(sys.path)
        self._builtins = [*builtins.__dict__.values()]
        self._process = self._process_state()
        self._interpreter = self._interpreter_state()
        self._age_directory()

    def left_behind(self, usage: resource.struct_rusage) -> str | None:
        """The first thing found that was not there before, or None for a child as good as new."""
        try:
            return self._first_difference(usage)
        except OSError as error:
            return f"process state ({error.strerror})"  # such as a working directory that is gone

    def _first_difference(self, usage: resource.struct_rusage) -> str | None:
        if _thread._count():
            return "threads"
        if _has_child_processes():
            return "processes"
        if self._process_state() != self._process:
            return "descriptors, umask, working directory, signal handlers or timers"
        if self._interpreter_state() != self._interpreter:
            return "standard streams or interpreter settings"
        if _environ_bytes() != self._environ_bytes:
            return "environment"
        if sys.path != self._path:
            return "sys.path"
        if [*builtins.__dict__.values()] != self._builtins:
            return "builtins"
        if usage.ru_maxrss * 1024 > RESIDENT_BYTES_MAX:
            return "memory"
        if os.stat(".").st_mtime_ns != self._directory_changed_at and not self._sweep_files():
            return "files"
        return None

    def _process_state(self) -> tuple[object, ...]:
        lowest_free = os.dup(0)
        os.close(lowest_free)
        umask = os.umask(0o077)
        os.umask(umask)
        return (
            lowest_free,
            umask,
            os.getcwd(),
            *map(_signal.getsignal, _SIGNALS),
            *map(_signal.getitimer, _TIMERS),
        )

    def _interpreter_state(self) -> tuple[object, ...]:
        return (
            sys.stdin,
            getattr(sys.stdin, "closed", True),
            sys.stdout,
            sys.stderr,
            sys.getrecursionlimit(),
            gc.isenabled(),
            sys.gettrace(),
            sys.getprofile(),
            sys.excepthook,
            sys.displayhook,
        )

    def _sweep_files(self) -> bool:
        """Files in the private directory do not cost the child: many libraries write there, and a new child
        for each of their tasks would have to import them again."""
        entries = os.listdir(".")  # the working directory is known to be the private one by now
        if len(entries) > _FILES_MAX:
            return False
        for entry in entries:
            if os.path.isdir(entry) and not os.path.islink(entry):
                shutil.rmtree(entry)
            else:
                os.unlink(entry)
        self._age_directory()
        return True

    def _age_directory(self) -> None:
        """Give the empty directory a time in the past: the next entry changes it, however soon that comes."""
        os.utime(".", (0, 0))
        self._directory_changed_at = os.stat(".").st_mtime_ns


def _environ_bytes() -> object:
    """The environment without decoding each entry, which would be the most expensive question of all."""
    return getattr(os.environ, "_data", None)


def _copied(entries: object) -> object:
    return dict(entries) if isinstance(entries, dict) else entries


def _has_child_processes() -> bool:
    """Living ones only; one that ended without being waited for is reaped here.  The child adopts its
    orphaned descendants, so those that moved to another session are found too."""
    try:
        while True:
            pid, _status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return True
    except ChildProcessError:
        return False
