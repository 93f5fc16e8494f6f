"""What is observed of a task besides its result: its output and its time."""

from __future__ import annotations

import io
import os
import resource
import select
import time
from collections import deque

from noetl.core import limits
from noetl.tools.python import wire

# Text without the end of a line is held so far; a task that prints character by character costs no more.
HELD_CHARS_MAX = 4_000
_SILENT = (False, 0)


class OutputPipe:
    """The way of printed text out of the child while it runs: one small record per write, each whole or not at all.

    A pipe takes so few bytes in one piece, so nothing that interrupts user code can leave half a record behind.  A full
    pipe delays a task for a while in all; then text is dropped and counted.  All tasks of a child use one pipe; the
    ticket in each record says whose it is.
    """

    def __init__(self, descriptor: int) -> None:
        self.ticket = 0
        self.is_used = False
        """Since the last `take`."""
        self._descriptor = descriptor
        # User code may replace functions of `os`; these stay ours.
        self._write, self._clock, self._poll = os.write, time.perf_counter, select.poll
        self._dropped = 0
        self._room = limits.LOG_COMMAND_BYTES_MAX
        self._patience = limits.LOG_BLOCKED_SECONDS_MAX
        self._has_gap = False

    def send(self, stream: int, text: str) -> None:
        self.is_used = True
        bytes_max = wire.OUTPUT_TEXT_BYTES_MAX - len(wire.GAP.encode())
        chars_max = bytes_max // (1 if text.isascii() else wire.CHARACTER_BYTES_MAX)
        for start in range(0, len(text), chars_max):
            if self._room <= 0:
                self._dropped += len(text) - start
                return
            part = text[start : start + chars_max]
            self._room -= len(part)
            marked = wire.GAP + part if self._has_gap else part
            self._has_gap = not self._put(wire.output_record(self.ticket, stream, self._clock(), marked))
            if self._has_gap:
                self._dropped += len(part)

    def take(self) -> int:
        """How many characters were dropped since the last call; what follows belongs to another task."""
        dropped = self._dropped
        self.is_used = self._has_gap = False
        self._dropped = 0
        self._room, self._patience = limits.LOG_COMMAND_BYTES_MAX, limits.LOG_BLOCKED_SECONDS_MAX
        return dropped

    def _put(self, record: bytes) -> bool:
        while True:
            try:
                self._write(self._descriptor, record)
            except BlockingIOError:
                if not self._has_waited():
                    return False
            except OSError:
                return False  # nobody reads any more, or user code closed it
            else:
                return True

    def _has_waited(self) -> bool:
        """Wait until the pipe takes something; False when the task has waited long enough."""
        if self._patience <= 0:
            return False
        started = self._clock()
        poll = self._poll()
        poll.register(self._descriptor, select.POLLOUT)
        is_ready = bool(poll.poll(self._patience * 1_000))
        self._patience -= self._clock() - started
        return is_ready


class OutputStream(io.TextIOBase):
    """Stands in for `sys.stdout` or `sys.stderr`: text leaves with the end of its line, or when it is flushed.

    One object serves all tasks of a child: libraries such as `logging` keep the stream they first saw.
    """

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, pipe: OutputPipe, stream: int) -> None:
        super().__init__()
        self._pipe = pipe
        self._stream = stream
        # Threads of user code may write at the same time: each piece goes in once and out once.
        self.held: deque[str] = deque()
        self._held_chars = 0
        self._buffer = _ByteStream(self)

    @property
    def buffer(self) -> io.RawIOBase:
        return self._buffer

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if text:
            self.held.append(text)
            self._held_chars += len(text)
            if "\n" in text or self._held_chars > HELD_CHARS_MAX:
                self.flush()
        return len(text)

    def flush(self) -> None:
        pieces = []
        while self.held:
            try:
                pieces.append(self.held.popleft())
            except IndexError:  # another thread was faster
                break
        self._held_chars = 0
        if pieces:
            self._pipe.send(self._stream, "".join(pieces))

    def reconfigure(self, **_options: object) -> None:
        """Scripts set an encoding here; text is kept as text."""

    def close(self) -> None:
        """A script that closes its output must not close it for the next task."""


class _ByteStream(io.RawIOBase):
    """`sys.stdout.buffer`."""

    def __init__(self, text: OutputStream) -> None:
        super().__init__()
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        chunk = bytes(memoryview(data))  # type: ignore[arg-type]
        self._text.write(chunk.decode("utf-8", "replace"))
        return len(chunk)

    def flush(self) -> None:
        self._text.flush()

    def close(self) -> None:
        """See OutputStream.close."""


class Output:
    """Both streams of a child over one pipe."""

    def __init__(self, descriptor: int) -> None:
        self.pipe = OutputPipe(descriptor)
        self.stdout, self.stderr = (OutputStream(self.pipe, stream) for stream in (wire.STDOUT, wire.STDERR))
        # Asked after every task, and nearly always empty.
        self._out, self._err = self.stdout.held, self.stderr.held

    def end(self) -> tuple[bool, int]:
        """The task is over: whether it printed, and how many characters were dropped."""
        if self._out:
            self.stdout.flush()
        if self._err:
            self.stderr.flush()
        return (True, self.pipe.take()) if self.pipe.is_used else _SILENT


class Stopwatch:
    """How long a task took, and how long such a task takes on an idle machine once it is warm.

    A task that never waited needs the processor time that it got, even if others had the processor meanwhile.
    The first task of a child also pays for memory and imports that later ones find; only its waiting counts.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.needed_seconds = 0.0
        self._is_first = True
        self._clock, self._usage = time.perf_counter, resource.getrusage
        self._started = 0.0
        self._before = self._usage(resource.RUSAGE_SELF)

    def start(self) -> None:
        self._before = self._usage(resource.RUSAGE_SELF)
        self._started = self._clock()

    def stop(self) -> resource.struct_rusage:
        self.seconds = self._clock() - self._started
        before, after = self._before, self._usage(resource.RUSAGE_SELF)
        computed = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        has_waited = after.ru_nvcsw != before.ru_nvcsw
        if self._is_first:
            self._is_first = False
            self.needed_seconds = max(self.seconds - computed, 0.0) if has_waited else 0.0
        else:  # a coarse kernel clock may not have moved
            self.needed_seconds = self.seconds if has_waited or not computed else computed
        return after
