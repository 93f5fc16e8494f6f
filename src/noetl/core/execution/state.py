"""The state of one execution, rebuilt from its events and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from noetl.core.execution.looping.profile import Profile
from noetl.core.execution.placing.places import NO_PLACES, Places


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
    """A value of the context or the workload: inline, or a place (`path`) inside a payload.

    `patches` are parts of it that were written since (the keys below it, and what stands there), where either is not
    inline: nothing is copied to change a part of what is large."""

    value: object = None
    reference: Mapping[str, object] | None = None
    path: tuple[str | int, ...] = ()
    patches: tuple[tuple[tuple[str, ...], Entry], ...] = ()

    @property
    def is_inline(self) -> bool:
        return self.reference is None and not self.patches

    def to_json(self) -> dict[str, object]:
        document: dict[str, object] = {"v": self.value}
        if self.reference is not None:
            document = {"ref": self.reference, "path": list(self.path)}
        if self.patches:
            document["patches"] = [{"below": list(below), **entry.to_json()} for below, entry in self.patches]
        return document


def entry_from_json(document: Mapping[str, Any]) -> Entry:
    reference = document.get("ref")
    patches = tuple((tuple(patch["below"]), entry_from_json(patch)) for patch in document.get("patches", ()))
    if reference is None:
        return Entry(document.get("v"), patches=patches)
    return Entry(None, reference, tuple(document.get("path", ())), patches)


class StepResult(NamedTuple):
    """The compact envelope of a step's last run: where its result is and the atoms the router may read.

    `stored` is there for a result that counts as external: its tier, its size, how much of it a preview shows.
    `selected` are the fields that the playbook wants to travel, `meta` how its last task ran.  `ref_id` tells it from
    all other results; one without a reference has none.  `jobs` is what its jobs cost, for people: no template sees
    it."""

    run: int
    status: str
    reference: Mapping[str, object] | None
    atoms: Mapping[str, Mapping[str, object]]
    error: Mapping[str, object] | None = None
    stored: Mapping[str, object] | None = None
    selected: Sequence[object] = ()
    meta: Mapping[str, object] | None = None
    traceback: Mapping[str, object] | None = None
    ref_id: int | None = None
    jobs: tuple[Mapping[str, object], ...] = ()

    def to_json(self) -> dict[str, object]:
        document: dict[str, object] = {"status": self.status, "ref": self.reference}
        if self.error is not None:
            document["error"] = self.error
        if self.stored is not None:
            document["stored"] = self.stored
        if self.selected:
            document["selected"] = self.selected
        if self.meta is not None:
            document["meta"] = self.meta
        if self.traceback is not None:
            document["traceback"] = self.traceback
        if self.ref_id is not None:
            document["ref_id"] = str(self.ref_id)
        return document


class Part(NamedTuple):
    """Rows of a frame whose outcome is persisted: where, which (half-open ranges of item indexes), and how many of
    them failed.  `shift` is how much smaller the numbers of the rows are in the payload."""

    reference: Mapping[str, object]
    ranges: tuple[tuple[int, int], ...]
    failed: int = 0
    shift: int = 0


class Claim(NamedTuple):
    """What a cursor's claim statement returned: the rows by reference and the transaction that took them.  Whether that
    was committed only its database can say."""

    transaction_id: str
    reference: Mapping[str, object]
    place: str | None = None

    def to_json(self) -> dict[str, object]:
        return {"xid": self.transaction_id, "ref": self.reference, "place": self.place}


class Frame(NamedTuple):
    """A window of a stage's rows: so many `rows` from `first`, at most `concurrency` of them at a time.

    Of a cursor it is the turn of a `slot`: `first` counts the rows of that slot, and there are none before the `claim`,
    the last of `claims`.  `tries` is how often a shard was run before."""

    number: int
    first: int
    rows: int
    concurrency: int
    parts: tuple[Part, ...] = ()
    heartbeats: int = 0
    slot: int | None = None
    claim: Claim | None = None
    claims: int = 0
    tries: int = 0

    @property
    def kept(self) -> int:
        """How many rows have an outcome that whoever takes the frame over finds."""
        return sum(end - first for part in self.parts for first, end in part.ranges)

    @property
    def kept_failed(self) -> int:
        return sum(part.failed for part in self.parts)


class FrameOutput(NamedTuple):
    """What a frame left: where its rows' outcomes are.  Rows that are nowhere have `error` as their outcome; without
    one they are nobody's, or another frame's.  `number` and `attempt` are those of the frame, `claim` is where the rows
    of a cursor are, and `origin` the execution in which it ran, when that was another one."""

    first: int
    rows: int
    reference: Mapping[str, object] | None
    parts: tuple[Part, ...] = ()
    error: Mapping[str, object] | None = None
    failed: int = 0
    number: int = 0
    attempt: int = 0
    claim: Mapping[str, object] | None = None
    origin: int | None = None

    def to_json(self) -> dict[str, object]:
        """As the result of a loop names it."""
        document: dict[str, object] = {"first": self.first, "rows": self.rows, "ref": self.reference}
        if self.parts:
            document["parts"] = [part_document(part) for part in self.parts]
        if self.error is not None:
            document["error"] = self.error
        return document


def part_document(part: Part) -> dict[str, object]:
    document: dict[str, object] = {"ref": part.reference, "ranges": [list(one) for one in part.ranges]}
    return {**document, "shift": part.shift} if part.shift else document


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


class Job(NamedTuple):
    """The last of the jobs that an attempt at a command has run: the `number` of its intent, `where` it runs and since
    when, and the last of `reports` about how far it has come."""

    number: int = 0
    where: Mapping[str, object] = {}
    since: str = ""
    progress: Mapping[str, object] | None = None
    reports: int = 0


class Script(NamedTuple):
    """A script that belongs to an execution: where its text is and which names it reads, None for any of them."""

    reference: Mapping[str, object]
    names: tuple[str, ...] | None = None


class Parent(NamedTuple):
    """Which task of another execution started this one, and whether it waits; `ref_id` is the result that led to that
    task's step."""

    command_id: str
    number: int
    waits: bool
    ref_id: int | None = None


