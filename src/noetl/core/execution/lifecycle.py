"""Ending before the time: cancelling, and the limits of steps and executions.  First the folds, then what the router
decides."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from noetl.core import kinds
from noetl.core.event import Draft, Event
from noetl.core.execution import lineage
from noetl.core.execution.state import Command, CommandStatus, ExecutionState, Frame
from noetl.core.limits import CANCEL_GRACE_SECONDS, ERROR_MESSAGE_CHARS_MAX
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.playbook.model import Playbook
from noetl.core.reference import Result

Changes = dict[str, Any]

CANCEL_TIMER = "cancel"
EXECUTION_TIMER = "execution"
# Why an execution is cancelled.
REQUEST, TIMEOUT, PARENT = "request", "timeout", "parent"


def retry_timer(command_id: str, number: int) -> str:
    return f"retry/{command_id}/{number}"


def child_timer(command_id: str, number: int) -> str:
    return f"child/{command_id}/{number}"


def step_timer(step: str, run: int) -> str:
    return f"step/{step}#{run}"


def later(now: str, seconds: float) -> str:
    moment = datetime.datetime.fromisoformat(now) + datetime.timedelta(seconds=seconds)
    return moment.isoformat(timespec="microseconds")[:-6] + "Z"


# --- folds -----------------------------------------------------------------------------------------------


def limited(state: ExecutionState, event: Event, step: str, run: int) -> Changes:
    """The timer of a step run that begins with this event, if its step has a limit."""
    due_at = event.meta.get("due_at")
    return {} if due_at is None else {"timers": {**state.timers, step_timer(step, run): str(due_at)}}


def unlimited(state: ExecutionState, step: str, run: int) -> Changes:
    """A step run is decided: nothing of it can take too long any more."""
    return _without(state, step_timer(step, run)) if state.timers else {}


def unawaited(state: ExecutionState, command: Command) -> Changes:
    """A command ends that waited: nobody needs its timer."""
    if command.status is not CommandStatus.WAITING:
        return {}
    identity = command.command_id
    return _without(state, retry_timer(identity, command.waits), child_timer(identity, command.children))


def _without(state: ExecutionState, *names: str) -> Changes:
    if not any(name in state.timers for name in names):
        return {}
    return {"timers": {name: due_at for name, due_at in state.timers.items() if name not in names}}


def _cancel_requested(state: ExecutionState, event: Event) -> Changes | None:
    """What nobody holds is taken back here and now; what is held, or runs as an execution of its own, must still
    confirm its end."""
    if state.cancelling is not None:
        return None
    meta = event.meta
    held = {
        command_id: command
        for command_id, command in state.commands.items()
        if command.status is CommandStatus.CLAIMED or command.awaits_child
    }
    return {
        "cancelling": {name: meta[name] for name in ("reason", "cause")},
        "commands": held,
        "timers": {CANCEL_TIMER: str(meta["due_at"])},
    }


FOLDS: Mapping[str, Callable[[ExecutionState, Event], Changes | None]] = {
    kinds.CANCEL_REQUESTED: _cancel_requested,
}


# --- decisions -------------------------------------------------------------------------------------------


def cancel_requested(state: ExecutionState, *, now: str, reason: str, cause: str) -> Draft:
    """Children get their own grace after ours has begun; whoever waits for one must have the longer breath."""
    has_children = any(command.awaits_child for command in state.commands.values())
    grace = CANCEL_GRACE_SECONDS * (2 if has_children else 1)
    return Draft(
        event_type=kinds.CANCEL_REQUESTED,
        transition_key=kinds.CANCEL_REQUESTED_KEY,
        meta={"reason": reason[:ERROR_MESSAGE_CHARS_MAX], "cause": cause, "due_at": later(now, grace)},
    )


def limited_draft(initialized: Draft, playbook: Playbook, now: str) -> Draft:
    """The first event of an execution, with the time when it has taken too long."""
    if playbook.timeout_seconds is None:
        return initialized
    return initialized._replace(meta={**initialized.meta, "due_at": later(now, playbook.timeout_seconds)})


def limited_loop(draft: Draft, playbook: CompiledPlaybook, now: str) -> Draft:
    """The event that opens a loop outside of a decision, with the time when its step has taken too long."""
    if draft.event_type != kinds.STAGE_OPENED:
        return draft
    seconds = playbook.steps[str(draft.meta["step"])].timeout_seconds
    return draft if seconds is None else draft._replace(meta={**draft.meta, "due_at": later(now, seconds)})


def is_over(state: ExecutionState, event: Event) -> bool:
    """Whether an execution that is being cancelled can be closed: everything has confirmed, or the grace is over."""
    has_expired = event.event_type == kinds.TIMER_FIRED and event.meta["name"] == CANCEL_TIMER
    return not state.commands or has_expired


def end_error(state: ExecutionState) -> dict[str, object]:
    """Why an execution that is being cancelled ends."""
    assert state.cancelling is not None
    reason, is_late = str(state.cancelling["reason"]), _is_late(state)
    return {
        "kind": "timeout" if is_late else "cancelled",
        "code": "execution_timeout" if is_late else "cancelled",
        "retryable": is_late,
        "message": reason,
    }


def _is_late(state: ExecutionState) -> bool:
    return state.cancelling is not None and state.cancelling["cause"] == TIMEOUT


def closed(state: ExecutionState) -> Draft:
    """The end of an execution that was cancelled, or whose time was up."""
    meta: dict[str, object] = {"step": state.last_step}
    if state.commands:
        meta["unconfirmed"] = sorted(state.commands)
    lead = lineage.result_of(state, state.last_step)
    return Draft(
        event_type=kinds.PLAYBOOK_FAILED if _is_late(state) else kinds.EXECUTION_CANCELLED,
        transition_key=kinds.EXECUTION_TERMINAL_KEY,
        meta=meta,
        result=Result(status="error", parent_ref=lead, context={"error": end_error(state)}).to_json(),
    )


def time_error(what: str, seconds: float, code: str) -> dict[str, object]:
    message = f"{what} ran longer than its limit of {seconds:g} s"
    return {"kind": "timeout", "code": code, "retryable": True, "message": message}


CANCELLED: Mapping[str, object] = {
    "kind": "cancelled",
    "code": "cancelled",
    "retryable": False,
    "message": "the execution was cancelled",
}


def taken_back(state: ExecutionState, step: str, error: Mapping[str, object]) -> Iterator[Draft]:
    """The end of everything that still works for a step run.  A result that is being written, and an expression about
    a result that is there, are not the step's work any more."""
    stage = state.loop_state.get(step)
    if stage is not None and stage.is_sealing:
        return
    for command in state.commands.values():
        if command.step == step and (command.kind in ("step", "frame") or stage is not None):
            yield failed_draft(command, error)


