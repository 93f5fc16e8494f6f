"""The fold of loops: stages and their frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from noetl.core import kinds
from noetl.core.event import Event
from noetl.core.execution import lineage
from noetl.core.execution.lifecycle import limited, unawaited
from noetl.core.execution.looping.ends import closed
from noetl.core.execution.looping.gathering import with_output
from noetl.core.execution.looping.profile import added, busy_ms
from noetl.core.execution.state import (
    Claim,
    Command,
    CommandStatus,
    EndedShard,
    ExecutionState,
    Frame,
    FrameOutput,
    Part,
    Pending,
    Slot,
    Stage,
    StagePolicy,
    StepResult,
    entry_from_json,
)
from noetl.core.execution.writes import integer, without, write
from noetl.core.playbook.frame_fields import WHOLE_FRAME

Changes = dict[str, Any]

# Ends that say nothing about the rows themselves: such a shard is not run again.
_NOT_ITS_FAULT = frozenset(("attempts_exhausted", "cancelled", "drained", "loop_stopped", "step_timeout"))
# Of a frame that was committed although rows of it failed: whoever did that did not say why.
_ROWS_FAILED: Mapping[str, object] = {
    "kind": "unknown",
    "code": "rows_failed",
    "retryable": False,
    "message": "rows of the loop failed",
}
# How fast an old measurement of the rows' duration fades.
_FADE = 0.5


def entered(state: ExecutionState, step: str, run: int, *, closing: bool) -> Changes:
    """A step run begins: it is no longer requested but running."""
    return {
        "runs": {**state.runs, step: run},
        "issued_steps": {**state.issued_steps, step: run},
        "requested_steps": without(state.requested_steps, step),
        "is_closing": state.is_closing or closing,
    }


def answered(state: ExecutionState, step: str, run: int) -> Pending:
    """What is pending about a step run when a new round of questions may begin: the answers are used up, the numbers of
    the questions are not."""
    known = state.pending_next_actions.get(step)
    return Pending(run=run, asked=known.asked if known is not None and known.run == run else 0)


def opening(state: ExecutionState, event: Event) -> Changes:
    """A loop's turn has come: the stage exists from here on.  In older ledgers the first question about its collection
    says so."""
    meta = event.meta
    step, run = str(meta["step"]), integer(meta["run"])
    if step in state.loop_state:
        return {}
    parents = _names(meta.get("parents"))
    lead = lineage.led_by(state, parents)
    is_told = event.event_type == kinds.STAGE_OPENED
    stage = Stage(f"{step}#{run}", step, run, parents=parents, parent_ref=lead, is_told=is_told)
    return {
        **entered(state, step, run, closing=meta.get("closing") is True),
        "loop_state": {**state.loop_state, step: stage},
    }


def _opened(state: ExecutionState, event: Event) -> Changes | None:
    step, run = str(event.meta["step"]), integer(event.meta["run"])
    if state.runs.get(step, 0) >= run:
        return None
    return {**opening(state, event), **limited(state, event, step, run)}


def _started(state: ExecutionState, event: Event) -> Changes | None:
    meta, stage_id = event.meta, event.stage_id
    step, run = str(meta["step"]), integer(meta["run"])
    known = state.loop_state.get(step)
    if stage_id is None or not _is_new(state, known, step, run):
        return None
    collection: Any = meta.get("collection")
    cursor: Any = meta.get("cursor")
    claimed: Any = meta.get("claimed")
    given: Any = meta["policy"]
    policy = StagePolicy(**given)
    parents = known.parents if known else _names(meta.get("parents"))
    stage = Stage(
        stage_id=stage_id,
        step=step,
        run=run,
        parents=parents,
        collection=None if collection is None else entry_from_json(collection),
        total=integer(meta["total"]),
        policy=policy,
        cursor=cursor,
        slots={} if cursor is None else {slot: Slot() for slot in range(1, policy.max_in_flight + 1)},
        parent_ref=known.parent_ref if known else lineage.led_by(state, parents),
        claimed=claimed,
        is_told=known is not None and known.is_told,
    )
    changes: Changes = {
        "loop_state": {**state.loop_state, step: stage},
        "pending_next_actions": {**state.pending_next_actions, step: answered(state, step, run)},
    }
    if known is None:
        changes |= entered(state, step, run, closing=meta.get("closing") is True)
        changes |= limited(state, event, step, run)
    return changes


def _is_new(state: ExecutionState, known: Stage | None, step: str, run: int) -> bool:
    """Whether a loop may begin with this run: it is being opened, or this is the first word about it."""
    if known is not None:
        return known.run == run and not known.is_open
    return state.runs.get(step, 0) < run


def _dispatched(state: ExecutionState, event: Event) -> Changes | None:
    frame_id, meta = event.frame_id, event.meta
    assert frame_id is not None
    step, attempt = str(meta["step"]), integer(meta["attempt"])
    stage = state.loop_state.get(step)
    known = state.commands.get(frame_id)
    if known is not None:
        again = known._replace(status=CommandStatus.ISSUED)
        return {"commands": {**state.commands, frame_id: again}} if known.attempt < attempt else None
    if stage is None or integer(meta["number"]) <= stage.frames:
        return None
    frame = Frame(
        number=integer(meta["number"]),
        first=integer(meta["first"]),
        rows=integer(meta["rows"]),
        concurrency=integer(meta["concurrency"]),
        slot=integer(meta["slot"]) if "slot" in meta else None,
        tries=integer(meta.get("tries", 0)),
    )
    command = Command(
        command_id=frame_id,
        step=step,
        run=stage.run,
        kind="frame",
        status=CommandStatus.ISSUED,
        parents=stage.parents,
        frame=frame,
        parent_ref=stage.parent_ref,
    )
    return {
        "commands": {**state.commands, frame_id: command},
        "loop_state": {**state.loop_state, step: _given_out(stage, frame)},
    }


def _given_out(stage: Stage, frame: Frame) -> Stage:
    """The stage with one more frame to be taken."""
    grown = stage._replace(
        frames=frame.number, open_frames=stage.open_frames + 1, in_use=stage.in_use + frame.concurrency
    )
    if frame.slot is not None:
        return grown._replace(slots={**stage.slots, frame.slot: stage.slots[frame.slot]._replace(is_open=True)})
    if frame.tries:
        window = (frame.first, frame.rows, frame.tries)
        again = tuple(one for one in stage.shards.again if one != window)
        return grown._replace(shards=stage.shards._replace(again=again))
    return grown._replace(next_index=frame.first + frame.rows)


def _taken(state: ExecutionState, event: Event) -> Changes | None:
    command = state.commands.get(event.frame_id or "")
    attempt = integer(event.meta["attempt"])
    if command is None or command.attempt >= attempt:
        return None
    taken = command._replace(status=CommandStatus.CLAIMED, attempt=attempt, job=None)
    return {"commands": {**state.commands, command.command_id: taken}}


def _claimed(state: ExecutionState, event: Event) -> Changes | None:
    """A cursor's rows are recorded.  A claim before this one in the same frame was rolled back."""
    command = state.commands.get(event.frame_id or "")
    if command is None or command.frame is None or event.payload_ref is None:
        return None
    meta, frame = event.meta, command.frame
    if integer(meta["n"]) <= frame.claims:
        return None
    place = meta.get("place")
    claim = Claim(str(meta["xid"]), event.payload_ref, None if place is None else str(place))
    rows = integer(meta["rows"])
    claimed = frame._replace(rows=rows, claim=claim, claims=frame.claims + 1, parts=())
    changes: Changes = {"commands": {**state.commands, command.command_id: command._replace(frame=claimed)}}
    stage = state.loop_state.get(command.step)
    if stage is not None:
        grown = stage._replace(total=stage.total + rows - frame.rows)
        changes["loop_state"] = {**state.loop_state, command.step: grown}
    return changes


