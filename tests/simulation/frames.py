"""What must hold of every loop, after every commit: frames that cover each row once, attempts that rise by one, counts
that add up, and never more rows at a time than were allowed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from noetl.core import kinds
from noetl.core.event import Event


class Violation(AssertionError):
    """The ledger says something that must not be."""


def require(condition: bool, message: str, event: Event | None = None) -> None:
    """The event is printed only when it is needed: that costs more than all checks."""
    if not condition:
        raise Violation(message if event is None else f"{message}", event)


@dataclass(slots=True)
class SeenFrame:
    """One frame: `attempt` is the claim that counts, `given_out` the one it was given out for, `is_out` that it waits
    for it."""

    first: int
    rows: int
    concurrency: int
    attempt: int = 0
    given_out: int = 1
    is_out: bool = True
    is_ended: bool = False
    is_withdrawn: bool = False
    persisted: set[int] = field(default_factory=set)
    slot: int | None = None
    claims: int = 0

    @property
    def is_open(self) -> bool:
        return not (self.is_ended or self.is_withdrawn)


@dataclass(slots=True)
class SeenStage:
    """One epoch of a loop: `is_done` is that its rows have ended, `is_closed` that nothing works for it any more."""

    total: int
    policy: dict[str, Any]
    frames: dict[str, SeenFrame] = field(default_factory=dict)
    next_index: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    is_done: bool = False
    is_closed: bool = False

    @property
    def in_use(self) -> int:
        return sum(frame.concurrency for frame in self.frames.values() if frame.is_open)


@dataclass(slots=True)
class LoopChecker:
    """Every stage that the ledger knows, by execution and stage."""

    stages: dict[tuple[int, str], SeenStage] = field(default_factory=dict)
    opened: set[tuple[int, str]] = field(default_factory=set)
    marks: Counter[str] = field(default_factory=Counter)

    def observe(self, event: Event) -> None:
        key = (event.execution_id, str(event.stage_id))
        if event.event_type == kinds.STAGE_OPENED:
            require(key not in self.opened, "a stage was opened twice", event)
            self.opened.add(key)
        elif event.event_type == kinds.STAGE_CLOSED:
            self._close(key, event)
        check = _CHECKS.get(event.event_type)
        if check is None:
            return
        require(key in self.opened, "a word about a stage that nobody opened", event)
        stage = self.stages.get(key)
        if stage is None:
            require(event.event_type in (kinds.LOOP_STARTED, kinds.LOOP_DONE), "a frame without its loop", event)
            meta: Any = event.meta
            self.stages[key] = stage = SeenStage(total=meta["total"], policy=meta.get("policy", {}))
        else:
            require(event.event_type != kinds.LOOP_STARTED, "a loop began twice", event)
        require(not stage.is_done, "a fact behind the end of its loop", event)
        check(stage, event)
        self._mark(event)

    def _close(self, key: tuple[int, str], event: Event) -> None:
        require(key in self.opened, "a stage was closed that nobody opened", event)
        self.opened.remove(key)
        stage = self.stages.get(key)
        if stage is not None:
            require(stage.is_done and not stage.is_closed, "a stage was closed before its end, or twice", event)
            stage.is_closed = True
            meta: Any = event.meta
            counts = (stage.counts["success"] + stage.counts["failed"], stage.counts["failed"])
            require((meta["done"], meta["failed"]) == counts, f"{dict(stage.counts)} were counted", event)

    def _mark(self, event: Event) -> None:
        """Rare branches, so that a run can say that it took them."""
        meta: Any = event.meta
        if event.event_type == kinds.FRAME_HEARTBEAT:
            self.marks["heartbeats"] += 1
        elif event.event_type == kinds.FRAME_ABANDONED:
            self.marks["whole frames"] += meta["retry_mode"] == "whole_frame"
            self.marks["rows skipped"] += meta["skipped"]
        elif event.event_type == kinds.FRAME_FAILED:
            self.marks["frames drained"] += meta["outcomes"]["skipped"] > 0 and not meta["outcomes"]["failed"]
        elif event.event_type == kinds.LOOP_DONE:
            self.marks["loops torn"] += meta["status"] == "failed"

    def is_persisted(self, execution_id: int, step: str, index: int) -> bool:
        """Whether the outcome of a row is in the ledger, so that nobody may run it again."""
        stages = [s for (e, name), s in self.stages.items() if e == execution_id and name.rpartition("#")[0] == step]
        return any(index in frame.persisted for frame in stages[-1].frames.values())

    def in_flight_max(self, execution_id: int, step: str) -> int:
        stages = [s for (e, name), s in self.stages.items() if e == execution_id and name.rpartition("#")[0] == step]
        limit: int = stages[-1].policy["max_in_flight"]
        return limit

    def check_end(self) -> None:
        require(not self.opened, f"{sorted(self.opened)} were opened and never closed")
        for key, stage in self.stages.items():
            require(stage.is_done, f"{key} has no end")
            left = [name for name, frame in stage.frames.items() if frame.is_open]
            require(not left, f"{key} ended with open frames {left}")


def _loop_started(stage: SeenStage, event: Event) -> None:
    require(stage.policy["max_in_flight"] >= 1, "nothing may run", event)


def _dispatched(stage: SeenStage, event: Event) -> None:
    meta: Any = event.meta
    frame_id, attempt = str(event.frame_id), meta["attempt"]
    known = stage.frames.get(frame_id)
    if known is None:
        require(attempt == 1, "a frame begins with its first attempt", event)
        if "slot" in meta:
            _turn(stage, event)
            return
        require(meta["first"] == stage.next_index, "rows were left out or given out twice", event)
        require(1 <= meta["concurrency"] <= meta["rows"], "a frame of no rows", event)
        stage.frames[frame_id] = SeenFrame(meta["first"], meta["rows"], meta["concurrency"])
        stage.next_index = meta["first"] + meta["rows"]
        require(stage.next_index <= stage.total, "rows that are not there", event)
        limit = stage.policy["max_in_flight"]
        require(stage.in_use <= limit, f"{stage.in_use} items of {limit} may be in flight", event)
        return
    require(known.is_open and known.is_out, "a frame was given out that somebody holds", event)
    require(attempt == known.attempt + 1 == known.given_out + 1, "attempts do not rise by one", event)
    known.given_out = attempt
    require((known.first, known.rows) == (meta["first"], meta["rows"]), "a frame changed its rows", event)


def _turn(stage: SeenStage, event: Event) -> None:
    """A slot of a cursor begins a frame: one at a time, behind all rows that it has had."""
    meta: Any = event.meta
    slot = meta["slot"]
    before = [frame for frame in stage.frames.values() if frame.slot == slot]
    require(1 <= slot <= stage.policy["max_in_flight"], "a slot that there is not", event)
    require(all(frame.is_ended for frame in before), "a slot has two turns at a time", event)
    require(not before or before[-1].rows > 0, "a slot at its end has another turn", event)
    require(meta["first"] == sum(frame.rows for frame in before), "rows of a slot were left out", event)
    require(meta["rows"] == 0, "rows before they are claimed", event)
    stage.frames[str(event.frame_id)] = SeenFrame(meta["first"], 0, meta["concurrency"], slot=slot)


def _claimed(stage: SeenStage, event: Event) -> None:
    frame, meta = _held(stage, event), event.meta
    require(frame.slot is not None and meta["n"] == frame.claims + 1, "claims do not rise by one", event)
    require(not frame.persisted, "rows are claimed anew after some have run", event)
    rows: Any = meta["rows"]
    require(rows >= 1, "a claim of nothing", event)
    stage.total += rows - frame.rows
    frame.rows, frame.claims = rows, frame.claims + 1


def _frame(stage: SeenStage, event: Event) -> SeenFrame:
    frame = stage.frames.get(str(event.frame_id))
    require(frame is not None and frame.is_open, "a fact about a frame that is not open", event)
    assert frame is not None
    return frame


def _started(stage: SeenStage, event: Event) -> None:
    frame = _frame(stage, event)
    require(frame.is_out, "a frame was taken from its holder", event)
    require(event.meta["attempt"] == frame.attempt + 1 == frame.given_out, "attempts do not rise by one", event)
    frame.attempt += 1
    frame.is_out = False


def _held(stage: SeenStage, event: Event) -> SeenFrame:
    frame = _frame(stage, event)
    require(not frame.is_out, "a fact about a frame that nobody holds", event)
    require(event.meta["attempt"] == frame.attempt, "a stale attempt reported", event)
    return frame


def _heartbeat(stage: SeenStage, event: Event) -> None:
    frame = _held(stage, event)
    ranges: Any = event.meta["ranges"]
    rows = [index for first, end in ranges for index in range(first, end)]
    require(bool(rows) and len(rows) == len(set(rows)), "a heartbeat without rows", event)
    require(min(rows) >= frame.first and max(rows) < frame.first + frame.rows, "rows of another frame", event)
    require(frame.persisted.isdisjoint(rows), "rows were persisted twice", event)
    frame.persisted.update(rows)


def _abandoned(stage: SeenStage, event: Event) -> None:
    frame = _held(stage, event)
    if stage.policy.get("retry_mode") == "whole_frame":
        frame.persisted.clear()
    require(event.meta["skipped"] == len(frame.persisted), f"{len(frame.persisted)} rows are persisted", event)
    frame.is_out = True


def _ended(stage: SeenStage, event: Event) -> None:
    frame = _frame(stage, event)
    require(event.meta["attempt"] == frame.attempt, "a stale attempt reported", event)
    outcomes: Any = event.meta["outcomes"]
    if "claim" in event.meta:
        # Nothing was taken, whatever was recorded before: that was rolled back.
        stage.total, frame.rows = stage.total - frame.rows, 0
    require(sum(outcomes.values()) == frame.rows, "the rows do not add up", event)
    require(min(outcomes.values()) >= 0, "less than nothing", event)
    frame.is_ended = True
    stage.counts.update(outcomes)
    if event.event_type == kinds.FRAME_COMMITTED:
        require(outcomes["skipped"] == 0, "a row without an outcome was committed", event)
        is_fast = not stage.policy.get("is_best_effort")
        require(not (is_fast and outcomes["failed"]), "a failed row was committed", event)
    elif not stage.policy.get("is_best_effort"):
        for other in stage.frames.values():
            if other.is_open and other.is_out:
                other.is_withdrawn = True


def _done(stage: SeenStage, event: Event) -> None:
    meta: Any = event.meta
    stage.is_done = True
    require(not any(frame.is_open for frame in stage.frames.values()), "a loop ended while frames are open", event)
    counts = stage.counts
    require(meta["done"] == counts["success"] + counts["failed"], f"{dict(counts)} were counted", event)
    require(meta["failed"] == counts["failed"], f"{dict(counts)} were counted", event)
    require(meta["total"] == stage.total, f"{stage.total} rows were counted", event)
    if meta["status"] == "ok" and any(frame.slot is not None for frame in stage.frames.values()):
        require(stage.total == meta["done"], "rows are missing", event)
    elif meta["status"] == "ok":
        require(stage.next_index == stage.total == meta["done"], "rows are missing", event)


_CHECKS = {
    kinds.LOOP_STARTED: _loop_started,
    kinds.FRAME_DISPATCHED: _dispatched,
    kinds.FRAME_STARTED: _started,
    kinds.CURSOR_CLAIMED: _claimed,
    kinds.FRAME_HEARTBEAT: _heartbeat,
    kinds.FRAME_ABANDONED: _abandoned,
    kinds.FRAME_COMMITTED: _ended,
    kinds.FRAME_FAILED: _ended,
    kinds.LOOP_DONE: _done,
}
