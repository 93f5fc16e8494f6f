"""Circles that only a failure ends are told; circles that a guard can end are not."""

from __future__ import annotations

import time
from typing import Any

import pytest

from noetl.core.playbook.compiling.graph import knots
from tests.support.playbooks import compiled, graph, step, workflow


def told(text: str) -> list[str]:
    return [warning.message for warning in compiled(text).warnings if warning.code == "unbounded_loop"]


# --- arcs ------------------------------------------------------------------------------------------------


def test_steps_that_always_lead_to_each_other_are_told_with_their_place() -> None:
    text = graph(step("a", "b"), step("b", "c"), step("c", "a"))
    (warning,) = [one for one in compiled(text).warnings if one.code == "unbounded_loop"]
    assert warning.message == (
        "step 'a': the steps 'a', 'b', 'c' lead to each other without end: guard an arc with `when`"
    )
    assert (warning.step, warning.field) == ("a", "next")
    assert warning.line == text[: text.index("arcs:")].count("\n") + 1


@pytest.mark.parametrize("arc", ["a", {"step": "a", "when": True}, {"step": "a", "when": "{{ 1 < 2 }}"}])
def test_a_step_that_always_leads_to_itself_is_told(arc: Any) -> None:
    assert told(graph(step("a", arc))) == ["step 'a': it leads to itself without end: guard an arc with `when`"]


def test_an_inclusive_arc_always_fires_whatever_stands_beside_it() -> None:
    assert told(graph(step("a", {"step": "end", "when": "{{ a.done }}"}, "a", mode="inclusive")))


def test_an_arc_that_never_fires_is_no_way_out() -> None:
    assert told(graph(step("a", {"step": "end", "when": False}, "a")))
    assert told(graph(step("a", {"step": "end", "when": "{{ false }}"}, "a")))


@pytest.mark.parametrize(
    "steps",
    [
        [step("a", {"step": "a", "when": "{{ a.n < 3 }}"}, "end")],
        [step("a", {"step": "a", "when": "{{ a.n < 3 }}"})],
        [step("a", {"step": "end", "when": "{{ a.done }}"}, "a")],
        [step("a", "b"), step("b", {"step": "end", "when": "{{ ctx.n > 3 }}"}, "a")],
        [step("a", "b"), step("b", {"step": "a", "when": "{{ output.data.more }}"}, "c"), step("c")],
        [step("a", "b", "c", mode="inclusive"), step("b", "d"), step("c", "d"), step("d")],
        # admission ends the branch
        [
            step("a", "b"),
            step("b", "a", spec={"policy": {"admit": {"rules": [{"when": "{{ a.go }}", "then": {"allow": True}}]}}}),
        ],
        # nobody comes here
        [step("a"), step("lost", "lost")],
        # a broken guard is no guard that always matches
        [step("a", {"step": "a", "when": "{{ 1 / 0 }}"})],
        [step("a", {"step": "a", "when": "{{ now() }}"}), step("b")],
    ],
)
def test_a_circle_with_a_way_out_is_not_told(steps: list[Any]) -> None:
    assert told(graph(*steps)) == []


def test_a_time_limit_of_the_execution_is_a_bound() -> None:
    assert told(graph(step("a", "a"), executor={"spec": {"timeout": "1h"}})) == []


def test_many_steps_in_a_circle_make_a_short_message() -> None:
    (message,) = told(graph(*(step(f"s{n}", f"s{(n + 1) % 50}") for n in range(50))))
    assert "'s9' and 40 more lead to each other" in message


def test_knots_of_a_thousand_steps_are_found_in_no_time() -> None:
    chain = [[n + 1] if n < 19_999 else [0] for n in range(20_000)]
    dense = [list(range(1_000)) for _ in range(1_000)]
    started = time.perf_counter()
    assert [len(part) for part in knots(chain)] == [20_000]
    assert len(knots([*chain[:-1], []])) == 20_000
    assert [len(part) for part in knots(dense)] == [1_000]
    # A way that grows with the square of the steps would take minutes.
    assert time.perf_counter() - started < 30
    assert knots([[1], [2], [1], []]) == [[1, 2], [0], [3]]


# --- pipelines -------------------------------------------------------------------------------------------


def pipeline(*tasks: str) -> list[str]:
    return told(workflow("- step: s\n  tool:\n" + "".join(f"    - {task}\n" for task in tasks)))


def ruled(name: str, *rules: str) -> str:
    return f"{{name: {name}, kind: noop, spec: {{policy: {{rules: [{', '.join(rules)}]}}}}}}"


BACK = "{else: {then: {do: jump, to: one}}}"


@pytest.mark.parametrize(
    "rule",
    [
        BACK,
        "{when: true, then: {do: jump, to: one}}",
        '{when: "{{ 2 > 1 }}", then: {do: jump, to: previous}}',
        "{when: false, then: {do: break}}, {else: {then: {do: jump, to: one}}}",
        '{when: "{{ output.error }}", then: {do: retry}}, {else: {then: {do: jump, to: one}}}',
    ],
)
def test_a_jump_back_that_always_matches_is_told(rule: str) -> None:
    assert pipeline(ruled("one"), ruled("two", rule)) == [
        "step 's': the tasks 'one', 'two' are repeated without end: let a rule with `when` break or continue"
    ]


def test_a_jump_to_itself_is_told() -> None:
    assert pipeline(ruled("one", BACK)) == [
        "step 's': the tasks 'one' are repeated without end: let a rule with `when` break or continue"
    ]


@pytest.mark.parametrize(
    "tasks",
    [
        [ruled("one"), ruled("two", '{when: "{{ output.data.more }}", then: {do: jump, to: one}}')],
        [ruled("one"), ruled("two", '{when: "{{ output.data.done }}", then: {do: break}}', BACK)],
        [ruled("one", '{when: "{{ _attempt > 3 }}", then: {do: fail}}'), ruled("two", BACK)],
        [ruled("one"), ruled("two", "{else: {then: {do: retry, attempts: 5}}}")],
        [ruled("one", "{else: {then: {do: break}}}"), ruled("two", BACK)],
        [ruled("one", "{else: {then: {do: jump, to: three}}}"), ruled("two", BACK), ruled("three")],
    ],
)
def test_a_pipeline_that_can_end_is_not_told(tasks: list[str]) -> None:
    assert pipeline(*tasks) == []