def _abandoned(state: ExecutionState, event: Event) -> Changes | None:
    command = state.commands.get(event.frame_id or "")
    if command is None or command.attempt != integer(event.meta["attempt"]):
        return None
    frame = command.frame
    if frame is not None and event.meta["retry_mode"] == WHOLE_FRAME:
        # Everything runs again: what was persisted is nobody's outcome any more.
        frame = frame._replace(parts=())
    again = command._replace(status=CommandStatus.ISSUED, frame=frame, job=None)
    return {"commands": {**state.commands, command.command_id: again}}


def _persisted(state: ExecutionState, event: Event) -> Changes | None:
    command = state.commands.get(event.frame_id or "")
    if command is None or command.frame is None or event.payload_ref is None:
        return None
    if integer(event.meta["n"]) <= command.frame.heartbeats:
        return None
    ranges: Any = event.meta["ranges"]
    part = Part(event.payload_ref, tuple((first, end) for first, end in ranges), integer(event.meta["failed"]))
    frame = command.frame._replace(parts=(*command.frame.parts, part), heartbeats=command.frame.heartbeats + 1)
    return {"commands": {**state.commands, command.command_id: command._replace(frame=frame)}}


def _frame_ended(state: ExecutionState, event: Event) -> Changes | None:
    command = state.commands.get(event.frame_id or "")
    if command is None or command.frame is None:
        return None
    changes: Changes = {
        **unawaited(state, command),
        "commands": without(state.commands, command.command_id),
        "variables": write(state.variables, event.writes),
    }
    stage = state.loop_state.get(command.step)
    if stage is not None:
        stage = _settled(stage, command.frame, event)
        if stage.failure is not None:
            # Nothing further begins: what nobody has taken is taken back.
            unstarted = [
                one
                for one in changes["commands"].values()
                if one.frame is not None and one.step == stage.step and one.status is CommandStatus.ISSUED
            ]
            for one in unstarted:
                changes["commands"] = without(changes["commands"], one.command_id)
                stage = _withdrawn(stage, one.frame)
        changes["loop_state"] = {**state.loop_state, command.step: stage}
    return changes


