"""The process of a driver: starting it, what it writes, and its end, which takes everything it started with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from noetl.adapters.spark.driver.channel import Channel, TextPipe
from noetl.adapters.spark.driver.folders import DriverFolder
from noetl.adapters.spark.driver.sessions import kill_session
from noetl.adapters.spark.driver.settings import DriverSettings, command, environment
from noetl.adapters.spark.driver.wire import Message, framed

# A process that was sent SIGKILL is gone by then, unless the kernel holds it.
GONE_SECONDS_MAX = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """Who hears of a process.  `ended` is the last call, and comes once."""

    message: Callable[[Message], None]
    text: Callable[[str, str], None]
    """The stream (`stdout`, `stderr`) and what was written to its descriptor."""
    ended: Callable[[int | None], None]
    """The exit status, if it is known."""


class DriverProcess:
    """Bound to the event loop that starts it.  Raises OSError when no process can be started."""

    def __init__(self, settings: DriverSettings, *, loop: asyncio.AbstractEventLoop, hearing: Hearing) -> None:
        self._loop = loop
        self._hearing = hearing
        self._is_over = False
        self._folder = DriverFolder(settings.folder)
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command(settings, theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                env=environment(settings),
                cwd=self._folder.path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._channel = Channel(ours, loop=loop, on_message=hearing.message, on_closed=self.kill)
        self._pipes = [self._pipe(name) for name in ("stdout", "stderr")]
        self._watch = os.pidfd_open(self.pid)
        loop.add_reader(self._watch, self._over)
        self.ended: asyncio.Future[None] = loop.create_future()

    def send(self, message: Mapping[str, object]) -> None:
        self._channel.send(framed(message))

    def send_framed(self, request: bytes) -> None:
        self._channel.send(request)

    def drain_text(self) -> None:
        """Take in what it has written by now."""
        for pipe in self._pipes:
            pipe.drain()

    def kill(self) -> None:
        """End it and all it started.  Its end is heard at once, from the kernel."""
        if not self._is_over:
            kill_session(self.pid)
            self._loop.call_later(GONE_SECONDS_MAX, self._over)

    def _pipe(self, name: str) -> TextPipe:
        stream = getattr(self._process, name)
        descriptor = os.dup(stream.fileno())
        stream.close()
        return TextPipe(descriptor, loop=self._loop, on_text=lambda text: self._hearing.text(name, text))

    def _over(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._loop.remove_reader(self._watch)
        os.close(self._watch)
        # Until it is waited for, its number, which is that of its session, belongs to nobody else.
        kill_session(self.pid)
        status = self._process.poll()
        self._channel.drain()
        self._channel.close()
        for pipe in self._pipes:
            pipe.drain()
            pipe.close()
        self._folder.remove()
        self._hearing.ended(status)
        if not self.ended.done():
            self.ended.set_result(None)


def signal_name(status: int) -> str:
    with contextlib.suppress(ValueError):
        if status < 0:
            return f"signal {signal.Signals(-status).name}"
    return f"status {status}"
