"""A process of ours that is hit at a failure point, or whose wall clock is wrong.  Nothing else of it is different.

    python -m tests.fault.suite.program MARKS SPEC CLOCK server …

SPEC is `name:action:n`: at the n-th visit the process kills itself (`kill`), stands still until somebody continues it
(`stop`) or, where an answer has just come, loses it (`lose`); `-` is none.  Every hit is one line in MARKS.  CLOCK are
the seconds by which its wall clock is wrong; SIGUSR1 puts it back by a minute."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time
from types import SimpleNamespace

from noetl import points
from noetl.adapters.system import ids
from noetl.adapters.system.clock import SystemClock
from noetl.cli.main import main
from noetl.core.errors import HostUnavailable, LedgerUnavailable

BACKWARD_SECONDS = 60.0
LOSES = {"server.advanced": LedgerUnavailable, "worker.answered": HostUnavailable}


class Hit:
    """Counts the visits of one point and strikes at the n-th."""

    def __init__(self, marks: str, spec: str) -> None:
        self._name, self._action, times = spec.split(":")
        assert self._name in points.POINTS, f"there is no failure point {self._name}"
        self._marks, self._left = marks, int(times)

    def __call__(self, name: str) -> None:
        if name != self._name:
            return
        self._left -= 1
        if self._left != 0:
            return
        # One write to a file that is only appended to: it is there whatever happens next.
        descriptor = os.open(self._marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, f"{name} {self._action} {os.getpid()}\n".encode())
        os.close(descriptor)
        if self._action == "lose":
            raise LOSES[name](f"the answer was lost at {name}")
        os.kill(os.getpid(), signal.SIGKILL if self._action == "kill" else signal.SIGSTOP)


def move_clock(seconds: float) -> None:
    """The wall clock of the ports; the monotonic one cannot be wrong."""
    offset = SimpleNamespace(seconds=seconds)

    def moment(_clock: SystemClock) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=offset.seconds)

    def now(clock: SystemClock) -> str:
        return moment(clock).isoformat(timespec="microseconds")[:-6] + "Z"

    def step_back(*_: object) -> None:
        offset.seconds -= BACKWARD_SECONDS

    wrong = SimpleNamespace(time_ns=lambda: time.time_ns() + int(offset.seconds * 1e9))
    for owner, name, value in ((SystemClock, "moment", moment), (SystemClock, "now", now), (ids, "time", wrong)):
        setattr(owner, name, value)
    signal.signal(signal.SIGUSR1, step_back)


if __name__ == "__main__":
    marks, spec, clock, *words = sys.argv[1:]
    if spec != "-":
        points.watch_points(Hit(marks, spec))
    if float(clock):
        move_clock(float(clock))
    sys.argv = ["noetl", *words]
    sys.exit(main())
