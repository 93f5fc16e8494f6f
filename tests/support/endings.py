"""A simulated execution that is cancelled, runs out of time or waits for another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from noetl.core import kinds
from noetl.core.event import Draft, Event
from noetl.core.execution import children
from noetl.core.execution.lifecycle import REQUEST, cancel_requested
from noetl.core.execution.state import ExecutionState, Parent
from noetl.core.reference import Result
from tests.support.playbooks import Simulated

RESUME = {"uri": "noetl://resume", "sha256": "0"}
CHILD_DUE = "2026-01-01T01:00:00Z"


@dataclass(slots=True)
class Ending(Simulated):
    """Plays the shell and the worker around an end that comes before its time."""

    def claim(self, command_id: str) -> None:
        command = self.state.commands[command_id]
        attempt = command.attempt + 1
        meta = {"attempt": attempt, "session": "9"}
        if command.frame is None:
            key = kinds.claimed_key(command_id, attempt)
            self.append(Draft(kinds.COMMAND_CLAIMED, key, meta, command_id=command_id))
        else:
            key = kinds.frame_key(kinds.FRAME_STARTED, command_id, attempt)
            stage_id = f"{command.step}#{command.run}"
            self.append(Draft(kinds.FRAME_STARTED, key, meta, stage_id=stage_id, frame_id=command_id))

    def wait(self, command_id: str) -> Event:
        """A task waits for its next attempt."""
        command = self.state.commands[command_id]
        number = command.waits + 1
        meta = {"step": command.step, "attempt": command.attempt, "n": number, "task": "t", "delay_seconds": 60}
        key = kinds.waiting_key(command_id, number)
        draft = Draft(kinds.TASK_WAITING, key, {**meta, "due_at": CHILD_DUE}, command_id=command_id, payload_ref=RESUME)
        return self.followed(draft)

    def cancel(self, reason: str = "enough", cause: str = REQUEST) -> Event:
        now = self.events[-1].event_time
        return self.followed(cancel_requested(self.state, now=now, reason=reason, cause=cause))

    def fire(self, name: str) -> Event:
        return self.followed(Draft(kinds.TIMER_FIRED, kinds.timer_key(name), {"name": name}))

    def commit(self, frame_id: str, *, failure: Mapping[str, object] | None = None) -> None:
        """A frame ends, with all of its rows or as a failure."""
        command = self.state.commands[frame_id]
        assert command.frame is not None
        rows = command.frame.rows
        outcomes = {"success": 0 if failure else rows, "failed": rows if failure else 0, "skipped": 0}
        self.followed(
            Draft(
                kinds.FRAME_FAILED if failure else kinds.FRAME_COMMITTED,
                kinds.frame_terminal_key(frame_id),
                {"step": command.step, "attempt": command.attempt, "outcomes": outcomes},
                result=Result(
                    status="error" if failure else "ok", context={"error": failure} if failure else {}
                ).to_json(),
                stage_id=f"{command.step}#{command.run}",
                frame_id=frame_id,
            )
        )

    def start_child(self, command_id: str, child_id: int = 900, *, waits: bool = True, **extra: object) -> Event:
        command = self.state.commands[command_id]
        number = command.children + 1
        meta: dict[str, object] = {
            "step": command.step,
            "attempt": command.attempt,
            "n": number,
            "task": "t",
            "child_execution_id": str(child_id),
            "path": "lib/child",
            "playbook": RESUME,
            "waits": waits,
            **({"due_at": CHILD_DUE} if waits else {}),
            **extra,
        }
        draft = children.child_draft(command, kinds.CHILD_STARTED, number, meta)
        return self.followed(draft._replace(payload_ref=RESUME))

    def end_child(self, child: ExecutionState) -> Event | None:
        """What the shell records when a child has ended."""
        draft = children.ended(self.state, child)
        return None if draft is None else self.followed(draft)

    def followed(self, draft: Draft) -> Event:
        event = self.append(draft)
        self._follow(event)
        return event


def child_state(parent: Simulated, child: Simulated, child_id: int = 900, command_id: str = "a#1") -> ExecutionState:
    """The state of an execution as if that command of `parent` had started it."""
    link = Parent(command_id, parent.state.commands[command_id].children, True)
    changes = {"execution_id": child_id, "parent_execution_id": parent.state.execution_id, "parent": link}
    return child.state.changed(changes)
