"""Facts of workers as events: what is recorded, and what is refused because a loop that counts wrongly never ends."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.errors import EnvelopeInvalid, LeaseLost, RequestInvalid
from noetl.core.limits import COMMAND_ATTEMPTS_MAX
from noetl.core.reference import Result
from noetl.engine.control.facts import (
    GIVES_OUT,
    LETS_GO,
    abandoned,
    attempts_max,
    claim_draft,
    exhausted,
    fact_draft,
    is_draining,
    is_told_again,
)
from noetl.ports.session import Fact
from tests.support.loops import Looping, looping, parallel
from tests.support.playbooks import BOOM, Simulated, address_of, graph, step

NOW = "2026-01-01T00:00:00Z"
REFERENCE = address_of("rows").reference
DONE = Result(status="ok", reference=REFERENCE).to_json()
LOST = Result(status="error", context={"error": {"kind": "unknown", "message": "lost"}}).to_json()


def frame(**keys: Any) -> Looping:
    """Rows 0 to 5 in one frame that somebody holds."""
    run = looping(list(range(6)), spec=parallel(2, max_rows=6), **keys)
    run.take("each#1/1")
    return run


def fact(event_type: str, **fields: Any) -> Fact:
    return Fact(77, "each#1/1", 1, event_type, **fields)


def outcomes(success: object, failed: object = 0, skipped: object = 0) -> dict[str, Any]:
    return {"outcomes": {"success": success, "failed": failed, "skipped": skipped}}


# --- claims ----------------------------------------------------------------------------------------------


def test_a_claim_of_a_command_and_of_a_frame_are_events_of_their_own() -> None:
    run = Simulated(graph(step("start")))
    draft = claim_draft(run.state.commands["start#1"], 3, 9)
    assert (draft.event_type, draft.transition_key) == (kinds.COMMAND_CLAIMED, "command.claimed/start#1/3")
    assert draft.meta == {"attempt": 3, "session": "9"}
    draft = claim_draft(frame().state.commands["each#1/1"], 2, 9)
    assert (draft.event_type, draft.transition_key) == (kinds.FRAME_STARTED, "frame.started/each#1/1/2")
    assert (draft.stage_id, draft.frame_id, draft.command_id) == ("each#1", "each#1/1", None)


def test_nothing_stands_before_the_first_attempt_and_nothing_between_those_of_a_command() -> None:
    run = looping([1], spec=parallel(1))
    assert list(abandoned(run.state, run.state.commands["each#1/1"])) == []
    plain = Simulated(graph(step("start")))
    command = plain.state.commands["start#1"]._replace(attempt=2)
    assert list(abandoned(plain.state, command)) == []


def test_a_frame_has_as_many_attempts_as_its_loop_says() -> None:
    run = frame()
    assert attempts_max(run.state, run.state.commands["each#1/1"]) == COMMAND_ATTEMPTS_MAX
    few = looping([1], spec=parallel(1, max_attempts=2))
    assert attempts_max(few.state, few.state.commands["each#1/1"]) == 2
    plain = Simulated(graph(step("start")))
    assert attempts_max(plain.state, plain.state.commands["start#1"]) == COMMAND_ATTEMPTS_MAX


def test_what_was_claimed_too_often_says_so() -> None:
    draft = exhausted(frame().state.commands["each#1/1"])
    assert (draft.event_type, draft.transition_key) == (kinds.FRAME_FAILED, "frame.terminal/each#1/1")
    assert draft.meta["outcomes"] == {"success": 0, "failed": 6, "skipped": 0}
    assert draft.result is not None
    assert "each#1/1 was claimed 1 times" in str(draft.result["context"])
    draft = exhausted(Simulated(graph(step("start"))).state.commands["start#1"])
    assert (draft.event_type, draft.command_id) == (kinds.COMMAND_FAILED, "start#1")


def test_a_heartbeat_lets_nothing_go_and_frames_are_given_out() -> None:
    assert {kinds.FRAME_COMMITTED, kinds.FRAME_FAILED} <= LETS_GO
    assert kinds.FRAME_HEARTBEAT not in LETS_GO
    assert kinds.FRAME_DISPATCHED in GIVES_OUT


# --- facts -----------------------------------------------------------------------------------------------


def test_the_end_of_a_frame_is_recorded_with_the_words_of_the_control_plane() -> None:
    run = frame()
    told = fact(kinds.FRAME_COMMITTED, meta={**outcomes(6), "step": "other", "attempt": 9}, result=DONE)
    draft = fact_draft(run.state.commands["each#1/1"], told, NOW)
    assert (draft.transition_key, draft.stage_id, draft.frame_id) == ("frame.terminal/each#1/1", "each#1", "each#1/1")
    assert draft.meta == {"step": "each", "attempt": 1, "first": 0, **outcomes(6)}
    assert draft.result == DONE


@pytest.mark.parametrize("name", ["epoch_id", "loop_id", "loop_event_id", "__loop_epoch_id"])
def test_the_turn_of_a_loop_may_be_named_by_any_of_its_names_and_is_not_written(name: str) -> None:
    command = frame().state.commands["each#1/1"]
    draft = fact_draft(command, fact(kinds.FRAME_COMMITTED, meta={**outcomes(6), name: "each#1"}, result=DONE), NOW)
    assert name not in draft.meta
    late = fact(kinds.FRAME_COMMITTED, meta={**outcomes(6), name: "each#2"}, result=DONE)
    with pytest.raises(LeaseLost, match=f"meta.{name} names another turn"):
        fact_draft(command, late, NOW)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({}, "have the members success, failed, skipped"),
        ({"outcomes": [6, 0, 0]}, "have the members"),
        ({"outcomes": {"success": 6}}, "have the members"),
        ({"outcomes": {**outcomes(6)["outcomes"], "lost": 0}}, "have the members"),
        (outcomes(5), r"must add up to its 6 rows, not \[5, 0, 0\]"),
        (outcomes(7), "must add up to its 6 rows"),
        (outcomes(7, -1), "must add up to its 6 rows"),
        (outcomes(6.0), "must add up to its 6 rows"),
        (outcomes("6"), "must add up to its 6 rows"),
        (outcomes(5, True), "must add up to its 6 rows"),
        (outcomes(None, 3, 3), "must add up to its 6 rows"),
    ],
)
@pytest.mark.parametrize("event_type", [kinds.FRAME_COMMITTED, kinds.FRAME_FAILED])
def test_rows_that_do_not_add_up_are_refused(event_type: str, meta: dict[str, Any], message: str) -> None:
    run = frame()
    with pytest.raises(EnvelopeInvalid, match=message):
        fact_draft(run.state.commands["each#1/1"], fact(event_type, meta=meta, result=DONE), NOW)


def test_a_commit_without_its_rows_is_refused() -> None:
    run = frame()
    bare = Result(status="ok").to_json()
    for result, message in ((None, "has no result"), (bare, "committed without a reference to its rows' outcomes")):
        told = fact(kinds.FRAME_COMMITTED, meta=outcomes(6), result=result)
        with pytest.raises(EnvelopeInvalid, match=message):
            fact_draft(run.state.commands["each#1/1"], told, NOW)


def test_a_commit_with_rows_that_did_not_run_is_refused() -> None:
    told = fact(kinds.FRAME_COMMITTED, meta=outcomes(5, 0, 1), result=DONE)
    with pytest.raises(EnvelopeInvalid, match="was committed, and 1 rows have no outcome"):
        fact_draft(frame().state.commands["each#1/1"], told, NOW)


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        (outcomes(0, 6), {"success": 1, "failed": 5, "skipped": 0}),
        (outcomes(0, 0, 6), {"success": 1, "failed": 1, "skipped": 4}),
        (outcomes(6), {"success": 1, "failed": 5, "skipped": 0}),
    ],
)
def test_of_a_frame_without_rows_counts_what_was_persisted(told: dict[str, Any], counted: dict[str, int]) -> None:
    run = frame(best_effort=True)
    run.beat("each#1/1", {0: "zero", 4: BOOM})
    draft = fact_draft(run.state.commands["each#1/1"], fact(kinds.FRAME_FAILED, meta=told, result=LOST), NOW)
    assert draft.meta["outcomes"] == counted


def beat(ranges: object, **meta: object) -> Fact:
    return fact(kinds.FRAME_HEARTBEAT, meta={"ranges": ranges, **meta}, payload_ref=REFERENCE.to_json())


def test_heartbeats_are_numbered_by_the_control_plane() -> None:
    run = frame()
    for number in (1, 2):
        told = beat([[number, number + 1]], n=7, failed=number - 1)
        draft = fact_draft(run.state.commands["each#1/1"], told, NOW)
        assert draft.transition_key == f"frame.heartbeat/each#1/1/1/{number}"
        assert (draft.meta["n"], draft.meta["failed"]) == (number, number - 1)
        run.append(draft)


@pytest.mark.parametrize(
    "ranges",
    [
        None,
        [],
        {},
        "01",
        [[0]],
        [[0, 1, 2]],
        [[1, 1]],
        [[2, 1]],
        [[-1, 2]],
        [[4, 7]],
        [[6, 7]],
        [[0, 1.0]],
        [["0", "1"]],
        [[False, True]],
        [None],
        [[0, 2], [1, 3]],
        [[0, 1], [0, 1]],
        [[2, 3]],
        [[0, 6]],
    ],
)
def test_rows_that_are_not_of_the_frame_or_are_persisted_already_are_refused(ranges: object) -> None:
    run = frame()
    run.append(fact_draft(run.state.commands["each#1/1"], beat([[2, 4]]), NOW))
    with pytest.raises(EnvelopeInvalid, match=r"ranges must be|names no persisted rows|are persisted already"):
        fact_draft(run.state.commands["each#1/1"], beat(ranges), NOW)


@pytest.mark.parametrize("failed", [-1, 3, 0.5, "1", True, None])
def test_a_heartbeat_cannot_count_more_failures_than_rows(failed: object) -> None:
    with pytest.raises(EnvelopeInvalid, match="failed rows"):
        fact_draft(frame().state.commands["each#1/1"], beat([[0, 2]], failed=failed), NOW)


def test_a_heartbeat_without_its_payload_is_refused() -> None:
    with pytest.raises(EnvelopeInvalid, match="names no persisted rows"):
        fact_draft(frame().state.commands["each#1/1"], fact(kinds.FRAME_HEARTBEAT, meta={"ranges": [[0, 1]]}), NOW)


def test_a_heartbeat_that_is_told_twice_is_no_news() -> None:
    run = frame()
    told = beat([[0, 2]])
    assert not is_told_again(run.state.commands["each#1/1"], told)
    run.append(fact_draft(run.state.commands["each#1/1"], told, NOW))
    assert is_told_again(run.state.commands["each#1/1"], told)
    end = fact(kinds.FRAME_COMMITTED, meta=outcomes(6), result=DONE)
    assert not is_told_again(run.state.commands["each#1/1"], end)


@pytest.mark.parametrize(
    "event_type",
    [kinds.COMMAND_COMPLETED, kinds.COMMAND_FAILED, kinds.TASK_WAITING, kinds.FRAME_STARTED, kinds.LOOP_DONE, "x"],
)
def test_only_facts_about_frames_are_facts_about_a_frame(event_type: str) -> None:
    with pytest.raises(RequestInvalid, match="is no fact about each#1/1"):
        fact_draft(frame().state.commands["each#1/1"], fact(event_type, result=DONE), NOW)


@pytest.mark.parametrize(
    "event_type", [kinds.FRAME_COMMITTED, kinds.FRAME_FAILED, kinds.FRAME_HEARTBEAT, kinds.COMMAND_ISSUED]
)
def test_only_facts_about_commands_are_facts_about_a_command(event_type: str) -> None:
    run = Simulated(graph(step("start")))
    with pytest.raises(RequestInvalid, match="is no fact about start#1"):
        fact_draft(run.state.commands["start#1"], fact(event_type, result=DONE), NOW)


# --- loops that have failed ------------------------------------------------------------------------------


def test_frames_of_a_failed_loop_are_to_be_drained() -> None:
    run = looping(list(range(8)), spec=parallel(2, max_rows=4))
    first, second = run.frames
    run.take(second)
    assert not is_draining(run.state, run.state.commands[second])
    run.commit(first, {0: BOOM})
    assert is_draining(run.state, run.state.commands[second])
    best = looping(list(range(8)), spec=parallel(2, max_rows=4), best_effort=True)
    best.commit(best.frames[0], {0: BOOM})
    assert not is_draining(best.state, best.state.commands[best.frames[0]])


def test_what_led_to_a_result_is_said_by_the_control_plane() -> None:
    run = frame()
    command = run.state.commands["each#1/1"]._replace(parent_ref=41)
    told = fact(kinds.FRAME_COMMITTED, meta=outcomes(6), result={**DONE, "parent_ref": {"ref_id": 7}})
    result = fact_draft(command, told, NOW).result
    assert result is not None
    assert result["parent_ref"] == {"ref_id": 41}
    odd = {name: member for name, member in DONE.items() if name != "parent_ref"}
    assert fact_draft(command, told._replace(result=odd), NOW).result == odd
