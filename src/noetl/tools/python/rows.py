"""Rows of frames: equal calls with other input, sent to children many at a time.

A group holds the rows of one code that no child has, and decides how many go down together and to how many
children.  Rows take a child for one message, a few milliseconds of work, and then queue again, so that other
tasks get their turn.  A guess that was wrong costs little: rows behind a slow one are taken back.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from functools import partial

from noetl.core.errors import Failure
from noetl.tools.python import wire
from noetl.tools.python.exchange import CLOSED
from noetl.tools.python.links import Call, ChildLink, Key, Row
from noetl.tools.python.roster import Roster, Waiter

# A message should keep a child busy for this long: far longer than it costs, far shorter than a person notices.
MESSAGE_SECONDS = 0.005
MESSAGE_ROWS_MAX = 200
MESSAGE_BYTES_MAX = 256 * 1024

# Rows shorter than this use the processor, so more children than processors would only cost forks.
QUICK_SECONDS = 0.001

# Less work than this is not worth waking another child for.
WORTH_SECONDS = 0.0002

# No answer for this long: what waits behind the running row goes to another child.
STALL_SECONDS = 0.02

# Groups without rows are kept for what they have learnt.
GROUPS_MAX = 128

_LEARN_SLOWER = 0.5
_LEARN_FASTER = 0.1
_OUTLIER_FACTOR = 8


class Pace:
    """How many rows to send together, learnt from how long they need.  Pure."""

    __slots__ = ("_average", "_cores", "children_max")

    def __init__(self, *, cores: int, children_max: int) -> None:
        self.children_max = children_max
        self._cores = min(cores, children_max)
        self._average: float | None = None

    def learn(self, seconds: float) -> None:
        """Slower is believed sooner, but not after a single row: rows behind a slow one are taken back anyway."""
        if self._average is None:
            self._average = seconds
            return
        seconds = min(seconds, self._average * _OUTLIER_FACTOR + WORTH_SECONDS / 2)
        weight = _LEARN_SLOWER if seconds > self._average else _LEARN_FASTER
        self._average += (seconds - self._average) * weight

    def children(self, rows: int) -> int:
        """How many children may work on so many waiting rows at a time."""
        if self._average is None:
            return self._cores
        if self._average >= QUICK_SECONDS:
            return self.children_max
        return max(1, min(self._cores, math.ceil(rows * self._average / WORTH_SECONDS)))

    def rows(self, waiting: int, children: int) -> int:
        """How many of the waiting rows to send to the first of so many children."""
        if self._average is None:
            return 1
        fitting = int(min(MESSAGE_SECONDS / max(self._average, 1e-6), MESSAGE_ROWS_MAX))
        return max(1, min(fitting, math.ceil(waiting / children)))


GroupKey = tuple[Key, str, float, str, str]
"""What equal rows have in common: owner, code, time limit, file name, and the fields that are seldom given."""


class Group:
    """Equal rows that wait, and the calls under way for others like them."""

    def __init__(self, key: GroupKey, roster: Roster, loop: asyncio.AbstractEventLoop, pace: Pace) -> None:
        self.waiting: deque[Row] = deque()
        self._owner, code, self._timeout_seconds, filename, more = key
        common = f'{{"kind":"run","filename":{json.dumps(filename)}{more and "," + more[1:-1]},"rows":['
        self._beginning = (wire.with_length(code), wire.text(common))
        self._roster = roster
        self._loop = loop
        self._pace = pace
        self._calls: dict[Call, None] = {}
        self._stalled = 0
        self._waiters: list[Waiter] = []
        self._is_scheduled = False
        self._watch: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self._calls and not self._waiters

    def add(self, row: Row) -> None:
        self.waiting.append(row)
        self._schedule()

    def remove(self, row: Row) -> None:
        """Nobody waits for this row any more.  In the middle of the queue it is skipped when its turn comes."""
        self._roster.exchange.abandon(row)
        while self.waiting and self.waiting[0].future.done():
            self.waiting.popleft()
        self._trim()

    def refuse(self, failure: Failure) -> None:
        """Fail all that waits."""
        while self.waiting:
            self.waiting.popleft().finish(failure, 0.0)
        self._trim()

    # --- for the roster ----------------------------------------------------------------------------------

    def learn(self, seconds: float) -> None:
        self._pace.learn(seconds)

    def take_back(self, rows: list[Row]) -> None:
        if self._roster.is_closed:
            for row in rows:
                row.finish(CLOSED, 0.0)
            return
        self.waiting.extendleft(reversed(rows))
        self._schedule()

    def ended(self, call: Call) -> None:
        self._calls.pop(call, None)
        self._stalled -= call.is_stalled
        if self.waiting:
            self._schedule()

    # --- sending -----------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """At the end of this turn of the loop, when all who were answered in it have brought their next rows."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._is_scheduled = False
        while self.waiting and (room := self._room()) > 0:
            child = self._roster.take(self._owner)
            if child is None:
                self._ask(room)
                break
            self._send(child, room)
        self._trim()
        if self._watch is None and self._may_stall():
            self._watch = self._loop.call_later(STALL_SECONDS, self._look)

    def _room(self) -> int:
        """How many more children may work on what waits."""
        # As many again as are stalled: when rows have become slow, their number doubles at each look.
        return self._pace.children(len(self.waiting)) + 2 * self._stalled - len(self._calls)

    def _ask(self, room: int) -> None:
        """Queue for children, as many as will have something to do."""
        room = max(1, min(room, self._pace.children_max - len(self._calls)))
        wanted = min(room, math.ceil(len(self.waiting) / self._pace.rows(len(self.waiting), room)))
        while len(self._waiters) < wanted:
            waiter = self._roster.wait_for(self._owner)
            self._waiters.append(waiter)
            waiter.future.add_done_callback(partial(self._given, waiter))

    def _given(self, waiter: Waiter, future: asyncio.Future[ChildLink | Failure]) -> None:
        if waiter not in self._waiters:
            return
        self._waiters.remove(waiter)
        given = future.result()
        if isinstance(given, Failure):
            self.refuse(given)
        elif self.waiting and not given.is_dying:
            self._send(given, max(1, self._room()))
        else:
            self._roster.release(given)
        self._schedule()

    def _send(self, child: ChildLink, room: int) -> None:
        count = min(self._pace.rows(len(self.waiting), room), self._roster.tasks_left(child))
        rows = self._next_rows(count)
        if not rows:
            self._roster.release(child)
            return
        request = wire.sized(*self._beginning, b",".join([row.fields for row in rows]), b"]}")
        call = self._roster.exchange.send(child, rows, request, self._timeout_seconds, self)
        if child.call is call:
            self._calls[call] = None

    def _next_rows(self, count: int) -> list[Row]:
        """A large row goes alone: if it is too large for its child, no other row suffers."""
        rows: list[Row] = []
        size = 0
        while self.waiting and len(rows) < count:
            size += len(self.waiting[0].fields)
            if rows and size > MESSAGE_BYTES_MAX:
                break
            row = self.waiting.popleft()
            if not row.future.done():  # or it was cancelled and is not yet removed
                rows.append(row)
        return rows

    def _trim(self) -> None:
        """Leave the queue when there is nothing left to do for a child."""
        while self._waiters and not self.waiting:
            self._roster.stop_waiting(self._waiters.pop())

    # --- slow rows ---------------------------------------------------------------------------------------

    def _may_stall(self) -> bool:
        """Something waits behind a running row."""
        waits = bool(self.waiting)
        return any(not call.is_stalled and (waits or len(call.rows) > call.answered + 1) for call in self._calls)

    def _look(self) -> None:
        """Rows behind one that takes long go to other children."""
        self._watch = None
        for call in [call for call in self._calls if not call.is_stalled and self._is_late(call)]:
            call.child.receive()  # the late one may be this process
            if self._is_late(call):
                self._roster.exchange.catch_up(call)
            if self._is_late(call):
                call.is_stalled = True
                self._stalled += 1
        self._schedule()

    def _is_late(self, call: Call) -> bool:
        return call in self._calls and self._loop.time() - call.progress_at >= STALL_SECONDS


class RowQueues:
    """All groups of a pool."""

    def __init__(self, roster: Roster, loop: asyncio.AbstractEventLoop, *, cores: int, children_max: int) -> None:
        self._roster = roster
        self.loop = loop
        self._cores = cores
        self._children_max = children_max
        self._groups: dict[GroupKey, Group] = {}

    @property
    def waiting(self) -> int:
        return sum(len(group.waiting) for group in self._groups.values())

    def group(self, key: GroupKey) -> Group:
        group = self._groups.get(key)
        if group is None:
            self._forget_idle()
            pace = Pace(cores=self._cores, children_max=self._children_max)
            group = self._groups[key] = Group(key, self._roster, self.loop, pace)
        return group

    def close(self) -> None:
        for group in self._groups.values():
            group.refuse(CLOSED)

    def _forget_idle(self) -> None:
        """The oldest first."""
        excess = len(self._groups) - GROUPS_MAX + 1
        for key, group in list(self._groups.items()):
            if excess <= 0:
                break
            if group.is_idle:
                del self._groups[key]
                excess -= 1
