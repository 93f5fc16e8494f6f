"""What must hold of every ledger, after every commit and at the end of a run."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.tables import StoredEvent, event_of
from noetl.core import kinds
from noetl.core.event import Event
from noetl.core.execution.evolve import evolve
from noetl.core.execution.state import ExecutionState
from noetl.core.kinds import KINDS
from noetl.engine.control.states import States
from tests.simulation.frames import LoopChecker, require


@dataclass(slots=True)
class Checker:
    """Watches every commit."""

    positions: Counter[int] = field(default_factory=Counter)
    versions: Counter[int] = field(default_factory=Counter)
    attempts: dict[tuple[int, str], int] = field(default_factory=dict)
    ended_commands: set[tuple[int, str]] = field(default_factory=set)
    ended_executions: set[int] = field(default_factory=set)
    ids: set[int] = field(default_factory=set)
    loops: LoopChecker = field(default_factory=LoopChecker)
    marks: Counter[str] = field(default_factory=Counter)

    def observe(self, rows: Sequence[StoredEvent]) -> None:
        for row in rows:
            self._check(event_of(row))

    def _check(self, event: Event) -> None:
        key = (event.execution_id, event.command_id or "")
        self.positions[event.shard_id] += 1
        self.versions[event.execution_id] += 1
        require(event.position == self.positions[event.shard_id], f"shard {event.shard_id} has a gap", event)
        require(event.stream_version == self.versions[event.execution_id], "a stream has a gap", event)
        require(event.event_id not in self.ids, "an id is used twice", event)
        require(event.execution_id not in self.ended_executions, "a fact behind the end", event)
        self.ids.add(event.event_id)
        self.loops.observe(event)
        if event.event_type == kinds.COMMAND_CLAIMED:
            attempt = event.meta["attempt"]
            assert isinstance(attempt, int)
            require(key not in self.ended_commands, "a claim of an ended command", event)
            require(attempt == self.attempts.get(key, 0) + 1, "attempts do not rise by one", event)
            self.attempts[key] = attempt
        if event.event_type in (kinds.COMMAND_COMPLETED, kinds.COMMAND_FAILED):
            require(key not in self.ended_commands, "a second terminal event", event)
            require(event.meta["attempt"] == self.attempts.get(key, 0), "a stale attempt reported", event)
            self.ended_commands.add(key)
        if event.event_type == kinds.STEP_DECIDED and event.meta["outcome"] == "skipped":
            self.marks[f"skipped by {event.meta['reason']}"] += 1
        if "phase" in event.meta:
            self.marks[f"asked to {event.meta['phase']}"] += 1
        if KINDS[event.event_type].closes:
            self.ended_executions.add(event.execution_id)


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


def check_end(database: MemoryDatabase) -> None:
    """Everything is closed, nothing is left over, and every command that was issued has ended."""
    tables = database.tables
    for execution_id in tables.events:
        events = events_of(database, execution_id)
        issued = [e.command_id for e in events if e.event_type == kinds.COMMAND_ISSUED]
        ended = [e.command_id for e in events if e.event_type in (kinds.COMMAND_COMPLETED, kinds.COMMAND_FAILED)]
        require(tables.streams[execution_id].closed, f"{execution_id} is not closed")
        require(sorted(map(str, issued)) == sorted(map(str, ended)), f"{execution_id}: {issued} issued, {ended} ended")
        require(len(issued) == len(set(issued)), f"{execution_id}: a command was issued twice")
        require(events[-1].event_type in (kinds.PLAYBOOK_COMPLETED, kinds.PLAYBOOK_FAILED), "no terminal event last")
        state = folded(events)
        row = tables.executions[execution_id]
        require(row.status == str(state.status), f"{execution_id} is shown as {row.status}, not {state.status}")
        require(not state.timers, f"{execution_id} has open timers")
    require(not tables.commands, f"the queue still holds {list(tables.commands)}")
    require(not tables.timers, f"timers are left: {list(tables.timers)}")


def digest_of(database: MemoryDatabase) -> str:
    """One number for the whole ledger: every byte, every position, every time."""
    whole = hashlib.sha256()
    for shard_id, rows in sorted(database.tables.shards.items()):
        for row in rows:
            whole.update(f"{shard_id}|{row.position}|{row.stream_version}|{row.ingest_time}|{row.text}\n".encode())
    return whole.hexdigest()
