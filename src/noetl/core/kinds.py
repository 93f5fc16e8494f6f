"""The kinds of events and their transition keys.

A transition key is a pure function of the cause, built from ordinals: the same cause always gives the same
key, so the ledger can refuse the second write.  It never contains a clock, a random number or a surrogate
id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PLAYBOOK_INITIALIZED = "playbook.initialized"
EXECUTION_SEEDED = "execution.seeded"
COMMAND_ISSUED = "command.issued"
COMMAND_CLAIMED = "command.claimed"
COMMAND_COMPLETED = "command.completed"
COMMAND_FAILED = "command.failed"
TASK_WAITING = "task.waiting"
TIMER_FIRED = "timer.fired"
STEP_DECIDED = "step.decided"
STAGE_OPENED = "stage.opened"
LOOP_STARTED = "loop.started"
FANOUT_STARTED = "loop.fanout.started"
FRAME_DISPATCHED = "frame.dispatched"
FRAME_STARTED = "frame.started"
CURSOR_CLAIMED = "cursor.claimed"
FRAME_HEARTBEAT = "frame.heartbeat"
FRAME_ABANDONED = "frame.abandoned"
FRAME_COMMITTED = "frame.committed"
FRAME_FAILED = "frame.failed"
SHARD_DONE = "loop.shard.done"
SHARD_FAILED = "loop.shard.failed"
LOOP_DONE = "loop.done"
FANIN_COMPLETED = "loop.fanin.completed"
STAGE_CLOSED = "stage.closed"
CHILD_STARTED = "child.started"
CHILD_TERMINAL = "child.terminal"
JOB_INTENDED = "job.intended"
JOB_PROGRESSED = "job.progressed"
CANCEL_REQUESTED = "execution.cancel_requested"
PLAYBOOK_COMPLETED = "playbook.completed"
PLAYBOOK_FAILED = "playbook.failed"
EXECUTION_CANCELLED = "execution.cancelled"
CHECKPOINT_COMMITTED = "checkpoint.committed"


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
            meta=(
                *("path", "playbook", "workload", "entry", "due_at", "parent", "depth", "catalog", "scripts"),
                *("script_names", "playbooks", "warnings", "env", "iter", "fork"),
            ),
            carries=("playbook.initialized", "workflow.initialized"),
        ),
        EventKind(
            event_type=EXECUTION_SEEDED,
            aggregate_type="execution",
            transition_key="execution.seeded/<n>",
            says="A part of the state that an execution begins with because it comes from another one: context, "
            "results and turns of steps, or the outcomes that a loop has kept, by reference.",
            meta=("n", "state", "step", "outputs"),
        ),
        EventKind(
            event_type=COMMAND_ISSUED,
            aggregate_type="command",
            transition_key="command.issued/<command>",
            says="The router asked for a piece of work: a step run, or an expression that needs the data.",
            meta=(
                "step",
                "run",
                "kind",
                "parents",
                "opens",
                "closing",
                "expression",
                "pending_writes",
                "due_at",
                "phase",
                "warnings",
            ),
            carries=("command.issued",),
        ),
        EventKind(
            event_type=COMMAND_CLAIMED,
            aggregate_type="command",
            transition_key="command.claimed/<command>/<attempt>",
            says="A worker session took the command; the attempt is its fencing token.",
            meta=("attempt", "session", "locality", "worker_locator", "source_locality", "placement"),
            carries=("command.claimed", "command.started", "step.enter"),
        ),
        EventKind(
            event_type=COMMAND_COMPLETED,
            aggregate_type="command",
            transition_key="command.terminal/<command>",
            says="The work succeeded: where its result is, the atoms routing may read, the values it wrote.  "
            "`result.context` also has `stored` for an external result, and the fields that were `selected`.",
            meta=(
                *("step", "attempt", "duration_ms", "tasks", "logs", "traceback", "warnings", "scripts"),
                *("inputs", "credentials", "jobs", "dead_letter"),
            ),
            has_result=True,
            has_writes=True,
            carries=("command.completed", "step.exit"),
        ),
        EventKind(
            event_type=COMMAND_FAILED,
            aggregate_type="command",
            transition_key="command.terminal/<command>",
            says="The work failed after its policy was exhausted; `result.context.error` says how.",
            meta=(
                *("step", "attempt", "duration_ms", "tasks", "logs", "traceback", "warnings", "scripts"),
                *("inputs", "credentials", "jobs", "dead_letter"),
            ),
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
            says="What the router made of a step: of a finished one the arcs that fired and the values they wrote; one "
            "that was not admitted is `skipped` with its `reason`.",
            meta=(
                *("step", "run", "outcome", "arcs", "targets", "args", "leaf", "warnings", "error", "reason"),
                *("parents", "closing"),
            ),
            has_writes=True,
            carries=("call.done", "call.error"),
        ),
        EventKind(
            event_type=STAGE_OPENED,
            aggregate_type="stage",
            transition_key="stage.opened/<stage>",
            says="A loop's turn has come.  What it goes over may still have to be found out.",
            meta=("step", "run", "parents", "stage_kind", "source", "closing", "due_at", "warnings"),
            carries=("stage.opened", "step.enter"),
        ),
        EventKind(
            event_type=LOOP_STARTED,
            aggregate_type="stage",
            transition_key="loop.started/<stage>",
            says="A loop began: its epoch, its size, where its collection is and how it is to be worked off.",
            meta=(
                *("step", "run", "parents", "total", "collection", "cursor", "policy", "closing", "due_at", "warnings"),
                "claimed",
            ),
            carries=("loop.started",),
        ),
        EventKind(
            event_type=FANOUT_STARTED,
            aggregate_type="stage",
            transition_key="loop.fanout.started/<stage>",
            says="The rows of a loop are cut into shards, each of which is claimed, runs again and ends by itself.",
            meta=("step", "run", "total", "total_shards", "shard_size"),
            carries=("loop.fanout.started",),
        ),
        EventKind(
            event_type=FRAME_DISPATCHED,
            aggregate_type="frame",
            transition_key="frame.dispatched/<frame>/<attempt>",
            says="A window of a loop's rows is to be worked off: `rows` from `first`, `concurrency` at a time.",
            meta=(
                *("step", "run", "number", "attempt", "first", "rows", "concurrency", "retry_mode", "skipped"),
                *("slot", "tries"),
            ),
            carries=("frame.dispatched",),
        ),
        EventKind(
            event_type=FRAME_STARTED,
            aggregate_type="frame",
            transition_key="frame.started/<frame>/<attempt>",
            says="A worker session took the frame; the attempt is its fencing token.",
            meta=("attempt", "session", "locality", "worker_locator", "source_locality", "placement"),
            carries=("frame.started",),
        ),
        EventKind(
            event_type=CURSOR_CLAIMED,
            aggregate_type="frame",
            transition_key="cursor.claimed/<frame>/<attempt>/<n>",
            says="A cursor's claim returned these rows in this transaction, which commits only after this is recorded.",
            meta=("step", "attempt", "n", "rows", "xid", "place"),
        ),
        EventKind(
            event_type=FRAME_HEARTBEAT,
            aggregate_type="frame",
            transition_key="frame.heartbeat/<frame>/<attempt>/<n>",
            says="Rows of a frame whose outcome is persisted: whoever takes the frame over skips them.",
            meta=("step", "attempt", "n", "ranges", "failed"),
            carries=("frame.heartbeat",),
        ),
        EventKind(
            event_type=FRAME_ABANDONED,
            aggregate_type="frame",
            transition_key="frame.abandoned/<frame>/<attempt>",
            says="The session that held the frame is gone; the frame goes to another one.",
            meta=("step", "attempt", "retry_mode", "skipped"),
            carries=("frame.abandoned",),
        ),
        EventKind(
            event_type=FRAME_COMMITTED,
            aggregate_type="frame",
            transition_key="frame.terminal/<frame>",
            says="Every row of the frame has an outcome; the payload holds them in item order.",
            meta=(
                *("step", "attempt", "outcomes", "profile", "logs", "warnings", "scripts", "breaks", "claim"),
                *("first", "inputs", "credentials", "jobs"),
            ),
            has_result=True,
            has_writes=True,
            carries=("frame.committed", "loop.item"),
        ),
        EventKind(
            event_type=FRAME_FAILED,
            aggregate_type="frame",
            transition_key="frame.terminal/<frame>",
            says="The frame ended before all of its rows had run; `result.context.error` says why.",
            meta=(
                *("step", "attempt", "outcomes", "profile", "logs", "warnings", "scripts", "breaks", "claim"),
                *("first", "inputs", "credentials", "jobs"),
            ),
            has_result=True,
            has_writes=True,
            carries=("frame.failed",),
        ),
        EventKind(
            event_type=LOOP_DONE,
            aggregate_type="stage",
            transition_key="loop.done/<stage>",
            says="No row of the loop is left to run: how many there were and how they ended.",
            meta=(
                *("step", "run", "total", "done", "failed", "frames", "status", "error", "closing"),
                *("fanin", "warnings"),
            ),
            carries=("loop.done",),
        ),
        EventKind(
            event_type=SHARD_DONE,
            aggregate_type="stage",
            transition_key="loop.shard.terminal/<stage>/<shard>",
            says="A shard of a fan-out has succeeded; the frame that it names is the one that did it.",
            meta=("step", "run", "shard_index", "first", "rows", "tries"),
            carries=("loop.shard.done",),
        ),
        EventKind(
            event_type=SHARD_FAILED,
            aggregate_type="stage",
            transition_key="loop.shard.terminal/<stage>/<shard>",
            says="A shard of a fan-out has failed and does not run again; the frame that it names says why.",
            meta=("step", "run", "shard_index", "first", "rows", "tries"),
            carries=("loop.shard.failed",),
        ),
        EventKind(
            event_type=FANIN_COMPLETED,
            aggregate_type="stage",
            transition_key="loop.fanin.completed/<stage>",
            says="Nothing more comes of the shards of a fan-out: this is what became of them.",
            meta=("step", "run", "fanin"),
            carries=("loop.fanin.completed",),
        ),
        EventKind(
            event_type=STAGE_CLOSED,
            aggregate_type="stage",
            transition_key="stage.closed/<stage>",
            says="The result of the loop is written, or there will be none: nothing works for it any more.",
            meta=("step", "run", "status", "total", "done", "failed", "frames"),
            carries=("stage.closed",),
        ),
        EventKind(
            event_type=CHILD_STARTED,
            aggregate_type="command",
            transition_key="child.started/<command>/<n>",
            says="A task started another playbook; the payload is the resume point of the pipeline that waits for it.",
            meta=(
                *("step", "attempt", "n", "task", "child_execution_id", "path", "playbook", "return_step", "waits"),
                *("due_at", "catalog"),
            ),
            has_writes=True,
        ),
        EventKind(
            event_type=CHILD_TERMINAL,
            aggregate_type="command",
            transition_key="child.terminal/<command>/<n>",
            says="The playbook that a task waits for has ended or could not begin; the result is what the task gets.",
            meta=("step", "attempt", "n", "task", "child_execution_id", "path", "status"),
            has_result=True,
            has_writes=True,
        ),
        EventKind(
            event_type=JOB_INTENDED,
            aggregate_type="command",
            transition_key="job.intended/<command>/<attempt>/<n>",
            says="A task is about to run a job in a compute engine, and this is where.  Nothing of the job runs before "
            "this is recorded.  `conf` is what differs from the engine's own settings, without secrets; a large one is "
            "the payload instead.",
            meta=(
                *("step", "attempt", "n", "task", "row", "job_group", "application", "ui", "event_log", "conf"),
                "started",
            ),
        ),
        EventKind(
            event_type=JOB_PROGRESSED,
            aggregate_type="command",
            transition_key="job.progressed/<command>/<attempt>/<n>",
            says="How far the job of the intent `job` has come: recorded now and then, when something has changed.",
            meta=(
                *("step", "attempt", "n", "job", "task", "row", "jobs", "stages", "stages_done", "tasks", "tasks_done"),
                *("tasks_failed", "stage"),
            ),
        ),
        EventKind(
            event_type=CANCEL_REQUESTED,
            aggregate_type="execution",
            transition_key="execution.cancel_requested",
            says="Somebody, or a time limit, wants the execution to end: nothing new begins, what runs is stopped.",
            meta=("reason", "cause", "due_at"),
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
            says="The execution ended with a failure that no arc handled, or because its time was up.",
            meta=("step", "unconfirmed"),
            has_result=True,
            closes=True,
            carries=("playbook.failed",),
        ),
        EventKind(
            event_type=EXECUTION_CANCELLED,
            aggregate_type="execution",
            transition_key="execution.terminal",
            says="The execution was cancelled and nothing of it runs any more.",
            meta=("step", "unconfirmed"),
            has_result=True,
            closes=True,
            carries=("execution.cancelled",),
        ),
        EventKind(
            event_type=CHECKPOINT_COMMITTED,
            aggregate_type="execution",
            transition_key="checkpoint.committed/<epoch>",
            says="Every event of the shard up to `position` is applied to its projections.  It stands in the reserved "
            "execution of its shard and never in one of a user.",
            meta=("epoch", "shard", "position", "last_event_id"),
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


def seeded_key(number: int) -> str:
    return f"execution.seeded/{number}"


INITIALIZED_KEY = "playbook.initialized"
EXECUTION_TERMINAL_KEY = "execution.terminal"
CANCEL_REQUESTED_KEY = "execution.cancel_requested"


def stage_key(event_type: str, stage_id: str) -> str:
    """Of `stage.opened`, `stage.closed`, `loop.fanout.started` and `loop.fanin.completed`: once in a stage's life."""
    return f"{event_type}/{stage_id}"


