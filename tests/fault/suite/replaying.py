"""The same story: folding the ledger again gives what the live projection shows, also from a snapshot on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from noetl.adapters.postgres.rows import event_of
from noetl.core.event import Event
from noetl.core.execution.evolve import evolve, fold_all
from noetl.core.execution.state import ExecutionState
from noetl.core.snapshot.snapshot import Snapshot, restore, state_checksum
from noetl.engine.projecting.rows import execution_row

_EVENTS = "SELECT * FROM noetl.event WHERE execution_id >= $1 ORDER BY execution_id, position"
_ROWS = """
SELECT execution_id, status, last_event_id, applied_position, version, last_step, state::text AS state,
       quarantine::text AS quarantine
FROM noetl.execution
"""
_SNAPSHOTS = """
SELECT execution_id, position, tenant_id, organization_id, shard_id, stream_version, last_event_id, code_version,
       upcaster_digest, payload_root, checksum, state
FROM noetl.projection_snapshot
"""
_SHOWN = ("status", "last_event_id", "applied_position", "version", "last_step", "state")


async def differences(connection: Any, *, first_id: int) -> tuple[list[str], set[int]]:
    """What live rows and snapshots say that the ledger does not, and the executions that were set aside."""
    stories: dict[int, list[Any]] = {}
    for row in await connection.fetch(_EVENTS, first_id):
        stories.setdefault(row["execution_id"], []).append(row)
    live = {row["execution_id"]: row for row in await connection.fetch(_ROWS)}
    snapshots: dict[int, list[Snapshot]] = {}
    for row in await connection.fetch(_SNAPSHOTS):
        snapshots.setdefault(row["execution_id"], []).append(Snapshot(**dict(row)))
    found: list[str] = []
    set_aside = {execution_id for execution_id, row in live.items() if row["quarantine"] is not None}
    for execution_id, story in stories.items():
        if execution_id in set_aside:
            continue
        try:
            found += _of_one(story, live.get(execution_id), snapshots.get(execution_id, ()))
        except Exception as error:  # whatever a broken story does to the fold is a finding
            found.append(f"execution {execution_id} cannot be folded: {error!r}")
    return found, set_aside


def _of_one(story: Sequence[Any], live: Mapping[str, Any] | None, snapshots: Sequence[Snapshot]) -> list[str]:
    events = [event_of(row) for row in story]
    state = fold_all(events)
    assert state is not None, "a story has events"
    name = f"execution {state.execution_id}"
    if live is None:
        return [f"{name} has no projection"]
    replayed = execution_row(state, events[-1].shard_id, events[-1].position)
    found = [
        f"{name}: {field} is shown as {live[field]!r:.200}, replay gives {getattr(replayed, field)!r:.200}"
        for field in _SHOWN
        if _read(field, live[field]) != _read(field, getattr(replayed, field))
    ]
    return found + [f"{name}: {wrong}" for one in snapshots if (wrong := _of_snapshot(one, events, state))]


def _read(field: str, value: Any) -> Any:
    """The document says the same in any order of its keys."""
    return json.loads(value) if field == "state" and value is not None else value


def _of_snapshot(snapshot: Snapshot, events: Sequence[Event], expected: ExecutionState) -> str | None:
    state: ExecutionState | None = restore(snapshot)
    if state is None:
        return f"the snapshot at {snapshot.position} does not fit"
    for event in events:
        if event.position > snapshot.position:
            state = evolve(state, event)
    if state_checksum(state) != state_checksum(expected):
        return f"replay from the snapshot at {snapshot.position} gives another state"
    return None
