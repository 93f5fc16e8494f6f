"""What the router decides about loops: opening a stage, cutting it into frames, ending it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from noetl.core import kinds, limits
from noetl.core.codec import canonical_bytes, parse_json
from noetl.core.errors import EnvelopeInvalid, TemplateFailed
from noetl.core.event import Draft
from noetl.core.execution.looping import cursors
from noetl.core.execution.looping.dispatching import dispatched
from noetl.core.execution.looping.policy import CannotLoop, stage_policy
from noetl.core.execution.looping.windows import next_open
from noetl.core.execution.state import Entry, ExecutionState, Stage, StagePolicy
from noetl.core.execution.values import NeedsWorker, Scene, evaluate_value
from noetl.core.limits import (
    FRAME_LANE_ROWS,
    FRAME_LANES,
    FRAME_MS_AIM,
    FRAME_ROWS_MAX,
    FRAME_TAIL_SHARE,
    LOOP_ITEMS_MAX,
)
from noetl.core.playbook.compiled import CompiledLoop, CompiledStep

# The answer of a `collect` command among the answers to a step's questions.
COLLECT = "collect"


class Opened(NamedTuple):
    """A stage that can begin: its rows, or where they are claimed, and how to work them off."""

    collection: Entry | None
    total: int
    policy: StagePolicy
    cursor: Mapping[str, object] | None = None


class NeedsCollection(Exception):
    """The collection is too large for the router: a worker must cut it."""


def open_loop(scene: Scene, step: CompiledStep, loop: CompiledLoop) -> Opened:
    """Evaluate what the loop needs to begin.  Raises NeedsWorker, NeedsCollection or CannotLoop."""
    policy, frame = stage_policy(scene, step, loop)
    if loop.cursor is not None:
        return Opened(None, 0, policy, cursors.open_cursor(scene, step.name, loop.cursor, frame))
    answer = scene.answers.get(COLLECT)
    if answer is not None:
        return _collected(step, answer, policy)
    try:
        entry = evaluate_value(scene, loop.server)
    except TemplateFailed as error:
        raise CannotLoop("template_failed", f"step {step.name!r}, loop.in: {error}", "template") from error
    except NeedsWorker as need:
        raise NeedsCollection from need
    if not entry.is_inline:
        raise NeedsCollection
    rows = rows_of(step.name, entry.value)
    if len(_stored(step.name, rows)) > limits.CONTEXT_ENTRY_BYTES_MAX:
        raise NeedsCollection
    return Opened(Entry(rows), len(rows), policy)


def _stored(step: str, rows: list[object]) -> bytes:
    try:
        return canonical_bytes(rows)
    except EnvelopeInvalid as error:
        raise CannotLoop("loop_not_iterable", f"step {step!r}: loop.in cannot be stored: {error}") from error


def rows_of(step: str, value: object) -> list[object]:
    """A collection as a list (dsl §4.2).  Nothing at all is an error: a loop over a typing mistake must not pass."""
    if isinstance(value, list | tuple):
        rows = list(value)
    elif isinstance(value, dict):
        rows = [value]
    elif isinstance(value, str):
        parsed = _parsed(value)
        rows = parsed if isinstance(parsed, list) else [value]
    else:
        what = "nothing" if value is None else f"{value!r}"
        raise CannotLoop("loop_not_iterable", f"step {step!r}: loop.in gave {what}, which is no collection")
    check_count(step, len(rows))
    return rows


def check_count(step: str, count: int) -> None:
    if count > LOOP_ITEMS_MAX:
        message = f"step {step!r}: loop.in has {count:,} items, the limit is {LOOP_ITEMS_MAX:,}"
        raise CannotLoop("loop_too_large", message)


def _parsed(text: str) -> object:
    """What a text is as JSON.  Numbers and characters that JSON does not know make it an ordinary text."""
    try:
        value = parse_json(text) if text.lstrip().startswith("[") else None
        canonical_bytes(value)
    except (ValueError, RecursionError, EnvelopeInvalid):
        return None
    return value


def _collected(step: CompiledStep, answer: Mapping[str, object], policy: StagePolicy) -> Opened:
    context, reference = answer["context"], answer["reference"]
    assert isinstance(context, Mapping)
    error = context.get("error")
    if isinstance(error, Mapping):
        # What is no collection says so itself, whoever looked at it.
        where = f"step {step.name!r}, loop.in: " if error.get("kind") != "config" else ""
        message = f"{where}{error.get('message')}"
        raise CannotLoop(str(error.get("code")), message, str(error.get("kind")))
    total = context["total"]
    assert isinstance(total, int)
    assert isinstance(reference, Mapping)
    at = context.get("at", ())
    assert isinstance(at, list | tuple)
    return Opened(Entry(None, reference, tuple(at)), total, policy)


# --- events ----------------------------------------------------------------------------------------------


def started(stage_id: str, step: str, run: int, opened: Opened, *, parents: list[str]) -> Draft:
    policy = opened.policy
    meta: dict[str, object] = {
        "step": step,
        "run": run,
        "parents": parents,
        "total": opened.total,
        "policy": {name: value for name, value in policy._asdict().items() if value is not None},
    }
    if opened.collection is not None:
        meta["collection"] = opened.collection.to_json()
    if opened.cursor is not None:
        meta["cursor"] = opened.cursor
    return Draft(
        event_type=kinds.LOOP_STARTED,
        transition_key=kinds.loop_started_key(stage_id),
        meta=meta,
        stage_id=stage_id,
    )


def ended(stage: Stage, status: str, error: Mapping[str, object] | None) -> Draft:
    meta: dict[str, object] = {
        "step": stage.step,
        "run": stage.run,
        "total": stage.total,
        "done": stage.done,
        "failed": stage.failed,
        "frames": stage.frames,
        "status": status,
    }
    if error is not None:
        meta["error"] = error
    if stage.policy.shard_retries is not None:
        meta["fanin"] = fanin(stage, has_failed=error is not None)
    if stage.capped:
        limit = f"{stage.policy.slot_rows_max:,}"
        meta["warnings"] = [f"{stage.capped} slots ended at their limit of {limit} rows: rows may be left"]
    return Draft(
        event_type=kinds.LOOP_DONE,
        transition_key=kinds.loop_done_key(stage.stage_id),
        meta=meta,
        stage_id=stage.stage_id,
    )


def fanin(stage: Stage, *, has_failed: bool) -> dict[str, object]:
    """What became of the shards of a fan-out."""
    shards, size = stage.shards, stage.policy.frame_rows or 1
    status = "failed" if has_failed else "partial" if shards.failed else "complete"
    total = math.ceil(stage.total / size)
    return {"status": status, "total": total, "succeeded": shards.succeeded, "failed": shards.failed}


def end_of(stage: Stage, state: ExecutionState) -> Draft | None:
    """The end of a stage, when nothing of it is left to run."""
    if not stage.is_open or stage.is_sealing or stage.open_frames:
        return None
    if stage.failure is not None:
        return ended(stage, "failed", stage.failure)
    if _is_worked_off(stage):
        error = stage.claim_failure or (None if stage.policy.allows_partial else stage.shards.error)
        return ended(stage, "ok" if error is None else "failed", error)
    if not may_go_on(state):
        error = {"kind": "cancelled", "code": "loop_stopped", "retryable": False, "message": "the execution is ending"}
        return ended(stage, "stopped", error)
    return None


def _is_worked_off(stage: Stage) -> bool:
    if stage.cursor is not None:
        return cursors.is_drained(stage)
    return next_open(stage.kept, stage.next_index, stage.total) is None and not stage.shards.again


def may_go_on(state: ExecutionState) -> bool:
    """Whether further rows may begin.  Of an execution that fails only the final step runs, all of it."""
    return state.cancelling is None and (state.failure is None or state.is_closing)


def frames(stage: Stage) -> Iterator[Draft]:
    """The frames that may begin now.  Pure: sizes follow from what earlier frames reported."""
    if stage.cursor is not None:
        yield from cursors.turns(stage)
        return
    policy, lanes = stage.policy, _lanes(stage)
    wide = math.ceil(policy.max_in_flight / lanes)
    index, number, in_use = stage.next_index, stage.frames, stage.in_use
    for first, rows, tries in stage.shards.again:
        concurrency = min(_size(stage, min(wide, policy.max_in_flight - in_use))[1], rows)
        if concurrency < 1:
            return
        number += 1
        yield dispatched(stage, number, first, rows, concurrency, tries=tries)
        in_use += concurrency
    while in_use < policy.max_in_flight and (window := next_open(stage.kept, index, stage.total)) is not None:
        index, end = window
        rows, concurrency = _size(stage, min(wide, policy.max_in_flight - in_use))
        left = stage.total - index
        if policy.frame_rows is None and not policy.is_sequential:
            # Guided: towards the end the frames become smaller, so that all lanes end at the same time.
            rows = min(rows, max(concurrency, rows // FRAME_TAIL_SHARE, math.ceil(left / (2 * lanes))))
        rows = min(rows, end - index)
        concurrency = min(concurrency, rows)
        number += 1
        yield dispatched(stage, number, index, rows, concurrency)
        index += rows
        in_use += concurrency


def _lanes(stage: Stage) -> int:
    """How many frames are to run at a time, so that together they fill `max_in_flight`."""
    policy = stage.policy
    if policy.is_sequential:
        return 1
    lanes = min(policy.max_in_flight, max(FRAME_LANES, policy.max_in_flight // FRAME_LANE_ROWS))
    if policy.frame_rows is None:
        return lanes
    # Of large frames there may be fewer than lanes: then each must run more of its rows at a time.
    return max(1, min(lanes, math.ceil(stage.total / policy.frame_rows)))


def _size(stage: Stage, concurrency: int) -> tuple[int, int]:
    """Rows and concurrency of the next frame: what takes about FRAME_MS_AIM."""
    policy = stage.policy
    if policy.one_row_frames:
        return 1, 1
    if policy.row_concurrency is not None:
        concurrency = min(concurrency, policy.row_concurrency)
    if policy.frame_rows is not None:
        return policy.frame_rows, min(concurrency, 1) if policy.is_framewise else concurrency
    if stage.timed_rows <= 0:
        return concurrency, concurrency
    row_ms = max(stage.busy_ms / stage.timed_rows, 0.001)
    if row_ms >= FRAME_MS_AIM:
        # A slow row must not keep the places of others: each row is a frame of its own.
        return 1, 1
    return max(concurrency, min(int(FRAME_MS_AIM * concurrency / row_ms), FRAME_ROWS_MAX)), concurrency