class Command(NamedTuple):
    """An open command or frame: issued and not yet ended.

    `pending_writes` belong to an `evaluate` command: what the router wrote before the expression.  `base` is the
    attempt that came to the last resume point: only attempts after it were in vain.  `asked_at` is, for a question of
    the router, the time of the event that made it ask.  `parent_ref` is the result that led here.  `job` belongs to the
    present attempt."""

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
    asked_at: str | None = None
    parent_ref: int | None = None
    job: Job | None = None

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
    # Members of loops with a frame policy, a cursor or shards; without one they are not recorded.
    process: str | None = None
    row_concurrency: int | None = None
    max_seconds: float | None = None
    max_bytes: int | None = None
    slot_rows_max: int | None = None
    shard_retries: int | None = None
    allows_partial: bool | None = None
    max_distance: str | None = None

    @property
    def is_framewise(self) -> bool:
        """Whether the pipeline runs once per frame; then a lost frame always begins anew."""
        return self.process == "frame"


class Slot(NamedTuple):
    """One of the claimants of a cursor: how many rows it has had, whether a frame of it is open, and whether it is at
    its end."""

    rows: int = 0
    is_open: bool = False
    is_done: bool = False


class EndedShard(NamedTuple):
    """A shard that does not run again: its window of rows, how often it was run before, and by which frame it ended."""

    frame_id: str
    first: int
    rows: int
    tries: int
    has_failed: bool


class Shards(NamedTuple):
    """What became of the shards of a fan-out.  `again` are the windows (first, rows, tries) that run once more; `ended`
    are those of which the ledger does not say so yet."""

    succeeded: int = 0
    failed: int = 0
    again: tuple[tuple[int, int, int], ...] = ()
    error: Mapping[str, object] | None = None
    ended: tuple[EndedShard, ...] = ()