def shard_key(stage_id: str, shard: int) -> str:
    """Of `loop.shard.done` and `loop.shard.failed`; however often its rows were run, a shard ends once."""
    return f"loop.shard.terminal/{stage_id}/{shard}"


def loop_started_key(stage_id: str) -> str:
    return f"loop.started/{stage_id}"


def loop_done_key(stage_id: str) -> str:
    return f"loop.done/{stage_id}"


def frame_key(event_type: str, frame_id: str, attempt: int) -> str:
    """Of `frame.dispatched`, `frame.started` and `frame.abandoned`, which happen once per attempt."""
    return f"{event_type}/{frame_id}/{attempt}"


def frame_heartbeat_key(frame_id: str, attempt: int, number: int) -> str:
    return f"frame.heartbeat/{frame_id}/{attempt}/{number}"


def cursor_claimed_key(frame_id: str, attempt: int, number: int) -> str:
    return f"cursor.claimed/{frame_id}/{attempt}/{number}"


def frame_terminal_key(frame_id: str) -> str:
    return f"frame.terminal/{frame_id}"


def child_key(event_type: str, command_id: str, number: int) -> str:
    """Of `child.started` and `child.terminal`; a command may wait for several children, one after the other."""
    return f"{event_type}/{command_id}/{number}"


def job_key(event_type: str, command_id: str, attempt: int, number: int) -> str:
    """Of `job.intended` and `job.progressed`; an attempt at a command may run several jobs, and each tells its way."""
    return f"{event_type}/{command_id}/{attempt}/{number}"


def checkpoint_key(epoch: int) -> str:
    """Of `checkpoint.committed`; the epochs of a shard are counted without a gap."""
    return f"checkpoint.committed/{epoch}"