def _settled(stage: Stage, frame: Frame, event: Event) -> Stage:
    """The stage after one of its frames has ended."""
    outcomes: Any = event.meta["outcomes"]
    profile: Any = event.meta.get("profile") or {}
    result: Any = event.result
    error = result["context"].get("error")
    rows, wall_ms = profile.get("rows", 0), profile.get("wall_ms", 0.0)
    has_failed = event.event_type == kinds.FRAME_FAILED or outcomes["failed"] > 0
    settled = stage._replace(
        open_frames=stage.open_frames - 1,
        in_use=stage.in_use - frame.concurrency,
        timed_rows=stage.timed_rows * _FADE + rows,
        busy_ms=stage.busy_ms * _FADE + busy_ms(wall_ms * min(frame.concurrency, max(rows, 1)), profile),
        last_ref=lineage.ref_id_of(event) or stage.last_ref,
        profile=added(stage.profile, profile),
    )
    if stage.policy.shard_retries is not None:
        if has_failed and _runs_again(stage, frame, error):
            window = (frame.first, frame.rows, frame.tries + 1)
            return settled._replace(shards=stage.shards._replace(again=(*stage.shards.again, window)))
        settled = _shard_ended(settled, frame, error or _ROWS_FAILED if has_failed else None)
    failure = stage.failure
    if has_failed and not stage.policy.is_best_effort and failure is None:
        failure = error or _ROWS_FAILED
    settled = settled._replace(
        done=stage.done + outcomes["success"] + outcomes["failed"],
        failed=stage.failed + outcomes["failed"],
        failure=failure,
    )
    if frame.slot is not None:
        turned = _turned(settled, frame, event)
        # Of a cursor only what failed is remembered: it may never end, and its result has no rows.
        is_lost = has_failed and not is_without_claim(frame, event.meta)
        return with_output(turned, _output(frame, event)) if is_lost else turned
    return with_output(settled, _output(frame, event))


def _output(frame: Frame, event: Event) -> FrameOutput:
    outcomes: Any = event.meta["outcomes"]
    result: Any = event.result
    return FrameOutput(
        first=frame.first,
        rows=frame.rows,
        reference=result["reference"],
        parts=() if result["reference"] is not None else frame.parts,
        # Rows that are nowhere failed with their frame, unless they count as never run.
        error=None if outcomes["skipped"] else result["context"].get("error"),
        failed=outcomes["failed"] + outcomes["skipped"],
        number=frame.number,
        attempt=integer(event.meta["attempt"]),
        claim=None if frame.claim is None else frame.claim.reference,
    )


def _runs_again(stage: Stage, frame: Frame, error: Mapping[str, object] | None) -> bool:
    """Whether a shard whose rows failed has another try."""
    is_its_fault = error is None or error.get("code") not in _NOT_ITS_FAULT
    return is_its_fault and stage.failure is None and frame.tries < (stage.policy.shard_retries or 0)


def _shard_ended(stage: Stage, frame: Frame, error: Mapping[str, object] | None) -> Stage:
    shards = stage.shards
    if stage.is_told:
        frame_id = f"{stage.stage_id}/{frame.number}"
        ended = EndedShard(frame_id, frame.first, frame.rows, frame.tries, has_failed=error is not None)
        shards = shards._replace(ended=(*shards.ended, ended))
    if error is None:
        return stage._replace(shards=shards._replace(succeeded=shards.succeeded + 1))
    return stage._replace(shards=shards._replace(failed=shards.failed + 1, error=shards.error or error))


def _shard_told(state: ExecutionState, event: Event) -> Changes | None:
    step = str(event.meta["step"])
    stage = state.loop_state.get(step)
    if stage is None:
        return None
    left = tuple(one for one in stage.shards.ended if one.frame_id != event.frame_id)
    told = stage._replace(shards=stage.shards._replace(ended=left))
    return {"loop_state": {**state.loop_state, step: told}}


