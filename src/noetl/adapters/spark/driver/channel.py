"""The worker's end of the connection to a driver.  Callbacks only, no tasks: whoever waits for a start or an end may be
cancelled without taking it away from others."""

from __future__ import annotations

import asyncio
import codecs
import os
import socket
from collections.abc import Callable

from noetl.adapters.spark.driver.wire import READ_BYTES, Frames, Message, MessageInvalid

READS_AT_ONCE_MAX = 64


class Channel:
    """Messages over a socket."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[Message], None],
        on_closed: Callable[[], None],
    ) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._loop = loop
        self._on_message = on_message
        self._on_closed = on_closed
        self._frames = Frames()
        self._waiting = bytearray()
        self._is_over = False
        loop.add_reader(connection.fileno(), self._receive)

    def send(self, data: bytes) -> None:
        """Never waits: what the driver does not read yet is kept.  Requests are bounded, and so is their number."""
        if self._socket.fileno() < 0:
            return
        if not self._waiting:
            self._loop.add_writer(self._socket.fileno(), self._flush)
        self._waiting += data
        self._flush()

    def close(self) -> None:
        descriptor = self._socket.fileno()
        if descriptor >= 0:
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)
            self._socket.close()

    def drain(self) -> None:
        """Take in what has arrived by now, of a driver that has ended."""
        for _ in range(READS_AT_ONCE_MAX):
            if not self._read():
                return

    def _flush(self) -> None:
        try:
            sent = self._socket.send(self._waiting)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            sent = len(self._waiting)  # the reader sees the end
        del self._waiting[:sent]
        if not self._waiting and self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket.fileno())

    def _receive(self) -> None:
        self._read()
        if self._is_over:
            self.close()
            self._on_closed()

    def _read(self) -> bool:
        if self._socket.fileno() < 0 or self._is_over:
            return False
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        try:
            messages = self._frames.feed(data)
            for message in messages:
                self._on_message(message)
        except MessageInvalid:
            data = b""  # what follows cannot be read
        self._is_over = not data
        return bool(data)


class TextPipe:
    """What a process writes to a descriptor, as text."""

    def __init__(self, descriptor: int, *, loop: asyncio.AbstractEventLoop, on_text: Callable[[str], None]) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._loop = loop
        self._on_text = on_text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        loop.add_reader(descriptor, self._read)

    def drain(self) -> None:
        for _ in range(READS_AT_ONCE_MAX):
            if not self._read():
                return

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> bool:
        if self._descriptor < 0:
            return False
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        text = self._decoder.decode(data, final=not data)
        if text:
            self._on_text(text)
        if not data:
            self.close()
        return bool(data)
