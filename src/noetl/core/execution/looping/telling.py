"""The events that tell the life of a stage and of its shards to whoever reads the ledger.

They ride in the commits that make them true.  The router needs only the first, with which a stage begins."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from noetl.core import kinds
from noetl.core.event import Draft
from noetl.core.execution.state import ExecutionState, Looped, Stage
from noetl.core.playbook.compiled import CompiledLoop
from noetl.core.playbook.model import LoopMode

# A loop that could not begin, and one that was stopped, have no result that somebody would write.
UNSEALED = ("refused", "stopped")


def opened(
    stage_id: str, step: str, run: int, loop: CompiledLoop, *, parents: list[str], notes: Mapping[str, object]
) -> Draft:
    """`notes` is what else is to be said when a step begins: its limit, that it is the final one, warnings."""
    meta: dict[str, object] = {
        "step": step,
        "run": run,
        "parents": parents,
        **_nature(is_fanout=loop.loop.mode is LoopMode.FANOUT, is_cursor=loop.cursor is not None),
        **notes,
    }
    return _about(kinds.STAGE_OPENED, stage_id, meta)


def reopened(stage: Stage) -> Draft:
    """A stage goes on in another execution."""
    nature = _nature(is_fanout=stage.policy.shard_retries is not None, is_cursor=stage.claimed is not None)
    meta: dict[str, object] = {"step": stage.step, "run": stage.run, "parents": list(stage.parents), **nature}
    return _about(kinds.STAGE_OPENED, stage.stage_id, meta)


def _nature(*, is_fanout: bool, is_cursor: bool) -> dict[str, object]:
    return {"stage_kind": "fanout" if is_fanout else "loop", "source": "cursor" if is_cursor else "collection"}


def fanout_started(stage: Stage) -> Iterator[Draft]:
    """How many shards there are; nothing for a loop without shards."""
    if not stage.is_told or stage.policy.shard_retries is None:
        return
    size = stage.policy.frame_rows or 1
    meta: dict[str, object] = {
        "step": stage.step,
        "run": stage.run,
        "total": stage.total,
        "total_shards": math.ceil(stage.total / size),
        "shard_size": size,
    }
    yield _about(kinds.FANOUT_STARTED, stage.stage_id, meta)


def shards_ended(stage: Stage) -> Iterator[Draft]:
    """What became of the shards that ended since this was told last."""
    size = stage.policy.frame_rows or 1
    for one in stage.shards.ended:
        shard = one.first // size
        yield Draft(
            event_type=kinds.SHARD_FAILED if one.has_failed else kinds.SHARD_DONE,
            transition_key=kinds.shard_key(stage.stage_id, shard),
            meta={
                "step": stage.step,
                "run": stage.run,
                "shard_index": shard,
                "first": one.first,
                "rows": one.rows,
                "tries": one.tries,
            },
            stage_id=stage.stage_id,
            frame_id=one.frame_id,
        )


def fanin_completed(stage: Stage, end: Draft) -> Iterator[Draft]:
    """What the end of a loop says about its shards; nothing when they were stopped on their way."""
    if stage.is_told and "fanin" in end.meta and end.meta["status"] not in UNSEALED:
        meta: dict[str, object] = {"step": stage.step, "run": stage.run, "fanin": end.meta["fanin"]}
        yield _about(kinds.FANIN_COMPLETED, stage.stage_id, meta)


def sealed(state: ExecutionState, command_id: str | None, step: str) -> Iterator[Draft]:
    """A command has ended: if it was to write the result of a loop, its stage is closed."""
    looped = state.ended_loops.get(step)
    if looped is not None and looped.is_unclosed and command_id == f"{looped.stage_id}/seal":
        yield _closed(step, looped, "ok" if looped.is_ok else "failed")


def closed(stage: Stage, status: str) -> Iterator[Draft]:
    """A stage ends of which nobody writes a result."""
    if stage.is_told:
        yield _closed(stage.step, stage, status)


def _closed(step: str, stage: Stage | Looped, status: str) -> Draft:
    meta: dict[str, object] = {
        "step": step,
        "run": stage.run,
        "status": status,
        "total": stage.total,
        "done": stage.done,
        "failed": stage.failed,
        "frames": stage.frames,
    }
    return _about(kinds.STAGE_CLOSED, stage.stage_id, meta)


def _about(event_type: str, stage_id: str, meta: Mapping[str, object]) -> Draft:
    key = kinds.stage_key(event_type, stage_id)
    return Draft(event_type=event_type, transition_key=key, meta=meta, stage_id=stage_id)
