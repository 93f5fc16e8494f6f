"""What the frames of a loop have come to, as outputs: also of frames that never ended, or were taken back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.execution.looping.windows import rows_in
from noetl.core.execution.state import FrameOutput, Part, Stage
from noetl.core.results.frames import FrameRow, Frames


def is_whole(stage: Stage) -> bool:
    """Whether a frame runs again as a whole: a shard, or a frame whose rows ran together."""
    return stage.policy.is_framewise or stage.policy.shard_retries is not None


def outputs_of(stage: Stage, frames: Frames) -> tuple[FrameOutput, ...]:
    """The outputs of a stage over a collection: what it has kept of other executions, and what its own frames left."""
    kept = tuple(output for output in stage.outputs if output.origin is not None)
    own = (output_of(frame, frame.first, whole=is_whole(stage)) for frame in frames.rows() if frame.rows)
    return (*kept, *own)


def output_of(frame: FrameRow, base: int, *, whole: bool) -> FrameOutput:
    """A frame whose first row has the index `base` in the loop."""
    shift = base - frame.first
    parts = tuple(_part(part, shift) for part in frame.parts)
    reference: Mapping[str, Any] | None = frame.reference
    failed = frame.rows - sum(rows_in(part.ranges) - part.failed for part in parts)
    if frame.outcomes is not None:
        failed = frame.outcomes["failed"] + frame.outcomes["skipped"]
    if reference is not None and shift and not whole:
        parts = (Part(reference, ((base, base + frame.rows),), failed, shift),)
        reference = None
    return FrameOutput(
        first=base,
        rows=frame.rows,
        reference=reference,
        parts=parts if reference is None else (),
        error=frame.output().get("error"),
        failed=failed,
        number=frame.number,
        attempt=frame.attempt,
        claim=frame.claim,
    )


def _part(part: Mapping[str, Any], shift: int) -> Part:
    ranges = tuple((first + shift, end + shift) for first, end in part["ranges"])
    return Part(part["ref"], ranges, part["failed"], shift)


def writes_in(reference: Mapping[str, Any], document: Mapping[str, Any]) -> list[dict[str, object]]:
    """What the rows of a frame wrote to the context, by reference to where they were persisted."""
    return [
        {"path": list(item["path"]), "ref": reference, "at": ["writes", number, "v"]}
        for number, item in enumerate(document.get("writes", ()))
    ]
