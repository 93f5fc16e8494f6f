"""The worker's two kinds of connection: one to the zygote, one to each child.  Callbacks only, no tasks.

What arrives from a child is written by user code and not believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from noetl.core.errors import Failure
from noetl.tools.python import wire
from noetl.tools.python.child.zygote import MESSAGE_BYTES_MAX, ZygoteSettings
from noetl.tools.python.output import OUTPUT_PIPE_BYTES, OutputLink, TextSink

Key = tuple[str, str]
"""Tenant and organization."""


class Row:
    """One call of user code, and who waits for its answer."""

    __slots__ = ("call", "fields", "future", "log", "pid", "seconds", "was_lost")

    def __init__(self, fields: bytes, future: asyncio.Future[bytes | Failure], log: TextSink | None = None) -> None:
        self.fields = fields
        """Its own part of the request, as JSON."""
        self.future = future
        self.log = log
        """Takes what it prints."""
        self.call: Call | None = None
        """The message it was sent with, from then until it is answered or taken back."""
        self.pid = 0
        self.seconds = 0.0
        self.was_lost = False
        """A child ended before it could start it."""

    def finish(self, result: bytes | Failure, seconds: float) -> None:
        self.call = None
        self.seconds = seconds
        if not self.future.done():
            self.future.set_result(result)


class CallOwner(Protocol):
    """Who sent rows and wants to know what becomes of them."""

    def learn(self, seconds: float) -> None:
        """A row was answered that needed so long."""
        ...

    def take_back(self, rows: list[Row]) -> None:
        """These were sent and not started, and will not be."""
        ...

    def ended(self, call: Call) -> None:
        """No row of it is under way any more."""
        ...


class Call:
    """One message to a child: rows that run one after the other and are answered in this order."""

    __slots__ = ("answered", "child", "is_returning", "is_stalled", "owner", "progress_at", "rows", "ticket", "timer")

    def __init__(self, rows: list[Row], *, child: ChildLink, ticket: int, owner: CallOwner | None) -> None:
        self.rows = rows
        self.child = child
        self.owner = owner
        """Rows with an owner start by permit; the one row of a call without starts when it arrives."""
        self.ticket = ticket
        """Of the first row; the others have the numbers that follow."""
        self.answered = 0
        self.progress_at = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.is_returning = False
        """Rows were taken back; the child will say when it finds out."""
        self.is_stalled = False


Ends = tuple[socket.socket, int, int]
"""Ours of the connection to a child, the counter of its permits, and ours of the pipe of its output."""


class ChildLink:
    """The worker's view of one child."""

    __slots__ = (
        "_loop",
        "_on_answer",
        "_on_lost",
        "_permits",
        "_reader",
        "_socket",
        "_unsent",
        "call",
        "is_dying",
        "is_spent",
        "key",
        "last_ticket",
        "number",
        "output",
        "pid",
        "tasks",
    )

    def __init__(
        self,
        number: int,
        ends: Ends,
        *,
        loop: asyncio.AbstractEventLoop,
        on_answer: Callable[[ChildLink, bytes], None],
        on_lost: Callable[[ChildLink], None],
    ) -> None:
        self.number = number
        self.pid = 0
        self.key: Key | None = None
        self.call: Call | None = None
        self.tasks = 0
        self.last_ticket = -1
        """Of the row answered last."""
        self.is_dying = False
        self.is_spent = False
        """Not to be used for another call."""
        self._socket, self._permits, output = ends
        self._loop = loop
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._reader = wire.FrameReader()
        self._unsent = memoryview(b"")
        self.output = OutputLink(output, loop=loop, on_text=self._printed)
        self._socket.setblocking(False)
        loop.add_reader(self._socket.fileno(), self.receive)

    def permit(self, rows: int) -> None:
        """Let the child start so many rows; it takes one permit before each."""
        os.eventfd_write(self._permits, rows)

    def withdraw_permits(self, rows_max: int) -> int:
        """How many permits were not taken; they cannot be any more.  The kernel gives each to one side only."""
        withdrawn = 0
        try:
            while withdrawn < rows_max:
                os.eventfd_read(self._permits)
                withdrawn += 1
        except BlockingIOError:
            pass
        return withdrawn

    def send(self, frame: bytes) -> None:
        """At once as far as the socket takes it; the child always reads a whole request before it runs."""
        self._unsent = memoryview(frame)
        self._send_more()
        if self._unsent:
            self._loop.add_writer(self._socket.fileno(), self._send_rest)

    def receive(self) -> None:
        """Also called when the child has exited, because its last answer may still be in the socket."""
        while self._socket.fileno() >= 0:
            size = self._reader.wants_bytes
            try:
                data = self._socket.recv(size)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            for payload in self._reader.feed(data):
                self._on_answer(self, payload)
            if not data or self._reader.is_broken:
                self._hang_up()
                self._on_lost(self)
            if len(data) < size:
                return

    def _printed(self, ticket: int, stream: str, seconds: float, text: str) -> None:
        """Text of a row that is running, or was when the child printed it.  What comes under another ticket is late, or
        written by user code itself, and belongs to nobody."""
        call = self.call
        place = -1 if call is None else ticket - call.ticket
        if call is not None and call.answered <= place < len(call.rows):
            log = call.rows[place].log
            if log is not None:
                log(text, stream=stream, at=seconds)

    def close(self) -> None:
        self._hang_up()
        self.output.close()
        if self._permits >= 0:
            os.close(self._permits)
            self._permits = -1

    def _hang_up(self) -> None:
        descriptor = self._socket.fileno()
        if descriptor >= 0:
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)
            self._socket.close()
        self._unsent = memoryview(b"")

    def _send_more(self) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._unsent = memoryview(b"")  # the reader sees the end of the connection and reports it

    def _send_rest(self) -> None:
        self._send_more()
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())


