"""What the router decides about loops: opening a stage, cutting it into frames, ending it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from noetl.core import kinds
from noetl.core.codec import canonical_bytes, parse_json
from noetl.core.errors import EnvelopeInvalid, TemplateFailed
from noetl.core.event import Draft
from noetl.core.execution.state import Entry, ExecutionState, Stage, StagePolicy
from noetl.core.execution.values import NeedsWorker, Scene, evaluate_value
from noetl.core.limits import (
    CONTEXT_ENTRY_BYTES_MAX,
    FRAME_LANE_ROWS,
    FRAME_LANES,
    FRAME_MS_AIM,
    FRAME_ROWS_MAX,
    FRAME_TAIL_SHARE,
    LOOP_IN_FLIGHT_MAX,
    LOOP_ITEMS_MAX,
)
from noetl.core.playbook.compiled import CompiledLoop, CompiledStep

# The answer of a `collect` command among the answers to a step's questions.
COLLECT = "collect"
# A loop whose pipeline waits for another execution must not hold a slot for several rows at once.
_WAITING_KINDS = frozenset(("playbook",))


class Opened(NamedTuple):
    """A stage that can begin: its rows and how to work them off."""

    collection: Entry
    total: int
    policy: StagePolicy


class CannotLoop(Exception):
    """The loop cannot begin; `error` is what its step fails with."""

    def __init__(self, code: str, message: str, kind: str = "config") -> None:
        super().__init__(message)
        self.error: Mapping[str, object] = {"kind": kind, "code": code, "retryable": False, "message": message}


class NeedsCollection(Exception):
    """The collection is too large for the router: a worker must cut it."""


def open_loop(scene: Scene, step: CompiledStep, loop: CompiledLoop) -> Opened:
    """Evaluate what the loop needs to begin.  Raises NeedsWorker, NeedsCollection or CannotLoop."""
    policy = StagePolicy(
        is_sequential=loop.loop.is_sequential,
        max_in_flight=_in_flight(scene, step, loop),
        is_best_effort=loop.loop.is_best_effort,
        frame_rows=loop.loop.frame_rows,
        max_attempts=loop.loop.max_attempts,
        retry_mode=loop.loop.retry_mode,
        one_row_frames=any(task.kind in _WAITING_KINDS for task in step.tasks),
    )
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
    if len(_stored(step.name, rows)) > CONTEXT_ENTRY_BYTES_MAX:
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
    if len(rows) > LOOP_ITEMS_MAX:
        message = f"step {step!r}: loop.in has {len(rows):,} items, the limit is {LOOP_ITEMS_MAX:,}"
        raise CannotLoop("loop_too_large", message)
    return rows


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
        message = f"step {step.name!r}, loop.in: {error.get('message')}"
        raise CannotLoop(str(error.get("code")), message, str(error.get("kind")))
    total = context["total"]
    assert isinstance(total, int)
    assert isinstance(reference, Mapping)
    return Opened(Entry(None, reference), total, policy)


def _in_flight(scene: Scene, step: CompiledStep, loop: CompiledLoop) -> int:
    where = f"step {step.name!r}: loop.spec.max_in_flight"
    try:
        entry = evaluate_value(scene, loop.max_in_flight)
    except TemplateFailed as error:
        raise CannotLoop("template_failed", f"{where}: {error}") from error
    number = _whole(entry.value)
    if number is None or not 1 <= number <= LOOP_IN_FLIGHT_MAX:
        message = f"{where} must be a whole number from 1 to {LOOP_IN_FLIGHT_MAX:,}, not {entry.value!r}"
        raise CannotLoop("max_in_flight", message)
    return number


def _whole(value: object) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# --- events ----------------------------------------------------------------------------------------------


def started(stage_id: str, step: str, run: int, opened: Opened, *, parents: list[str], closing: bool) -> Draft:
    policy = opened.policy
    meta: dict[str, object] = {
        "step": step,
        "run": run,
        "parents": parents,
        "total": opened.total,
        "collection": opened.collection.to_json(),
        "policy": {name: value for name, value in policy._asdict().items() if value is not None},
    }
    if closing:
        meta["closing"] = True
    return Draft(
        event_type=kinds.LOOP_STARTED,
        transition_key=kinds.loop_started_key(stage_id),
        meta=meta,
        stage_id=stage_id,
    )


def ended(stage: Stage, status: str, error: Mapping[str, object] | None, *, closing: bool = False) -> Draft:
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
    if closing:
        meta["closing"] = True
    return Draft(
        event_type=kinds.LOOP_DONE,
        transition_key=kinds.loop_done_key(stage.stage_id),
        meta=meta,
        stage_id=stage.stage_id,
    )


def end_of(stage: Stage, state: ExecutionState) -> Draft | None:
    """The end of a stage, when nothing of it is left to run."""
    if stage.collection is None or stage.is_sealing or stage.open_frames:
        return None
    if stage.failure is not None:
        return ended(stage, "failed", stage.failure)
    if stage.next_index >= stage.total:
        return ended(stage, "ok", None)
    if not may_go_on(state):
        error = {"kind": "cancelled", "code": "loop_stopped", "retryable": False, "message": "the execution is ending"}
        return ended(stage, "stopped", error)
    return None


def may_go_on(state: ExecutionState) -> bool:
    """Whether further rows may begin.  Of an execution that fails only the final step runs, all of it."""
    return state.cancelling is None and (state.failure is None or state.is_closing)


def frames(stage: Stage) -> Iterator[Draft]:
    """The frames that may begin now.  Pure: sizes follow from what earlier frames reported."""
    policy, lanes = stage.policy, _lanes(stage)
    wide = math.ceil(policy.max_in_flight / lanes)
    index, number, in_use = stage.next_index, stage.frames, stage.in_use
    while index < stage.total and in_use < policy.max_in_flight:
        rows, concurrency = _size(stage, min(wide, policy.max_in_flight - in_use))
        left = stage.total - index
        if policy.frame_rows is None and not policy.is_sequential:
            # Guided: towards the end the frames become smaller, so that all lanes end at the same time.
            rows = min(rows, max(concurrency, rows // FRAME_TAIL_SHARE, math.ceil(left / (2 * lanes))))
        rows = min(rows, left)
        concurrency = min(concurrency, rows)
        number += 1
        yield _dispatched(stage, number, index, rows, concurrency)
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
    if policy.frame_rows is not None:
        return policy.frame_rows, concurrency
    if stage.timed_rows <= 0:
        return concurrency, concurrency
    row_ms = max(stage.busy_ms / stage.timed_rows, 0.001)
    if row_ms >= FRAME_MS_AIM:
        # A slow row must not keep the places of others: each row is a frame of its own.
        return 1, 1
    return max(concurrency, min(int(FRAME_MS_AIM * concurrency / row_ms), FRAME_ROWS_MAX)), concurrency


def _dispatched(stage: Stage, number: int, first: int, rows: int, concurrency: int) -> Draft:
    frame_id = f"{stage.stage_id}/{number}"
    return Draft(
        event_type=kinds.FRAME_DISPATCHED,
        transition_key=kinds.frame_key(kinds.FRAME_DISPATCHED, frame_id, 1),
        meta={
            "step": stage.step,
            "run": stage.run,
            "number": number,
            "attempt": 1,
            "first": first,
            "rows": rows,
            "concurrency": concurrency,
        },
        stage_id=stage.stage_id,
        frame_id=frame_id,
    )
