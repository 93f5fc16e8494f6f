"""`evolve(state, event) -> state`: the fold.  The engine, replay and every projection use this function.

It never renders a template and never looks at a playbook: what was chosen is in the event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from noetl.core import kinds
from noetl.core.errors import LedgerCorrupt
from noetl.core.event import Event
from noetl.core.execution import children, lifecycle, lineage
from noetl.core.execution.admission import admitting, requested, turned_down
from noetl.core.execution.forking import folding as seeds
from noetl.core.execution.jobs import folding
from noetl.core.execution.lifecycle import EXECUTION_TIMER, limited, retry_timer, unawaited, unlimited
from noetl.core.execution.looping import stages
from noetl.core.execution.looping.ends import closed
from noetl.core.execution.looping.gathering import gathered, gathering, ungathered
from noetl.core.execution.looping.stages import answered, entered, opening
from noetl.core.execution.pins import pinned
from noetl.core.execution.placing.places import NO_PLACES, Known, placed
from noetl.core.execution.placing.sources import digests_of
from noetl.core.execution.state import (
    Command,
    CommandStatus,
    ExecutionState,
    Parent,
    Pending,
    Status,
    StepResult,
    entry_from_json,
)
from noetl.core.execution.writes import integer, without, write
from noetl.core.upcasting.registry import UPCASTERS

_UNFOLDABLE = (LookupError, TypeError, ValueError, AttributeError, AssertionError)
"""What a fold raises over an event whose members are not what its kind says."""


def evolve(state: ExecutionState | None, event: Event) -> ExecutionState:
    """Fold one event.  One that the state already contains changes nothing; a missing one is an error.

    One that cannot be folded is an error of its own kind, so that it stops its execution and nobody else."""
    try:
        return _evolved(state, event)
    except _UNFOLDABLE as error:
        what = f"{event.event_type} {event.event_id} at version {event.stream_version}"
        raise LedgerCorrupt(f"execution {event.execution_id}: {what} cannot be folded: {error!r}") from error


def _evolved(state: ExecutionState | None, event: Event) -> ExecutionState:
    event = UPCASTERS.upcast(event)
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
    if state.places is not NO_PLACES or "locality" in event.meta:
        changes["places"] = placed(Known(state.places, state.commands, lambda: digests_of(state)), event)
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
    parent: Any = meta.get("parent")
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
        # One that begins with another's state is told with it what is requested.
        requested_steps={} if "fork" in meta else {entry: ()},
        timers={EXECUTION_TIMER: str(meta["due_at"])} if "due_at" in meta else {},
        parent_execution_id=event.parent_execution_id,
        parent=None if parent is None else _parent(parent),
        depth=integer(meta.get("depth", 0)),
        **_surroundings(meta),
        **pinned(meta),
    )


def _parent(link: Mapping[str, Any]) -> Parent:
    return Parent(link["command_id"], link["n"], link["waits"], link.get("ref_id"))


def _surroundings(meta: Mapping[str, object]) -> dict[str, Any]:
    """What an execution was told about the world when it began: the catalog, the server, who started it."""
    catalog: Any = meta.get("catalog") or {}
    return {
        "catalog_id": catalog.get("id"),
        "catalog_version": catalog.get("version"),
        "env": meta.get("env") or {},
        "caller": meta.get("iter"),
        "fork": seeds.fork_of(meta),
    }


def _issued(state: ExecutionState, event: Event) -> dict[str, Any] | None:
    command_id, meta = event.command_id, event.meta
    assert command_id is not None
    step, run, kind = str(meta["step"]), integer(meta["run"]), str(meta["kind"])
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
        asked_at=event.event_time if kind in ("evaluate", "collect") else None,
        parent_ref=lineage.led_to(state, meta, state.loop_state.get(step)),
    )
    commands = {**state.commands, command_id: command}
    if kind in ("seal", "gather"):
        return {"commands": commands, **(gathering(state, step, meta) if kind == "gather" else {})}
    if kind != "step":
        pending = state.pending_next_actions.get(step, Pending(run=run))
        asked = pending._replace(asked=pending.asked + 1, phase=None, parents=())
        changes: dict[str, Any] = {}
        if "phase" in meta:
            asked = asked._replace(phase=str(meta["phase"]), parents=command.parents)
            changes = admitting(state, step, run, closing=meta.get("closing") is True)
        elif meta.get("opens") is True:
            changes = {**opening(state, event), **limited(state, event, step, run)}
        return {**changes, "commands": commands, "pending_next_actions": {**state.pending_next_actions, step: asked}}
    if step in state.pending_next_actions:
        # Admitted: the answers are used up.
        known = {**state.pending_next_actions, step: answered(state, step, run)}
        changes = {"pending_next_actions": known}
    else:
        changes = {}
    changes |= limited(state, event, step, run)
    return {**changes, "commands": commands, **entered(state, step, run, closing=meta.get("closing") is True)}


def _claimed(state: ExecutionState, event: Event) -> dict[str, Any] | None:
    command = state.commands.get(event.command_id or "")
    attempt = integer(event.meta["attempt"])
    if command is None or command.attempt >= attempt:
        return None
    claimed = command._replace(status=CommandStatus.CLAIMED, attempt=attempt, job=None)
    return {"commands": {**state.commands, command.command_id: claimed}}


def _ended(state: ExecutionState, event: Event) -> dict[str, Any] | None:
    command = state.commands.get(event.command_id or "")
    if command is None:
        return None
    result = event.result
    assert result is not None
    commands = without(state.commands, command.command_id)
    timers = unawaited(state, command)
    if command.kind == "gather":
        return {**timers, "commands": commands, **gathered(state, event, command)}
    if command.kind not in ("step", "seal"):
        pending = state.pending_next_actions.get(command.step, Pending(run=command.run))
        answers = {**pending.evaluations, command.expression or command.kind: result}
        kept = pending._replace(evaluations=answers)
        return {
            **timers,
            **lineage.collected(state, event, command),
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
        stored=context.get("stored"),
        selected=context.get("selected", ()),
        meta=context.get("meta"),
        traceback=_reference(event.meta.get("traceback")),
        ref_id=lineage.ref_id_of(event),
        jobs=_jobs(event.meta.get("jobs")),
    )
    step, ref_id = command.step, outcome.ref_id
    changes: dict[str, Any] = {}
    if command.kind == "seal":
        letter = _reference(event.meta.get("dead_letter"))
        changes = closed(state, step, is_ok=outcome.status == "ok", dead_letter=letter)
    changes |= lineage.passed(state, step, command.parent_ref) if ref_id is None else lineage.returned(state, step)
    return {
        **timers,
        **changes,
        "commands": commands,
        "variables": write(state.variables, event.writes),
        "step_results": {**state.step_results, command.step: outcome},
        "pending_next_actions": {
            **state.pending_next_actions,
            command.step: answered(state, command.step, command.run),
        },
    }


def _jobs(value: object) -> tuple[Mapping[str, object], ...]:
    return tuple(value) if isinstance(value, list | tuple) else ()


def _reference(value: object) -> Mapping[str, object] | None:
    return value if isinstance(value, Mapping) else None


def _waiting(state: ExecutionState, event: Event) -> dict[str, Any] | None:
    command = state.commands.get(event.command_id or "")
    number = integer(event.meta["n"])
    if command is None or command.waits >= number:
        return None
    variables = write(state.variables, event.writes)
    if state.cancelling is not None:
        return {"commands": without(state.commands, command.command_id), "variables": variables}
    due_at = str(event.meta["due_at"])
    waiting = command._replace(
        status=CommandStatus.WAITING,
        waits=number,
        resume=event.payload_ref,
        due_at=due_at,
        # The resume point is behind what a child gave.
        child=None,
        base=command.attempt,
        job=None,
    )
    name = retry_timer(command.command_id, number)
    return {
        "commands": {**state.commands, command.command_id: waiting},
        "timers": {**state.timers, name: due_at},
        "variables": variables,
    }


def _fired(state: ExecutionState, event: Event) -> dict[str, Any] | None:
    name = str(event.meta["name"])
    if name not in state.timers:
        return None
    changes: dict[str, Any] = {"timers": without(state.timers, name)}
    kind, _, rest = name.partition("/")
    command = state.commands.get(rest.rpartition("/")[0]) if kind == "retry" else None
    if command is not None and command.status is CommandStatus.WAITING:
        ready = command._replace(status=CommandStatus.ISSUED, due_at=None)
        changes["commands"] = {**state.commands, command.command_id: ready}
    return changes


def _decided(state: ExecutionState, event: Event) -> dict[str, Any] | None:
    meta = event.meta
    step, run, outcome = str(meta["step"]), integer(meta["run"]), str(meta["outcome"])
    known = state.issued_steps.get(step)
    if known != run and (known is not None or "reason" not in meta or state.runs.get(step, 0) + 1 != run):
        return None
    changes: dict[str, Any] = {
        **unlimited(state, step, run),
        **turned_down(state, step, run, closing=meta.get("closing") is True),
        "issued_steps": without(state.issued_steps, step),
        "pending_next_actions": without(state.pending_next_actions, step),
        "variables": write(state.variables, event.writes),
    }
    changes |= requested(state, event, changes.get("requested_steps", state.requested_steps))
    if outcome == "failed":
        changes["failure"] = state.failure or {"step": step, "error": meta.get("error")}
    elif outcome == "skipped":
        changes["skipped_steps"] = {**state.skipped_steps, step: run}
        requesters: Any = meta.get("parents", ())
        changes |= lineage.passed(state, step, lineage.led_by(state, requesters))
    else:
        changes["completed_steps"] = {**state.completed_steps, step: run}
    if outcome == "completed":
        changes["last_step"] = step
    if outcome in ("completed", "skipped"):
        changes["has_leaf_end"] = state.has_leaf_end or meta.get("leaf") is True
    return changes


_ENDS = {
    kinds.PLAYBOOK_COMPLETED: Status.COMPLETED,
    kinds.PLAYBOOK_FAILED: Status.FAILED,
    kinds.EXECUTION_CANCELLED: Status.CANCELLED,
}


def _terminal(state: ExecutionState, event: Event) -> dict[str, Any] | None:
    status = _ENDS[event.event_type]
    return {
        "status": status,
        "ended_at": event.event_time,
        "result": event.result,
        "timers": {},
        "commands": {},
        # How far a loop was is still of interest; where its frames left their rows nobody can ask any more.
        "loop_state": {step: ungathered(stage) for step, stage in state.loop_state.items()},
    }


_FOLDS: Mapping[str, Callable[[ExecutionState, Event], dict[str, Any] | None]] = {
    kinds.PLAYBOOK_INITIALIZED: lambda _state, _event: None,
    kinds.COMMAND_ISSUED: _issued,
    kinds.COMMAND_CLAIMED: _claimed,
    kinds.COMMAND_COMPLETED: _ended,
    kinds.COMMAND_FAILED: _ended,
    kinds.TASK_WAITING: _waiting,
    kinds.TIMER_FIRED: _fired,
    kinds.STEP_DECIDED: _decided,
    **stages.FOLDS,
    **children.FOLDS,
    **folding.FOLDS,
    **seeds.FOLDS,
    **lifecycle.FOLDS,
    **dict.fromkeys(_ENDS, _terminal),
}