class ZygoteLink:
    """A running zygote."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        directory: str,
        memory_bytes_max: int,
        result_bytes_max: int,
        on_message: Callable[[dict[str, Any]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._on_message = on_message
        self._on_lost = on_lost
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            settings = ZygoteSettings(
                control_fd=theirs.fileno(),
                worker_pid=os.getpid(),
                directory=directory,
                import_path=tuple(entry for entry in sys.path if os.path.isabs(entry)),
                memory_bytes_max=memory_bytes_max,
                result_bytes_max=result_bytes_max,
            )
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-X",
                    "utf8",
                    "-m",
                    "noetl.tools.python.child.zygote",
                    json.dumps(asdict(settings)),
                ],
                pass_fds=(theirs.fileno(),),
                env=_environment(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._control.setblocking(False)
        loop.add_reader(self._control.fileno(), self._receive)

    def fork(self, number: int) -> Ends | None:
        """What connects us to a new child, if there can be one."""
        opened: list[int] = []
        try:
            permits = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            opened.append(permits)
            output, theirs_output = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            opened += output, theirs_output
            ours, theirs = socket.socketpair()
        except OSError:
            _close_all(opened)
            return None  # no descriptors left
        with contextlib.suppress(OSError):  # a small pipe is a pipe too
            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, OUTPUT_PIPE_BYTES)
        message, given = json.dumps({"fork": number}).encode(), [theirs.fileno(), permits, theirs_output]
        try:
            socket.send_fds(self._control, [message], given)
        except OSError:
            _close_all(opened)
            ours.close()
            self.kill_itself()  # it is gone or stuck
            return None
        finally:
            theirs.close()
        os.close(theirs_output)
        return ours, permits, output

    def kill(self, number: int) -> None:
        try:
            self._control.send(json.dumps({"kill": number}).encode())
        except OSError:
            self.kill_itself()  # it is gone or stuck; its children do not outlive it

    def kill_itself(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Hang up.  The zygote then ends all children and itself."""
        descriptor = self._control.fileno()
        if descriptor >= 0:
            self._loop.remove_reader(descriptor)
            self._control.close()

    async def wait(self, *, seconds_max: float) -> int | None:
        """Its exit status, after hanging up; killed when it takes too long."""
        if self._process.poll() is not None:
            return self._process.returncode
        ended: asyncio.Future[None] = self._loop.create_future()
        handle = os.pidfd_open(self._process.pid)
        self._loop.add_reader(handle, _resolve, ended)
        try:
            async with asyncio.timeout(seconds_max):
                await ended
        except TimeoutError:
            self.kill_itself()
        finally:
            self._loop.remove_reader(handle)
            os.close(handle)
        return self._process.wait(timeout=1.0)

    def _receive(self) -> None:
        while self._control.fileno() >= 0:
            try:
                message = self._control.recv(MESSAGE_BYTES_MAX)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                message = b""
            if not message:
                self.close()
                self._on_lost()
                return
            self._on_message(json.loads(message))


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _environment() -> dict[str, str]:
    """What the zygote needs to start; it forgets it before it forks."""
    # Each thread of user code would otherwise reserve 64 MB of the address space that a task may use.
    environment = {"MALLOC_ARENA_MAX": "2"}
    package_root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    if package_root != sysconfig.get_path("purelib"):
        environment["PYTHONPATH"] = package_root
    return environment
