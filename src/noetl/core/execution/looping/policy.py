"""How a stage is worked off, decided when its loop opens: every field of the document that may be a template is
evaluated here and judged by the rule of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.errors import TemplateFailed
from noetl.core.execution.state import StagePolicy
from noetl.core.execution.values import Scene, evaluate_value
from noetl.core.limits import LOOP_IN_FLIGHT_MAX
from noetl.core.playbook.compiled import CompiledLoop, CompiledStep, ServerValue
from noetl.core.playbook.frame_fields import (
    CURSOR_FRAME_DEFAULTS,
    CURSOR_OPTION_DEFAULTS,
    CURSOR_OPTIONS,
    FANOUT_DEFAULTS,
    FANOUT_FIELDS,
    FRAME,
    FRAME_FIELDS,
    LOCALITY_FIELDS,
    Check,
    FieldInvalid,
    checked,
)
from noetl.core.playbook.model import LoopMode

# A pipeline that waits for another execution must not hold a place for several rows at once.
_WAITING_KINDS = frozenset(("playbook",))

Fields = dict[str, Any]


class CannotLoop(Exception):
    """The loop cannot begin; `error` is what its step fails with."""

    def __init__(self, code: str, message: str, kind: str = "config") -> None:
        super().__init__(message)
        self.error: Mapping[str, object] = {"kind": kind, "code": code, "retryable": False, "message": message}


def stage_policy(scene: Scene, step: CompiledStep, loop: CompiledLoop) -> tuple[StagePolicy, Fields]:
    """The policy, and the frame fields that it follows from.  Raises NeedsWorker or CannotLoop."""
    frame = _resolved(scene, f"step {step.name!r}: loop.spec.frame", loop.frame, FRAME_FIELDS)
    where = f"step {step.name!r}: loop.spec.locality"
    distance = _resolved(scene, where, loop.locality, LOCALITY_FIELDS, code="locality").get("max_distance")
    in_flight = _in_flight(scene, step, loop)
    waits = any(task.kind in _WAITING_KINDS for task in step.tasks)
    if loop.cursor is not None:
        policy, fields = _of_cursor(scene, step, loop, {**CURSOR_FRAME_DEFAULTS, **frame}, in_flight, waits=waits)
        return policy._replace(max_distance=distance), fields
    is_framewise = frame.get("process") == FRAME
    policy = StagePolicy(
        is_sequential=loop.loop.is_sequential,
        max_in_flight=in_flight,
        is_best_effort=loop.loop.is_best_effort is True,
        # Once per frame, how rows fall into frames is part of the result: it must not depend on how fast they are.
        frame_rows=frame.get("max_rows", 1 if is_framewise else None),
        max_attempts=frame.get("max_attempts"),
        retry_mode=frame.get("retry_mode"),
        one_row_frames=waits and not is_framewise,
        process=FRAME if is_framewise else None,
        row_concurrency=None if is_framewise else frame.get("row_concurrency"),
        max_seconds=frame.get("max_seconds"),
        max_bytes=frame.get("max_bytes"),
        max_distance=distance,
    )
    if loop.loop.mode is LoopMode.FANOUT:
        policy = _of_shards(scene, step, loop, policy, waits=waits)
    return policy, frame


def _of_cursor(
    scene: Scene, step: CompiledStep, loop: CompiledLoop, frame: Fields, slots: int, *, waits: bool
) -> tuple[StagePolicy, Fields]:
    assert loop.cursor is not None
    where = f"step {step.name!r}: loop.cursor.options"
    options = {**CURSOR_OPTION_DEFAULTS, **_resolved(scene, where, loop.cursor.options, CURSOR_OPTIONS)}
    is_framewise = frame["process"] == FRAME
    # Of rows that wait for other executions one runs at a time, and what was persisted is not forgotten.
    concurrency = 1 if waits or is_framewise else frame["row_concurrency"]
    policy = StagePolicy(
        is_sequential=slots == concurrency == 1,
        max_in_flight=slots,
        is_best_effort=loop.loop.is_best_effort is not False,
        frame_rows=frame["max_rows"],
        max_attempts=frame["max_attempts"],
        retry_mode=None if waits and not is_framewise else frame.get("retry_mode"),
        process=FRAME if is_framewise else None,
        row_concurrency=concurrency,
        max_seconds=frame["max_seconds"],
        max_bytes=frame["max_bytes"],
        slot_rows_max=options["max_iterations"],
    )
    return policy, frame


def _of_shards(
    scene: Scene, step: CompiledStep, loop: CompiledLoop, policy: StagePolicy, *, waits: bool
) -> StagePolicy:
    """A fan-out: a shard is a frame.  Whoever allows a partial result wants the other shards to run."""
    found = _resolved(scene, f"step {step.name!r}: loop.spec.fanout", loop.fanout, FANOUT_FIELDS)
    fanout = {**FANOUT_DEFAULTS, **({"allow_partial": True} if policy.is_best_effort else {}), **found}
    allows_partial = bool(fanout["allow_partial"])
    is_framewise = policy.is_framewise
    return policy._replace(
        is_best_effort=allows_partial or not fanout.get("fail_fast", True),
        frame_rows=int(fanout["shard_size"]),
        one_row_frames=False,
        row_concurrency=1 if waits and not is_framewise else policy.row_concurrency,
        retry_mode=None if waits and not is_framewise else policy.retry_mode,
        shard_retries=int(fanout["max_shard_retries"]),
        allows_partial=allows_partial,
    )


def _resolved(
    scene: Scene, where: str, value: ServerValue, fields: Mapping[str, Check], *, code: str = "frame_policy"
) -> Fields:
    try:
        entry = evaluate_value(scene, value, must_be_inline=True)
    except TemplateFailed as error:
        raise CannotLoop("template_failed", f"{where}: {error}") from error
    assert isinstance(entry.value, Mapping)
    try:
        return checked(fields, entry.value)
    except FieldInvalid as error:
        raise CannotLoop(code, f"{where}.{error}") from error


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
