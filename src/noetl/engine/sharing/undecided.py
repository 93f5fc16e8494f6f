"""What others recorded in the owned shards and nobody decided yet, as inputs of the decider."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from noetl.core.errors import Terminal
from noetl.core.event import Event
from noetl.engine.control.inputs import DecideInput, Input, RestoreInput
from noetl.engine.control.states import Held, States, events_behind, folded
from noetl.engine.sharing.neighbours import Neighbours
from noetl.engine.sharing.owned import Owned
from noetl.engine.sharing.waiting import Turns, Waiting, unheard
from noetl.ports.ledger import Ledger, ShardHead
from noetl.ports.session import Stop


class Undecided:
    def __init__(self, ledger: Ledger, states: States, owned: Owned, neighbours: Neighbours | None) -> None:
        self._ledger = ledger
        self._states = states
        self._owned = owned
        self._neighbours = neighbours

    async def of(self, shards: Iterable[int]) -> list[Waiting]:
        """All that is undecided there, whoever owned them when it was recorded."""
        heads = [self._owned.heads[shard_id] for shard_id in shards]
        found = await self._inputs([(head, head.decided_position) for head in heads])
        return [unheard(one) for one in found]

    async def beyond(self, known: Mapping[int, ShardHead]) -> list[Waiting]:
        """What has grown behind heads that were known."""
        found = await self._inputs(self._behind(known))
        return [unheard(one) for one in found]

    async def again(
        self, shards: Iterable[int], uncertain: Iterable[int], stops: Sequence[Stop]
    ) -> dict[int, DecideInput | RestoreInput]:
        """All that is undecided there, and these executions as they are in truth, by execution."""
        heads = [self._owned.heads[shard_id] for shard_id in shards]
        found = {one.execution_id: one for one in await self._inputs([(head, head.decided_position) for head in heads])}
        away = await self.elsewhere(list(self._owned.heads))
        for execution_id in sorted(uncertain):
            known = found.get(execution_id)
            found[execution_id] = RestoreInput(
                execution_id=execution_id,
                undecided=() if known is None else known.undecided,
                stops=tuple(stop for stop in stops if stop.execution_id == execution_id),
                elsewhere=away.get(execution_id, frozenset()),
            )
        return found

    async def join(self, known: Mapping[int, ShardHead], taken: Sequence[Waiting]) -> list[Waiting]:
        """What has grown goes before the inputs that wait for it: that is its order in the ledger.  One that brings an
        execution up to what is recorded takes over what is new of it."""
        found = {one.execution_id: one for one in await self._inputs(self._behind(known))}
        decided = {shard_id: head.decided_position for shard_id, head in self._owned.heads.items()}
        restored = [one for one in taken if isinstance(one.input, RestoreInput)]
        away = await self.elsewhere({one.shard_id for one in restored if one.shard_id is not None})
        for waiting in taken:
            one = waiting.input
            if isinstance(one, DecideInput | RestoreInput):
                one = _without(one, decided)
                waiting.input = _joined(one, found.pop(one.execution_id, None), away.get(one.execution_id))
        return [*map(unheard, found.values()), *taken]

    async def elsewhere(self, shards: Collection[int]) -> Mapping[int, frozenset[tuple[str, int]]]:
        """The commands and attempts that sessions of other servers hold, by execution."""
        return await self._neighbours.elsewhere(shards) if self._neighbours is not None and shards else {}

    def _behind(self, known: Mapping[int, ShardHead]) -> list[tuple[ShardHead, int]]:
        """What has grown, without what a commit of ours has decided that came late."""
        heads = self._owned.heads
        return [(heads[one], max(head.next_position - 1, heads[one].decided_position)) for one, head in known.items()]

    async def _inputs(self, heads: Iterable[tuple[ShardHead, int]]) -> list[DecideInput | RestoreInput]:
        """What is known up to there goes on from what is known, anything else is restored."""
        undecided: dict[int, list[Event]] = {}
        for head, position in heads:
            for event in await events_behind(self._ledger, head, position):
                undecided.setdefault(event.execution_id, []).append(event)
        found: list[DecideInput | RestoreInput] = []
        unknown: dict[int, list[Event]] = {}
        turns = Turns()
        for execution_id, events in undecided.items():
            await turns.take(len(events))
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
        return found

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


def _without(one: DecideInput | RestoreInput, decided: Mapping[int, int]) -> DecideInput | RestoreInput:
    """Without what is decided by now."""
    left = tuple(event for event in one.undecided if event.position > decided.get(event.shard_id, 0))
    return one if len(left) == len(one.undecided) else replace(one, undecided=left)


def _joined(
    one: DecideInput | RestoreInput, more: DecideInput | RestoreInput | None, away: frozenset[tuple[str, int]] | None
) -> Input:
    undecided = (*one.undecided, *more.undecided) if more is not None else one.undecided
    if isinstance(one, RestoreInput):
        return replace(one, undecided=undecided, elsewhere=away or frozenset())
    if isinstance(more, RestoreInput):
        return replace(more, undecided=undecided)
    return replace(one, undecided=undecided)
