"""The sessions of connected workers: who has a free slot, who can do what, who holds what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from noetl.ports.session import CommandMessage, CommandSink, Stop

POOL_DEFAULT = "default"


class Late(NamedTuple):
    """A claim that was committed for a session that takes no more: its row must go back."""

    session_id: int
    execution_id: int
    command_id: str


@dataclass(slots=True)
class Connected:
    """A session with its free slots and what it holds."""

    sink: CommandSink
    free: int
    kinds: frozenset[str] | None
    pool: str
    is_draining: bool = False
    holds: dict[tuple[int, str], int] = field(default_factory=dict)

    def can_take(self, kinds: Collection[str] | None, pool: str) -> bool:
        if self.free <= 0 or self.is_draining or self.pool != pool:
            return False
        return self.kinds is None or kinds is None or self.kinds.issuperset(kinds)


class Sessions:
    """Slots are reserved while a batch is decided, and taken when its commit succeeded.

    `on_free` is called when a slot becomes free, `on_late` when something must go back."""

    def __init__(self) -> None:
        self.connected: dict[int, Connected] = {}
        self.has_free = asyncio.Event()  # set while a slot is free
        self.late: list[Late] = []
        self.on_free: Callable[[], None] | None = None
        self.on_late: Callable[[], None] | None = None
        self.reservations = 0

    def connect(self, sink: CommandSink, *, kinds: Collection[str] | None = None, pool: str = POOL_DEFAULT) -> None:
        """A worker with free slots.  Without `kinds` it can run every kind of task."""
        held = Connected(sink, 0, None if kinds is None else frozenset(kinds), pool)
        self.connected[sink.session_id] = held
        self._free(held, sink.slots)

    def disconnect(self, session_id: int, *, drain: bool = False) -> None:
        """The session is gone, and so is all that it held; with `drain` it only gets nothing more.  Its rows are the
        caller's to give back; a claim that is being committed for it right now comes out as `late`."""
        held = self.connected.get(session_id)
        if held is not None:
            held.is_draining = True
            if not drain:
                del self.connected[session_id]
            self._look()

    def _free(self, held: Connected, slots: int = 1) -> None:
        held.free += slots
        if held.free > 0 and not held.is_draining:
            self.has_free.set()
            if self.on_free is not None:
                self.on_free()

    def _look(self) -> None:
        if self.free_slots == 0:
            self.has_free.clear()

    @property
    def free_slots(self) -> int:
        return sum(held.free for held in self.connected.values() if not held.is_draining)

    def reserve(self, kinds: Collection[str] | None = None, *, pool: str = POOL_DEFAULT) -> int | None:
        """The session with the most free slots that can run these kinds of tasks, one slot less; None when all that
        could are busy."""
        able = (held for held in self.connected.values() if held.can_take(kinds, pool))
        best = max(able, key=lambda held: held.free, default=None)
        if best is None:
            return None
        best.free -= 1
        self.reservations += 1
        if best.free == 0:
            self._look()
        return best.sink.session_id

    def reserve_of(self, session_id: int) -> bool:
        """A slot of this session, for work that it asked for itself."""
        held = self.connected.get(session_id)
        if held is None or held.is_draining or held.free <= 0:
            return False
        held.free -= 1
        self.reservations += 1
        if held.free == 0:
            self._look()
        return True

    def unreserve(self, session_id: int) -> None:
        if session_id in self.connected:
            self._free(self.connected[session_id])

    def announce(self, session_id: int, message: CommandMessage) -> None:
        held = self.connected.get(session_id)
        if held is not None and not held.is_draining:
            held.sink.announce(message)

    def withdraw(self, session_id: int, message: CommandMessage) -> None:
        """A claim was not committed: the slot is free again."""
        held = self.connected.get(session_id)
        if held is not None:
            self._free(held)
            held.sink.withdraw(message)

    def deliver(self, session_id: int, message: CommandMessage) -> None:
        """Hand over what was committed.  A session that died or began to drain meanwhile gets nothing: the claim
        stands in the ledger, and its row goes back for another attempt."""
        held = self.connected.get(session_id)
        if held is None or held.is_draining:
            if held is not None:
                self._free(held)
            self.late.append(Late(session_id, message.execution_id, message.command_id))
            if self.on_late is not None:
                self.on_late()
            return
        held.holds[message.execution_id, message.command_id] = message.attempt
        held.sink.deliver(message)

    def finish(self, session_id: int, execution_id: int, command_id: str, attempt: int) -> None:
        """A fact arrived.  A late word about an earlier attempt does not free the slot of the present one."""
        held = self.connected.get(session_id)
        if held is not None and held.holds.get((execution_id, command_id)) == attempt:
            del held.holds[execution_id, command_id]
            self._free(held)

    def holds(self, execution_id: int, command_id: str, attempt: int) -> bool:
        return any(h.holds.get((execution_id, command_id)) == attempt for h in self.connected.values())

    def stop(self, stop: Stop) -> None:
        """Tell whoever holds it.  Nobody does: nothing to say."""
        for held in self.connected.values():
            if held.holds.get((stop.execution_id, stop.command_id)) == stop.attempt:
                held.sink.stop(stop)


def free_kinds(sessions: Sessions) -> frozenset[str] | None:
    """The kinds of tasks that free slots can run; None when one of them can run all."""
    found: set[str] = set()
    for held in sessions.connected.values():
        if held.can_take(None, held.pool):
            if held.kinds is None:
                return None
            found |= held.kinds
    return frozenset(found)
