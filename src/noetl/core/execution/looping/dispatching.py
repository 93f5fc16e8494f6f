"""The event that gives out a frame."""

from __future__ import annotations

from noetl.core import kinds
from noetl.core.event import Draft
from noetl.core.execution.state import Stage


def dispatched(stage: Stage, number: int, first: int, rows: int, concurrency: int, **more: int) -> Draft:
    """`more` is the slot of a cursor, or how often a shard was run before."""
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
            **more,
        },
        stage_id=stage.stage_id,
        frame_id=frame_id,
    )