def lost_outcomes(frame: Frame, *, is_skipped: bool = False) -> dict[str, object]:
    """How the rows of a frame ended of which nobody can say more than what is persisted."""
    failed, left = frame.kept_failed, frame.rows - frame.kept
    success = frame.kept - failed
    if is_skipped:
        return {"success": success, "failed": failed, "skipped": left}
    return {"success": success, "failed": failed + left, "skipped": 0}


def failed_draft(command: Command, error: Mapping[str, object], *, is_skipped: bool = False) -> Draft:
    """A failure that no worker reported.  Rows of a frame that were persisted keep their outcome; the others failed
    with it, or count as never run."""
    result = Result(status="error", parent_ref=command.parent_ref, context={"error": error}).to_json()
    meta: dict[str, object] = {"step": command.step, "attempt": command.attempt}
    if command.frame is None:
        return Draft(
            event_type=kinds.COMMAND_FAILED,
            transition_key=kinds.terminal_key(command.command_id),
            command_id=command.command_id,
            meta=meta,
            result=result,
        )
    meta["outcomes"] = lost_outcomes(command.frame, is_skipped=is_skipped)
    return Draft(
        event_type=kinds.FRAME_FAILED,
        transition_key=kinds.frame_terminal_key(command.command_id),
        meta=meta,
        result=result,
        stage_id=f"{command.step}#{command.run}",
        frame_id=command.command_id,
    )
