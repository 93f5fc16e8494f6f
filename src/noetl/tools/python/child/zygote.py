"""The warm parent of all children of one pool: `python -m noetl.tools.python.child.zygote <settings as JSON>`.

It has the imports that children need and forks on request.  It runs no user code, has one thread, an empty
environment, and one connection: a socket to the worker.  When that ends, all children end, then the zygote.

Messages, one JSON object per datagram.  From the worker: `{"fork": number}` with the child's end of a socket
pair, the counter of its permits and the pipe of its output, `{"kill": number}`.  To the worker: `{"ready": true}`,
`{"forked": number, "pid": pid}`, `{"exited": number, "status": wait status}`.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

from noetl.tools.python.child import kernel, loop

MESSAGE_BYTES_MAX = 4_096
SHUTDOWN_ROUNDS_MAX = 400
SHUTDOWN_ROUND_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteSettings:
    """Passed as JSON on the command line; nothing in it is secret."""

    control_fd: int
    worker_pid: int
    directory: str
    import_path: tuple[str, ...]
    """Where the worker finds modules; user code finds the same."""
    memory_bytes_max: int
    result_bytes_max: int


class Zygote:
    def __init__(self, settings: ZygoteSettings) -> None:
        self._settings = settings
        self._control = socket.socket(fileno=settings.control_fd)
        self._pid = os.getpid()
        self._pids: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._sweepers: set[int] = set()
        self._stopping = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # the wake-up descriptor tells

    def serve(self) -> None:
        self._tell({"ready": True})
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while not self._stopping:
            for descriptor, _event in poll.poll():
                if descriptor == self._wake_read:
                    self._woken()
                else:
                    self._receive()
        self._end_all()

    # --- messages ----------------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            message, descriptors, _flags, _address = socket.recv_fds(self._control, MESSAGE_BYTES_MAX, 3)
        except ConnectionError:
            message, descriptors = b"", []
        if not message:
            self._stopping = True
            return
        request: dict[str, Any] = json.loads(message)
        if "fork" in request:
            self._fork(request["fork"], descriptors)
        else:
            self._kill(request["kill"])

    def _tell(self, message: dict[str, object]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            self._stopping = True  # the worker is gone

    # --- children ----------------------------------------------------------------------------------------

    def _fork(self, number: int, descriptors: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            _close_all(descriptors)
            self._tell({"exited": number, "status": None, "reason": f"fork failed: {error.strerror}"})
            return
        if pid == 0:
            self._become_child(number, descriptors)
        _close_all(descriptors)
        self._join_group(pid)
        self._pids[number], self._numbers[pid] = pid, number
        self._tell({"forked": number, "pid": pid})

    def _join_group(self, pid: int) -> None:
        """The child does the same; whoever is first, a kill that follows finds the group."""
        try:
            os.setpgid(pid, pid)
        except OSError:
            return  # it has already ended

    def _become_child(self, number: int, descriptors: list[int]) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._control.detach()  # `serve` closes the descriptor; the object must not close its successor
            settings = loop.ChildSettings(
                memory_bytes_max=self._settings.memory_bytes_max,
                result_bytes_max=self._settings.result_bytes_max,
            )
            loop.serve(descriptors, directory=self._directory(number), parent_pid=self._pid, settings=settings)
        finally:
            os._exit(70)

    def _directory(self, number: int) -> str:
        return os.path.join(self._settings.directory, str(number))

    def _kill(self, number: int) -> None:
        pid = self._pids.get(number)
        if pid is not None:
            _kill_group(pid)

    # --- the dead ----------------------------------------------------------------------------------------

    def _woken(self) -> None:
        if signal.SIGTERM in os.read(self._wake_read, 4_096):
            self._stopping = True
        self._reap()

    def _reap(self) -> None:
        """Collect ended processes and kill what they left behind: orphaned descendants become ours."""
        reaped = False
        while (pid := _next_ended()) is not None:
            if pid in self._numbers:
                _kill_group(pid)  # before its number can be given to another process
            _pid, status = os.waitpid(pid, 0)
            reaped = True
            self._sweepers.discard(pid)
            number = self._numbers.pop(pid, None)
            if number is not None:
                del self._pids[number]
                self._tell({"exited": number, "status": status})
                self._sweep(self._directory(number))
        if reaped:
            for pid in kernel.children_of_this_process():
                if pid not in self._numbers and pid not in self._sweepers:
                    _kill_group(pid)

    def _sweep(self, directory: str) -> None:
        """Remove the directory of an ended child; in a process of its own when that may take long."""
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            return
        except OSError:
            self._start_sweeper(directory)

    def _start_sweeper(self, directory: str) -> None:
        try:
            pid = os.fork()
        except OSError:
            return  # removed with the directory of the pool
        if pid == 0:
            try:
                self._control.close()  # or the worker would not see that the zygote ended
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os._exit(0)
        self._sweepers.add(pid)

    def _end_all(self) -> None:
        for pid in [*self._numbers, *self._sweepers]:
            _kill_group(pid)
        self._sweepers.clear()
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        for _round in range(SHUTDOWN_ROUNDS_MAX):
            self._reap()
            if not kernel.children_of_this_process():
                break
            if poll.poll(SHUTDOWN_ROUND_SECONDS * 1_000):
                os.read(self._wake_read, MESSAGE_BYTES_MAX)
        shutil.rmtree(self._settings.directory, ignore_errors=True)


def _next_ended() -> int | None:
    """An ended child that was not yet waited for; it stays so."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if ended is None else ended.si_pid


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            continue  # gone already, or no group of its own


def warm() -> None:
    """Load what children would otherwise load one by one."""
    try:
        loop.expression_engine()
    except Exception:  # process entry: the child that needs it will say what is wrong
        return


def main() -> None:
    settings = ZygoteSettings(**json.loads(sys.argv[1]))
    kernel.die_with_parent(signal.SIGTERM)
    kernel.adopt_orphans()
    kernel.hide_memory()
    if os.getppid() != settings.worker_pid:
        return
    os.environ.clear()
    os.umask(0o077)
    sys.path.extend(entry for entry in settings.import_path if entry not in sys.path)
    warm()
    gc.collect()
    gc.freeze()  # children share these objects; a collection in a child must not touch, and so copy, them
    Zygote(settings).serve()


if __name__ == "__main__":
    main()
