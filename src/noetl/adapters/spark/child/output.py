"""What user code prints goes to the job of its thread, and not to the descriptors that all jobs share with the JVM."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from typing import TextIO

from noetl.adapters.spark.child.link import Link
from noetl.core import limits

LEFT_OUT = "… more output was left out\n"


class Voices:
    """Which thread speaks for which job."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._job_of: dict[int, str] = {}
        self._room: dict[str, int] = {}

    def begin(self, job_id: str) -> None:
        """From now on this thread speaks for a job."""
        with self._lock:
            self._job_of[threading.get_ident()] = job_id
            self._room[job_id] = limits.SPARK_OUTPUT_BYTES_MAX

    def end(self, job_id: str) -> None:
        with self._lock:
            self._job_of.pop(threading.get_ident(), None)
            self._room.pop(job_id, None)

    def job_here(self) -> str | None:
        """The job of this thread.  A thread that user code started belongs to the only job there is, if it is only
        one."""
        with self._lock:
            known = self._job_of.get(threading.get_ident())
            if known is not None or len(self._room) != 1 or threading.current_thread() is threading.main_thread():
                return known
            return next(iter(self._room))

    def say(self, job_id: str, text: str, *, stream: str) -> None:
        """Bounded for each job: what comes later is left out, and that is said once."""
        with self._lock:
            room = self._room.get(job_id, 0)
            if room <= 0:
                return
            self._room[job_id] = room - len(text)
        if len(text) > room:
            text = text[:room] + LEFT_OUT
        for start in range(0, len(text), limits.LOG_CHUNK_BYTES_MAX):
            piece = text[start : start + limits.LOG_CHUNK_BYTES_MAX]
            self._link.send({"type": "said", "job_id": job_id, "text": piece, "stream": stream})


class JobStream(io.TextIOBase):
    """Stands for `sys.stdout` or `sys.stderr`.  Lines leave whole: `print` writes a line and its end apart."""

    def __init__(self, voices: Voices, below: TextIO, stream: str) -> None:
        self._voices = voices
        self._below = below
        self._stream = stream
        self._part = threading.local()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._below.fileno()

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        job_id = self._voices.job_here()
        if job_id is None:
            return self._below.write(text)
        waiting = getattr(self._part, "text", "") + text
        cut = waiting.rfind("\n") + 1
        if len(waiting) - cut > limits.LOG_LINE_CHARS_MAX:
            cut = len(waiting)
        self._part.text = waiting[cut:]
        if cut:
            self._voices.say(job_id, waiting[:cut], stream=self._stream)
        return len(text)

    def flush(self) -> None:
        job_id = self._voices.job_here()
        waiting = getattr(self._part, "text", "")
        if job_id is None:
            self._below.flush()
        elif waiting:
            self._part.text = ""
            self._voices.say(job_id, waiting, stream=self._stream)


def install(voices: Voices) -> Callable[[], None]:
    """Put the streams in place; returns what sends the rest of a line of the calling thread."""
    out, err = JobStream(voices, sys.stdout, "stdout"), JobStream(voices, sys.stderr, "stderr")
    sys.stdout, sys.stderr = out, err

    def flush() -> None:
        out.flush()
        err.flush()

    return flush
