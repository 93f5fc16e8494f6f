"""Which child serves whom: the places of a pool, its queue, and the zygote that fills them.

Invariants: at most `children_max` places are taken, counting children that are asked for or dying; a child
that has served a tenant and organization never serves another; a task waits only while no place is free and
none can be freed, first come first served.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import deque
from dataclasses import dataclass
from typing import Any

from noetl.core.errors import Failure
from noetl.tools.python.child import kernel
from noetl.tools.python.exchange import CLOSED, Exchange, ended
from noetl.tools.python.links import ChildLink, Key, ZygoteLink

CLOSE_SECONDS_MAX = 6.0

# So many children or zygotes in a row that end before a task mean that none can live here, as on a full disk.
STILLBORN_MAX = 3


_UNAVAILABLE = Failure(
    kind="python", code="PY_UNAVAILABLE", message="no Python child process can be started on this machine now"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterSettings:
    children_max: int
    warm: int
    tasks_per_child_max: int
    memory_bytes_max: int
    result_bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    children: int = 0
    """All that hold a place: asked for, idle, running or dying."""
    idle: int = 0
    waiting: int = 0
    """Tasks and rows that no child has."""
    forked_total: int = 0
    recycled_total: int = 0
    requests_total: int = 0
    """Messages to children; rows that went down together are one."""
    tasks_total: int = 0
    """Tasks and rows that were answered."""


class Waiter:
    """Somebody in the queue for a child."""

    __slots__ = ("future", "key")

    def __init__(self, key: Key, future: asyncio.Future[ChildLink | Failure]) -> None:
        self.key = key
        self.future = future


class Roster:
    def __init__(self, settings: RosterSettings, loop: asyncio.AbstractEventLoop) -> None:
        self._settings = settings
        self._loop = loop
        self._zygote: ZygoteLink | None = None
        self._zygote_is_ready = False
        self._lost_zygotes: list[ZygoteLink] = []
        self._directories: list[str] = []
        self._is_closed = False
        self._children: dict[int, ChildLink] = {}
        self._spare: list[ChildLink] = []  # forked, not yet given to a tenant
        self._idle: dict[ChildLink, None] = {}  # least recently used first
        self._idle_of: dict[Key, list[ChildLink]] = {}  # the same children by owner, most recently used last
        self._waiting: deque[Waiter] = deque()
        self._forking = 0
        self._dying = 0
        self._stillborn = 0
        self.exchange = Exchange(loop, on_free=self.release, on_spoilt=self._end)
        self._tasks_waiting = 0
        self._forked_total = 0
        self._recycled_total = 0

    def stats(self, *, rows_waiting: int) -> PoolStats:
        return PoolStats(
            children=len(self._children),
            idle=len(self._idle) + len(self._spare),
            waiting=self._tasks_waiting + rows_waiting,
            forked_total=self._forked_total,
            recycled_total=self._recycled_total,
            requests_total=self.exchange.requests_total,
            tasks_total=self.exchange.tasks_total,
        )

    # --- for the pool and the queues of rows -----------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def tasks_left(self, child: ChildLink) -> int:
        """How many the child may run until it is replaced."""
        return self._settings.tasks_per_child_max - child.tasks

    def fill(self) -> None:
        """Ask for the children that are wanted now: one per waiting task, and the warm ones."""
        if self._is_closed:
            return
        if self._stillborn >= STILLBORN_MAX or not self._has_zygote():
            self._stillborn = 0
            self._refuse_waiting(_UNAVAILABLE)
            return
        wanted = len(self._waiting) + max(0, self._settings.warm - len(self._spare)) - self._forking
        while wanted > 0 and len(self._children) < self._settings.children_max and self._fork():
            wanted -= 1
        if not self._children:
            self._refuse_waiting(_UNAVAILABLE)  # nothing will happen that could help them
        short = len(self._waiting) - self._forking - self._dying
        while short > 0 and self._idle:
            self._recycle(next(iter(self._idle)))
            short -= 1

    async def acquire(self, key: Key) -> ChildLink | Failure:
        """A child for this tenant and organization; the caller must pass it to `send` without waiting."""
        child = self.take(key)
        if child is not None:
            return child
        waiter = self.wait_for(key)
        self._tasks_waiting += 1
        try:
            return await waiter.future
        except asyncio.CancelledError:
            self.stop_waiting(waiter)
            raise
        finally:
            self._tasks_waiting -= 1

    def take(self, key: Key) -> ChildLink | None:
        """A child that is free now."""
        mine = self._idle_of.get(key)
        if mine:
            child = mine.pop()
            del self._idle[child]
            return child
        if self._spare:
            child = self._spare.pop()
            child.key = key
            self._loop.call_soon(self.fill)  # the next warm one, after this task is on its way
            return child
        return None

    def wait_for(self, key: Key) -> Waiter:
        waiter = Waiter(key, self._loop.create_future())
        if self._is_closed:
            waiter.future.set_result(CLOSED)
            return waiter
        self._waiting.append(waiter)
        self.fill()
        return waiter

    def stop_waiting(self, waiter: Waiter) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif waiter.future.done() and not waiter.future.cancelled():
            given = waiter.future.result()  # a child was assigned in the same turn of the loop
            if isinstance(given, ChildLink):
                self.release(given)

    def release(self, child: ChildLink) -> None:
        """The child is free again.  Its owner keeps it unless somebody is waiting who cannot use it."""
        if child.tasks:
            self._stillborn = 0
        if child.is_spent or child.tasks >= self._settings.tasks_per_child_max:
            self._recycle(child)
            return
        if child.is_dying:
            return
        assert child.key is not None
        self._idle[child] = None
        self._idle_of.setdefault(child.key, []).append(child)
        if self._waiting:
            self._serve_waiting()

    async def close(self) -> None:
        """End all children and the zygote.  Bounded."""
        self._is_closed = True
        self._refuse_waiting(CLOSED)
        for child in self._children.values():
            child.is_dying = True
            self.exchange.fail(child, CLOSED)
            child.close()
        for children in (self._children, self._idle, self._idle_of, self._spare):
            children.clear()
        zygotes = self._lost_zygotes
        if self._zygote is not None:
            self._zygote.close()
            zygotes.append(self._zygote)
            self._zygote = None
        while zygotes:
            await zygotes.pop().wait(seconds_max=CLOSE_SECONDS_MAX)
        await asyncio.to_thread(_remove_all, self._directories)

    # --- places ------------------------------------------------------------------------------------------

    def _serve_waiting(self) -> None:
        while self._waiting:
            waiter = self._waiting[0]
            if waiter.future.done():
                self._waiting.popleft()
                continue
            child = self.take(waiter.key)
            if child is None:
                break
            self._waiting.popleft()
            waiter.future.set_result(child)
        self.fill()

    def _refuse_waiting(self, failure: Failure) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.future.done():
                waiter.future.set_result(failure)

    def _fork(self) -> bool:
        assert self._zygote is not None
        number = self._forked_total + 1
        ends = self._zygote.fork(number)
        if ends is None:
            return False
        self._forked_total = number
        self._forking += 1
        self._children[number] = ChildLink(
            number, ends, loop=self._loop, on_answer=self.exchange.answered, on_lost=self._end
        )
        return True

    def _end(self, child: ChildLink) -> None:
        """Kill it with its process group.  Its place is free when the zygote has seen it end."""
        if child.is_dying:
            return
        child.is_dying = True
        self._dying += 1
        self._withdraw(child)
        if child.call is not None:
            self.exchange.lost(child.call)
        if self._zygote is not None:
            self._zygote.kill(child.number)

    def _recycle(self, child: ChildLink) -> None:
        self._recycled_total += 1
        self._end(child)

    def _withdraw(self, child: ChildLink) -> None:
        if child in self._idle:
            assert child.key is not None
            del self._idle[child]
            mine = self._idle_of[child.key]
            mine.remove(child)
            if not mine:
                del self._idle_of[child.key]
        elif child in self._spare:
            self._spare.remove(child)

    # --- what happens ------------------------------------------------------------------------------------

    def _told(self, message: dict[str, Any]) -> None:
        """A message of the zygote."""
        if "ready" in message:
            self._zygote_is_ready = True
            return
        child = self._children.get(message.get("forked") or message["exited"])
        if child is None:
            return
        if "forked" in message:
            self._forking -= 1
            child.pid = message["pid"]
            if not child.is_dying:
                self._spare.append(child)
        else:
            self._exited(child, message["status"], message.get("reason"))
        self._serve_waiting()

    def _exited(self, child: ChildLink, status: int | None, reason: str | None) -> None:
        was_idle = child.call is None and child.tasks == 0 and not child.is_dying
        if child.pid == 0:
            self._forking -= 1
        if child.is_dying:
            self._dying -= 1
        child.is_dying = True
        self._withdraw(child)
        child.receive()  # an answer may have been sent right before the end
        if was_idle:
            self._stillborn += 1
        del self._children[child.number]
        self.exchange.fail(child, ended(status, reason))
        child.close()

    # --- the zygote --------------------------------------------------------------------------------------

    def _has_zygote(self) -> bool:
        if self._zygote is None:
            try:
                self._start_zygote()
            except OSError:
                return False  # no memory, descriptors or disk
        return True

    def _start_zygote(self) -> None:
        kernel.hide_memory()  # or user code could read our environment in /proc
        directory = tempfile.mkdtemp(prefix="noetl-python-")
        self._directories.append(directory)
        self._zygote_is_ready = False
        self._zygote = ZygoteLink(
            loop=self._loop,
            directory=directory,
            memory_bytes_max=self._settings.memory_bytes_max,
            result_bytes_max=self._settings.result_bytes_max,
            on_message=self._told,
            on_lost=self._zygote_lost,
        )

    def _zygote_lost(self) -> None:
        """Its children die with it.  The next task starts another one, a few times."""
        assert self._zygote is not None
        self._zygote.kill_itself()
        self._lost_zygotes.append(self._zygote)
        self._zygote = None
        self._stillborn += 1 if self._zygote_is_ready else STILLBORN_MAX
        children = list(self._children.values())
        for children_of_it in (self._children, self._idle, self._idle_of, self._spare):
            children_of_it.clear()
        self._forking = self._dying = 0
        for child in children:
            child.is_dying = True
            child.receive()
            self.exchange.fail(child, ended(None, "the parent of all Python children was killed"))
            child.close()
        if self._waiting:
            self.fill()


def _remove_all(directories: list[str]) -> None:
    """Zygotes remove their directories; this is for those that were killed."""
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)