class Stage(NamedTuple):
    """A loop that is being worked off.  With neither collection nor cursor it is being opened.

    `in_use` is how many items its open frames may run at a time; `timed_rows` and `busy_ms` say how long an item
    takes.  `sealing` means that every row has its outcome and the result is being written.  Of a cursor only counters
    are kept: `row_frames` had rows, `breaks` rows said that their slot is to end, `capped` slots reached their limit of
    rows, `claim_failure` is why rows could not be claimed.  `parent_ref` is the collection that was made for it, else
    the result that led to it; `last_ref` is the result of the frame that ended last.  `kept` are rows that another
    execution has run: their outcomes are among the outputs, and no frame is cut from them.  `claimed` are the counters
    of a cursor whose recorded rows are run once more, as a collection.  `is_told` says that the
    ledger has its opening: one that began before there was such an event ends without those that belong to it.  So
    that a state does not grow with the number of frames, a worker writes the `outputs` of frames that went well to a
    payload now and then: those that it writes just now are `gathering`, the lists that are written `gathered`, and
    `ungathered` is how many of the `outputs` will be."""

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
    cursor: Mapping[str, object] | None = None
    slots: Mapping[int, Slot] = {}
    row_frames: int = 0
    breaks: int = 0
    capped: int = 0
    claim_failure: Mapping[str, object] | None = None
    shards: Shards = Shards()
    parent_ref: int | None = None
    last_ref: int | None = None
    profile: Profile = Profile()
    kept: tuple[tuple[int, int], ...] = ()
    claimed: Mapping[str, int] | None = None
    is_told: bool = False
    gathering: tuple[FrameOutput, ...] = ()
    gathered: tuple[Mapping[str, object], ...] = ()
    gathers: int = 0
    ungathered: int = 0
    is_gathered_in_vain: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it has begun: what it loops over is known."""
        return self.collection is not None or self.cursor is not None


class Looped(NamedTuple):
    """What a loop has come to: all that is kept of a stage that is closed.  A shard is a window of a fan-out;
    `is_unclosed` says that the ledger has its opening and not yet its closing."""

    stage_id: str
    run: int
    total: int = 0
    done: int = 0
    failed: int = 0
    frames: int = 0
    collection_ref: str | None = None
    is_ok: bool = True
    is_fanout: bool = False
    shards: int = 0
    shards_done: int = 0
    shards_failed: int = 0
    profile: Profile = Profile()
    dead_letter: Mapping[str, object] | None = None
    is_unclosed: bool = False


class Fork(NamedTuple):
    """Where an execution comes from that begins with the state of another one: which, up to which position of its
    shard, and what for.  `seeds` events carry that state; nothing is decided before all of them are `seen`."""

    execution_id: int
    position: int
    kind: str
    seeds: int
    seen: int = 0


# The kind of fork that runs failed items once more.
RETRY = "retry"

# What the questions about a step run are for: whether it may begin, or, when its guard says no, where it leads.
ADMIT, SKIP = "admit", "skip"


class Pending(NamedTuple):
    """A step run that waits for values that only a worker can compute: before it begins (`phase`, with those who
    requested it), or when it has finished and must be routed."""

    run: int
    evaluations: Mapping[str, Mapping[str, object]] = {}
    asked: int = 0
    phase: str | None = None
    parents: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ExecutionState:
    """Everything the router knows about one execution.

    `variables` are the context writes; `is_closing` says that the final step was started; `loop_state` holds the
    open stage of each step that is a loop, `ended_loops` what the last closed one came to; `cancelling` says why the
    execution is to end before its time; `depth` is the number of executions above this one.  `runs` counts the turns of
    a step, `skipped_steps` has the last turn in which it was not admitted; `args` is what arcs gave to a step's run.
    `env` are variables of the server as they were when the execution began, `caller` is the iteration that started it.
    `leads` has, for a step whose last turn gave no result that could be referred to, the one that led to it.  `places`
    is where results were made, as far as anybody said; no checksum covers it."""

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
    skipped_steps: Mapping[str, int] = field(default_factory=dict)
    args: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)
    commands: Mapping[str, Command] = field(default_factory=dict)
    pending_next_actions: Mapping[str, Pending] = field(default_factory=dict)
    timers: Mapping[str, str] = field(default_factory=dict)
    loop_state: Mapping[str, Stage] = field(default_factory=dict)
    ended_loops: Mapping[str, Looped] = field(default_factory=dict)
    cancelling: Mapping[str, object] | None = None
    failure: Mapping[str, object] | None = None
    last_step: str | None = None
    has_leaf_end: bool = False
    is_closing: bool = False
    result: Mapping[str, object] | None = None
    parent_execution_id: int | None = None
    parent: Parent | None = None
    depth: int = 0
    scripts: Mapping[str, Script] = field(default_factory=dict)
    playbooks: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[Mapping[str, object], ...] = ()
    catalog_id: str | None = None
    catalog_version: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    caller: Mapping[str, object] | None = None
    leads: Mapping[str, int] = field(default_factory=dict)
    places: Places = NO_PLACES
    fork: Fork | None = None

    @property
    def is_seeding(self) -> bool:
        """Whether more of the state that it begins with is to come."""
        return self.fork is not None and self.fork.seen < self.fork.seeds

    @property
    def retry_of(self) -> int | None:
        return self.fork.execution_id if self.fork is not None and self.fork.kind == RETRY else None

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
