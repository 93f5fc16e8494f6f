"""`evolve(state, event) -> state`: the fold.  The engine, replay and every projection use this function.

It never renders a template and never looks at a playbook: what was chosen is in the event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from noetl.core import kinds
from noetl.core.errors import LedgerCorrupt
from noetl.core.event import Event
from noetl.core.execution.state import (
    Command,
    CommandStatus,
    Entry,
    ExecutionState,
    Pending,
    Status,
    StepResult,
    entry_from_json,
)

V = TypeVar("V")


def evolve(state: ExecutionState | None, event: Event) -> ExecutionState:
    """Fold one event.  One that the state already contains changes nothing; a missing one is an error."""
    if state is None:
        if event.event_type != kinds.PLAYBOOK_INITIALIZED:
            raise LedgerCorrupt(f"execution {event.execution_id} begins with {event.event_type}")
        return _initialized(event)
    if event.execution_id != state.execution_id:
        raise LedgerCorrupt(f"an event of execution {event.execution_id} among those of {state.execution_id}")
    if event.stream_version <= state.version:
        return state
    if event.stream_version != state.version + 1:
        raise LedgerCorrupt(f"execution {event.execution_id}: event {event.stream_version} follows {state.version}")
    fold = _FOLDS.get(event.event_type)
    if fold is None:
        raise LedgerCorrupt(f"execution {event.execution_id}: no fold for {event.event_type}")
    changes = fold(state, event) or {}
    changes["version"] = event.stream_version
    changes["last_event_id"] = event.event_id
    return state.changed(changes)


def fold_all(events: Iterable[Event], state: ExecutionState | None = None) -> ExecutionState | None:
    for event in events:
        state = evolve(state, event)
    return state


def _initialized(event: Event) -> ExecutionState:
    meta = event.meta
    workload: Any = meta["workload"]
    entry = str(meta["entry"])
    playbook = meta["playbook"]
    assert isinstance(playbook, Mapping)
    return ExecutionState(
        execution_id=event.execution_id,
        tenant_id=event.tenant_id,
        organization_id=event.organization_id,
        version=event.stream_version,
        last_event_id=event.event_id,
        path=str(meta["path"]),
        playbook=playbook,
        started_at=event.event_time,
        workload={name: entry_from_json(document) for name, document in workload.items()},
        requested_steps={entry: ()},
        parent_execution_id=event.parent_execution_id,
    )


def _issued(state: ExecutionState, event: Event) -> dict[str, Any] | None:
    command_id, meta = event.command_id, event.meta
    assert command_id is not None
    step, run, kind = str(meta["step"]), _int(meta["run"]), str(meta["kind"])
    if command_id in state.commands or (kind == "step" and state.runs.get(step, 0) >= run):
        return None
    parents = meta.get("parents", ())
    assert isinstance(parents, Sequence)
    pending_writes: Any = meta.get("pending_writes", ())
    command = Command(
        command_id=command_id,
        step=step,
        run=run,
        kind=kind,
        status=CommandStatus.ISSUED,
        expression=str(meta["expression"]) if "expression" in meta else None,
        parents=tuple(str(parent) for parent in parents),
        pending_writes=tuple(pending_writes),
    )
    commands = {**state.commands, command_id: command}
    if kind != "step":
        pending = state.pending_next_actions.get(step, Pending(run=run))
        asked = pending._replace(asked=pending.asked + 1)
        return {"commands": commands, "pending_next_actions": {**state.pending_next_actions, step: asked}}
    return {
        "commands": commands,
        "runs": {**state.runs, step: run},
        "issued_steps": {**state.issued_steps, step: run},
        "requested_steps": _without(state.requested_steps, step),
        "is_closing": state.is_closing or meta.get("closing") is True,
    }


def _claimed(state: ExecutionState, event: Event) -> dict[str, Any] | None:
    command = state.commands.get(event.command_id or "")
    attempt = _int(event.meta["attempt"])
    if command is None or command.attempt >= attempt:
        return None
    claimed = command._replace(status=CommandStatus.CLAIMED, attempt=attempt)
    return {"commands": {**state.commands, command.command_id: claimed}}


def _ended(state: ExecutionState, event: Event) -> dict[str, Any] | None:
    command = state.commands.get(event.command_id or "")
    if command is None:
        return None
    result = event.result
    assert result is not None
    commands = _without(state.commands, command.command_id)
    if command.kind != "step":
        pending = state.pending_next_actions.get(command.step, Pending(run=command.run))
        answers = {**pending.evaluations, str(command.expression): result}
        kept = pending._replace(evaluations=answers)
        return {
            "commands": commands,
            "pending_next_actions": {**state.pending_next_actions, command.step: kept},
        }
    context: Any = result["context"]
    reference: Any = result["reference"]
    outcome = StepResult(
        run=command.run,
        status="error" if event.event_type == kinds.COMMAND_FAILED else "ok",
        reference=reference,
        atoms=context.get("atoms", {}),
        error=context.get("error"),
    )
    return {
        "commands": commands,
        "variables": write(state.variables, event.writes),
        "step_results": {**state.step_results, command.step: outcome},
        "pending_next_actions": {**state.pending_next_actions, command.step: Pending(run=command.run)},
    }


def _waiting(state: ExecutionState, event: Event) -> dict[str, Any] | None:
    command = state.commands.get(event.command_id or "")
    number = _int(event.meta["n"])
    if command is None or command.waits >= number:
        return None
    due_at = str(event.meta["due_at"])
    waiting = command._replace(status=CommandStatus.WAITING, waits=number, resume=event.payload_ref, due_at=due_at)
    name = retry_timer(command.command_id, number)
    return {
        "commands": {**state.commands, command.command_id: waiting},
        "timers": {**state.timers, name: due_at},
        "variables": write(state.variables, event.writes),
    }


def retry_timer(command_id: str, number: int) -> str:
    return f"retry/{command_id}/{number}"


def _fired(state: ExecutionState, event: Event) -> dict[str, Any] | None:
    name = str(event.meta["name"])
    if name not in state.timers:
        return None
    changes: dict[str, Any] = {"timers": _without(state.timers, name)}
    command = state.commands.get(name.removeprefix("retry/").rpartition("/")[0])
    if command is not None and command.status is CommandStatus.WAITING:
        ready = command._replace(status=CommandStatus.ISSUED, due_at=None)
        changes["commands"] = {**state.commands, command.command_id: ready}
    return changes


def _decided(state: ExecutionState, event: Event) -> dict[str, Any] | None:
    meta = event.meta
    step, run, outcome = str(meta["step"]), _int(meta["run"]), str(meta["outcome"])
    if state.issued_steps.get(step) != run:
        return None
    targets: Any = meta.get("targets", ())
    requested = dict(state.requested_steps)
    for target in targets:
        requested[target] = (*requested.get(target, ()), step)
    changes: dict[str, Any] = {
        "issued_steps": _without(state.issued_steps, step),
        "requested_steps": requested,
        "pending_next_actions": _without(state.pending_next_actions, step),
        "variables": write(state.variables, event.writes),
    }
    if outcome == "failed":
        changes["failure"] = state.failure or {"step": step, "error": meta.get("error")}
    else:
        changes["completed_steps"] = {**state.completed_steps, step: run}
    if outcome == "completed":
        changes["last_step"] = step
        changes["has_leaf_end"] = state.has_leaf_end or meta.get("leaf") is True
    return changes


def _terminal(_state: ExecutionState, event: Event) -> dict[str, Any] | None:
    status = Status.COMPLETED if event.event_type == kinds.PLAYBOOK_COMPLETED else Status.FAILED
    return {"status": status, "ended_at": event.event_time, "result": event.result}


_FOLDS: Mapping[str, Callable[[ExecutionState, Event], dict[str, Any] | None]] = {
    kinds.PLAYBOOK_INITIALIZED: lambda _state, _event: None,
    kinds.COMMAND_ISSUED: _issued,
    kinds.COMMAND_CLAIMED: _claimed,
    kinds.COMMAND_COMPLETED: _ended,
    kinds.COMMAND_FAILED: _ended,
    kinds.TASK_WAITING: _waiting,
    kinds.TIMER_FIRED: _fired,
    kinds.STEP_DECIDED: _decided,
    kinds.PLAYBOOK_COMPLETED: _terminal,
    kinds.PLAYBOOK_FAILED: _terminal,
}


def write(variables: Mapping[str, Entry], writes: Sequence[Mapping[str, object]] | None) -> Mapping[str, Entry]:
    """Apply recorded writes in order: `path` below ctx, then `v` or a place (`ref`, `at`) in a payload.  A
    deeper path updates a copy of the nested mapping."""
    if not writes:
        return variables
    result = dict(variables)
    for item in writes:
        path: Any = item["path"]
        reference: Any = item.get("ref")
        at: Any = item.get("at", ())
        if len(path) == 1:
            result[path[0]] = Entry(item.get("v"), reference, tuple(at))
        else:
            base = result.get(path[0], Entry({}))
            result[path[0]] = Entry(nested(base.value, path[1:], item.get("v")))
    return result


def nested(base: object, path: Sequence[str], value: object) -> dict[str, object]:
    """A copy of a mapping with a value at a path; what is no mapping on the way is replaced by one."""
    copy = dict(base) if isinstance(base, dict) else {}
    if len(path) == 1:
        copy[path[0]] = value
    else:
        copy[path[0]] = nested(copy.get(path[0]), path[1:], value)
    return copy


def _without(mapping: Mapping[str, V], key: str) -> dict[str, V]:
    return {name: value for name, value in mapping.items() if name != key}


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
