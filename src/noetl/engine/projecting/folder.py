"""Folding events into rows, with the one fold that the engine uses too.

An execution that cannot be folded is set aside: its row says so, and nobody else waits for it.  The states that are
kept are a cache: dropping them changes latency, never a row."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from noetl.core.errors import Transient
from noetl.core.event import Event
from noetl.core.execution.evolve import evolve
from noetl.core.ids import is_system
from noetl.core.limits import PROJECTED_STATES_MAX
from noetl.engine.control.states import Held
from noetl.engine.projecting.rows import execution_row, quarantine_of, unfolded_row
from noetl.ports.ledger import ExecutionRow
from noetl.ports.projections import Tail, Unreadable

STORY_EVENTS = 5_000
FOLDED_AT_ONCE = 32
log = logging.getLogger("noetl.projector")


class StateSource(Protocol):
    async def fold(self, execution_id: int) -> Held:
        """The state of an execution from the ledger, maybe from a snapshot of it."""
        ...


class Folded(NamedTuple):
    """What became of some events: the rows to write, and the states behind those that could be folded."""

    rows: list[ExecutionRow]
    states: list[Held]
    quarantined: int = 0


class Folder:
    def __init__(self, states: StateSource, tail: Tail, *, states_max: int = PROJECTED_STATES_MAX) -> None:
        self._states = states
        self._tail = tail
        self._states_max = states_max
        self._cache: OrderedDict[int, Held] = OrderedDict()
        self._broken: OrderedDict[int, ExecutionRow] = OrderedDict()

    def clear(self) -> None:
        """Forget everything: it may be of a ledger that is gone."""
        self._cache.clear()
        self._broken.clear()

    async def fold(self, events: Iterable[Event | Unreadable]) -> Folded:
        """One row for each execution that these events are about, however many there are of it."""
        stories: dict[int, list[Event | Unreadable]] = {}
        for event in events:
            if not is_system(event.execution_id):
                stories.setdefault(event.execution_id, []).append(event)
        folded, new = Folded([], []), 0
        for number, (execution_id, story) in enumerate(stories.items(), start=1):
            if number % FOLDED_AT_ONCE == 0:
                await asyncio.sleep(0)  # a server has more to do than this
            broken = self._broken.get(execution_id)
            if broken is None:
                held = await self._fold(execution_id, story)
                if isinstance(held, Held):
                    folded.rows.append(execution_row(held.state, held.shard_id, held.position))
                    folded.states.append(held)
                    continue
                broken, new = held, new + 1
            # Told again with every event: somebody may have refolded it with other code.
            folded.rows.append(broken)
        return folded._replace(quarantined=new)

    async def refold(self, execution_id: int) -> ExecutionRow | None:
        """The row of an execution that was set aside, if it can be folded now."""
        found = await self._as_far_as_possible(execution_id)
        if found is None or isinstance(found, ExecutionRow):
            return None
        self._broken.pop(execution_id, None)
        return execution_row(found.state, found.shard_id, found.position)

    async def _fold(self, execution_id: int, story: Sequence[Event | Unreadable]) -> Held | ExecutionRow:
        held = self._cache.pop(execution_id, None)
        if held is not None and story[0].stream_version > held.state.version + 1:
            held = None  # the shard was away, and somebody else has projected what lies between
        if held is None and story[0].stream_version > 1:
            found = await self._load(execution_id)
            if isinstance(found, ExecutionRow):
                return self._set_aside(found)
            held = found
        for event in story:
            if held is not None and event.stream_version <= held.state.version:
                continue
            held, broken = _step(held, event)
            if broken is not None:
                return self._set_aside(broken)
        assert held is not None, "there is at least one event"
        # One that has ended will not change any more.
        if not held.state.is_terminal:
            self._cache[execution_id] = held
            if len(self._cache) > self._states_max:
                self._cache.popitem(last=False)
        return held

    async def _load(self, execution_id: int) -> Held | ExecutionRow | None:
        try:
            return await self._states.fold(execution_id)
        except Transient:
            raise
        except Exception:  # one execution, not the shard: its story is read with more care
            return await self._as_far_as_possible(execution_id)

    async def _as_far_as_possible(self, execution_id: int) -> Held | ExecutionRow | None:
        """The state, or the row of an execution that stops being foldable at some event."""
        held: Held | None = None
        position = 0
        while True:
            page = await self._tail.story(execution_id, after_position=position, limit=STORY_EVENTS)
            for event in page:
                held, broken = _step(held, event)
                if broken is not None:
                    return broken
            if len(page) < STORY_EVENTS:
                return held
            position = page[-1].position

    def _set_aside(self, row: ExecutionRow) -> ExecutionRow:
        log.error(
            "an execution cannot be projected",
            extra={"event": "execution.quarantined", "execution_id": row.execution_id, "reason": row.quarantine},
        )
        self._broken[row.execution_id] = row
        if len(self._broken) > self._states_max:
            self._broken.popitem(last=False)
        return row


def _step(held: Held | None, event: Event | Unreadable) -> tuple[Held | None, ExecutionRow | None]:
    """Fold one event; or the last good state as a row that tells what was in the way."""
    if isinstance(event, Unreadable):
        return held, _broken(held, event, event.reason)
    try:
        state = evolve(held.state if held is not None else None, event)
    except Exception as error:  # what other code wrote may break this one anywhere: one execution, not the shard
        return held, _broken(held, event, error)
    return Held(state, event.shard_id, event.position), None


def _broken(held: Held | None, event: Event | Unreadable, error: BaseException | str) -> ExecutionRow:
    reason = quarantine_of(event, error)
    if held is None:
        return unfolded_row(event, quarantine=reason)
    return execution_row(held.state, event.shard_id, event.position, quarantine=reason)
