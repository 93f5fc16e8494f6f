"""Cancelling: what is taken back at once, what must confirm, and how the execution ends."""

from __future__ import annotations

import pytest

from noetl.core import kinds
from noetl.core.execution.decide import decide
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.lifecycle import CANCELLED, PARENT, failed_draft
from noetl.core.execution.state import Status
from tests.support.endings import Ending
from tests.support.playbooks import graph, step

FORK = graph(step("a", "b", "c", mode="inclusive"), step("b", "end"), step("c", "end"), step("end"))
CHAIN = graph(step("a", "b"), step("b", "end"), step("end"), executor={"spec": {"final_step": "end"}})
LOOP = graph(
    step(
        "a",
        "b",
        loop={"in": [1, 2, 3, 4], "iterator": "x", "spec": {"mode": "parallel", "max_in_flight": 2}},
        spec={"policy": {"failure": {"mode": "best_effort"}}},
    ),
    step("b"),
)


def test_what_nobody_holds_is_taken_back_and_the_execution_ends_at_once() -> None:
    run = Ending(CHAIN)
    run.cancel("no longer needed")
    assert [event.event_type for event in run.events[-2:]] == [kinds.CANCEL_REQUESTED, kinds.EXECUTION_CANCELLED]
    assert run.state.status is Status.CANCELLED
    assert (run.state.commands, run.state.timers) == ({}, {})
    assert run.state.result == {
        "status": "error",
        "reference": None,
        "parent_ref": None,
        "context": {
            "error": {"kind": "cancelled", "code": "cancelled", "retryable": False, "message": "no longer needed"}
        },
    }
    assert "unconfirmed" not in run.events[-1].meta


def test_a_held_command_must_confirm_and_nothing_follows_from_its_end() -> None:
    run = Ending(CHAIN)
    run.claim("a#1")
    run.cancel()
    assert run.open == ["a#1"]
    assert set(run.state.timers) == {"cancel"}
    run.complete("a#1", 1)
    assert run.state.status is Status.CANCELLED
    # Neither the next step, nor the implicit end, nor the final step.
    assert run.issued == ["a#1"]
    assert not run.of(kinds.STEP_DECIDED)


@pytest.mark.parametrize("is_late", [False, True])
def test_all_that_is_held_must_confirm_or_the_grace_ends(*, is_late: bool) -> None:
    run = Ending(FORK)
    run.complete("a#1", 1)
    run.claim("b#1")
    run.claim("c#1")
    run.cancel()
    run.complete("b#1", 1)
    assert not run.state.is_terminal
    if is_late:
        run.fire("cancel")
    else:
        command = run.state.commands["c#1"]
        run.followed(failed_draft(command, CANCELLED))
    assert run.state.status is Status.CANCELLED
    assert run.events[-1].meta.get("unconfirmed") == (["c#1"] if is_late else None)
    assert run.state.commands == {}


def test_the_grace_is_ten_seconds_of_the_request() -> None:
    run = Ending(CHAIN)
    run.claim("a#1")
    event = run.cancel()
    assert event.meta == {"reason": "enough", "cause": "request", "due_at": "2026-01-01T00:00:13.000000Z"}
    assert run.state.timers == {"cancel": "2026-01-01T00:00:13.000000Z"}


def test_a_retry_wait_is_taken_back_with_its_timer() -> None:
    run = Ending(CHAIN)
    run.claim("a#1")
    run.wait("a#1")
    assert set(run.state.timers) == {"retry/a#1/1"}
    run.cancel()
    assert run.state.status is Status.CANCELLED
    assert run.state.timers == {}


def test_a_command_that_wants_to_wait_after_the_request_is_taken_back() -> None:
    run = Ending(CHAIN)
    run.claim("a#1")
    run.cancel()
    run.wait("a#1")
    assert run.state.status is Status.CANCELLED


def test_a_second_request_changes_nothing() -> None:
    run = Ending(CHAIN)
    run.claim("a#1")
    first = run.cancel("one")
    before = run.state
    again = first._replace(meta={**first.meta, "reason": "two"}, stream_version=before.version + 1)
    assert fold_all([again], before) == before.changed({"version": before.version + 1, "last_event_id": first.event_id})


def test_a_child_that_is_cancelled_with_its_parent_ends_as_cancelled() -> None:
    run = Ending(CHAIN)
    run.cancel("its parent", cause=PARENT)
    assert run.state.status is Status.CANCELLED


def test_frames_that_nobody_took_are_taken_back_and_a_loop_that_began_is_closed() -> None:
    run = Ending(LOOP)
    run.claim("a#1/1")
    run.cancel()
    assert run.open == ["a#1/1"]
    run.followed(failed_draft(run.state.commands["a#1/1"], CANCELLED, is_skipped=True))
    assert run.state.status is Status.CANCELLED
    [done] = run.of(kinds.LOOP_DONE)
    assert (done.meta["status"], done.meta["done"], done.meta["failed"]) == ("stopped", 0, 0)


def test_a_failing_execution_can_be_cancelled() -> None:
    run = Ending(FORK)
    run.complete("a#1", 1)
    run.claim("c#1")
    run.fail("b#1")
    assert run.state.failure is not None
    run.cancel()
    run.complete("c#1", 1)
    assert run.state.status is Status.CANCELLED


def test_nothing_follows_twice_from_a_request() -> None:
    run = Ending(CHAIN)
    run.claim("a#1")
    event = run.cancel()
    assert decide(run.state, event, run.playbook).drafts == ()


def test_the_story_of_a_cancelled_execution_folds_to_its_state() -> None:
    run = Ending(FORK)
    run.complete("a#1", 1)
    run.claim("b#1")
    run.wait("b#1")
    run.claim("c#1")
    run.cancel()
    run.fire("cancel")
    assert fold_all(run.events) == run.state