def _turned(stage: Stage, frame: Frame, event: Event) -> Stage:
    """The turn of a slot is over.  It goes on unless it found no row, was told to stop, or could not claim at all: that
    would only repeat itself."""
    assert frame.slot is not None
    result: Any = event.result
    breaks = integer(event.meta.get("breaks", 0))
    is_empty = is_without_claim(frame, event.meta)
    could_not_claim = event.event_type == kinds.FRAME_FAILED and is_empty
    rows = 0 if is_empty else frame.rows
    slot = stage.slots[frame.slot]
    total = slot.rows + rows
    is_capped = total >= (stage.policy.slot_rows_max or total + 1)
    is_done = rows == 0 or breaks > 0 or is_capped
    failure = stage.claim_failure
    if could_not_claim and failure is None:
        failure = result["context"].get("error")
    return stage._replace(
        total=stage.total + rows - frame.rows,
        slots={**stage.slots, frame.slot: slot._replace(rows=total, is_open=False, is_done=is_done)},
        row_frames=stage.row_frames + (rows > 0),
        breaks=stage.breaks + breaks,
        capped=stage.capped + is_capped,
        claim_failure=failure,
    )


def is_without_claim(frame: Frame, meta: Mapping[str, object]) -> bool:
    """Whether a frame of a cursor has taken no rows: none are recorded, or those that are were rolled back."""
    return frame.claim is None or meta.get("claim") is not None


def _withdrawn(stage: Stage, frame: Frame | None) -> Stage:
    assert frame is not None
    fewer = stage._replace(open_frames=stage.open_frames - 1, in_use=stage.in_use - frame.concurrency)
    if frame.slot is None:
        return fewer
    slot = stage.slots[frame.slot]._replace(is_open=False, is_done=True)
    return fewer._replace(slots={**stage.slots, frame.slot: slot})


def _done(state: ExecutionState, event: Event) -> Changes | None:
    meta = event.meta
    step, run, error = str(meta["step"]), integer(meta["run"]), meta.get("error")
    stage = state.loop_state.get(step)
    if meta["status"] in ("ok", "failed"):
        if stage is None or stage.run != run:
            return None
        failure = stage.failure or (error if isinstance(error, Mapping) else None)
        sealing = stage._replace(is_sealing=True, failure=failure)
        return {"loop_state": {**state.loop_state, step: sealing}}
    if stage is None and state.runs.get(step, 0) >= run:
        return None
    # Nothing is left that a worker could seal: the loop could not begin, or the execution is ending.
    assert isinstance(error, Mapping)
    changes: Changes = {} if stage is not None else entered(state, step, run, closing=meta.get("closing") is True)
    lead = lineage.led_by(state, state.requested_steps.get(step, ())) if stage is None else stage.parent_ref
    return {
        **changes,
        **lineage.passed(state, step, lead),
        **closed(state, step, is_ok=False),
        "step_results": {
            **state.step_results,
            step: StepResult(run=run, status="error", reference=None, atoms={}, error=error),
        },
        "pending_next_actions": {**state.pending_next_actions, step: answered(state, step, run)},
    }


def _closed(state: ExecutionState, event: Event) -> Changes | None:
    step = str(event.meta["step"])
    looped = state.ended_loops.get(step)
    if looped is None or looped.stage_id != event.stage_id:
        return None
    return {"ended_loops": {**state.ended_loops, step: looped._replace(is_unclosed=False)}}


def _names(value: object) -> tuple[str, ...]:
    return tuple(str(name) for name in value) if isinstance(value, list | tuple) else ()


FOLDS: Mapping[str, Callable[[ExecutionState, Event], Changes | None]] = {
    kinds.STAGE_OPENED: _opened,
    kinds.LOOP_STARTED: _started,
    kinds.FRAME_DISPATCHED: _dispatched,
    kinds.FRAME_STARTED: _taken,
    kinds.CURSOR_CLAIMED: _claimed,
    kinds.FRAME_HEARTBEAT: _persisted,
    kinds.FRAME_ABANDONED: _abandoned,
    kinds.FRAME_COMMITTED: _frame_ended,
    kinds.FRAME_FAILED: _frame_ended,
    kinds.SHARD_DONE: _shard_told,
    kinds.SHARD_FAILED: _shard_told,
    kinds.LOOP_DONE: _done,
    kinds.STAGE_CLOSED: _closed,
    # These only tell: what they are about is folded from what made them.
    **dict.fromkeys((kinds.FANOUT_STARTED, kinds.FANIN_COMPLETED), lambda _state, _event: None),
}
