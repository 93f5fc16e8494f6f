"""The worker's end of what a child prints.  Callbacks only, no tasks.

It is written by user code and not believed: what is no record ends the reading, and whose text it is is for the ticket
to say."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Protocol

from noetl.tools.python import wire

# How much a child may print ahead of its worker.
OUTPUT_PIPE_BYTES = 256 * 1024
READ_BYTES = 256 * 1024

# So long the next text may wait after some was read: many small writes then cost one turn of the loop.
REST_SECONDS = 0.05
# A pipe that was this full is read on at once.
BUSY_BYTES = 64 * 1024

_STREAMS = {wire.STDOUT: "stdout", wire.STDERR: "stderr"}


class TextSink(Protocol):
    """Takes printed text.  `at` is a moment of the monotonic clock."""

    def __call__(self, text: str, *, stream: str, at: float) -> None: ...


class OutputLink:
    def __init__(
        self,
        descriptor: int,
        *,
        loop: asyncio.AbstractEventLoop,
        on_text: Callable[[int, str, float, str], None],
    ) -> None:
        self._descriptor = descriptor
        self._loop = loop
        self._on_text = on_text
        self._data = bytearray()
        self._rest: asyncio.TimerHandle | None = None
        loop.add_reader(descriptor, self._ready)

    def receive(self) -> None:
        """Take in what is in the pipe now."""
        while self._descriptor >= 0:
            try:
                data = os.read(self._descriptor, READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data or not self._take(data):
                self.close()
            if len(data) < READ_BYTES:
                return

    def close(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self, data: bytes) -> bool:
        self._data += data
        try:
            for ticket, stream, seconds, text in wire.output_records(self._data):
                self._on_text(ticket, _STREAMS[stream], seconds, text)
        except wire.FrameInvalid:
            return False
        return True

    def _ready(self) -> None:
        """Read, then let a quiet writer be: its next texts come together."""
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data or not self._take(data):
            self.close()
        elif len(data) < BUSY_BYTES:
            self._loop.remove_reader(self._descriptor)
            self._rest = self._loop.call_later(REST_SECONDS, self._resume)

    def _resume(self) -> None:
        self._rest = None
        self._loop.add_reader(self._descriptor, self._ready)
