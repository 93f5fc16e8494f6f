"""The driver's end of the connection to its worker.  Any thread may send."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping

from noetl.adapters.spark.driver.wire import READ_BYTES, Frames, Message, MessageInvalid, framed


class Link:
    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        # The JVM and what user code starts must not hold it open: its end is how the worker hears of ours.
        self._socket.set_inheritable(False)
        self._writing = threading.Lock()

    def send(self, message: Mapping[str, object]) -> None:
        """Waits while the worker does not read.  Raises MessageTooLarge, and TypeError or ValueError for what is no
        plain data; a worker that is gone is the reader's to notice."""
        data = framed(message)
        with self._writing:
            try:
                # One call: an exception that is thrown into this thread cannot cut a message in two.
                self._socket.sendall(data)
            except OSError:
                return

    def messages(self) -> Iterator[Message]:
        """Until the worker hangs up."""
        frames = Frames()
        while True:
            try:
                data = self._socket.recv(READ_BYTES)
                messages = frames.feed(data)
            except (OSError, MessageInvalid):
                return
            yield from messages
            if not data:
                return
