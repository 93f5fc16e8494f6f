"""Converging branches, cycles and progress (dsl §3.4)."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.execution.state import Status
from tests.support.playbooks import BOOM, JsonObject, Simulated, graph, step, workflow


def again(target: str, limit: int) -> JsonObject:
    """An arc that fires while the counter of the context is below a limit."""
    return {"step": target, "when": f"{{{{ n < {limit} }}}}"}


COUNT = {"n": "{{ n | default(0) + 1 }}"}


def parents(run: Simulated, command_id: str) -> object:
    (event,) = [e for e in run.of(kinds.COMMAND_ISSUED) if e.command_id == command_id]
    return event.meta["parents"]


# --- joins -----------------------------------------------------------------------------------------------


def diamond(**join: Any) -> str:
    return graph(
        step("split", "left", "right", mode="inclusive"),
        step("left", "join"),
        step("right", "join"),
        step("join", **join),
    )


@pytest.mark.parametrize("first", ["left#1", "right#1"])
def test_a_join_runs_once_after_both_branches_whichever_is_first(first: str) -> None:
    run = Simulated(diamond())
    run.complete("split#1")
    assert run.open == ["left#1", "right#1"]
    run.complete(first)
    assert len(run.open) == 1
    run.complete(run.open[0])
    assert run.open == ["join#1"]
    assert sorted(parents(run, "join#1")) == ["left", "right"]  # type: ignore[call-overload]
    assert run.run().issued == ["split#1", "left#1", "right#1", "join#1"]


def test_an_untaken_exclusive_branch_does_not_block_the_join() -> None:
    text = graph(
        step("split", {"step": "left", "when": "{{ output.data.x }}"}, "right"),
        step("left", "join"),
        step("right", "join"),
        step("join"),
    )
    assert Simulated(text).run({"split": {"x": True}}).issued == ["split#1", "left#1", "join#1"]
    assert Simulated(text).run({"split": {"x": False}}).issued == ["split#1", "right#1", "join#1"]


def test_a_declared_predecessor_that_never_runs_does_not_block() -> None:
    text = graph(step("start", "join"), step("join"), step("nobody", "join"))
    assert Simulated(text).run().issued == ["start#1", "join#1"]


def test_a_join_waits_for_a_live_step_that_is_several_arcs_away() -> None:
    text = graph(
        step("split", "short", "long", mode="inclusive"),
        step("short", "join"),
        step("long", "longer"),
        step("longer", {"step": "join", "when": False}),
        step("join"),
    )
    run = Simulated(text)
    for command_id in ("split#1", "short#1"):
        run.complete(command_id)
    assert run.open == ["long#1"]
    run.complete("long#1")
    assert run.open == ["longer#1"]
    # The last arc does not fire, but until now it could have.
    run.complete("longer#1")
    assert run.open == ["join#1"]
    assert parents(run, "join#1") == ["short"]


def test_a_requested_step_blocks_what_it_can_reach() -> None:
    text = graph(
        step("split", "a", "b", "c", mode="inclusive"),
        step("a", "m"),
        step("b", "m"),
        step("m", "z"),
        step("c", "z"),
        step("z"),
    )
    run = Simulated(text)
    run.complete("split#1")
    run.complete("a#1")
    run.complete("c#1")
    assert run.open == ["b#1"]
    run.complete("b#1")
    assert run.open == ["m#1"]
    assert run.run().issued[-2:] == ["m#1", "z#1"]


def test_nested_inclusive_branches_join_once_each() -> None:
    text = graph(
        step("s", "a", "b", mode="inclusive"),
        step("a", "a1", "a2", mode="inclusive"),
        step("b", "b1", "b2", mode="inclusive"),
        step("a1", "ja"),
        step("a2", "ja"),
        step("b1", "jb"),
        step("b2", "jb"),
        step("ja", "j"),
        step("jb", "j"),
        step("j", "x", "y", mode="inclusive"),
        step("x", "end"),
        step("y", "end"),
        step("end"),
    )
    run = Simulated(text).run(pick=lambda waiting: waiting[-1])
    assert sorted(run.issued) == sorted(f"{name}#1" for name in run.playbook.steps)
    assert run.issued[-1] == "end#1"


def test_independent_branches_do_not_wait_for_each_other() -> None:
    text = graph(step("s", "a", "b", mode="inclusive"), step("a", "a2"), step("a2"), step("b", "b2"), step("b2"))
    run = Simulated(text)
    run.complete("s#1")
    run.complete("a#1")
    assert run.open == ["b#1", "a2#1"]


def test_a_failing_branch_stops_the_join() -> None:
    run = Simulated(diamond())
    run.complete("split#1")
    run.fail("left#1")
    assert run.open == ["right#1"]
    run.complete("right#1")
    assert run.state.status is Status.FAILED
    assert "join#1" not in run.issued


# --- cycles ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 50])
def test_a_self_loop_runs_until_its_guard_fails(limit: int) -> None:
    run = Simulated(graph(step("s", again("s", limit), "done", set=COUNT), step("done"))).run()
    assert run.issued == [*(f"s#{n}" for n in range(1, limit + 1)), "done#1"]
    assert run.context == {"n": limit}


def test_a_two_step_cycle_with_a_counter_runs_exactly_that_often() -> None:
    run = Simulated(graph(step("a", "b", set=COUNT), step("b", again("a", 25), "end"), step("end"))).run()
    assert run.context == {"n": 25}
    assert run.state.runs == {"a": 25, "b": 25, "end": 1}
    assert run.issued[:4] == ["a#1", "b#1", "a#2", "b#2"]


def test_nested_cycles_count_exactly() -> None:
    text = workflow(
        """
        - {step: outer, tool: {kind: noop}, set: {i: "{{ i | default(0) + 1 }}", j: 0}, next: inner}
        - step: inner
          tool: {kind: noop}
          set: {j: "{{ j + 1 }}", total: "{{ total | default(0) + 1 }}"}
          next:
            - {step: inner, when: "{{ j < 3 }}"}
            - {step: outer, when: "{{ i < 4 }}"}
            - {step: end}
        - {step: end, tool: {kind: noop}}
        """
    )
    run = Simulated(text).run()
    assert run.context == {"i": 4, "j": 3, "total": 12}
    assert run.state.runs == {"outer": 4, "inner": 12, "end": 1}


def test_the_back_edge_of_a_cycle_does_not_block_its_head() -> None:
    text = graph(step("head", "body"), step("body", {"step": "head", "when": False}, "end"), step("end"))
    assert Simulated(text).run().issued == ["head#1", "body#1", "end#1"]


def test_a_fan_out_inside_a_cycle_joins_in_every_round() -> None:
    text = graph(
        step("head", "left", "right", mode="inclusive", set=COUNT),
        step("left", "join"),
        step("right", "join"),
        step("join", again("head", 3), "end"),
        step("end"),
    )
    run = Simulated(text).run(pick=lambda waiting: waiting[-1])
    assert run.state.runs == {"head": 3, "left": 3, "right": 3, "join": 3, "end": 1}


def test_results_of_an_earlier_round_stay_readable_until_they_are_replaced() -> None:
    text = graph(step("a", {"step": "a", "when": "{{ output.data.n < 3 }}", "set": {"seen": "{{ a.n }}"}}))
    run = Simulated(text)
    for n in (1, 2, 3):
        run.complete(f"a#{n}", {"n": n})
    assert run.context == {"seen": 2}
    assert run.state.step_results["a"].run == 3


# --- progress --------------------------------------------------------------------------------------------


def test_when_only_requests_are_left_that_block_each_other_the_first_in_the_document_goes() -> None:
    text = graph(
        step("s", "b", "a", mode="inclusive"),
        step("a", {"step": "b", "when": "{{ a_goes }}"}),
        step("b", {"step": "a", "when": "{{ b_goes }}"}),
        workload={"a_goes": False, "b_goes": False},
    )
    run = Simulated(text)
    run.complete("s#1")
    assert run.open == ["a#1"]
    run.complete("a#1")
    assert run.open == ["b#1"]
    run.complete("b#1")
    assert run.state.status is Status.COMPLETED
    assert run.issued == ["s#1", "a#1", "b#1"]


def test_requests_for_a_step_that_is_already_requested_are_one() -> None:
    text = graph(
        step("s", "a", "b", mode="inclusive"),
        step("a", "b"),
        step("b", {"step": "a", "when": False}),
    )
    run = Simulated(text)
    run.complete("s#1")
    assert run.open == ["a#1"]
    run.complete("a#1")
    assert parents(run, "b#1") == ["s", "a"]
    assert run.run().issued == ["s#1", "a#1", "b#1"]


def test_the_same_requester_is_one_parent() -> None:
    text = graph(
        step("s", "a", "j", mode="inclusive"),
        step("a", {"step": "a", "when": "{{ n < 3 }}"}, "j", mode="inclusive", set=COUNT),
        step("j"),
    )
    run = Simulated(text).run()
    assert run.state.runs == {"s": 1, "a": 3, "j": 1}
    assert parents(run, "j#1") == ["s", "a"]


def test_nothing_new_starts_while_a_step_waits_for_a_worker_to_evaluate() -> None:
    text = graph(
        step("split", "left", "right", mode="inclusive"),
        step("left", {"step": "join", "when": "{% for x in left.rows %}{{ x }}{% endfor %}"}),
        step("right", "join"),
        step("join"),
    )
    run = Simulated(text)
    run.complete("split#1")
    run.complete("left#1", {"rows": [1]})
    run.complete("right#1")
    assert run.open == ["left#1/eval/1"]
    run.evaluate("left#1/eval/1")
    assert run.open == ["join#1"]


@pytest.mark.parametrize("fails", ["left", "right"])
def test_a_handled_failure_still_joins_once(fails: str) -> None:
    error = {"step": "join", "when": "{{ output.status == 'error' }}"}
    text = graph(
        step("split", "left", "right", mode="inclusive"),
        step("left", error, "join"),
        step("right", error, "join"),
        step("join"),
    )
    run = Simulated(text).run({fails: BOOM})
    assert run.issued == ["split#1", "left#1", "right#1", "join#1"]
    assert run.state.status is Status.COMPLETED
