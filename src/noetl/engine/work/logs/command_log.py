"""The log of one attempt at a command or frame: bounded lines until somebody takes them."""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Callable
from typing import Protocol

from noetl.core import limits
from noetl.core.logs.lines import LOG, LogLine, left_out
from noetl.ports.clock import Clock
from noetl.ports.session import CommandMessage

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class _Open(Protocol):
    def end(self) -> None: ...


class CommandLog:
    """Keeps the beginning of a long log and its last lines, and says what it left out between them.

    Lines that come faster than they are taken are left out too; memory is bounded whatever the sink does."""

    def __init__(self, message: CommandMessage, clock: Clock, *, on_lines: Callable[[CommandLog], None]) -> None:
        self.message = message
        self.seq = 0
        """Of the next chunk."""
        self.lines = self.bytes = self.left_out_bytes = 0
        self._clock = clock
        self._on_lines = on_lines
        self._started = clock.monotonic()
        self._offset_ms = _milliseconds(clock.now()) - self._started * 1_000
        self._open: dict[_Open, None] = {}
        self._waiting: list[LogLine] = []
        self._waiting_bytes = 0
        self._skipped_bytes = 0
        self._tail: deque[LogLine] = deque()
        self._tail_bytes = 0
        self._dropped_bytes = 0
        self._is_full = False

    # --- what comes in -----------------------------------------------------------------------------------------

    def moment(self, at: float | None) -> int:
        """A moment of the monotonic clock in milliseconds since 1970.  Never outside of the attempt: it may be user
        code that says when it was."""
        now = self._clock.monotonic()
        seconds = now if at is None or not self._started <= at <= now else at
        return int(self._offset_ms + seconds * 1_000)

    def add(self, line: LogLine) -> None:
        size = line.size
        if self._is_full or self.bytes + size > limits.LOG_COMMAND_BYTES_MAX:
            self._is_full = True
            self._keep_last(line, size)
        elif self._waiting_bytes + size > limits.LOG_WAITING_BYTES_MAX:
            self.left_out(size)
        else:
            self._put(line, size)

    def left_out(self, size: int) -> None:
        """Something is missing here."""
        self._skipped_bytes += size
        self._on_lines(self)

    def begun(self, task: _Open) -> None:
        self._open[task] = None

    def ended(self, task: _Open) -> None:
        self._open.pop(task, None)

    def end(self) -> None:
        """Nothing more comes."""
        for task in list(self._open):
            task.end()
        if self._dropped_bytes:
            self._note(self._dropped_bytes)
        for line in self._tail:
            self._put(line, line.size)
        self._tail.clear()

    # --- what goes out -----------------------------------------------------------------------------------------

    def take(self) -> list[LogLine]:
        """The lines since the last call."""
        if self._skipped_bytes:
            skipped, self._skipped_bytes = self._skipped_bytes, 0
            self._note(skipped)
        lines, self._waiting = self._waiting, []
        self._waiting_bytes = 0
        return lines

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting or self._skipped_bytes)

    def summary(self) -> dict[str, int]:
        """What the end of the command says about it."""
        found = {"lines": self.lines, "bytes": self.bytes - self.lines * limits.LOG_LINE_BYTES}
        return {**found, "left_out_bytes": self.left_out_bytes} if self.left_out_bytes else found

    def _put(self, line: LogLine, size: int) -> None:
        self._waiting.append(line)
        self._waiting_bytes += size
        self.lines += 1
        self.bytes += size
        if len(self._waiting) == 1:
            self._on_lines(self)

    def _keep_last(self, line: LogLine, size: int) -> None:
        self._tail.append(line)
        self._tail_bytes += size
        while self._tail_bytes > limits.LOG_TAIL_BYTES_MAX:
            dropped = self._tail.popleft().size
            self._tail_bytes -= dropped
            self._dropped_bytes += dropped

    def _note(self, size: int) -> None:
        """Say what is missing, in the name of the command and no task of it."""
        self.left_out_bytes += size
        line = LogLine(self.moment(None), LOG, str(self.message.body["step"]), None, 1, left_out(size))
        self._put(line, line.size)


def _milliseconds(now: str) -> float:
    return (datetime.datetime.fromisoformat(now) - _EPOCH) / datetime.timedelta(milliseconds=1)
