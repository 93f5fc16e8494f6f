"""The sessions of connected workers: who has a free slot, who can do what, who holds what, and where commands wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from noetl.core.execution.state import Command
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.playbook.compiling.pools import POOL_DEFAULT
from noetl.ports.serving.roster import SessionRow
from noetl.ports.session import CommandMessage, CommandSink, Stop

# Work inside a step: cheap, and never the business of a pool of its own.
_OF_STEPS = ("step", "frame")


class Demand(NamedTuple):
    """What a session must be to take a command: of this pool, and able to run these kinds of tasks."""

    pool: str
    kinds: frozenset[str]


def demand_of(command: Command, playbook: CompiledPlaybook) -> Demand:
    if command.kind not in _OF_STEPS:
        return Demand(POOL_DEFAULT, frozenset((command.kind,)))
    step = playbook.steps[command.step]
    tasks = frozenset(task.kind for task in step.tasks)
    if command.frame is None:
        return Demand(step.pool, tasks)
    cursor = step.loop.cursor if step.loop is not None else None
    more = {"frame"} if cursor is None else {"frame", "cursor", cursor.kind}
    return Demand(step.pool, tasks | more)


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
    slots: int = 0
    worker_id: str = ""
    holds: dict[tuple[int, str], int] = field(default_factory=dict)

    def can_take(self, kinds: Collection[str] | None, pool: str) -> bool:
        return self.free > 0 and self.serves(kinds, pool)

    def serves(self, kinds: Collection[str] | None, pool: str) -> bool:
        if self.is_draining or self.pool != pool:
            return False
        return self.kinds is None or kinds is None or self.kinds.issuperset(kinds)


class Pools:
    """Whose slots are free, and where commands may wait in the queue (`backlog`): behind those a new one waits too, a
    chain must not keep its slot for ever.  What nobody serves is looked at when somebody comes."""

    def __init__(self, connected: Mapping[int, Connected]) -> None:
        self._connected = connected
        self._backlog: set[str] = set()
        # Where other servers may have left something: worth a look, and no reason to let a new command wait.
        self._curious: set[str] = set()
        # Set when more can be claimed than before: a slot is free, or a command waits.
        self.changed = asyncio.Event()

    @property
    def served(self) -> frozenset[str]:
        return frozenset(held.pool for held in self._connected.values() if not held.is_draining)

    @property
    def backlog(self) -> frozenset[str]:
        return frozenset(self._backlog)

    def expect(self, pool: str | None = None) -> None:
        """Commands may wait in this pool, or in any that is served."""
        self._backlog.update(self.served if pool is None else (pool,))
        self.changed.set()

    def look_for_others(self) -> None:
        """Other servers may have queued commands that are for sessions here."""
        found = {pool for pool in self.served if self.free_in(pool) > 0}
        if found:
            self._curious |= found
            self.changed.set()

    def looked_at(self, pool: str) -> None:
        self._backlog.discard(pool)
        self._curious.discard(pool)

    def free_in(self, pool: str) -> int:
        return sum(held.free for held in self._connected.values() if held.can_take(None, pool))

    def claimable(self) -> list[str]:
        """The pools in which commands may wait while a slot is free, always in the same order."""
        return [pool for pool in sorted(self._backlog | self._curious) if self.free_in(pool) > 0]

    def resize(self, session_id: int, slots: int) -> None:
        """How many commands a session wants at a time.  Fewer than it holds take nothing away: it gets no more until
        enough have ended."""
        held = self._connected.get(session_id)
        if held is not None and slots != held.slots:
            more, held.slots = slots - held.slots, slots
            held.free += more
            if more > 0 and not held.is_draining:
                self.expect(held.pool)

    def is_served(self, demand: Demand) -> bool:
        """Whether somebody takes such commands, now or when a slot is free."""
        return any(held.serves(demand.kinds, demand.pool) for held in self._connected.values())


class Sessions:
    """Slots are reserved while a batch is decided, and taken when its commit succeeded.

    `on_free` is called when a slot of a pool becomes free, `on_late` when something must go back."""

    def __init__(self) -> None:
        self.connected: dict[int, Connected] = {}
        self.pools = Pools(self.connected)
        self.late: list[Late] = []
        self.on_free: Callable[[str], None] | None = None
        self.on_late: Callable[[], None] | None = None
        self.reservations = 0

    def connect(
        self,
        sink: CommandSink,
        *,
        kinds: Collection[str] | None = None,
        pool: str = POOL_DEFAULT,
        worker_id: str = "",
    ) -> None:
        """A worker with free slots.  Without `kinds` it can run every kind of task."""
        held = Connected(sink, 0, None if kinds is None else frozenset(kinds), pool, worker_id=worker_id)
        self.connected[sink.session_id] = held
        # Commands may wait that nobody could run so far.
        self.pools.expect(pool)
        held.slots = sink.slots
        self._free(held, sink.slots)

    def disconnect(self, session_id: int, *, drain: bool = False) -> None:
        """The session is gone, and so is all that it held; with `drain` it only gets nothing more.  Its rows are the
        caller's to give back; a claim that is being committed for it right now comes out as `late`."""
        held = self.connected.get(session_id)
        if held is not None:
            held.is_draining = True
            if not drain:
                del self.connected[session_id]

    def _free(self, held: Connected, slots: int = 1) -> None:
        held.free += slots
        if held.free > 0 and not held.is_draining:
            self.pools.changed.set()
            if self.on_free is not None:
                self.on_free(held.pool)

    @property
    def free_slots(self) -> int:
        """Of all pools."""
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
        return best.sink.session_id

    def reserve_of(self, session_id: int) -> bool:
        """A slot of this session, for work that it asked for itself."""
        held = self.connected.get(session_id)
        if held is None or held.is_draining or held.free <= 0:
            return False
        held.free -= 1
        self.reservations += 1
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


def free_kinds(sessions: Sessions, pool: str = POOL_DEFAULT) -> frozenset[str] | None:
    """The kinds of tasks that free slots of a pool can run; None when one of them can run all."""
    found: set[str] = set()
    for held in sessions.connected.values():
        if held.can_take(None, pool):
            if held.kinds is None:
                return None
            found |= held.kinds
    return frozenset(found)


def session_rows(sessions: Sessions) -> list[SessionRow]:
    """What other servers may know of the sessions here."""
    return [
        SessionRow(session_id=session_id, worker_id=one.worker_id, pool=one.pool, kinds=one.kinds, slots=one.slots)
        for session_id, one in sorted(sessions.connected.items())
    ]
