"""Facts and claims as events: what is recorded when a worker takes something, reports about it or is lost with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from noetl.core import kinds
from noetl.core.codec import canonical_bytes
from noetl.core.errors import EnvelopeInvalid, LeaseLost, RequestInvalid
from noetl.core.event import Draft
from noetl.core.execution.jobs import reports
from noetl.core.execution.lifecycle import failed_draft, later, lost_outcomes
from noetl.core.execution.looping.stages import is_without_claim
from noetl.core.execution.state import Command, ExecutionState, Frame
from noetl.core.limits import COMMAND_ATTEMPTS_MAX, CURSOR_CLAIM_ROWS_MAX, EVENT_RESULT_BYTES_MAX
from noetl.core.playbook.frame_fields import WHOLE_FRAME
from noetl.core.reference import parent_document
from noetl.ports.session import Fact

# After these nobody holds the command or frame.
LETS_GO = frozenset(
    (
        kinds.COMMAND_COMPLETED,
        kinds.COMMAND_FAILED,
        kinds.TASK_WAITING,
        kinds.FRAME_COMMITTED,
        kinds.FRAME_FAILED,
        kinds.CHILD_STARTED,
    )
)
# These make something that a worker can take.
GIVES_OUT = frozenset((kinds.COMMAND_ISSUED, kinds.FRAME_DISPATCHED, kinds.CHILD_TERMINAL))
# Why the rows of a frame did not run that was lost while its loop came to an end.
DRAINED: Mapping[str, object] = {
    "kind": "cancelled",
    "code": "drained",
    "retryable": False,
    "message": "the loop has failed: no further row runs",
}
# What a frame's `retry_mode` is when it does not begin anew.
BEHIND_PERSISTED = "behind_persisted_rows"
XID_CHARS_MAX = 20
_OF_COMMANDS = reports.EVENTS | {kinds.COMMAND_COMPLETED, kinds.COMMAND_FAILED, kinds.TASK_WAITING}
_FRAME_ENDED = frozenset((kinds.FRAME_COMMITTED, kinds.FRAME_FAILED))
_OF_FRAMES = reports.EVENTS | _FRAME_ENDED | {kinds.FRAME_HEARTBEAT}
_EPOCH_NAMES = ("epoch_id", "loop_id", "loop_event_id", "__loop_epoch_id")
_OF_CURSORS = _OF_FRAMES | {kinds.CURSOR_CLAIMED}


def claim_draft(command: Command, attempt: int, session_id: int, where: Mapping[str, object] | None = None) -> Draft:
    """`where` is what is known of places; it is no content, so a claim that was made elsewhere is the same claim."""
    meta = {"attempt": attempt, "session": str(session_id), **(where or {})}
    if command.frame is None:
        return Draft(
            event_type=kinds.COMMAND_CLAIMED,
            transition_key=kinds.claimed_key(command.command_id, attempt),
            command_id=command.command_id,
            meta=meta,
        )
    return _frame_draft(command, kinds.FRAME_STARTED, attempt, meta)


def abandoned(state: ExecutionState, command: Command) -> Iterator[Draft]:
    """What stands between two attempts of a frame: the first was lost, the frame is given out again."""
    frame = command.frame
    if frame is None or command.attempt == command.base:
        return
    policy = state.loop_state[command.step].policy
    is_whole = policy.retry_mode == WHOLE_FRAME or policy.is_framewise
    choice = {
        "retry_mode": WHOLE_FRAME if is_whole else BEHIND_PERSISTED,
        "skipped": 0 if is_whole else frame.kept,
    }
    meta: dict[str, object] = {"step": command.step, "attempt": command.attempt, **choice}
    yield _frame_draft(command, kinds.FRAME_ABANDONED, command.attempt, meta)
    attempt = command.attempt + 1
    again = {"step": command.step, "run": command.run, "attempt": attempt, **_window(frame), **choice}
    yield _frame_draft(command, kinds.FRAME_DISPATCHED, attempt, again)


def _window(frame: Frame) -> dict[str, object]:
    window: dict[str, object] = {
        "number": frame.number,
        "first": frame.first,
        "rows": frame.rows,
        "concurrency": frame.concurrency,
    }
    return window if frame.slot is None else {**window, "slot": frame.slot}


def _frame_draft(command: Command, event_type: str, attempt: int, meta: Mapping[str, object]) -> Draft:
    return Draft(
        event_type=event_type,
        transition_key=kinds.frame_key(event_type, command.command_id, attempt),
        meta=meta,
        stage_id=f"{command.step}#{command.run}",
        frame_id=command.command_id,
    )


def is_draining(state: ExecutionState, command: Command) -> bool:
    """Whether a frame belongs to a loop that has failed: then none of its rows begins again."""
    stage = state.loop_state.get(command.step) if command.frame is not None else None
    return stage is not None and stage.failure is not None


def attempts_max(state: ExecutionState, command: Command) -> int:
    """The attempt that is the last one.  Those before a resume point were not in vain and do not count."""
    stage = state.loop_state.get(command.step) if command.frame is not None else None
    return command.base + ((stage.policy.max_attempts if stage else None) or COMMAND_ATTEMPTS_MAX)


def exhausted(command: Command) -> Draft:
    """The end of what was claimed too often."""
    error = {
        "kind": "unknown",
        "code": "attempts_exhausted",
        "retryable": False,
        "message": f"{command.command_id} was claimed {command.attempt} times and never finished",
    }
    return failed_draft(command, error)


def _without_epoch(command: Command, meta: Mapping[str, object]) -> dict[str, object]:
    """A worker may say which turn of a loop it speaks of, by any of the names that are in use for that.  A word about
    another turn came too late; none of the names is written."""
    stage_id = f"{command.step}#{command.run}"
    for name in _EPOCH_NAMES:
        if meta.get(name, stage_id) != stage_id:
            raise LeaseLost(f"{command.command_id} is of {stage_id}, and meta.{name} names another turn of the loop")
    return {name: value for name, value in meta.items() if name not in _EPOCH_NAMES}


def fact_draft(command: Command, fact: Fact, now: str) -> Draft:
    """A worker's fact about what it holds.  Refused when it is no fact about such a thing."""
    if fact.event_type not in _allowed(command):
        raise RequestInvalid(f"{fact.event_type} is no fact about {command.command_id}")
    if fact.event_type in reports.EVENTS:
        if fact.payload_ref is not None and fact.event_type == kinds.JOB_PROGRESSED:
            raise EnvelopeInvalid(f"{fact.event_type} has no payload: only the settings of an intent may be one")
        return reports.job_draft(command, fact.event_type, fact.meta)._replace(payload_ref=fact.payload_ref)
    if "jobs" in fact.meta:
        reports.check_recorded(fact.meta["jobs"])
    meta = {**_without_epoch(command, fact.meta), "step": command.step, "attempt": fact.attempt}
    stage_id = frame_id = command_id = None
    if command.frame is None:
        command_id = command.command_id
        key = kinds.terminal_key(command_id)
        if fact.event_type == kinds.TASK_WAITING:
            number, delay = command.waits + 1, fact.meta["delay_seconds"]
            assert isinstance(delay, int | float)
            key = kinds.waiting_key(command_id, number)
            meta |= {"n": number, "due_at": later(now, delay)}
    else:
        stage_id, frame_id = f"{command.step}#{command.run}", command.command_id
        key, more = _about_frame(command.frame, frame_id, fact)
        meta |= more
    return Draft(
        event_type=fact.event_type,
        transition_key=key,
        command_id=command_id,
        meta=meta,
        result=_linked(command, fact.result),
        writes=fact.writes,
        payload_ref=fact.payload_ref,
        stage_id=stage_id,
        frame_id=frame_id,
    )


