"""Execution states by id: a read-through cache over the ledger.  Dropping it changes latency, never a result."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from noetl.core.errors import ExecutionUnknown, LedgerCorrupt
from noetl.core.event import Event
from noetl.core.execution.evolve import evolve
from noetl.core.execution.state import ExecutionState
from noetl.core.ids import is_system
from noetl.core.snapshot.snapshot import restore
from noetl.ports.durability.snapshots import Snapshots
from noetl.ports.ledger import Ledger, ShardHead

CACHE_STATES_MAX = 2_000
PAGE_EVENTS = 5_000
# Reading events takes the processor: between two pages others get their turn.
UNDECIDED_PAGE_EVENTS = 64
FIRST_PAGE_EVENTS = 500


class Held(NamedTuple):
    """A state with the shard that its execution was created in and the position it was folded to."""

    state: ExecutionState
    shard_id: int
    position: int


def folded(held: Held | None, events: Sequence[Event]) -> Held | None:
    """What is held after further events of the same execution."""
    state = held.state if held is not None else None
    for event in events:
        state = evolve(state, event)
    return held if not events or state is None else Held(state, events[-1].shard_id, events[-1].position)


async def events_behind(ledger: Ledger, head: ShardHead, position: int) -> list[Event]:
    """What was appended to a shard behind a position.  What the system says about itself is no reason to decide
    anything."""
    events: list[Event] = []
    while position < head.next_position - 1:
        page = await ledger.read_shard(head.shard_id, after_position=position, limit=UNDECIDED_PAGE_EVENTS)
        if not page:
            raise LedgerCorrupt(f"shard {head.shard_id} has no event at position {position + 1}")
        # What came behind the head since it was read is found by the next look, and must not be found twice.
        seen = (event for event in page if event.position < head.next_position)
        events.extend(event for event in seen if not is_system(event.execution_id))
        position = page[-1].position
    return events


class States:
    def __init__(self, ledger: Ledger, snapshots: Snapshots | None = None) -> None:
        self._ledger = ledger
        self._snapshots = snapshots
        self._cache: OrderedDict[int, Held] = OrderedDict()

    def cached(self, execution_id: int) -> Held | None:
        held = self._cache.get(execution_id)
        if held is not None:
            self._cache.move_to_end(execution_id)
        return held

    async def load(self, execution_id: int) -> Held:
        """The state folded from the ledger, from the cache when it is there."""
        held = self.cached(execution_id)
        if held is None:
            held = await self.fold(execution_id)
            self.keep(execution_id, held)
        return held

    async def fold(self, execution_id: int) -> Held:
        """The state from the newest snapshot that fits and the events behind it.

        Most executions are short: only of one that goes on behind its first events anybody asks for a snapshot."""
        if is_system(execution_id):
            raise ExecutionUnknown(f"there is no execution {execution_id}")
        held = None
        limit = PAGE_EVENTS if self._snapshots is None else FIRST_PAGE_EVENTS
        while True:
            position = 0 if held is None else held.position
            events = await self._ledger.read_execution(execution_id, after_position=position, limit=limit)
            held = folded(held, events)
            if held is None:
                raise ExecutionUnknown(f"there is no execution {execution_id}")
            if len(events) < limit:
                return held
            if limit == FIRST_PAGE_EVENTS:
                held, limit = await self._leap(held), PAGE_EVENTS

    async def _leap(self, held: Held) -> Held:
        """The newest snapshot that fits, when it is ahead of what is folded."""
        assert self._snapshots is not None
        for snapshot in await self._snapshots.newest(held.state.execution_id):
            if snapshot.position <= held.position:
                break
            state = restore(snapshot)
            if state is not None:
                return Held(state, snapshot.shard_id, snapshot.position)
        return held

    def keep(self, execution_id: int, held: Held) -> None:
        self._cache[execution_id] = held
        self._cache.move_to_end(execution_id)
        while len(self._cache) > CACHE_STATES_MAX:
            self._cache.popitem(last=False)

    def drop(self, execution_id: int) -> None:
        self._cache.pop(execution_id, None)

    def drop_shards(self, shards: Collection[int]) -> None:
        """What others decide from now on is not known here any more."""
        for execution_id in [one for one, held in self._cache.items() if held.shard_id in shards]:
            del self._cache[execution_id]

    def clear(self) -> None:
        self._cache.clear()
