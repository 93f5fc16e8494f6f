"""Execution states by id: a read-through cache over the ledger.  Dropping it changes latency, never a result."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from noetl.core.errors import ExecutionUnknown, LedgerCorrupt
from noetl.core.event import Event
from noetl.core.execution.evolve import evolve
from noetl.core.execution.state import ExecutionState
from noetl.ports.ledger import Ledger, ShardHead

CACHE_STATES_MAX = 2_000
PAGE_EVENTS = 5_000


class Held(NamedTuple):
    """A state with the shard that its execution was created in and the position it was folded to."""

    state: ExecutionState
    shard_id: int
    position: int


async def undecided_events(ledger: Ledger, head: ShardHead) -> list[Event]:
    """What was appended to a shard behind its last decision."""
    events: list[Event] = []
    position = head.decided_position
    while position < head.next_position - 1:
        page = await ledger.read_shard(head.shard_id, after_position=position, limit=PAGE_EVENTS)
        if not page:
            raise LedgerCorrupt(f"shard {head.shard_id} has no event at position {position + 1}")
        events.extend(page)
        position = page[-1].position
    return events


class States:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
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
        state: ExecutionState | None = None
        position, shard_id = 0, 0
        while True:
            events = await self._ledger.read_execution(execution_id, after_position=position, limit=PAGE_EVENTS)
            for event in events:
                state = evolve(state, event)
                position, shard_id = event.position, event.shard_id
            if len(events) < PAGE_EVENTS:
                break
        if state is None:
            raise ExecutionUnknown(f"there is no execution {execution_id}")
        return Held(state, shard_id, position)

    def keep(self, execution_id: int, held: Held) -> None:
        self._cache[execution_id] = held
        self._cache.move_to_end(execution_id)
        while len(self._cache) > CACHE_STATES_MAX:
            self._cache.popitem(last=False)

    def drop(self, execution_id: int) -> None:
        self._cache.pop(execution_id, None)

    def clear(self) -> None:
        self._cache.clear()
