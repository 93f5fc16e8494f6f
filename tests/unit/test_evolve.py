"""The fold: what each event does to the state, and what a stream of events must be like."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.errors import LedgerCorrupt
from noetl.core.event import Draft, Event
from noetl.core.execution.evolve import evolve, fold_all, retry_timer
from noetl.core.execution.state import (
    Command,
    CommandStatus,
    Entry,
    ExecutionState,
    Pending,
    Status,
    StepResult,
    entry_from_json,
)
from noetl.core.execution.writes import nested, write
from noetl.core.reference import Result
from tests.support.playbooks import BOOM, Simulated, graph, step, workflow

REFERENCE = {"uri": "noetl://x", "sha256": "0"}


def started(*steps: dict[str, Any]) -> Simulated:
    return Simulated(graph(*(steps or (step("a", "b"), step("b")))))


def claimed(command_id: str = "a#1", attempt: int = 1) -> Draft:
    return Draft(
        event_type=kinds.COMMAND_CLAIMED,
        transition_key=kinds.claimed_key(command_id, attempt),
        command_id=command_id,
        meta={"attempt": attempt, "session": "9"},
    )


def waiting(number: int = 1, **fields: Any) -> Draft:
    return Draft(
        event_type=kinds.TASK_WAITING,
        transition_key=kinds.waiting_key("a#1", number),
        command_id="a#1",
        meta={"attempt": 1, "n": number, "delay_seconds": 5, "task": "t", "due_at": f"2026-01-0{number}"},
        payload_ref=REFERENCE,
        **fields,
    )


def fired(name: str) -> Draft:
    return Draft(event_type=kinds.TIMER_FIRED, transition_key=kinds.timer_key(name), meta={"name": name})


# --- the stream ------------------------------------------------------------------------------------------


def test_an_execution_begins_with_its_initialisation() -> None:
    run = started()
    first = run.events[0]
    state = evolve(None, first)
    assert state == ExecutionState(
        execution_id=77,
        tenant_id="acme",
        organization_id="sales",
        version=1,
        last_event_id=first.event_id,
        path="demo",
        playbook=state.playbook,
        started_at=first.event_time,
        requested_steps={"a": ()},
    )
    assert not state.is_terminal
    with pytest.raises(LedgerCorrupt, match=r"begins with command\.issued"):
        evolve(None, run.events[1])


def test_an_empty_stream_is_no_state() -> None:
    assert fold_all([]) is None


def test_a_missing_event_is_noticed() -> None:
    run = started().run()
    for gap in range(1, len(run.events) - 1):
        with pytest.raises(LedgerCorrupt):
            fold_all(run.events[:gap] + run.events[gap + 1 :])


def test_an_event_of_another_execution_is_noticed() -> None:
    run = started()
    stranger = run.events[-1]._replace(execution_id=78, stream_version=run.state.version + 1)
    with pytest.raises(LedgerCorrupt, match="an event of execution 78 among those of 77"):
        evolve(run.state, stranger)


def test_an_event_that_no_fold_knows_is_noticed() -> None:
    run = started()
    unknown = run.events[-1]._replace(event_type="frame.vanished", stream_version=run.state.version + 1)
    with pytest.raises(LedgerCorrupt, match=r"no fold for frame\.vanished"):
        evolve(run.state, unknown)


def test_an_event_that_is_already_contained_changes_nothing() -> None:
    run = started().run()
    for event in run.events:
        assert evolve(run.state, event) is run.state


def test_the_version_and_the_last_event_are_remembered() -> None:
    run = started()
    assert (run.state.version, run.state.last_event_id) == (2, run.events[-1].event_id)


# --- commands --------------------------------------------------------------------------------------------


def test_an_issued_step_is_no_longer_requested() -> None:
    state = started().state
    assert state.commands == {
        "a#1": Command(command_id="a#1", step="a", run=1, kind="step", status=CommandStatus.ISSUED)
    }
    assert (state.runs, state.issued_steps, state.requested_steps) == ({"a": 1}, {"a": 1}, {})


def test_a_claim_carries_its_attempt_and_an_older_one_changes_nothing() -> None:
    run = started()
    run.append(claimed(attempt=2))
    command = run.state.commands["a#1"]
    assert (command.status, command.attempt) == (CommandStatus.CLAIMED, 2)
    run.append(claimed(attempt=1))
    assert run.state.commands["a#1"] == command
    run.append(claimed("gone#1"))
    assert set(run.state.commands) == {"a#1"}


def test_a_second_issue_or_a_second_end_of_the_same_command_changes_nothing() -> None:
    run = started()
    issue = Draft(
        event_type=kinds.COMMAND_ISSUED,
        transition_key=kinds.issued_key("a#1"),
        command_id="a#1",
        meta={"step": "a", "run": 1, "kind": "step", "parents": []},
    )
    before = run.state
    run.append(issue)
    assert replace(run.state, version=before.version, last_event_id=before.last_event_id) == before
    run.complete("a#1", {"n": 1})
    before = run.state
    run.append(issue)
    run.append(
        Draft(
            event_type=kinds.COMMAND_COMPLETED,
            transition_key=kinds.terminal_key("a#1"),
            command_id="a#1",
            meta={"step": "a", "attempt": 1},
            result=Result(status="ok").to_json(),
        )
    )
    assert replace(run.state, version=before.version, last_event_id=before.last_event_id) == before


def test_a_finished_step_keeps_its_result_atoms_and_writes() -> None:
    run = Simulated(workflow('- {step: a, next: [{step: end, when: "{{ a.n > 1 }}"}]}'))
    run.complete("a#1", {"n": 2}, writes=[{"path": ["x"], "v": 1}, {"path": ["y", "z"], "v": 2}])
    result = run.state.step_results["a"]
    assert (result.run, result.status, result.error) == (1, "ok", None)
    assert [atom["v"] for atom in result.atoms.values()] == [True]
    assert run.context == {"x": 1, "y": {"z": 2}}


def test_a_failed_step_keeps_its_error_and_what_it_wrote_before() -> None:
    run = started()
    draft = Draft(
        event_type=kinds.COMMAND_FAILED,
        transition_key=kinds.terminal_key("a#1"),
        command_id="a#1",
        meta={"step": "a", "attempt": 1},
        result=Result(status="error", context={"error": {"kind": "x"}}).to_json(),
        writes=[{"path": ["x"], "v": 1}],
    )
    run.append(draft)
    assert run.state.step_results["a"] == StepResult(
        run=1, status="error", reference=None, atoms={}, error={"kind": "x"}
    )
    assert run.state.pending_next_actions == {"a": Pending(run=1)}
    assert run.context == {"x": 1}


def test_the_result_of_a_new_run_replaces_the_old_one() -> None:
    run = started(step("a", {"step": "a", "when": "{{ output.data.n < 2 }}"}))
    run.complete("a#1", {"n": 1})
    old = run.state.step_results["a"]
    assert run.open == ["a#2"]
    assert run.state.step_results["a"] == old
    run.complete("a#2", {"n": 2})
    assert run.state.step_results["a"].run == 2
    assert run.state.completed_steps == {"a": 2}


# --- waiting ---------------------------------------------------------------------------------------------


def test_a_waiting_task_frees_its_command_until_the_timer_fires() -> None:
    run = started()
    run.append(claimed())
    run.append(waiting(writes=[{"path": ["x"], "v": 1}]))
    command = run.state.commands["a#1"]
    assert command.status is CommandStatus.WAITING
    assert (command.waits, command.resume, command.due_at, command.attempt) == (1, REFERENCE, "2026-01-01", 1)
    assert run.state.timers == {"retry/a#1/1": "2026-01-01"}
    assert run.context == {"x": 1}
    run.append(fired(retry_timer("a#1", 1)))
    command = run.state.commands["a#1"]
    assert (command.status, command.due_at, command.resume) == (CommandStatus.ISSUED, None, REFERENCE)
    assert run.state.timers == {}


def test_late_and_foreign_waits_and_timers_change_nothing() -> None:
    run = started()
    run.append(claimed())
    run.append(waiting(2))
    before = run.state
    for draft in (waiting(1), waiting(3)._replace(command_id="gone#1"), fired("retry/a#1/1"), fired("other")):
        run.append(draft)
        assert replace(run.state, version=before.version, last_event_id=before.last_event_id) == before


def test_a_timer_whose_command_goes_on_only_disappears() -> None:
    run = started()
    run.append(waiting(1))
    run.append(claimed(attempt=2))
    run.append(fired(retry_timer("a#1", 1)))
    assert run.state.commands["a#1"].status is CommandStatus.CLAIMED
    assert run.state.timers == {}


# --- decisions -------------------------------------------------------------------------------------------


def decided(name: str = "a", run: int = 1, outcome: str = "completed", **members: Any) -> Draft:
    writes = members.pop("writes", None)
    return Draft(
        event_type=kinds.STEP_DECIDED,
        transition_key=kinds.decided_key(name, run),
        meta={"step": name, "run": run, "outcome": outcome, "arcs": [], "targets": [], **members},
        writes=writes,
    )


def test_a_decision_ends_the_step_and_requests_its_targets() -> None:
    run = started()
    run.append(decided(targets=["b", "c"], writes=[{"path": ["x"], "v": 1}], leaf=True))
    state = run.state
    assert state.issued_steps == {}
    assert state.requested_steps == {"b": ("a",), "c": ("a",)}
    assert state.completed_steps == {"a": 1}
    assert (state.last_step, state.has_leaf_end, run.context) == ("a", True, {"x": 1})


def test_a_decision_about_another_run_changes_nothing() -> None:
    run = started()
    before = run.state
    run.append(decided(run=2, targets=["b"]))
    assert replace(run.state, version=before.version, last_event_id=before.last_event_id) == before


def test_a_handled_failure_completes_the_step_without_being_its_last() -> None:
    run = started()
    run.append(decided(outcome="handled", targets=["b"], leaf=True))
    assert run.state.completed_steps == {"a": 1}
    assert (run.state.last_step, run.state.failure, run.state.has_leaf_end) == (None, None, False)


def test_the_first_failure_is_the_failure_of_the_execution() -> None:
    run = started(step("a", "b", "c", mode="inclusive"), step("b"), step("c"))
    run.complete("a#1")
    run.fail("b#1")
    run.append(decided("c", 1, "failed", error={"kind": "later"}))
    assert run.state.failure is not None
    assert run.state.failure["step"] == "b"
    assert run.state.completed_steps == {"a": 1}


def test_the_terminal_event_closes_the_state() -> None:
    completed, failed = started().run(), started().run({"a": BOOM})
    assert (completed.state.status, completed.state.is_terminal) == (Status.COMPLETED, True)
    assert (failed.state.status, failed.state.is_terminal) == (Status.FAILED, True)
    assert completed.state.ended_at == completed.events[-1].event_time
    assert completed.state.result == completed.events[-1].result


# --- writes ----------------------------------------------------------------------------------------------


def test_writes_are_applied_in_order_and_nothing_is_changed_in_place() -> None:
    before = {"a": Entry({"x": 1}), "keep": Entry(0)}
    after = write(
        before,
        [
            {"path": ["a", "y"], "v": 2},
            {"path": ["a", "z", "deep"], "v": [3]},
            {"path": ["b"], "v": 1},
            {"path": ["b"], "v": 2},
            {"path": ["c", "d"], "v": None},
        ],
    )
    assert {name: entry.value for name, entry in after.items()} == {
        "a": {"x": 1, "y": 2, "z": {"deep": [3]}},
        "keep": 0,
        "b": 2,
        "c": {"d": None},
    }
    assert before == {"a": Entry({"x": 1}), "keep": Entry(0)}
    assert write(before, None) is before
    assert write(before, []) is before


def test_a_write_by_reference_keeps_its_own_key_and_its_place_in_the_payload() -> None:
    after = write({}, [{"path": ["big"], "ref": REFERENCE, "at": ["data", 0]}, {"path": ["all"], "ref": REFERENCE}])
    assert after == {"big": Entry(None, REFERENCE, ("data", 0)), "all": Entry(None, REFERENCE, ())}


@pytest.mark.parametrize(
    ("base", "path", "value"),
    [
        ({}, ["a"], {"a": 1}),
        (None, ["a", "b"], {"a": {"b": 1}}),
        ({"a": 5, "k": 0}, ["a", "b"], {"a": {"b": 1}, "k": 0}),
        ({"a": {"b": {"c": 2}}}, ["a", "b"], {"a": {"b": 1}}),
        ([1, 2], ["a"], {"a": 1}),
    ],
)
def test_a_deep_write_replaces_what_is_no_mapping(base: object, path: list[str], value: object) -> None:
    assert nested(base, path, 1) == value


@pytest.mark.parametrize("entry", [Entry(1), Entry(None), Entry({"a": [1]}), Entry(None, REFERENCE, ("a", 0))])
def test_an_entry_round_trips(entry: Entry) -> None:
    assert entry_from_json(entry.to_json()) == entry
    assert entry.is_inline is ("ref" not in entry.to_json())


def test_the_envelope_of_a_result_tells_its_error_only_when_there_is_one() -> None:
    result = StepResult(run=1, status="ok", reference=REFERENCE, atoms={"k": {"v": 1}})
    assert result.to_json() == {"status": "ok", "ref": REFERENCE}
    failed = result._replace(status="error", error={"kind": "x"}, reference=None)
    assert failed.to_json() == {"status": "error", "ref": None, "error": {"kind": "x"}}


def test_events_are_plain_tuples_of_facts() -> None:
    event: Event = started().events[0]
    assert event._replace(position=9).position == 9
