"""What a worker is doing right now, so that it can be told to stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable

from noetl.core.limits import STOPS_KEPT_MAX
from noetl.ports.session import CommandMessage, Stop

Key = tuple[int, str, int]


class Work:
    """One command or frame while it is performed, in the task that performs it."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._drain: Callable[[], None] | None = None
        self._is_draining = False
        self.is_stopped = False

    def stop(self) -> None:
        """End it at once: whatever it waits for is cancelled, and a tool that is cancelled ends its processes."""
        if not self.is_stopped:
            self.is_stopped = True
            self._task.cancel()

    def drain(self) -> None:
        """Begin nothing more."""
        self._is_draining = True
        if self._drain is not None:
            self._drain()

    def drains_by(self, drain: Callable[[], None]) -> None:
        self._drain = drain
        if self._is_draining:
            drain()

    async def settle(self) -> None:
        """After a stop: take in the cancellation, so that the task can go on and report."""
        with contextlib.suppress(asyncio.CancelledError):
            # It may still be on its way when the work ended by itself at the same moment.
            await asyncio.sleep(0)
        # More than one when task groups inside were being cancelled at the same moment.
        while self._task.uncancel():
            pass


class Running:
    """The work of one session by command and attempt."""

    def __init__(self) -> None:
        self.is_closing = False
        self._works: dict[Key, Work] = {}
        # Words about work that has not begun: they may overtake it.  Attempts are never used again.
        self._early: OrderedDict[Key, Stop] = OrderedDict()

    def begin(self, message: CommandMessage) -> Work:
        key = (message.execution_id, message.command_id, message.attempt)
        work = self._works[key] = Work()
        early = self._early.pop(key, None)
        if early is not None:
            self._tell(work, early)
        return work

    def end(self, message: CommandMessage, work: Work) -> None:
        key = (message.execution_id, message.command_id, message.attempt)
        # A claim whose commit is tried again is announced again while the first one is still being prepared.
        if self._works.get(key) is work:
            del self._works[key]

    def stop(self, stop: Stop) -> None:
        key = (stop.execution_id, stop.command_id, stop.attempt)
        work = self._works.get(key)
        if work is not None:
            self._tell(work, stop)
            return
        self._early[key] = stop
        while len(self._early) > STOPS_KEPT_MAX:
            self._early.popitem(last=False)

    @staticmethod
    def _tell(work: Work, stop: Stop) -> None:
        if stop.drain:
            work.drain()
        else:
            work.stop()
