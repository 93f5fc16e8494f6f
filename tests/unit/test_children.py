"""Executions that a task starts: how a command waits for one, and what it gets."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.errors import Failure, RequestInvalid, ToolFailed
from noetl.core.event import Draft
from noetl.core.execution import children
from noetl.core.execution.context import command_body
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import Child, CommandStatus, Status
from noetl.core.limits import CALLER_BYTES_MAX
from noetl.core.reference import Result
from noetl.engine.children.starter import wanted_by
from noetl.engine.work.children import ChildRequest, child_request
from noetl.ports.session import Fact
from noetl.ports.tool import ToolCall
from tests.support.endings import CHILD_DUE, RESUME, Ending, child_state
from tests.support.playbooks import Simulated, graph, step

PARENT = graph(step("a", "b"), step("b"))
CHILD = graph(step("x", "y"), step("y"))


def waiting(**extra: object) -> Ending:
    run = Ending(PARENT)
    run.claim("a#1")
    run.start_child("a#1", **extra)  # type: ignore[arg-type]
    return run


def body(run: Ending) -> Any:
    return command_body(run.state, run.playbook, run.state.commands["a#1"])


# --- waiting ---------------------------------------------------------------------------------------------


def test_a_command_waits_for_its_child_without_anybody_holding_it() -> None:
    run = waiting(return_step="x")
    command = run.state.commands["a#1"]
    assert command.status is CommandStatus.WAITING
    assert command.child == Child(1, 900, "lib/child", "x")
    assert (command.resume, command.children, command.base) == (RESUME, 1, 1)
    assert run.state.timers == {"child/a#1/1": CHILD_DUE}
    assert "child" not in body(run)


def test_a_child_that_nobody_waits_for_lets_the_command_go_on_at_once() -> None:
    run = waiting(waits=False)
    command = run.state.commands["a#1"]
    assert command.status is CommandStatus.ISSUED
    assert not command.awaits_child
    assert run.state.timers == {}
    assert body(run)["child"] == {
        "execution_id": "900",
        "path": "lib/child",
        "return_step": None,
        "status": "started",
    }


def test_the_same_start_twice_is_one_child() -> None:
    run = waiting()
    event = run.of(kinds.CHILD_STARTED)[0]
    again = event._replace(meta={**event.meta, "child_execution_id": "901"}, stream_version=run.state.version + 1)
    state = fold_all([again], run.state)
    assert state is not None
    assert state.commands == run.state.commands


# --- what it gets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("return_step", "value"), [(None, 2), ("x", 1), ("absent", 2)])
def test_the_result_is_that_of_the_step_that_was_asked_for_or_of_the_last(return_step: str | None, value: int) -> None:
    run = waiting(**({"return_step": return_step} if return_step else {}))
    child = Simulated(CHILD).run({"x": {"n": 1}, "y": {"n": 2}})
    run.end_child(child_state(run, child))
    command = run.state.commands["a#1"]
    assert command.status is CommandStatus.ISSUED
    assert run.state.timers == {}
    told = body(run)["child"]
    assert (told["status"], told["return_step"]) == ("completed", return_step)
    assert child.payloads[told["ref"]["sha256"]] == {"n": value}
    assert body(run)["resume"] == RESUME


def test_a_failed_child_gives_its_error() -> None:
    run = waiting()
    child = Simulated(CHILD).run({"x": Failure(kind="rate_limit", message="too fast", status=429, retryable=True)})
    run.end_child(child_state(run, child))
    told = body(run)["child"]
    assert (told["status"], told["ref"]) == ("failed", None)
    assert (told["error"]["kind"], told["error"]["message"]) == ("rate_limit", "too fast")


def test_a_cancelled_child_gives_the_reason() -> None:
    run = waiting()
    child = Ending(CHILD)
    child.cancel("not today")
    run.end_child(child_state(run, child))
    told = body(run)["child"]
    assert (told["status"], told["error"]["kind"], told["error"]["message"]) == ("cancelled", "cancelled", "not today")


def test_the_end_of_a_child_counts_once_and_only_for_who_waits() -> None:
    run = waiting()
    child = child_state(run, Simulated(CHILD).run())
    assert run.end_child(child.changed({"execution_id": 901})) is None
    assert run.end_child(child) is not None
    before = run.state
    assert run.end_child(child) is None
    event = run.of(kinds.CHILD_TERMINAL)[0]
    state = fold_all([event._replace(stream_version=before.version + 1)], before)
    assert state is not None
    assert state.commands == before.commands


def test_a_child_that_could_not_begin_is_an_outcome_as_well() -> None:
    run = Ending(PARENT)
    run.claim("a#1")
    error = {"kind": "not_found", "code": "playbook_unknown", "retryable": False, "message": "no such playbook"}
    meta = {"step": "a", "attempt": 1, "n": 1, "task": "t", "child_execution_id": "0", "path": "x", "status": "refused"}
    draft = children.child_draft(run.state.commands["a#1"], kinds.CHILD_TERMINAL, 1, meta)
    result = Result(status="error", context={"error": error}).to_json()
    run.followed(draft._replace(result=result, payload_ref=RESUME, writes=[{"path": ["k"], "v": 1}]))
    command = run.state.commands["a#1"]
    assert (command.status, command.children, command.resume) == (CommandStatus.ISSUED, 1, RESUME)
    assert body(run)["child"]["error"] == error
    assert run.context == {"k": 1}


def test_a_task_may_start_one_child_after_the_other() -> None:
    run = waiting()
    run.end_child(child_state(run, Simulated(CHILD).run()))
    run.claim("a#1")
    run.start_child("a#1", 901)
    command = run.state.commands["a#1"]
    assert (command.children, command.attempt, command.base) == (2, 2, 2)
    assert command.child == Child(2, 901, "lib/child")
    assert [event.transition_key for event in run.of(kinds.CHILD_STARTED)] == [
        "child.started/a#1/1",
        "child.started/a#1/2",
    ]


def test_behind_a_wait_for_the_next_attempt_the_old_child_is_forgotten() -> None:
    run = waiting()
    run.end_child(child_state(run, Simulated(CHILD).run({"x": Failure(kind="timeout", message="slow")})))
    run.claim("a#1")
    run.wait("a#1")
    run.fire("retry/a#1/1")
    assert run.state.commands["a#1"].child is None
    assert "child" not in body(run)


# --- time ------------------------------------------------------------------------------------------------


def test_a_child_that_takes_too_long_is_an_error_of_the_task() -> None:
    run = waiting()
    run.fire("child/a#1/1")
    told = body(run)["child"]
    assert (told["status"], told["error"]["kind"], told["error"]["code"]) == ("timeout", "timeout", "CHILD_TIMEOUT")
    assert run.state.commands["a#1"].status is CommandStatus.ISSUED
    assert run.end_child(child_state(run, Simulated(CHILD).run())) is None


def test_the_timer_of_an_earlier_child_does_nothing() -> None:
    run = waiting()
    run.end_child(child_state(run, Simulated(CHILD).run()))
    run.claim("a#1")
    run.start_child("a#1", 901)
    run.followed(Draft(kinds.TIMER_FIRED, kinds.timer_key("child/a#1/1"), {"name": "child/a#1/1"}))
    assert run.state.commands["a#1"].awaits_child


def test_a_step_that_takes_too_long_no_longer_waits_for_its_child() -> None:
    run = Ending(graph(step("a", spec={"timeout": 5})))
    run.claim("a#1")
    run.start_child("a#1")
    run.fire("step/a#1")
    assert run.state.status is Status.FAILED
    assert run.state.timers == {}


# --- cancelling ------------------------------------------------------------------------------------------


def test_a_cancelled_parent_waits_for_the_end_of_its_child() -> None:
    run = waiting()
    event = run.cancel()
    # The child begins its own grace a little later.
    assert event.meta["due_at"] == "2026-01-01T00:00:24.000000Z"
    assert run.open == ["a#1"]
    child = Ending(CHILD)
    child.cancel(cause="parent")
    run.end_child(child_state(run, child))
    assert run.state.status is Status.CANCELLED
    assert run.events[-2].event_type == kinds.CHILD_TERMINAL


def test_a_child_without_a_waiting_parent_is_an_orphan() -> None:
    run = waiting()
    child = child_state(run, Simulated(CHILD))
    assert not children.is_orphan(run.state, child)
    assert child.parent is not None
    assert not children.is_orphan(run.state, child.changed({"parent": child.parent._replace(waits=False)}))
    run.fire("child/a#1/1")
    assert children.is_orphan(run.state, child)


def test_an_execution_knows_who_started_it_and_how_deep_it_is() -> None:
    run = Simulated(CHILD)
    first = run.events[0]
    meta = {**first.meta, "parent": {"command_id": "a#1", "n": 2, "waits": True, "ref_id": 5}, "depth": 3}
    state = fold_all([first._replace(meta=meta, parent_execution_id=77)])
    assert state is not None
    assert (state.parent, state.depth, state.parent_execution_id) == (("a#1", 2, True, 5), 3, 77)


# --- the fields of the task ------------------------------------------------------------------------------


def call(fields: dict[str, object], given: dict[str, object] | None = None, seconds: float = 60) -> ToolCall:
    return ToolCall(
        fields=fields,
        input=given or {},
        names={},
        context=None,
        timeout_seconds=seconds,
        tenant_id="acme",
        organization_id="sales",
        execution_id=1,
        step="a",
        label="t",
    )


def test_a_request_has_the_rendered_fields() -> None:
    fields = {"path": "/lib/x", "version": "3", "payload": {"a": 1, "b": 2}, "return_step": "y", "wait": "false"}
    assert child_request(call(fields, {"b": 3})) == ChildRequest(
        task="t",
        path="/lib/x",
        version=3,
        payload={"a": 1, "b": 3},
        return_step="y",
        waits=False,
        timeout_seconds=60,
    )
    plain = child_request(call({"path": "x", "version": "latest"}))
    assert (plain.version, plain.payload, plain.return_step, plain.waits) == (None, {}, None, True)


@pytest.mark.parametrize(
    ("fields", "seconds", "message"),
    [
        ({}, 60, "path is required"),
        ({"path": 7}, 60, "path is required"),
        ({"catalog_id": 0}, 60, "catalog_id must be"),
        ({"catalog_id": "newest"}, 60, "catalog_id must be"),
        ({"path": "x", "version": "newest"}, 60, "version must be"),
        ({"path": "x", "version": True}, 60, "version must be"),
        ({"path": "x", "payload": [1]}, 60, "payload must be a mapping"),
        ({"path": "x"}, 0, "timeout must be"),
        ({"path": "x"}, 1e12, "timeout must be"),
    ],
)
def test_a_request_that_cannot_be_is_a_failure_of_the_task(
    fields: dict[str, object], seconds: float, message: str
) -> None:
    with pytest.raises(ToolFailed, match=message) as failed:
        child_request(call(fields, seconds=seconds))
    assert failed.value.failure.kind == "config"


# --- facts from outside ----------------------------------------------------------------------------------

GIVEN: dict[str, Any] = {
    "task": "t",
    "path": "lib/x",
    "version": None,
    "payload": RESUME,
    "return_step": None,
    "waits": True,
    "timeout_seconds": 60,
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": ""},
        {"path": 7},
        {"version": "1"},
        {"version": True},
        {"payload": [1]},
        {"waits": "yes"},
        {"task": None},
        {"return_step": 3},
        {"timeout_seconds": 0},
        {"timeout_seconds": 1e12},
        {"timeout_seconds": "60"},
        {"iter": [1]},
        {"iter": {"row": "x" * CALLER_BYTES_MAX}},
    ],
)
def test_a_fact_of_another_shape_is_refused(wrong: dict[str, object]) -> None:
    fact = Fact(1, "a#1", 1, kinds.CHILD_STARTED, meta={**GIVEN, **wrong}, payload_ref=RESUME)
    with pytest.raises(RequestInvalid, match="another shape"):
        wanted_by(fact)


def test_a_fact_without_a_resume_point_is_refused() -> None:
    with pytest.raises(RequestInvalid, match="another shape"):
        wanted_by(Fact(1, "a#1", 1, kinds.CHILD_STARTED, meta=GIVEN))
    assert wanted_by(Fact(1, "a#1", 1, kinds.CHILD_STARTED, meta=GIVEN, payload_ref=RESUME)).path == "lib/x"


def test_a_fact_may_say_which_row_starts_the_child() -> None:
    for row in (None, {"index": 1, "row": "x"}):
        fact = Fact(1, "a#1", 1, kinds.CHILD_STARTED, meta={**GIVEN, "iter": row}, payload_ref=RESUME)
        assert wanted_by(fact).iteration == row
