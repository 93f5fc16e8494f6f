"""Executions that a task starts: how a command waits for one and what it gets.  First the folds, then the events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from noetl.core import kinds
from noetl.core.event import Draft, Event
from noetl.core.execution import lineage, pins
from noetl.core.execution.lifecycle import child_timer, unawaited
from noetl.core.execution.state import Child, Command, CommandStatus, ExecutionState, Status
from noetl.core.execution.writes import integer, without, write
from noetl.core.reference import Result, parent_document

Changes = dict[str, Any]

# How a wait for a child ended.
COMPLETED, FAILED, CANCELLED = "completed", "failed", "cancelled"
# It was started and nobody waits; the time to wait was up; it could not be started.
STARTED, TIMEOUT, REFUSED = "started", "timeout", "refused"
_ENDS = {Status.COMPLETED: COMPLETED, Status.FAILED: FAILED, Status.CANCELLED: CANCELLED}


# --- folds -----------------------------------------------------------------------------------------------


def _started(state: ExecutionState, event: Event) -> Changes | None:
    command = _command(state, event)
    meta, number = event.meta, integer(event.meta["n"])
    if command is None or command.children >= number:
        return None
    waits = meta["waits"] is True
    return_step = meta.get("return_step")
    child = Child(
        number=number,
        execution_id=int(str(meta["child_execution_id"])),
        path=str(meta["path"]),
        return_step=None if return_step is None else str(return_step),
        outcome=None if waits else {"status": STARTED},
    )
    changed = command._replace(
        status=CommandStatus.WAITING if waits else CommandStatus.ISSUED,
        resume=event.payload_ref,
        child=child,
        children=number,
        base=command.attempt,
        job=None,
    )
    changes: Changes = {
        "commands": {**state.commands, command.command_id: changed},
        "variables": write(state.variables, event.writes),
        **pins.started(state, meta),
    }
    if waits and state.cancelling is None:
        changes["timers"] = {**state.timers, child_timer(command.command_id, number): str(meta["due_at"])}
    return changes


def _terminal(state: ExecutionState, event: Event) -> Changes | None:
    command = _command(state, event)
    meta, number = event.meta, integer(event.meta["n"])
    if command is None or (command.children == number and not command.awaits_child) or command.children > number:
        return None
    changes: Changes = {**unawaited(state, command), "variables": write(state.variables, event.writes)}
    if state.cancelling is not None:
        # There is nobody to go on.
        return {**changes, "commands": without(state.commands, command.command_id)}
    child = command.child if command.children == number else None
    if child is None:
        child = Child(number=number, execution_id=0, path=str(meta["path"]))
        command = command._replace(resume=event.payload_ref, children=number, base=command.attempt)
    ready = command._replace(status=CommandStatus.ISSUED, child=child._replace(outcome=_outcome(event)))
    return {**changes, "commands": {**state.commands, command.command_id: ready}}


def _command(state: ExecutionState, event: Event) -> Command | None:
    return state.commands.get(event.frame_id or event.command_id or "")


def _outcome(event: Event) -> dict[str, object]:
    result: Any = event.result
    outcome: dict[str, object] = {"status": str(event.meta["status"]), "ref": result["reference"]}
    ref_id, error = lineage.ref_id_of(event), result["context"].get("error")
    if ref_id is not None:
        outcome["ref_id"] = str(ref_id)
    return outcome if error is None else {**outcome, "error": error}


FOLDS: Mapping[str, Callable[[ExecutionState, Event], Changes | None]] = {
    kinds.CHILD_STARTED: _started,
    kinds.CHILD_TERMINAL: _terminal,
}


# --- events ----------------------------------------------------------------------------------------------


def terminal_draft(command: Command, status: str, result: Mapping[str, object]) -> Draft:
    """The end of the wait for the present child of a command."""
    assert command.child is not None
    meta: dict[str, object] = {
        "step": command.step,
        "attempt": command.attempt,
        "n": command.child.number,
        "child_execution_id": str(command.child.execution_id),
        "path": command.child.path,
        "status": status,
    }
    return child_draft(command, kinds.CHILD_TERMINAL, command.child.number, meta)._replace(result=result)


def child_draft(command: Command, event_type: str, number: int, meta: Mapping[str, object]) -> Draft:
    is_frame = command.frame is not None
    return Draft(
        event_type=event_type,
        transition_key=kinds.child_key(event_type, command.command_id, number),
        command_id=command.command_id,
        meta=meta,
        stage_id=f"{command.step}#{command.run}" if is_frame else None,
        frame_id=command.command_id if is_frame else None,
    )


def timed_out(state: ExecutionState, command_id: str, number: int) -> Draft | None:
    """The wait is over although the child is not."""
    command = state.commands.get(command_id)
    if command is None or command.child is None or not command.awaits_child or command.child.number != number:
        return None
    child = command.child
    message = f"playbook {child.path!r} (execution {child.execution_id}) did not end within the time to wait for it"
    error = {"kind": "timeout", "code": "CHILD_TIMEOUT", "retryable": True, "message": message}
    result = Result(status="error", parent_ref=command.parent_ref, context={"error": error})
    return terminal_draft(command, TIMEOUT, result.to_json())


def ended(parent: ExecutionState, child: ExecutionState) -> Draft | None:
    """What a parent learns of a child that has ended; None when nobody waits for it."""
    command = _waiting(parent, child)
    if command is None or command.child is None:
        return None
    status = _ENDS[child.status]
    if status != COMPLETED:
        context: Any = (child.result or {}).get("context", {})
        error = context.get("error") or {"kind": "unknown", "code": None, "retryable": False, "message": "it failed"}
        result = Result(status="error", context={"error": error}).to_json()
        result["parent_ref"] = (child.result or {}).get("parent_ref")
        return terminal_draft(command, status, result)
    reference, ref_id = _returned(child, command.child)
    result = {"status": "ok", "reference": reference, "parent_ref": parent_document(ref_id), "context": {}}
    return terminal_draft(command, status, result)


def _waiting(parent: ExecutionState, child: ExecutionState) -> Command | None:
    command = parent.commands.get(child.parent.command_id) if child.parent is not None else None
    if command is None or command.child is None or command.child.execution_id != child.execution_id:
        return None
    return command if command.awaits_child else None


def _returned(child: ExecutionState, link: Child) -> tuple[object, int | None]:
    """The result of the step that was asked for, with its id; if that step gave none, that of the execution, which
    its last event names."""
    chosen = child.step_results.get(link.return_step or "")
    if chosen is not None and chosen.status == "ok":
        return chosen.reference, chosen.ref_id
    reference = child.result["reference"] if child.result else None
    return reference, None if reference is None else child.last_event_id


def is_orphan(parent: ExecutionState, child: ExecutionState) -> bool:
    """Whether a child runs for a parent that no longer waits for it."""
    return child.parent is not None and child.parent.waits and _waiting(parent, child) is None
