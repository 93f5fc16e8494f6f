"""A cursor whose recorded rows run once more: nothing is claimed again, the rows are a collection now."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.execution.forking.outputs import is_whole, output_of
from noetl.core.execution.state import Entry, FrameOutput, Slot, Stage
from noetl.core.limits import LOOP_IN_FLIGHT_MAX
from noetl.core.results.frames import Frames


def recorded(stage: Stage, frames: Frames) -> tuple[Stage, dict[str, object]]:
    """The stage of a cursor as one over the rows that its frames took, in the order of the frames, and the document
    that names them.  Each frame's rows stay where its claim has put them."""
    outputs: list[FrameOutput] = []
    chunks: list[dict[str, object]] = []
    base = 0
    for frame in frames.rows():
        if frame.rows == 0 or frame.claim is None:
            continue
        outputs.append(output_of(frame, base, whole=is_whole(stage)))
        chunks.append({"first": base, "rows": frame.rows, "ref": frame.claim})
        base += frame.rows
    policy = stage.policy
    rows_at_once = min(policy.max_in_flight * (policy.row_concurrency or 1), LOOP_IN_FLIGHT_MAX)
    nobody: Mapping[int, Slot] = {}
    again = stage._replace(
        cursor=None,
        slots=nobody,
        total=base,
        policy=policy._replace(max_in_flight=rows_at_once, slot_rows_max=None),
        outputs=tuple(outputs),
        claimed={"frames": stage.row_frames, "breaks": stage.breaks, "capped": stage.capped},
    )
    return again, {"total": base, "chunks": chunks}


def over(stage: Stage, collection: Mapping[str, object]) -> Stage:
    return stage._replace(collection=Entry(None, collection))
