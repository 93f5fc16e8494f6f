"""Time limits of steps and executions."""

from __future__ import annotations

import pytest

from noetl.core import kinds
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import Status
from tests.support.endings import Ending
from tests.support.playbooks import compiled, graph, problems, step, workflow

ERROR = "{{ output.status == 'error' and output.error.kind == 'timeout' }}"
LIMITED = graph(step("a", "b", spec={"timeout": "30s"}), step("b"))
HANDLED = graph(step("a", {"step": "c", "when": ERROR}, "b", spec={"timeout": 5}), step("b"), step("c"))
EXECUTION = graph(step("a", "b"), step("b"), executor={"spec": {"timeout": "2m", "final_step": "b"}})


def loop(mode: str = "fail_fast", **spec: object) -> str:
    items = {"in": [1, 2, 3, 4], "iterator": "x", "spec": {"mode": "parallel", "max_in_flight": 4, **spec}}
    limit = {"timeout": "1m", "policy": {"failure": {"mode": mode}}}
    return graph(step("a", {"step": "c", "when": ERROR}, "b", loop=items, spec=limit), step("b"), step("c"))


# --- what the document says ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({"timeout": "500ms"}, 0.5),
        ({"timeout": "30s"}, 30),
        ({"timeout": "5m"}, 300),
        ({"timeout": " 1.5h "}, 5400),
        ({"timeout": 7}, 7),
        ({"timeout": 0.25}, 0.25),
        ({"policy": {"lifecycle": {"timeout_s": 9}}}, 9),
        ({"timeout": "1m", "policy": {"lifecycle": {"timeout_s": 9}}}, 9),
        ({"timeout": None, "policy": {"lifecycle": None}}, None),
        ({}, None),
    ],
)
def test_a_step_has_the_limit_that_its_spec_says(spec: object, seconds: float | None) -> None:
    playbook = compiled(graph(step("a", spec=spec)))
    assert playbook.steps["a"].timeout_seconds == seconds
    assert not playbook.warnings


@pytest.mark.parametrize(
    "value", ["'{{ x }}'", "0", "-1", "'5 apples'", "true", "[1]", "'1e400'", "'-5s'", "400000000", "1" + "0" * 400]
)
@pytest.mark.parametrize("place", ["spec: {timeout: %s}", "spec: {policy: {lifecycle: {timeout_s: %s}}}"])
def test_a_limit_that_is_no_time_is_refused_with_its_step(value: str, place: str) -> None:
    [problem] = problems(workflow(f"- {{step: a, tool: {{kind: noop}}, {place % value}}}"))
    assert (problem.code, problem.step, problem.line) == ("timeout", "a", 6)
    assert ("templates are not allowed" in problem.message) == ("{{" in value)


def test_an_execution_has_the_limit_of_its_executor() -> None:
    assert compiled(EXECUTION).playbook.timeout_seconds == 120
    [problem] = problems(graph(step("a"), executor={"spec": {"timeout": "soon"}}))
    assert problem.code == "timeout"
    assert "executor.spec.timeout" in problem.message


# --- steps -----------------------------------------------------------------------------------------------


def test_a_step_run_has_a_timer_from_its_beginning_until_it_is_decided() -> None:
    run = Ending(LIMITED)
    [issued] = run.of(kinds.COMMAND_ISSUED)
    assert issued.meta["due_at"] == "2026-01-01T00:00:31.000000Z"
    assert run.state.timers == {"step/a#1": "2026-01-01T00:00:31.000000Z"}
    run.complete("a#1", 1)
    assert run.state.timers == {}


def test_a_step_that_takes_too_long_fails_and_so_does_the_execution() -> None:
    run = Ending(LIMITED)
    run.claim("a#1")
    run.fire("step/a#1")
    [failed] = run.of(kinds.COMMAND_FAILED)
    error = {
        "kind": "timeout",
        "code": "step_timeout",
        "retryable": True,
        "message": "step 'a' ran longer than its limit of 30 s",
    }
    assert (failed.transition_key, failed.meta) == ("command.terminal/a#1", {"step": "a", "attempt": 1})
    assert failed.result is not None
    assert failed.result["context"] == {"error": error}
    assert run.state.status is Status.FAILED
    assert run.state.failure == {"step": "a", "error": error}


def test_an_arc_handles_the_timeout_as_any_failure() -> None:
    run = Ending(HANDLED)
    run.claim("a#1")
    run.fire("step/a#1")
    # The error is an atom of no worker: the router asks one.
    run.run()
    assert run.issued == ["a#1", "c#1"]
    assert run.state.status is Status.COMPLETED


def test_a_step_that_waits_for_its_next_attempt_runs_out_of_time_too() -> None:
    run = Ending(LIMITED)
    run.claim("a#1")
    run.wait("a#1")
    assert set(run.state.timers) == {"step/a#1", "retry/a#1/1"}
    run.fire("step/a#1")
    assert run.state.status is Status.FAILED
    assert run.state.timers == {}


