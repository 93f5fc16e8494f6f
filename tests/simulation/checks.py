"""What must hold at the end of a run: the ledger and what was made of it agree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.tables import event_of
from noetl.core import kinds
from noetl.core.event import Event
from noetl.core.execution.evolve import evolve
from noetl.core.execution.state import ExecutionState
from noetl.core.ids import is_system
from noetl.core.snapshot.snapshot import restore
from noetl.engine.control.states import States
from noetl.engine.projecting.rows import execution_row
from tests.simulation.frames import require


def events_of(database: MemoryDatabase, execution_id: int) -> list[Event]:
    return [event_of(row) for row in database.tables.events[execution_id]]


def folded(events: Sequence[Event]) -> ExecutionState:
    state = None
    for event in events:
        state = evolve(state, event)
    assert state is not None
    return state


def check_cache(database: MemoryDatabase, states: States) -> None:
    """Whatever a process remembers of an execution is what its events say up to that position."""
    for execution_id in database.tables.events:
        held = states.cached(execution_id)
        if held is not None:
            events = [e for e in events_of(database, execution_id) if e.position <= held.position]
            require(folded(events) == held.state, f"the cached state of {execution_id} is not the fold of its events")


def check_end(database: MemoryDatabase, *, is_shown: bool = False) -> None:
    """Everything is closed, nothing is left over, and every command that was issued has ended."""
    tables = database.tables
    for execution_id in tables.events:
        if is_system(execution_id):
            continue
        events = events_of(database, execution_id)
        issued = [e.command_id for e in events if e.event_type == kinds.COMMAND_ISSUED]
        ended = [e.command_id for e in events if e.event_type in (kinds.COMMAND_COMPLETED, kinds.COMMAND_FAILED)]
        require(tables.streams[execution_id].closed, f"{execution_id} is not closed")
        require(sorted(map(str, issued)) == sorted(map(str, ended)), f"{execution_id}: {issued} issued, {ended} ended")
        require(len(issued) == len(set(issued)), f"{execution_id}: a command was issued twice")
        require(events[-1].event_type in (kinds.PLAYBOOK_COMPLETED, kinds.PLAYBOOK_FAILED), "no terminal event last")
        state = folded(events)
        if is_shown:
            check_shown(database, state, events[-1])
        require(not state.timers, f"{execution_id} has open timers")
    require(not tables.commands, f"the queue still holds {list(tables.commands)}")
    require(not tables.timers, f"timers are left: {list(tables.timers)}")


def is_projected(database: MemoryDatabase) -> bool:
    """Whether the projectors are at the end of every shard that has events."""
    tables = database.tables
    done = {shard_id: row.position for shard_id, row in tables.projections.items()}
    return all(done.get(shard_id, 0) >= head.next_position - 1 for shard_id, head in tables.heads.items())


def check_shown(database: MemoryDatabase, state: ExecutionState, last: Event) -> None:
    """What people are shown is the fold of the events, and so are the snapshots."""
    made = execution_row(state, last.shard_id, last.position)
    row = database.tables.executions.get(state.execution_id)
    for name in made.__slots__:
        shown, said = getattr(row, name, None), getattr(made, name)
        if name == "state":
            shown, said = json.loads(shown or "{}"), json.loads(said)
            require([*shown["steps"]] == [*said["steps"]], f"the steps of {state.execution_id} are out of order")
        require(shown == said, f"{name} of {state.execution_id} is shown as {shown!r}, not as {said!r}")
    for position, snapshot in database.tables.snapshots.get(state.execution_id, {}).items():
        events = [event for event in events_of(database, state.execution_id) if event.position <= position]
        require(restore(snapshot) == folded(events), f"the snapshot of {state.execution_id} at {position} is wrong")


def digest_of(database: MemoryDatabase) -> str:
    """One number for the whole ledger: every byte, every position, every time."""
    whole = hashlib.sha256()
    for shard_id, rows in sorted(database.tables.shards.items()):
        for row in rows:
            whole.update(f"{shard_id}|{row.position}|{row.stream_version}|{row.ingest_time}|{row.text}\n".encode())
    return whole.hexdigest()
