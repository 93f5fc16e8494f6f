"""A program in a session of its own that never outlives its job, its driver or a cancel."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import IO

from noetl.adapters.spark.driver.sessions import kill_session
from noetl.adapters.spark.job.report import JobReport
from noetl.core.limits import LOG_LINE_CHARS_MAX, PYTHON_TRACEBACK_CHARS_MAX

_TAIL_LINES = 60
# Together well below the time after which a driver is ended whose jobs do not end.
_GRACE_SECONDS = 2.0
_KILL_SECONDS = 1.0
_READ_SECONDS = 1.0


class Supervised:
    """Started, then asked for its outcome once.  Every other thread may end it."""

    def __init__(self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> None:
        self._ended = Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.launcher", *command],
            cwd=folder,
            env=dict(environment),
            # The launcher looks at its end: it is closed for a cancel, and by the death of this process.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )

    def outcome(self, report: JobReport) -> tuple[int, str]:
        """Its exit code, negative for a signal, and the last that it wrote to its standard error."""
        process = self._process
        tail: deque[str] = deque(maxlen=_TAIL_LINES)
        streams = (("stdout", process.stdout, deque[str](maxlen=0)), ("stderr", process.stderr, tail))
        readers = [
            Thread(target=_read, args=(stream, name, report, kept), daemon=True) for name, stream, kept in streams
        ]
        for reader in readers:
            reader.start()
        try:
            # Not waited for in the way that gives its number away: the session is still known by it.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            kill_session(process.pid)
            self._ended.set()
            code = process.wait()
            self._let_go()
            for reader in readers:
                reader.join(_READ_SECONDS)
        return code, "".join(tail)[-PYTHON_TRACEBACK_CHARS_MAX:].strip()

    def end(self) -> None:
        """Let it end in its own way for a moment, then kill it with all that it started."""
        if self._ended.is_set():
            return
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGTERM)
        if not self._ended.wait(_GRACE_SECONDS):
            self._let_go()
        if not self._ended.wait(_KILL_SECONDS):
            kill_session(self._process.pid)

    def _let_go(self) -> None:
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()


def _read(stream: IO[str], name: str, report: JobReport, tail: deque[str]) -> None:
    with stream:
        while line := stream.readline(LOG_LINE_CHARS_MAX):
            tail.append(line)
            report.said(line, stream=name)