def test_the_timer_of_an_earlier_run_does_not_end_a_later_one() -> None:
    text = graph(step("a", {"step": "a", "when": "{{ a.n < 2 }}"}, "b", spec={"timeout": 5}), step("b"))
    run = Ending(text)
    run.complete("a#1", {"n": 1})
    assert set(run.state.timers) == {"step/a#2"}
    run.fire("step/a#1")
    assert run.open == ["a#2"]
    assert not run.of(kinds.COMMAND_FAILED)


def test_a_step_whose_result_is_there_is_not_ended_while_its_arcs_wait_for_a_worker() -> None:
    guard = "{{ (a.rows | length) + (b.rows | length) == 2 and steps[ctx.x | default('a')].rows }}"
    run = Ending(graph(step("a", {"step": "b", "when": guard}, spec={"timeout": 5}), step("b")))
    run.complete("a#1", {"rows": [1]})
    assert run.open == ["a#1/eval/1"]
    run.fire("step/a#1")
    assert run.open == ["a#1/eval/1"]
    assert not run.of(kinds.COMMAND_FAILED)


def test_step_names_may_look_like_timers() -> None:
    names = ("retry/a#1/2", "step/x#1", "child/y#1/1")
    text = graph(*(step(name, *names[n + 1 : n + 2], spec={"timeout": 5}) for n, name in enumerate(names)))
    run = Ending(text)
    for name in names:
        assert set(run.state.timers) == {f"step/{name}#1"}
        run.claim(f"{name}#1")
        run.complete(f"{name}#1", 1)
    assert run.state.status is Status.COMPLETED


# --- loops -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fail_fast", "best_effort"])
def test_a_loop_that_takes_too_long_is_sealed_as_failed(mode: str) -> None:
    run = Ending(loop(mode))
    assert run.of(kinds.STAGE_OPENED)[0].meta["due_at"] == "2026-01-01T00:01:01.000000Z"
    frames = run.open
    run.claim(frames[0])
    run.claim(frames[1])
    run.commit(frames[0])
    run.fire("step/a#1")
    [done] = run.of(kinds.LOOP_DONE)
    error = done.meta["error"]
    assert isinstance(error, dict)
    assert (done.meta["status"], error["code"]) == ("failed", "step_timeout")
    assert run.open == ["a#1/seal"]
    stage = run.state.loop_state["a"]
    assert (stage.open_frames, stage.failure) == (0, error)
    assert {event.frame_id for event in run.of(kinds.FRAME_FAILED)} >= {frames[1]}
    assert fold_all(run.events) == run.state


def test_a_loop_that_is_still_being_opened_can_run_out_of_time() -> None:
    items = {"in": "{{ steps[ctx.x | default('z')].rows }}", "iterator": "x"}
    text = graph(step("z", "a"), step("a", {"step": "c", "when": ERROR}, loop=items, spec={"timeout": 9}), step("c"))
    run = Ending(text)
    run.complete("z#1", {"rows": [1]})
    [question] = run.open
    assert set(run.state.timers) == {"step/a#1"}
    run.claim(question)
    run.fire("step/a#1")
    assert question not in run.open
    assert [event.meta["status"] for event in run.of(kinds.LOOP_DONE)] == ["refused"]
    run.run()
    assert run.issued == ["z#1", "c#1"]


def test_a_loop_whose_result_is_being_written_is_left_alone() -> None:
    run = Ending(loop())
    for frame in run.open:
        run.claim(frame)
        run.commit(frame)
    assert run.open == ["a#1/seal"]
    run.fire("step/a#1")
    assert run.open == ["a#1/seal"]
    assert [event.meta["status"] for event in run.of(kinds.LOOP_DONE)] == ["ok"]


# --- executions ------------------------------------------------------------------------------------------


def test_an_execution_has_a_timer_until_it_ends() -> None:
    run = Ending(EXECUTION)
    assert run.events[0].meta["due_at"] == "2026-01-01T00:02:01.000000Z"
    assert run.state.timers == {"execution": "2026-01-01T00:02:01.000000Z"}
    assert run.run().state.timers == {}


def test_an_execution_that_takes_too_long_ends_as_failed_without_its_final_step() -> None:
    run = Ending(EXECUTION)
    run.claim("a#1")
    run.fire("execution")
    assert run.of(kinds.CANCEL_REQUESTED)[0].meta["cause"] == "timeout"
    assert set(run.state.timers) == {"cancel"}
    run.complete("a#1", 1)
    assert run.state.status is Status.FAILED
    assert run.issued == ["a#1"]
    assert run.state.result is not None
    assert run.state.result["context"] == {
        "error": {
            "kind": "timeout",
            "code": "execution_timeout",
            "retryable": True,
            "message": "the execution ran longer than its limit of 120 s",
        }
    }


def test_an_execution_that_takes_too_long_names_what_did_not_confirm() -> None:
    run = Ending(EXECUTION)
    run.claim("a#1")
    run.fire("execution")
    run.fire("cancel")
    assert run.events[-1].event_type == kinds.PLAYBOOK_FAILED
    assert run.events[-1].meta == {"step": None, "unconfirmed": ["a#1"]}


def test_a_cancelled_execution_is_not_asked_to_end_again_by_its_limit() -> None:
    run = Ending(EXECUTION)
    run.claim("a#1")
    run.cancel()
    assert "execution" not in run.state.timers
    run.complete("a#1", 1)
    assert run.state.status is Status.CANCELLED
