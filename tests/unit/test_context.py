"""What a command carries: exactly the names that its templates read, as a pure function of the state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from noetl.core import kinds
from noetl.core.execution.context import command_body
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import Entry
from tests.support.playbooks import Simulated, address_of, workflow


def body(run: Simulated, command_id: str) -> dict[str, Any]:
    return command_body(run.state, run.playbook, run.state.commands[command_id])


def test_a_command_carries_the_names_it_reads_and_no_others() -> None:
    run = Simulated(
        workflow(
            """
            - {step: start, tool: {kind: noop}, set: {n: 1, unread: 2}, next: use}
            - {step: use, tool: {kind: noop, input: {a: "{{ n }}", b: "{{ start.x }}", c: "{{ ctx.city }}"}}}
            """,
            "workload: {city: Bern, country: CH}",
        )
    )
    run.complete("start#1", {"x": 5})
    found = body(run, "use#1")
    assert found["ctx"] == {"n": {"v": 1}}
    assert found["workload"] == {"city": {"v": "Bern"}}
    reference, event = address_of({"x": 5}).reference, run.of(kinds.COMMAND_COMPLETED)[-1]
    assert found["steps"] == {"start": {"status": "ok", "ref": reference.to_json(), "ref_id": str(event.event_id)}}
    assert (found["path"], found["step"], found["run"], found["kind"]) == ("demo", "use", 1, "step")
    assert found["playbook"] == run.state.playbook
    assert found["parents"] == ["start"]
    assert not {"expression", "resume", "parent_execution_id"} & set(found)


def test_a_command_that_reads_a_whole_scope_carries_everything() -> None:
    run = Simulated(
        workflow(
            """
            - {step: start, tool: {kind: noop}, set: {n: 1, m: 2}, next: use}
            - {step: use, tool: {kind: python, code: "result = context"}}
            """,
            "workload: {city: Bern}",
        )
    )
    run.complete("start#1")
    found = body(run, "use#1")
    assert (set(found["ctx"]), set(found["workload"]), set(found["steps"])) == ({"n", "m"}, {"city"}, {"start"})


def test_the_deprecated_name_of_a_result_brings_the_results_of_the_requesters() -> None:
    run = Simulated(
        workflow(
            """
            - {step: start, next: [left, right]}
            - {step: left, next: join}
            - {step: right, next: join}
            - {step: join, tool: {kind: noop, input: {a: "{{ result.x }}"}}}
            """
        )
    )
    for command_id in ("start#1", "left#1", "right#1"):
        run.complete(command_id)
    found = body(run, "join#1")
    assert found["parents"] == ["left", "right"]
    assert set(found["steps"]) == {"left", "right"}


def test_references_travel_as_references() -> None:
    place = Entry(None, address_of({"rows": [1]}).reference.to_json(), ("rows",))
    run = Simulated(workflow("- {step: start, tool: {kind: noop, url: '{{ rows }}'}}"), workload={"rows": place})
    assert body(run, "start#1")["workload"] == {"rows": {"ref": place.reference, "path": ["rows"]}}


def test_an_expression_sees_the_values_that_were_written_before_it_but_are_not_decided_yet() -> None:
    run = Simulated(
        workflow(
            """
            - step: start
              tool: {kind: noop}
              set: {n: 7, unread: 8}
              next: [{step: end, when: "{% for x in output.data.rows if x > n %}yes{% endfor %}"}]
            """
        )
    )
    run.complete("start#1", {"rows": [1, 9]})
    assert run.open == ["start#1/eval/1"]
    assert run.state.variables == {}
    found = body(run, "start#1/eval/1")
    assert found["ctx"] == {"n": {"v": 7}}
    assert found["kind"] == "evaluate"
    assert found["expression"] in run.playbook.expressions
    assert set(found["steps"]) == {"start"}
    run.run()
    assert run.decided("start").meta["arcs"] == [0]
    assert run.context == {"n": 7, "unread": 8}


def test_a_resumed_command_carries_its_resume_point_and_a_child_its_parent() -> None:
    run = Simulated(workflow("- {step: start, tool: {kind: noop}}"))
    state, command = run.state, run.state.commands["start#1"]
    resumed = command._replace(resume={"sha256": "0"})
    found = command_body(replace(state, parent_execution_id=5), run.playbook, resumed)
    assert found["resume"] == {"sha256": "0"}
    assert found["parent_execution_id"] == "5"
    assert "parents" not in found


def test_a_lost_queue_can_be_rebuilt_from_the_events() -> None:
    run = Simulated(
        workflow(
            """
            - {step: start, tool: {kind: noop}, set: {n: "{{ output.data }}"}, next: [a, b]}
            - {step: a, tool: {kind: noop, input: {x: "{{ n.m }}"}}}
            - {step: b, tool: {kind: noop, input: {x: "{{ start }}"}}}
            """
        )
    )
    run.complete("start#1", {"m": [1, 2, 3]})
    rebuilt = fold_all(run.events)
    assert rebuilt is not None
    for command_id in run.open:
        command = rebuilt.commands[command_id]
        assert command_body(rebuilt, run.playbook, command) == body(run, command_id)
