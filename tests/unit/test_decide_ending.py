"""How an execution ends: quiescence, implicit end, final step, status and result (dsl §3.6, §3.7)."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.errors import Failure
from noetl.core.event import Draft
from noetl.core.execution.decide import decide
from noetl.core.execution.state import Status
from tests.support.playbooks import BOOM, Simulated, address_of, graph, step

FINAL: dict[str, Any] = {"executor": {"spec": {"final_step": "last"}}}


def ending(run: Simulated) -> Any:
    return run.events[-1]


# --- success ---------------------------------------------------------------------------------------------


def test_the_result_of_an_execution_is_that_of_the_last_step_that_completed() -> None:
    run = Simulated(graph(step("a", "b"), step("b"))).run({"a": {"n": 1}, "b": {"n": 2}})
    event = ending(run)
    assert (event.event_type, event.transition_key) == (kinds.PLAYBOOK_COMPLETED, "execution.terminal")
    assert event.meta == {"step": "b"}
    assert event.result == {
        "status": "ok",
        "reference": address_of({"n": 2}).reference.to_json(),
        "parent_ref": {"ref_id": run.of(kinds.COMMAND_COMPLETED)[-1].event_id},
        "context": {},
    }
    assert run.state.status is Status.COMPLETED


def test_the_last_step_is_the_one_that_completed_last_not_the_last_of_the_document() -> None:
    run = Simulated(graph(step("s", "a", "b", mode="inclusive"), step("a"), step("b")))
    run.complete("s#1")
    run.complete("b#1", {"from": "b"})
    run.complete("a#1", {"from": "a"})
    assert ending(run).meta == {"step": "a"}


def test_a_handled_failure_has_no_result_of_its_own() -> None:
    arcs = [{"step": "end", "when": "{{ error }}"}]
    run = Simulated(graph(step("a", "b"), step("b", *arcs))).run({"a": {"n": 1}, "b": BOOM})
    assert run.state.status is Status.COMPLETED
    assert ending(run).meta == {"step": "a"}
    run = Simulated(graph(step("b", *arcs))).run({"b": BOOM})
    assert ending(run).meta == {"step": None}
    assert ending(run).result["reference"] is None


def test_an_arc_to_an_undeclared_end_just_ends_the_branch() -> None:
    run = Simulated(graph(step("a", "end"))).run()
    assert run.issued == ["a#1"]
    assert run.decided("a").meta == {"step": "a", "run": 1, "outcome": "completed", "arcs": [0], "targets": []}


def test_an_execution_has_ended_only_when_nothing_runs() -> None:
    run = Simulated(graph(step("s", "a", "b", mode="inclusive"), step("a"), step("b")))
    run.complete("s#1")
    run.complete("a#1")
    assert not run.state.is_terminal
    run.complete("b#1")
    assert run.state.is_terminal


def test_nothing_follows_from_an_event_after_the_end() -> None:
    run = Simulated(graph(step("a"))).run()
    for event in run.events:
        assert decide(run.state, event, run.playbook).drafts == ()


@pytest.mark.parametrize("event_type", [kinds.COMMAND_CLAIMED, kinds.TASK_WAITING, kinds.TIMER_FIRED])
def test_nothing_follows_from_claims_waits_and_retry_timers(event_type: str) -> None:
    run = Simulated(graph(step("a")))
    event = run.events[-1]._replace(event_type=event_type, meta={"name": "retry/a#1/1"})
    decision = decide(run.state, event, run.playbook)
    assert decision.drafts == ()
    assert decision.state is run.state


# --- implicit end ----------------------------------------------------------------------------------------


def test_a_leaf_without_next_leads_to_the_declared_end() -> None:
    run = Simulated(graph(step("a", "b"), step("b"), step("end"))).run()
    assert run.issued == ["a#1", "b#1", "end#1"]
    assert ending(run).meta == {"step": "end"}


def test_the_implicit_end_runs_once_after_all_branches() -> None:
    text = graph(step("s", "a", "b", mode="inclusive"), step("a"), step("b"), step("end", "after"), step("after"))
    assert Simulated(text).run().issued == ["s#1", "a#1", "b#1", "end#1", "after#1"]


def test_a_branch_that_ends_without_a_match_does_not_lead_to_the_implicit_end() -> None:
    text = graph(step("a", {"step": "b", "when": False}), step("b"), step("end"))
    assert Simulated(text).run().issued == ["a#1"]
    text = graph({**step("a"), "next": {"arcs": []}}, step("end"))
    assert Simulated(text).run().issued == ["a#1"]


def test_an_end_that_was_routed_to_is_not_run_again() -> None:
    text = graph(step("s", "a", "end", mode="inclusive"), step("a"), step("end"))
    assert Simulated(text).run().issued == ["s#1", "a#1", "end#1"]


def test_a_handled_failure_at_a_leaf_is_no_leaf_end() -> None:
    text = graph(
        step("a", {"step": "b", "when": "{{ error }}"}), step("b", {"step": "c", "when": False}), step("c"), step("end")
    )
    assert Simulated(text).run({"a": BOOM}).issued == ["a#1", "b#1"]


# --- final step ------------------------------------------------------------------------------------------


def test_the_final_step_runs_once_after_everything() -> None:
    run = Simulated(graph(step("a", "b"), step("b"), step("last"), **FINAL)).run({"last": {"n": 9}})
    assert run.issued == ["a#1", "b#1", "last#1"]
    assert ending(run).meta == {"step": "last"}
    (event,) = [e for e in run.of(kinds.COMMAND_ISSUED) if e.command_id == "last#1"]
    assert event.meta == {"step": "last", "run": 1, "kind": "step", "parents": [], "closing": True}


def test_the_implicit_end_comes_before_the_final_step_and_never_after_it() -> None:
    text = graph(step("a"), step("end"), step("last"), **FINAL)
    assert Simulated(text).run().issued == ["a#1", "end#1", "last#1"]
    # Here only the final step itself is a leaf.
    text = graph(step("a", {"step": "end", "when": False}), step("end"), step("last"), **FINAL)
    assert Simulated(text).run().issued == ["a#1", "last#1"]


def test_a_final_step_that_was_routed_to_is_not_run_again_and_does_not_hide_the_implicit_end() -> None:
    text = graph(step("a", "last"), step("last"), step("end"), **FINAL)
    assert Simulated(text).run().issued == ["a#1", "last#1", "end#1"]


def test_the_final_step_may_be_named_end() -> None:
    spec = {"executor": {"spec": {"final_step": "end"}}}
    assert Simulated(graph(step("a"), step("end"), **spec)).run().issued == ["a#1", "end#1"]
    text = graph(step("a", {"step": "end", "when": False}), step("end"), **spec)
    assert Simulated(text).run().issued == ["a#1", "end#1"]


def test_what_the_final_step_leads_to_still_runs() -> None:
    text = graph(step("a", {"step": "b", "when": False}), step("b"), step("last", "b"), **FINAL)
    assert Simulated(text).run().issued == ["a#1", "last#1", "b#1"]


def test_the_final_step_runs_after_a_failure_and_the_implicit_end_does_not() -> None:
    text = graph(step("s", "a", "b", mode="inclusive"), step("a"), step("b"), step("end"), step("last", "end"), **FINAL)
    run = Simulated(text).run({"b": BOOM, "last": {"n": 9}})
    assert run.issued == ["s#1", "a#1", "b#1", "last#1"]
    assert run.state.status is Status.FAILED
    assert ending(run).meta == {"step": "b"}


def test_a_failing_final_step_fails_the_execution() -> None:
    run = Simulated(graph(step("a"), step("last"), **FINAL)).run({"last": BOOM})
    assert run.issued == ["a#1", "last#1"]
    assert ending(run).meta == {"step": "last"}


def test_a_final_step_that_failed_in_the_flow_is_not_tried_again() -> None:
    run = Simulated(graph(step("a", "last"), step("last"), **FINAL)).run({"last": BOOM})
    assert run.issued == ["a#1", "last#1"]
    assert run.state.status is Status.FAILED


# --- failure ---------------------------------------------------------------------------------------------


def test_an_unhandled_failure_ends_the_execution_with_the_step_and_its_error() -> None:
    failure = Failure(kind="timeout", message="too slow", code="T", status=504)
    run = Simulated(graph(step("a", "b"), step("b"))).run({"a": failure})
    event = ending(run)
    assert event.event_type == kinds.PLAYBOOK_FAILED
    assert event.meta == {"step": "a"}
    assert event.result["status"] == "error"
    assert event.result["reference"] is None
    assert event.result["context"] == {
        "step": "a",
        "error": {"kind": "timeout", "code": "T", "status": 504, "retryable": True, "message": "too slow"},
    }


def test_after_a_failure_running_commands_finish_and_nothing_new_is_dispatched() -> None:
    text = graph(
        step("s", "a", "b", "c", mode="inclusive"),
        step("a", "a2"),
        step("b"),
        step("c", "c2"),
        step("a2"),
        step("c2"),
    )
    run = Simulated(text)
    run.complete("s#1")
    run.complete("a#1")
    run.fail("b#1")
    assert run.open == ["c#1", "a2#1"]
    run.complete("c#1")
    assert run.open == ["a2#1"]
    assert not run.state.is_terminal
    run.fail("a2#1", Failure(kind="python", message="second"))
    assert run.state.status is Status.FAILED
    assert run.issued == ["s#1", "a#1", "b#1", "c#1", "a2#1"]
    assert ending(run).meta == {"step": "b"}
    assert ending(run).result["context"]["error"]["message"] == "boom"
    assert set(run.state.requested_steps) == {"c2"}


def test_an_error_arc_of_a_second_branch_is_recorded_but_not_followed_while_failing() -> None:
    text = graph(
        step("s", "a", "b", mode="inclusive"), step("a"), step("b", {"step": "fix", "when": "{{ error }}"}), step("fix")
    )
    run = Simulated(text)
    run.complete("s#1")
    run.fail("a#1")
    run.fail("b#1")
    assert run.decided("b").meta["outcome"] == "handled"
    assert run.issued == ["s#1", "a#1", "b#1"]
    assert run.state.status is Status.FAILED


def test_an_open_command_keeps_the_execution_open() -> None:
    run = Simulated(graph(step("a", {"step": "end", "when": "{% for x in a.r %}{{ x }}{% endfor %}"})))
    run.complete("a#1", {"r": [1]})
    assert run.open == ["a#1/eval/1"]
    assert not run.state.is_terminal
    assert run.run().state.status is Status.COMPLETED


def test_deciding_again_about_a_decided_event_adds_nothing() -> None:
    loop = "{% for x in a.r %}{{ x }}{% endfor %}"
    run = Simulated(graph(step("a", {"step": "b", "when": loop}), step("b")))
    assert run.again(run.events[0]).drafts == ()
    run.complete("a#1", {"r": [1]})
    completed = run.of(kinds.COMMAND_COMPLETED)[0]
    # The question is on its way to a worker: it is not asked twice.
    assert run.again(completed).drafts == ()
    run.evaluate("a#1/eval/1")
    for event in run.events:
        assert run.again(event).drafts == ()


def test_a_step_is_dispatched_from_its_recorded_decision_alone() -> None:
    """A crash between the decision and what follows from it."""
    run = Simulated(graph(step("a", "b"), step("b")))
    draft = Draft(
        event_type=kinds.STEP_DECIDED,
        transition_key=kinds.decided_key("a", 1),
        meta={"step": "a", "run": 1, "outcome": "completed", "arcs": [0], "targets": ["b"]},
    )
    ended = Draft(
        event_type=kinds.COMMAND_COMPLETED,
        transition_key=kinds.terminal_key("a#1"),
        command_id="a#1",
        meta={"step": "a", "attempt": 1},
        result={"status": "ok", "reference": None, "parent_ref": None, "context": {}},
    )
    run.append(ended)
    decided = run.append(draft)
    (issued,) = decide(run.state, decided, run.playbook).drafts
    assert issued.command_id == "b#1"
