"""The sessions of connected workers: who has a free slot, and who holds what."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from noetl.core.execution.state import Command
from noetl.core.locator.locality import NOWHERE, Distance, Place
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.playbook.compiling.pools import POOL_DEFAULT
from noetl.engine.placing.connected import Connected, Demand, Solitude
from noetl.engine.placing.loners import Loners
from noetl.engine.placing.nearness import Nearness
from noetl.engine.placing.pools import Pools
from noetl.engine.placing.wishes import Wish
from noetl.ports.serving.roster import SessionRow
from noetl.ports.session import CommandMessage, CommandSink, Stop

# Work inside a step: cheap, and never the business of a pool of its own.
_OF_STEPS = ("step", "frame")


def demand_of(command: Command, playbook: CompiledPlaybook) -> Demand:
    if command.kind not in _OF_STEPS:
        # Whoever can write the result of a loop can write a part of its list.
        return Demand(POOL_DEFAULT, frozenset(("seal" if command.kind == "gather" else command.kind,)))
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


class Sessions:
    """Slots are reserved while a batch is decided, and taken when its commit succeeded.

    `on_free` is called when a slot of a pool becomes free, `on_late` when something must go back."""

    def __init__(self, preference: Distance = Distance.ANY) -> None:
        """`preference` is how far from its data anything may run that does not say so itself."""
        self.connected: dict[int, Connected] = {}
        self.pools = Pools(self.connected)
        self.late: list[Late] = []
        self.on_free: Callable[[str], None] | None = None
        self.on_late: Callable[[], None] | None = None
        self.reservations = 0
        self.loners = Loners(self.connected, self.pools)
        self.nearness = Nearness(self.connected, self.pools, preference)

    def connect(
        self,
        sink: CommandSink,
        *,
        kinds: Collection[str] | None = None,
        pool: str = POOL_DEFAULT,
        worker_id: str = "",
        place: Place = NOWHERE,
    ) -> None:
        """A worker with free slots.  Without `kinds` it can run every kind of task."""
        able = None if kinds is None else frozenset(kinds)
        held = Connected(sink, 0, able, pool, worker_id=worker_id, place=place)
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
                self.loners.lost(held)

    def _free(self, held: Connected, slots: int = 1) -> None:
        held.free += slots
        if held.solitude is Solitude.KEPT:
            self.loners.freed(held)
        if held.free > 0 and not held.is_draining:
            self.pools.changed.set()
            if self.on_free is not None:
                self.on_free(held.pool)

    @property
    def free_slots(self) -> int:
        """Of all pools."""
        return sum(held.free for held in self.connected.values() if not held.is_draining)

    def reserve(
        self,
        kinds: Collection[str] | None = None,
        *,
        pool: str = POOL_DEFAULT,
        alone: tuple[int, str] | None = None,
        wish: Wish | None = None,
    ) -> int | None:
        """The session with the most free slots that can run these kinds of tasks, one slot less; None when all that
        could are busy.  `alone` is a command that must have a session to itself.  With a `wish` it is the nearest one,
        and None also when somebody nearer may soon have a slot."""
        if alone is not None:
            best = self.loners.find(alone, kinds, pool)
        else:
            able = (held for held in self.connected.values() if held.can_take(kinds, pool))
            if wish is None:
                best = max(able, key=lambda held: held.free, default=None)
            else:
                best = self.nearness.nearest(able, wish, kinds)
        if best is None:
            return None
        best.free -= 1
        self.reservations += 1
        return best.sink.session_id

    def reserve_of(self, session_id: int) -> bool:
        """A slot of this session, for work that it asked for itself."""
        held = self.connected.get(session_id)
        if held is None or held.is_draining or held.free <= 0 or not held.is_shared:
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
        if held.can_be_looked_for(pool) > 0:
            if held.kinds is None:
                return None
            found |= held.kinds
    return frozenset(found)


def session_rows(sessions: Sessions) -> list[SessionRow]:
    """What other servers may know of the sessions here."""
    return [
        SessionRow(
            session_id=session_id,
            worker_id=one.worker_id,
            pool=one.pool,
            kinds=one.kinds,
            slots=one.slots,
            place=one.place,
        )
        for session_id, one in sorted(sessions.connected.items())
    ]
