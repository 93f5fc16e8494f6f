"""The kinds of events and their transition keys.

A transition key is a pure function of the cause, built from ordinals: the same cause always gives the same
key, so the ledger can refuse the second write.  It never contains a clock, a random number or a surrogate
id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PLAYBOOK_INITIALIZED = "playbook.initialized"
COMMAND_ISSUED = "command.issued"
COMMAND_CLAIMED = "command.claimed"
COMMAND_COMPLETED = "command.completed"
COMMAND_FAILED = "command.failed"
TASK_WAITING = "task.waiting"
TIMER_FIRED = "timer.fired"
STEP_DECIDED = "step.decided"
PLAYBOOK_COMPLETED = "playbook.completed"
PLAYBOOK_FAILED = "playbook.failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventKind:
    """One type of event: who it is about, its key, its members, and the seed events whose fact it carries."""

    event_type: str
    aggregate_type: str
    transition_key: str
    says: str
    meta: tuple[str, ...]
    has_result: bool = False
    has_writes: bool = False
    closes: bool = False
    carries: tuple[str, ...] = ()
    schema_version: int = 1

    @property
    def schema_name(self) -> str:
        return f"noetl.{self.event_type}"


KINDS: Mapping[str, EventKind] = {
    kind.event_type: kind
    for kind in (
        EventKind(
            event_type=PLAYBOOK_INITIALIZED,
            aggregate_type="execution",
            transition_key="playbook.initialized",
            says="An execution was created: which playbook, by content, and with which inputs.",
            meta=("path", "playbook", "workload", "entry"),
            carries=("playbook.initialized", "workflow.initialized"),
        ),
        EventKind(
            event_type=COMMAND_ISSUED,
            aggregate_type="command",
            transition_key="command.issued/<command>",
            says="The router asked for a piece of work: a step run, or an expression that needs the data.",
            meta=("step", "run", "kind", "parents", "closing", "expression", "pending_writes"),
            carries=("command.issued",),
        ),
        EventKind(
            event_type=COMMAND_CLAIMED,
            aggregate_type="command",
            transition_key="command.claimed/<command>/<attempt>",
            says="A worker session took the command; the attempt is its fencing token.",
            meta=("attempt", "session"),
            carries=("command.claimed", "command.started", "step.enter"),
        ),
        EventKind(
            event_type=COMMAND_COMPLETED,
            aggregate_type="command",
            transition_key="command.terminal/<command>",
            says="The work succeeded: where its result is, the atoms routing may read, the values it wrote.",
            meta=("step", "attempt", "duration_ms", "tasks", "stdout", "traceback", "warnings"),
            has_result=True,
            has_writes=True,
            carries=("command.completed", "step.exit"),
        ),
        EventKind(
            event_type=COMMAND_FAILED,
            aggregate_type="command",
            transition_key="command.terminal/<command>",
            says="The work failed after its policy was exhausted; `result.context.error` says how.",
            meta=("step", "attempt", "duration_ms", "tasks", "stdout", "traceback", "warnings"),
            has_result=True,
            has_writes=True,
            carries=("command.failed", "step.exit"),
        ),
        EventKind(
            event_type=TASK_WAITING,
            aggregate_type="command",
            transition_key="task.waiting/<command>/<n>",
            says="A task waits for its next attempt without holding a slot; the payload is the resume point.",
            meta=("step", "attempt", "n", "delay_seconds", "task", "due_at"),
            has_writes=True,
        ),
        EventKind(
            event_type=TIMER_FIRED,
            aggregate_type="execution",
            transition_key="timer.fired/<name>",
            says="The database's clock passed the due time of a timer.",
            meta=("name",),
        ),
        EventKind(
            event_type=STEP_DECIDED,
            aggregate_type="step",
            transition_key="step.decided/<step>#<run>",
            says="What the router made of a finished step: the arcs that fired, the values they wrote.",
            meta=("step", "run", "outcome", "arcs", "targets", "leaf", "warnings", "error"),
            has_writes=True,
            carries=("call.done", "call.error"),
        ),
        EventKind(
            event_type=PLAYBOOK_COMPLETED,
            aggregate_type="execution",
            transition_key="execution.terminal",
            says="The execution ended well; its result is that of the last step.",
            meta=("step",),
            has_result=True,
            closes=True,
            carries=("playbook.completed",),
        ),
        EventKind(
            event_type=PLAYBOOK_FAILED,
            aggregate_type="execution",
            transition_key="execution.terminal",
            says="The execution ended with a failure that no arc handled.",
            meta=("step",),
            has_result=True,
            closes=True,
            carries=("playbook.failed",),
        ),
    )
}


def issued_key(command_id: str) -> str:
    return f"command.issued/{command_id}"


def claimed_key(command_id: str, attempt: int) -> str:
    return f"command.claimed/{command_id}/{attempt}"


def terminal_key(command_id: str) -> str:
    return f"command.terminal/{command_id}"


def waiting_key(command_id: str, number: int) -> str:
    return f"task.waiting/{command_id}/{number}"


def decided_key(step: str, run: int) -> str:
    return f"step.decided/{step}#{run}"


def timer_key(name: str) -> str:
    return f"timer.fired/{name}"


INITIALIZED_KEY = "playbook.initialized"
EXECUTION_TERMINAL_KEY = "execution.terminal"
