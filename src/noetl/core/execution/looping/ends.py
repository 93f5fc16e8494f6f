"""What is kept of a loop that is closed: what it came to, for people who look at it later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.execution.state import ExecutionState, Looped, Stage
from noetl.core.execution.writes import without


def closed(
    state: ExecutionState, step: str, *, is_ok: bool, dead_letter: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """The stage of a step is gone; its counters stay."""
    stage = state.loop_state.get(step)
    if stage is None:
        return {}
    return {
        "loop_state": without(state.loop_state, step),
        "ended_loops": {**state.ended_loops, step: _looped(stage, is_ok=is_ok)._replace(dead_letter=dead_letter)},
    }


def _looped(stage: Stage, *, is_ok: bool) -> Looped:
    reference = stage.collection.reference if stage.collection is not None else None
    uri = reference.get("uri") if reference is not None else None
    shards = stage.shards
    return Looped(
        stage_id=stage.stage_id,
        run=stage.run,
        total=stage.total,
        done=stage.done,
        failed=stage.failed,
        frames=stage.frames,
        collection_ref=uri if isinstance(uri, str) else None,
        is_ok=is_ok,
        is_fanout=stage.policy.shard_retries is not None,
        shards=shard_count(stage),
        shards_done=shards.succeeded + shards.failed,
        shards_failed=shards.failed,
        profile=stage.profile,
        is_unclosed=stage.is_told,
    )


def shard_count(stage: Stage) -> int:
    """How many shards a fan-out has: windows of its rows, the last one maybe shorter."""
    rows = stage.policy.frame_rows
    return -(-stage.total // rows) if rows else stage.total
