"""What others recorded in the owned shards and nobody decided yet, as inputs of the decider."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from noetl.core.errors import Terminal
from noetl.core.event import Event
from noetl.engine.control.inputs import DecideInput, Input, RestoreInput
from noetl.engine.control.states import Held, States, folded, undecided_events
from noetl.engine.sharing.neighbours import Neighbours
from noetl.engine.sharing.waiting import Waiting, unheard
from noetl.ports.ledger import Ledger, ShardHead


class Undecided:
    def __init__(self, ledger: Ledger, states: States, neighbours: Neighbours | None) -> None:
        self._ledger = ledger
        self._states = states
        self._neighbours = neighbours

    async def inputs(self, heads: Iterable[ShardHead]) -> list[Waiting]:
        """What is known up to there goes on from what is known, anything else is restored."""
        undecided: dict[int, list[Event]] = {}
        for head in heads:
            for event in await undecided_events(self._ledger, head):
                undecided.setdefault(event.execution_id, []).append(event)
        found: list[Input] = []
        unknown: dict[int, list[Event]] = {}
        for execution_id, events in undecided.items():
            held = self._states.cached(execution_id)
            if self._can_go_on(execution_id, held, events):
                before = held.state if held is not None else None
                found.append(DecideInput(execution_id=execution_id, undecided=tuple(events), before=before))
            else:
                self._states.drop(execution_id)
                unknown[execution_id] = events
        away = await self.elsewhere({events[0].shard_id for events in unknown.values()})
        found += (
            RestoreInput(execution_id=one, undecided=tuple(events), elsewhere=away.get(one, frozenset()))
            for one, events in unknown.items()
        )
        return [unheard(one) for one in found]

    def _can_go_on(self, execution_id: int, held: Held | None, events: Sequence[Event]) -> bool:
        """Fold what others recorded into what is known.  All of a batch is known before any of it is decided: what one
        execution causes in another must find it as it is."""
        if events[0].stream_version != (held.state.version if held is not None else 0) + 1:
            return False
        try:
            after = folded(held, events)
        except Terminal:
            return False  # refused when it is looked at alone
        assert after is not None
        self._states.keep(execution_id, after)
        return True

    async def elsewhere(self, shards: Collection[int]) -> Mapping[int, frozenset[tuple[str, int]]]:
        """The commands and attempts that sessions of other servers hold, by execution."""
        return await self._neighbours.elsewhere(shards) if self._neighbours is not None and shards else {}
