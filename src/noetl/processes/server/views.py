"""What the API shows: states, list rows and events as JSON documents.  Ids of 64 bits are strings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from noetl.core.event import Event, envelope
from noetl.core.execution.state import ExecutionState, Status
from noetl.engine.executions import Unserved
from noetl.ports.ledger import ExecutionRow

_IDS = ("execution_id", "event_id", "causation_id", "parent_event_id", "parent_execution_id")


def state_view(state: ExecutionState, position: int, unserved: Sequence[Unserved] = ()) -> dict[str, Any]:
    # A step of which it is not known yet whether it may run is live, but has no run.
    turns = {**state.runs, **state.issued_steps}
    steps = {name: _step_view(state, name, run) for name, run in turns.items()}
    error = None
    if state.failure is not None:
        error = {"step": state.failure.get("step"), **_mapping(state.failure.get("error"))}
    elif state.status is Status.CANCELLED and state.result is not None:
        error = {"step": None, **_mapping(_mapping(state.result["context"]).get("error"))}
    return {
        "execution_id": str(state.execution_id),
        "path": state.path,
        "status": str(state.status),
        "started_at": state.started_at,
        "ended_at": state.ended_at,
        "last_step": state.last_step,
        "version": state.version,
        "position": position,
        "steps": steps,
        "catalog": _catalog_view(state),
        "warnings": [dict(warning) for warning in state.warnings],
        "unserved": [one.to_json() for one in unserved],
        "error": error,
        "result": None,
    }


def _catalog_view(state: ExecutionState) -> dict[str, object] | None:
    if state.catalog_id is None:
        return None
    return {"id": state.catalog_id, "version": state.catalog_version}


def _step_view(state: ExecutionState, name: str, run: int) -> dict[str, Any]:
    view: dict[str, Any] = {"runs": run, "status": _step_status(state, name, run)}
    stage = state.loop_state.get(name)
    if stage is not None:
        view["loop"] = {"total": stage.total, "done": stage.done, "failed": stage.failed}
    running = list(_running_jobs(state, name))
    if running:
        view["running_jobs"] = running
    result = state.step_results.get(name)
    if result is not None and result.run == run and result.jobs:
        view["jobs"] = [dict(job) for job in result.jobs]
    return view


def _running_jobs(state: ExecutionState, name: str) -> Iterator[dict[str, object]]:
    """Where the jobs of a step run and how far they are; `progress` is null until something is known."""
    for command in state.commands.values():
        if command.step == name and command.job is not None:
            where = {"command_id": command.command_id, "attempt": command.attempt, **command.job.where}
            yield {**where, "since": command.job.since, "progress": command.job.progress}


def _step_status(state: ExecutionState, name: str, run: int) -> str:
    """Of the last run of a step, or of the turn in which it did not run."""
    if state.skipped_steps.get(name) == run:
        return "skipped"
    command = state.commands.get(f"{name}#{run}")
    if command is not None:
        return str(command.status)
    if name in state.loop_state:
        return "running"
    result = state.step_results.get(name)
    if result is not None and result.run == run and result.status == "error":
        return "failed"
    return "completed" if state.completed_steps.get(name) == run else "deciding"


def row_view(row: ExecutionRow) -> dict[str, object]:
    return {
        "execution_id": str(row.execution_id),
        "path": row.path,
        "status": row.status,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "last_step": row.last_step,
    }


def event_view(event: Event) -> dict[str, object]:
    view = envelope(event)
    for name in _IDS:
        if view.get(name) is not None:
            view[name] = str(view[name])
    result: Any = view.get("result")
    if result is not None and result["parent_ref"] is not None:
        view["result"] = {**result, "parent_ref": _readable(result["parent_ref"])}
    if "inputs" in event.meta:
        inputs: Any = event.meta["inputs"]
        view["meta"] = {**event.meta, "inputs": [_readable(one) for one in inputs]}
    view |= {
        "shard_id": event.shard_id,
        "position": event.position,
        "stream_version": event.stream_version,
        "ingest_time": event.ingest_time,
    }
    return view


def _readable(named: Mapping[str, object]) -> dict[str, object]:
    """What names a result, with its id as text."""
    return {name: str(value) if name == "ref_id" else value for name, value in named.items()}


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, dict) else {}
