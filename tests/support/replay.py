"""Deciding a recorded execution again, from its events and its playbook alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from noetl.core import kinds
from noetl.core.codec import canonical_json
from noetl.core.event import Draft, Event
from noetl.core.execution.decide import decide
from noetl.core.execution.evolve import evolve, fold_all
from noetl.core.execution.state import ExecutionState
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.snapshot.snapshot import restore, take

# Only the router says these: each must follow from the event before.  (A frame may also be given out again, by whoever
# finds that its first attempt was lost.)
OF_THE_ROUTER = frozenset(
    (
        kinds.STEP_DECIDED,
        kinds.COMMAND_ISSUED,
        kinds.LOOP_STARTED,
        kinds.LOOP_DONE,
        kinds.PLAYBOOK_COMPLETED,
        kinds.PLAYBOOK_FAILED,
        kinds.EXECUTION_CANCELLED,
    )
)
_DECIDED = (
    *("event_type", "transition_key", "command_id", "stage_id", "frame_id"),
    *("meta", "result", "writes", "payload_ref"),
)


def through_bytes(state: ExecutionState) -> ExecutionState:
    """A state as it comes back from a snapshot."""
    restored = restore(take(state, shard_id=0, position=state.version))
    assert restored == state, "a snapshot changed the state"
    return restored


def decided_again(
    events: Sequence[Event],
    playbook: CompiledPlaybook,
    *,
    start: int = 0,
    kept: Callable[[ExecutionState], ExecutionState] = lambda state: state,
) -> list[int]:
    """Fold the events one by one and decide after each: what follows must be what was recorded, member by member.
    Returns the places of the events that follow from nothing.  `start` is one of these: the state before it is rebuilt,
    as after a restart.  `kept` is what becomes of a state between two events."""
    state: ExecutionState | None = fold_all(events[:start])
    place, facts = start, []
    while place < len(events):
        fact = events[place]
        assert fact.event_type not in OF_THE_ROUTER, f"nothing leads to {_name(fact)}"
        facts.append(place)
        state = kept(evolve(state, fact))
        place += 1
        for draft in decide(state, fact, playbook).drafts:
            assert place < len(events), f"after {_name(fact)} nobody recorded {draft.transition_key}"
            recorded = events[place]
            assert said(draft) == said(recorded), f"after {_name(fact)}"
            state = kept(evolve(state, recorded))
            place += 1
    return facts


def said(event: Draft | Event) -> Any:
    """What the router decides about an event, as the ledger keeps it."""
    return json.loads(canonical_json({name: getattr(event, name) for name in _DECIDED}))


def _name(event: Event) -> str:
    return f"{event.stream_version}: {event.event_type} {event.transition_key}"
