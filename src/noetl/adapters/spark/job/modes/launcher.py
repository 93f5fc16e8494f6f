"""Runs the program of an application, and ends with it everything that it started.

`python -m noetl.adapters.spark.job.modes.launcher PROGRAM ARGUMENTS…`

Its standard input is open as long as the driver wants the program to run: when the driver closes it, or is killed,
nothing of the program is left.  A signal of the kernel's at the death of a parent would reach the program alone, and
not its virtual machine or the Python workers, which have process groups of their own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS_MAX = 100
_PAUSE_SECONDS = 0.02


def main() -> None:
    if sys.platform == "linux":
        # Whoever of the program's processes loses its parent becomes a child of this one, so none is out of sight.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The word to end is for the program.  A function, because a program would inherit that it is ignored.
    signal.signal(signal.SIGTERM, _ignore)
    program = subprocess.Popen([sys.executable, *sys.argv[1:]], stdin=subprocess.DEVNULL)
    threading.Thread(target=_watch, daemon=True).start()
    code = program.wait()
    _end_all()
    _end_as(code)


def _ignore(_number: int, _frame: object) -> None:
    pass


def _watch() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    _end_all()
    os._exit(1)


def _end_all() -> None:
    """Kill all descendants, again and again until there is none: some may start others meanwhile."""
    pause = threading.Event()
    for _ in range(_ROUNDS_MAX):
        found = list(_descendants(os.getpid()))
        if not found:
            return
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        pause.wait(_PAUSE_SECONDS)


def _descendants(root: int) -> Iterator[int]:
    """Processes below this one that have not ended."""
    children: dict[int, list[int]] = {}
    ended = set()
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{entry}/stat", encoding="utf-8") as file:
            state, parent = file.read().rsplit(")", 1)[1].split()[:2]
            children.setdefault(int(parent), []).append(int(entry))
            if state in "ZX":
                ended.add(int(entry))
    open_ = [root]
    while open_:
        for child in children.get(open_.pop(), ()):
            open_.append(child)
            if child not in ended:
                yield child


def _end_as(code: int) -> None:
    """In the same way as the program did."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    # At once: the thread that watches has nothing to say any more.
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
