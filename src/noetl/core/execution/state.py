"""The state of one execution, rebuilt from its events and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Status(StrEnum):
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class CommandStatus(StrEnum):
    ISSUED = "issued"
    CLAIMED = "claimed"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of the context or the workload: inline, or a place (`path`) inside a payload."""

    value: object = None
    reference: Mapping[str, object] | None = None
    path: tuple[str | int, ...] = ()

    @property
    def is_inline(self) -> bool:
        return self.reference is None

    def to_json(self) -> dict[str, object]:
        if self.reference is None:
            return {"v": self.value}
        return {"ref": self.reference, "path": list(self.path)}


def entry_from_json(document: Mapping[str, object]) -> Entry:
    reference = document.get("ref")
    if reference is None:
        return Entry(document.get("v"))
    path = document.get("path", ())
    assert isinstance(reference, Mapping)
    assert isinstance(path, list | tuple)
    return Entry(None, reference, tuple(path))


class StepResult(NamedTuple):
    """The compact envelope of a step's last run: where its result is and the atoms the router may read."""

    run: int
    status: str
    reference: Mapping[str, object] | None
    atoms: Mapping[str, Mapping[str, object]]
    error: Mapping[str, object] | None = None

    def to_json(self) -> dict[str, object]:
        document: dict[str, object] = {"status": self.status, "ref": self.reference}
        if self.error is not None:
            document["error"] = self.error
        return document


class Part(NamedTuple):
    """Rows of a frame whose outcome is persisted: where, which (half-open ranges of item indexes), and how many of
    them failed."""

    reference: Mapping[str, object]
    ranges: tuple[tuple[int, int], ...]
    failed: int = 0


class Frame(NamedTuple):
    """A window of a stage's rows: so many `rows` from `first`, at most `concurrency` of them at a time."""

    number: int
    first: int
    rows: int
    concurrency: int
    parts: tuple[Part, ...] = ()
    heartbeats: int = 0

    @property
    def kept(self) -> int:
        """How many rows have an outcome that whoever takes the frame over finds."""
        return sum(end - first for part in self.parts for first, end in part.ranges)

    @property
    def kept_failed(self) -> int:
        return sum(part.failed for part in self.parts)


class FrameOutput(NamedTuple):
    """What a frame left: where its rows' outcomes are.  Rows that are nowhere have `error` as their outcome."""

    first: int
    rows: int
    reference: Mapping[str, object] | None
    parts: tuple[Part, ...] = ()
    error: Mapping[str, object] | None = None


class Child(NamedTuple):
    """Another execution that a command waits for, and what became of it: `{status, ref}`, or `{status, error}`."""

    number: int
    execution_id: int
    path: str
    return_step: str | None = None
    outcome: Mapping[str, object] | None = None

    def to_json(self) -> dict[str, object]:
        document: dict[str, object] = {"execution_id": str(self.execution_id), "path": self.path}
        return {**document, "return_step": self.return_step, **(self.outcome or {})}


class Parent(NamedTuple):
    """Which task of another execution started this one, and whether it waits."""

    command_id: str
    number: int
    waits: bool


class Command(NamedTuple):
    """An open command or frame: issued and not yet ended.

    `pending_writes` belong to an `evaluate` command: what the router wrote before the expression.  `base` is the
    attempt that came to the last resume point: only attempts after it were in vain."""

    command_id: str
    step: str
    run: int
    kind: str
    status: CommandStatus
    attempt: int = 0
    waits: int = 0
    resume: Mapping[str, object] | None = None
    expression: str | None = None
    parents: tuple[str, ...] = ()
    due_at: str | None = None
    pending_writes: tuple[Mapping[str, object], ...] = ()
    frame: Frame | None = None
    child: Child | None = None
    children: int = 0
    base: int = 0

    @property
    def awaits_child(self) -> bool:
        return self.child is not None and self.child.outcome is None


class StagePolicy(NamedTuple):
    """How a stage is worked off, as decided when it was opened."""

    is_sequential: bool
    max_in_flight: int
    is_best_effort: bool = False
    frame_rows: int | None = None
    max_attempts: int | None = None
    retry_mode: str | None = None
    one_row_frames: bool = False


class Stage(NamedTuple):
    """A loop that is being worked off.  Without a collection it is being opened.

    `in_use` is how many items its open frames may run at a time; `timed_rows` and `busy_ms` say how long an item
    takes.  `sealing` means that every row has its outcome and the result is being written."""

    stage_id: str
    step: str
    run: int
    parents: tuple[str, ...] = ()
    collection: Entry | None = None
    total: int = 0
    policy: StagePolicy = StagePolicy(is_sequential=True, max_in_flight=1)
    next_index: int = 0
    frames: int = 0
    open_frames: int = 0
    in_use: int = 0
    done: int = 0
    failed: int = 0
    timed_rows: float = 0.0
    busy_ms: float = 0.0
    outputs: tuple[FrameOutput, ...] = ()
    failure: Mapping[str, object] | None = None
    is_sealing: bool = False


class Pending(NamedTuple):
    """A finished step run whose routing waits for values that only a worker can compute."""

    run: int
    evaluations: Mapping[str, Mapping[str, object]] = {}
    asked: int = 0


@dataclass(frozen=True, kw_only=True)
class ExecutionState:
    """Everything the router knows about one execution.

    `variables` are the context writes; `is_closing` says that the final step was started; `loop_state` holds the
    open stage of each step that is a loop; `cancelling` says why the execution is to end before its time; `depth` is
    the number of executions above this one."""

    execution_id: int
    tenant_id: str = "default"
    organization_id: str = "default"
    status: Status = Status.RUNNING
    version: int = 0
    last_event_id: int = 0
    path: str = ""
    playbook: Mapping[str, object] = field(default_factory=dict)
    started_at: str = ""
    ended_at: str | None = None
    workload: Mapping[str, Entry] = field(default_factory=dict)
    variables: Mapping[str, Entry] = field(default_factory=dict)
    step_results: Mapping[str, StepResult] = field(default_factory=dict)
    completed_steps: Mapping[str, int] = field(default_factory=dict)
    issued_steps: Mapping[str, int] = field(default_factory=dict)
    requested_steps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    commands: Mapping[str, Command] = field(default_factory=dict)
    pending_next_actions: Mapping[str, Pending] = field(default_factory=dict)
    timers: Mapping[str, str] = field(default_factory=dict)
    loop_state: Mapping[str, Stage] = field(default_factory=dict)
    cancelling: Mapping[str, object] | None = None
    failure: Mapping[str, object] | None = None
    last_step: str | None = None
    has_leaf_end: bool = False
    is_closing: bool = False
    result: Mapping[str, object] | None = None
    parent_execution_id: int | None = None
    parent: Parent | None = None
    depth: int = 0

    @property
    def is_terminal(self) -> bool:
        return self.status is not Status.RUNNING

    def changed(self, changes: Mapping[str, object]) -> ExecutionState:
        """As `dataclasses.replace`, twenty times faster: the fold of every event ends here.  That is why this one
        class has no slots."""
        new = object.__new__(ExecutionState)
        new.__dict__.update(self.__dict__)
        new.__dict__.update(changes)
        return new