def check_context(fact: Fact, bytes_max: int) -> None:
    """Refuse more context than this installation takes into events.  The ledger's own bound for all of a result needs
    no look here: a context within it is checked with the event."""
    if bytes_max >= EVENT_RESULT_BYTES_MAX or fact.result is None:
        return
    size = len(canonical_bytes(fact.result.get("context")))
    if size > bytes_max:
        raise EnvelopeInvalid(
            f"result.context has {size:,} bytes, NOETL_EVENT_RESULT_CONTEXT_MAX_BYTES is {bytes_max:,}: "
            "select less (output.select), or hand data over by reference"
        )


def _linked(command: Command, result: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """A worker's result with the one that led to it.  The router knows that, whatever a worker says."""
    if result is None or "parent_ref" not in result:
        return result  # of another shape: the ledger refuses it
    return {**result, "parent_ref": parent_document(command.parent_ref)}


def _allowed(command: Command) -> frozenset[str]:
    if command.frame is None:
        return _OF_COMMANDS
    return _OF_FRAMES if command.frame.slot is None else _OF_CURSORS


def _about_frame(frame: Frame, frame_id: str, fact: Fact) -> tuple[str, dict[str, object]]:
    """The transition key of a fact about a frame, and what the control plane makes of what it says."""
    if fact.event_type == kinds.FRAME_HEARTBEAT:
        number = frame.heartbeats + 1
        key = kinds.frame_heartbeat_key(frame_id, fact.attempt, number)
        return key, {"n": number, "failed": _checked_rows(frame, fact)}
    if fact.event_type == kinds.CURSOR_CLAIMED:
        _check_claim(frame, fact)
        return kinds.cursor_claimed_key(frame_id, fact.attempt, frame.claims + 1), {}
    return kinds.frame_terminal_key(frame_id), {"outcomes": _checked_outcomes(frame, fact), "first": frame.first}


def is_told_again(command: Command, fact: Fact) -> bool:
    """Whether a heartbeat, a claim or a word about a job is recorded already: unlike the end of a frame, it does not
    end what it is about, so a second telling, after a lost reply, looks like news."""
    if fact.event_type in reports.EVENTS:
        return reports.is_told_again(command, fact.event_type, fact.meta)
    frame = command.frame
    if frame is None or fact.payload_ref is None:
        return False
    if fact.event_type == kinds.CURSOR_CLAIMED:
        # The worker numbers its claims: one that is told late must not replace the one after it.
        number = fact.meta.get("n")
        return type(number) is int and 1 <= number <= frame.claims
    if fact.event_type != kinds.FRAME_HEARTBEAT:
        return False
    digest = fact.payload_ref.get("sha256")
    return any(part.reference.get("sha256") == digest for part in frame.parts)


def is_stopped_for_nothing(state: ExecutionState, command: Command, fact: Fact) -> bool:
    """Whether a worker let go of a command that the ledger wants done.  It was told that somebody else has its row,
    because its server was silent for too long: that is no outcome of the command."""
    if fact.event_type not in (kinds.COMMAND_FAILED, kinds.FRAME_FAILED) or state.cancelling is not None:
        return False
    context: Any = (fact.result or {}).get("context") or {}
    error = context.get("error")
    is_stopped = isinstance(error, Mapping) and (error.get("kind"), error.get("code")) == ("cancelled", "cancelled")
    return is_stopped and not is_draining(state, command)


def _check_claim(frame: Frame, fact: Fact) -> None:
    """What whoever takes the frame over must find: the rows, how many, and the transaction that took them."""
    rows, xid = fact.meta.get("rows"), fact.meta.get("xid")
    if not isinstance(xid, str) or not xid.isascii() or not xid.isdigit() or len(xid) > XID_CHARS_MAX:
        raise EnvelopeInvalid("xid of a claim must be the number of its transaction, as text")
    if fact.meta.get("n") != frame.claims + 1:
        raise EnvelopeInvalid(f"the next claim of frame {frame.number} has n {frame.claims + 1}")
    if type(rows) is not int or not 1 <= rows <= CURSOR_CLAIM_ROWS_MAX or fact.payload_ref is None:
        raise EnvelopeInvalid(f"a claim of frame {frame.number} names 1 to {CURSOR_CLAIM_ROWS_MAX:,} rows by reference")


def _checked_outcomes(frame: Frame, fact: Fact) -> Mapping[str, object]:
    """Every row of a frame is accounted for: a loop that counts wrongly would end early or never."""
    names = ("success", "failed", "skipped")
    outcomes: Any = fact.meta.get("outcomes")
    if not isinstance(outcomes, Mapping) or set(outcomes) != set(names):
        raise EnvelopeInvalid(f"outcomes of a frame have the members {', '.join(names)}")
    if frame.slot is not None and not (fact.result or {}).get("reference"):
        return _cursor_outcomes(frame, fact)
    counts = [outcomes[name] for name in names]
    if not all(type(count) is int and count >= 0 for count in counts) or sum(counts) != frame.rows:
        raise EnvelopeInvalid(f"outcomes of frame {frame.number} must add up to its {frame.rows} rows, not {counts}")
    if fact.result is None:
        raise EnvelopeInvalid(f"{fact.event_type} of frame {frame.number} has no result")
    if fact.event_type == kinds.FRAME_COMMITTED and outcomes["skipped"]:
        raise EnvelopeInvalid(f"frame {frame.number} was committed, and {outcomes['skipped']} rows have no outcome")
    if fact.result.get("reference") is not None:
        return outcomes
    if fact.event_type == kinds.FRAME_COMMITTED:
        raise EnvelopeInvalid(f"frame {frame.number} was committed without a reference to its rows' outcomes")
    # The worker could not say more: what it persisted before stands, whatever it counts now.
    return lost_outcomes(frame, is_skipped=outcomes["skipped"] > 0)


def _cursor_outcomes(frame: Frame, fact: Fact) -> Mapping[str, object]:
    """Without outcomes of rows: there were none, or nobody can say more than what is recorded of them."""
    result: Any = fact.result or {}
    error = (result.get("context") or {}).get("error")
    if is_without_claim(frame, fact.meta):
        return {"success": 0, "failed": 0, "skipped": 0}
    if fact.event_type == kinds.FRAME_COMMITTED or not isinstance(error, Mapping):
        raise EnvelopeInvalid(f"frame {frame.number} has {frame.rows} rows and needs a reference to their outcomes")
    return lost_outcomes(frame, is_skipped=error.get("kind") == "cancelled")


def _checked_rows(frame: Frame, fact: Fact) -> int:
    """Rows are persisted once, and only by whoever holds their frame; returns how many of them failed."""
    end, ranges, failed = frame.first + frame.rows, fact.meta.get("ranges"), fact.meta.get("failed", 0)
    known = [one for part in frame.parts for one in part.ranges]
    if not isinstance(ranges, list | tuple) or not ranges or fact.payload_ref is None:
        raise EnvelopeInvalid(f"a heartbeat of frame {frame.number} names no persisted rows")
    for one in ranges:
        is_pair = isinstance(one, list | tuple) and [type(edge) for edge in one] == [int, int]
        if not is_pair or not frame.first <= one[0] < one[1] <= end:
            raise EnvelopeInvalid(f"ranges must be half-open ranges of the rows {frame.first} to {end - 1}")
        if any(one[0] < other[1] and other[0] < one[1] for other in known):
            raise EnvelopeInvalid(f"rows {one[0]} to {one[1] - 1} of frame {frame.number} are persisted already")
        known.append((one[0], one[1]))
    if type(failed) is not int or not 0 <= failed <= sum(one[1] - one[0] for one in ranges):
        raise EnvelopeInvalid(f"a heartbeat of frame {frame.number} counts {failed!r} failed rows")
    return failed
