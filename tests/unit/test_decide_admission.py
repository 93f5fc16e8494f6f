"""Whether a step runs when it is its turn: rules of admission and the deprecated guard (dsl §2.4)."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.event import Draft
from noetl.core.execution.decide import decide
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import Status
from noetl.core.limits import ERROR_MESSAGE_CHARS_MAX, RULES_PER_TASK_MAX, STEPS_SKIPPED_AT_ONCE_MAX, WARNINGS_MAX
from noetl.core.reference import Result
from tests.support.loops import Looping, loop_step
from tests.support.playbooks import BOOM, JsonObject, Simulated, graph, problems, step

# Only a worker can evaluate this: which step is read is not known before.
ASKED = "{{ steps[ctx.which | default('start')].go }}"


def admit(*rules: JsonObject) -> JsonObject:
    return {"policy": {"admit": {"rules": list(rules)}}}


def rule(when: object, allow: bool) -> JsonObject:
    return {"when": when, "then": {"allow": allow}}


def otherwise(allow: bool) -> JsonObject:
    return {"else": {"then": {"allow": allow}}}


def admitted(*rules: JsonObject, value: object = None, **root: object) -> Simulated:
    """`start` leads to `here`, which has these rules and leads to `after`."""
    text = graph(step("start", "here"), step("here", "after", spec=admit(*rules)), step("after"), **root)
    run = Simulated(text)
    run.complete("start#1", value)
    return run


def guarded(when: object, *targets: Any, value: object = None, **keys: Any) -> Simulated:
    """`start` leads to `here`, which has this guard."""
    root = keys.pop("root", {})
    names = [target if isinstance(target, str) else target["step"] for target in targets]
    others = [step(name) for name in dict.fromkeys(names) if name != "here"]
    run = Simulated(graph(step("start", "here"), step("here", *targets, when=when, **keys), *others, **root))
    run.complete("start#1", value)
    return run


# --- rules -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "runs"),
    [
        ([], True),
        ([rule("{{ start.n == 1 }}", True)], True),
        ([rule("{{ start.n == 1 }}", False)], False),
        ([rule("{{ start.n == 2 }}", False)], True),
        ([rule("start.n == 1", False)], False),
        ([rule(True, False)], False),
        ([rule(False, False)], True),
        # The first that matches says it.
        ([rule("{{ start.n == 1 }}", True), rule("{{ start.n == 1 }}", False)], True),
        ([rule("{{ start.n == 2 }}", True), rule("{{ start.n == 1 }}", False)], False),
        ([rule("{{ start.n == 2 }}", True), otherwise(False)], False),
        ([otherwise(False), rule("{{ start.n == 1 }}", True)], False),
        # The irregular forms of else.
        ([{"else": {"allow": False}}], False),
        ([{"else": None, "then": {"allow": False}}], False),
        # Everything the router knows.
        ([rule("{{ workload.open and ctx.open and open }}", True), otherwise(False)], True),
        ([rule("{{ event.name == 'step.done' and event.step == 'start' }}", True), otherwise(False)], True),
        ([rule("{{ event.name == 'call.error' }}", False)], True),
        ([rule("{{ 'no' }}", False)], True),
        ([rule("{{ execution_id == '77' and here is not defined }}", True), otherwise(False)], True),
    ],
)
def test_the_first_rule_that_matches_says_whether_a_step_runs(rules: list[JsonObject], runs: bool) -> None:
    run = admitted(*rules, value={"n": 1}, workload={"open": True})
    assert run.open == (["here#1"] if runs else [])
    assert run.run().state.status is Status.COMPLETED
    assert run.issued == (["start#1", "here#1", "after#1"] if runs else ["start#1"])


def test_a_step_that_is_denied_is_skipped_and_its_branch_ends() -> None:
    run = admitted(otherwise(False))
    event = run.decided("here")
    assert event.meta == {
        "step": "here",
        "run": 1,
        "outcome": "skipped",
        "arcs": [],
        "targets": [],
        "reason": "admission",
        "parents": ["start"],
    }
    assert event.transition_key == "step.decided/here#1"
    assert event.writes is None
    assert run.state.skipped_steps == {"here": 1}
    assert run.state.runs == {"start": 1, "here": 1}
    assert run.state.completed_steps == {"start": 1}
    assert run.state.status is Status.COMPLETED
    assert run.events[-1].meta == {"step": "start"}


@pytest.mark.parametrize(
    ("rules", "runs"),
    [
        ([rule(ASKED, False)], False),
        ([rule("{{ output.data.go }}", False)], False),
        ([rule("{{ result.go and response.go and outcome.status == 'ok' }}", False)], False),
        ([rule("{{ event.payload.go and event.name == 'call.done' }}", False)], False),
        ([rule("{{ error }}", False)], True),
        ([rule("{% for x in start.rows %}{% if event.name == 'command.completed' %}y{% endif %}{% endfor %}", False)],
         False),
        # One question after the other; what is behind the rule that matched is never asked.
        ([rule("{{ not result.go }}", False), rule(ASKED, True), rule("{{ output.data.missing > 1 }}", False)], True),
    ],
)  # fmt: skip
def test_a_rule_about_data_is_asked_of_a_worker(rules: list[JsonObject], runs: bool) -> None:
    run = admitted(*rules, value={"go": True, "rows": [1]})
    assert run.open == ["here#1/eval/1"]
    asked = run.of(kinds.COMMAND_ISSUED)[-1]
    assert asked.meta["phase"] == "admit"
    assert asked.meta["parents"] == ["start"]
    assert run.state.issued_steps == {"here": 1}
    assert run.state.requested_steps == {}
    assert run.state.runs == {"start": 1}
    run.run()
    assert run.issued == (["start#1", "here#1", "after#1"] if runs else ["start#1"])
    assert run.state.skipped_steps == ({} if runs else {"here": 1})
    if runs:
        issued = next(e for e in run.of(kinds.COMMAND_ISSUED) if e.command_id == "here#1")
        assert issued.meta["parents"] == ["start"]
    assert len({event.transition_key for event in run.events}) == len(run.events)


def test_a_question_before_a_step_and_one_behind_it_have_different_numbers() -> None:
    text = graph(
        step("start", "here"),
        step("here", {"step": "after", "when": "{{ steps[ctx.who | default('here')].n == 2 }}"}, spec=admit(
            rule(ASKED, True), otherwise(False))),
        step("after"),
    )  # fmt: skip
    run = Simulated(text).run({"start": {"go": True}, "here": {"n": 2}})
    asked = [e.command_id for e in run.of(kinds.COMMAND_ISSUED) if e.meta["kind"] == "evaluate"]
    assert asked == ["here#1/eval/1", "here#1/eval/2"]
    assert run.issued == ["start#1", "here#1", "after#1"]


def test_a_rule_that_fails_does_not_match_and_the_warning_is_recorded_with_what_follows() -> None:
    run = admitted(rule("{{ missing > 1 }}", False))
    issued = run.of(kinds.COMMAND_ISSUED)[-1]
    (warning,) = issued.meta["warnings"]  # type: ignore[misc]
    assert warning.startswith("admit rule 0: ")
    run = admitted(rule("{{ missing > 1 }}", True), otherwise(False))
    (warning,) = run.decided("here").meta["warnings"]  # type: ignore[misc]
    assert warning.startswith("admit rule 0: ")
    run = admitted(rule("{{ steps[ctx.which | default('start')].n > 'x' }}", False), value={"n": 1})
    run.evaluate("here#1/eval/1")
    assert run.open == ["here#1"]
    assert "warnings" in run.of(kinds.COMMAND_ISSUED)[-1].meta


def test_warnings_of_rules_are_few_and_short() -> None:
    run = admitted(*(rule(f"{{{{ {'x' * 3_000} > {n} }}}}", False) for n in range(WARNINGS_MAX + 5)))
    warnings: Any = run.of(kinds.COMMAND_ISSUED)[-1].meta["warnings"]
    assert len(warnings) == WARNINGS_MAX
    assert max(map(len, warnings)) <= ERROR_MESSAGE_CHARS_MAX


def test_the_entry_step_can_be_denied_and_nobody_requested_it() -> None:
    rules = [rule("{{ event is defined or output is defined or result is defined }}", True), otherwise(False)]
    run = Simulated(graph(step("start", "after", spec=admit(*rules)), step("after")))
    run.run()
    assert run.issued == []
    assert run.state.status is Status.COMPLETED
    assert run.decided("start").meta["parents"] == []
    assert run.state.result is not None
    assert run.state.result["reference"] is None


def test_a_step_that_a_failure_led_to_sees_the_failure_as_its_cause() -> None:
    rules = [rule("{{ event.name == 'step.failed' }}", True), otherwise(False)]
    asks = [rule("{{ error.kind == 'python' and event.name == 'call.error' }}", True), otherwise(False)]
    for chosen in (rules, asks):
        text = graph(step("start", {"step": "here", "when": "{{ error }}"}), step("here", spec=admit(*chosen)))
        assert Simulated(text).run({"start": BOOM}).issued == ["start#1", "here#1"]


# --- the deprecated guard --------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["{{ start.n == 1 }}", "start.n == 1", True, "{{ result.n == 1 }}", None])
def test_a_step_whose_guard_holds_runs(when: object) -> None:
    run = guarded(when, "after", value={"n": 1}).run()
    assert run.issued == ["start#1", "here#1", "after#1"]
    assert run.state.skipped_steps == {}


@pytest.mark.parametrize("when", ["{{ start.n == 2 }}", False, "{{ missing }}", "{{ result.n == 2 }}"])
def test_a_step_whose_guard_says_no_is_skipped_and_leads_on(when: object) -> None:
    run = guarded(when, "after", value={"n": 1}, set={"never": 1}).run()
    assert run.issued == ["start#1", "after#1"]
    assert run.decided("here").meta == {
        "step": "here",
        "run": 1,
        "outcome": "skipped",
        "arcs": [0],
        "targets": ["after"],
        "reason": "guard",
        "parents": ["start"],
    }
    assert run.context == {}
    assert run.state.skipped_steps == {"here": 1}
    assert run.state.last_step == "after"


@pytest.mark.parametrize(
    ("arcs", "targets"),
    [
        (["a", "b"], ["a"]),
        ([{"step": "a", "when": False}, "b"], ["b"]),
        ([{"step": "a", "when": "{{ output.status == 'ok' and event.name == 'call.done' }}"}, "b"], ["a"]),
        ([{"step": "a", "when": "{{ event.name == 'loop.done' }}"}, "b"], ["b"]),
        ([{"step": "a", "when": "{{ output.data or result or here or error }}"}, "b"], ["b"]),
        ([{"step": "a", "when": "{{ output.n is defined }}"}, "b"], ["b"]),
        ([{"step": "a", "when": "{{ event.payload is not defined }}"}, "b"], ["a"]),
        ([{"step": "a", "when": "{{ start.n == 1 }}"}, "b"], ["a"]),
    ],
)
@pytest.mark.parametrize("mode", ["exclusive", "inclusive"])
def test_a_skipped_step_leads_through_its_first_matching_arc_as_a_success_without_a_result(
    mode: str, arcs: list[Any], targets: list[str]
) -> None:
    run = guarded(False, *arcs, mode=mode, value={"n": 1})
    assert run.decided("here").meta["targets"] == targets


def test_the_arc_of_a_skipped_step_writes() -> None:
    arc = {"step": "after", "set": {"why": "{{ output.status }}", "n": "{{ start.n }}"}, "args": {"k": 5}}
    run = guarded(False, arc, value={"n": 1})
    assert run.context == {"k": 5, "why": "ok", "n": 1}


def test_an_arc_of_a_skipped_step_may_need_a_worker() -> None:
    arc = {"step": "after", "when": "{{ output.status == 'ok' and " + ASKED[3:], "set": {"x": 1}}
    run = guarded(False, arc, value={"go": True})
    assert run.open == ["here#1/eval/1"]
    assert run.of(kinds.COMMAND_ISSUED)[-1].meta["phase"] == "skip"
    assert run.state.issued_steps == {"here": 1}
    run.evaluate("here#1/eval/1")
    assert run.open == ["after#1"]
    assert run.context == {"x": 1}
    assert run.decided("here").meta["parents"] == ["start"]


def test_a_guard_that_fails_is_a_routing_error_that_names_the_step() -> None:
    run = guarded("{{ missing > 1 }}", "after")
    assert run.state.status is Status.FAILED
    error: Any = run.decided("here").meta["error"]
    assert (error["kind"], error["code"], error["retryable"]) == ("template", "routing_error", False)
    assert error["message"].startswith("step 'here': its `when` failed: ")
    assert run.state.failure == {"step": "here", "error": error}
    assert run.events[-1].meta == {"step": "here"}
    assert run.state.skipped_steps == {}
    run = guarded("{{ result.n > 'x' }}", "after", value={"n": 1})
    run.evaluate("here#1/eval/1")
    assert run.state.failure is not None
    assert run.state.failure["step"] == "here"


def test_text_that_is_no_condition_fails_when_it_is_its_turn() -> None:
    run = guarded("{{ a b }}", "after")
    assert run.state.failure is not None
    assert [warning.code for warning in run.playbook.warnings] == ["deprecated_when", "template_invalid"]


def test_an_unmatched_skipped_step_follows_the_rules_of_routing() -> None:
    never = {"step": "after", "when": False}
    strict = {"executor": {"spec": {"no_next_is_error": True}}}
    assert guarded(False, never).state.status is Status.COMPLETED
    run = guarded(False, never, root=strict)
    assert run.decided("here").meta["error"]["code"] == "routing_no_match"  # type: ignore[index]
    run = guarded(False, {"step": "after", "when": "{{ missing > 1 }}"})
    assert run.decided("here").meta["error"]["code"] == "routing_error"  # type: ignore[index]
    assert run.decided("here").meta["outcome"] == "failed"
    assert run.state.status is Status.FAILED


def test_rules_come_before_the_guard_and_who_is_denied_leads_nowhere() -> None:
    run = guarded(False, "after", spec=admit(otherwise(False)))
    assert run.decided("here").meta["reason"] == "admission"
    assert run.state.status is Status.COMPLETED
    run = guarded(False, "after", spec=admit(otherwise(True)))
    assert run.decided("here").meta["reason"] == "guard"


# --- skipped steps and the others ------------------------------------------------------------------------


def diamond(**left: Any) -> str:
    return graph(
        step("split", "left", "right", mode="inclusive"),
        step("left", "join", **left),
        step("right", "join"),
        step("join"),
    )


@pytest.mark.parametrize(
    ("left", "parents"),
    [({"spec": admit(otherwise(False))}, ["right"]), ({"when": False}, ["left", "right"])],
)
def test_a_join_does_not_wait_for_a_skipped_branch(left: JsonObject, parents: list[str]) -> None:
    run = Simulated(diamond(**left))
    run.complete("split#1")
    assert run.open == ["right#1"]
    run.complete("right#1")
    assert run.open == ["join#1"]
    assert run.of(kinds.COMMAND_ISSUED)[-1].meta["parents"] == parents
    assert run.run().issued == ["split#1", "right#1", "join#1"]


def test_a_join_waits_while_it_is_not_known_whether_a_branch_is_admitted() -> None:
    asked = rule("{{ steps[ctx.which | default('split')].go }}", True)
    run = Simulated(diamond(spec=admit(asked, otherwise(False))))
    run.complete("split#1", {"go": False})
    assert run.open == ["left#1/eval/1", "right#1"]
    run.complete("right#1")
    assert run.open == ["left#1/eval/1"]
    run.evaluate("left#1/eval/1")
    assert run.open == ["join#1"]


def test_a_join_that_is_denied_ends_both_branches() -> None:
    text = graph(
        step("split", "left", "right", mode="inclusive"),
        step("left", "join"),
        step("right", "join"),
        step("join", "after", spec=admit(otherwise(False))),
        step("after"),
    )
    run = Simulated(text).run()
    assert run.issued == ["split#1", "left#1", "right#1"]
    assert run.decided("join").meta["parents"] == ["left", "right"]


def test_several_steps_are_skipped_in_one_decision() -> None:
    names = ["a", "b", "c", "d"]
    steps = [step(name, following, when=False) for name, following in zip(names, [*names[1:], "last"], strict=True)]
    run = Simulated(graph(step("start", "a"), *steps, step("last")))
    run.complete("start#1")
    assert run.open == ["last#1"]
    assert run.state.skipped_steps == dict.fromkeys(names, 1)


def test_a_skipped_step_is_undefined_and_an_earlier_result_of_it_stays() -> None:
    text = graph(
        step("count", "here", set={"n": "{{ n | default(0) + 1 }}"}),
        step("here", {"step": "count", "when": "{{ n < 3 }}", "set": {"seen": "{{ here.turn }}"}}, "after",
             when="{{ n == 2 }}"),
        step("after", set={"last": "{{ here.turn }}", "status": "{{ steps.here.status }}"}),
    )  # fmt: skip
    run = Simulated(text).run({"here": lambda number: {"turn": number}})
    assert run.issued == ["count#1", "count#2", "here#2", "count#3", "after#1"]
    assert run.state.runs == {"count": 3, "here": 3, "after": 1}
    assert run.state.skipped_steps == {"here": 3}
    assert run.context == {"n": 3, "seen": 2, "last": 2, "status": "ok"}


def test_what_a_skipped_run_gave_and_what_an_earlier_run_gave_are_told_apart() -> None:
    at_once = "{{ here.turn == 1 and output.status == 'ok' and not output.turn }}"
    both = "{{ [here.turn, output.status, output.turn is defined, event.name == 'call.done', result is defined] }}"
    text = graph(
        step("here", {"step": "here", "when": "{{ n < 2 }}", "set": {"n": "{{ n + 1 }}"}},
             {"step": "after", "set": {"told": both, "at_once": at_once, "out": "{{ output.turn | default('none') }}"}},
             when="{{ n < 2 }}"),
        step("after", set={"result": "{{ result.turn | default('none') }}"}),
        workload={"n": 1},
    )  # fmt: skip
    run = Simulated(text).run({"here": {"turn": 1}})
    assert run.issued == ["here#1", "after#1"]
    assert run.context["told"] == [1, "ok", False, True, False]
    assert run.context["out"] == "none"
    assert run.context["at_once"] is True


@pytest.mark.parametrize(
    "when",
    [
        "{{ event.name == 'call.done' and event.step == 'here' }}",
        "{{ output.status == 'ok' and not error and result is not defined and here.status == 'error' }}",
    ],
)
def test_whoever_a_skipped_step_requests_sees_a_success_even_if_the_step_failed_before(when: str) -> None:
    text = graph(
        step("here", {"step": "fix", "when": "{{ error }}"}, "after", when="{{ n is not defined }}"),
        step("fix", "here", set={"n": 1}),
        step("after", spec=admit(rule(when, True), otherwise(False))),
    )
    assert Simulated(text).run({"here": BOOM}).issued == ["here#1", "fix#1", "after#1"]


def test_the_result_of_the_execution_is_that_of_the_last_step_that_ran() -> None:
    run = guarded(False, value={"n": 1})
    assert run.state.status is Status.COMPLETED
    assert run.events[-1].meta == {"step": "start"}


# --- the end ---------------------------------------------------------------------------------------------


def test_a_branch_that_ends_at_a_denied_step_is_no_leaf_and_one_that_ends_at_a_guarded_step_is() -> None:
    denied = graph(step("start", "here"), step("here", spec=admit(otherwise(False))), step("end"))
    assert Simulated(denied).run().issued == ["start#1"]
    skipped = graph(step("start", "here"), step("here", when=False), step("end"))
    assert Simulated(skipped).run().issued == ["start#1", "end#1"]


@pytest.mark.parametrize("keys", [{"spec": admit(otherwise(False))}, {"when": False}])
def test_an_implicit_end_that_is_skipped_is_not_tried_again(keys: JsonObject) -> None:
    run = Simulated(graph(step("start"), step("end", **keys))).run()
    assert run.issued == ["start#1"]
    assert run.state.status is Status.COMPLETED
    assert run.state.skipped_steps == {"end": 1}


@pytest.mark.parametrize("outcome", [None, BOOM])
@pytest.mark.parametrize("asks", [False, True])
def test_a_final_step_can_be_denied(outcome: object, asks: bool) -> None:
    when: object = "{{ steps[ctx.which | default('start')].go is defined }}" if asks else True
    text = graph(
        step("start"),
        step("last", "more", spec=admit(rule(when, False), otherwise(False))),
        step("more"),
        executor={"spec": {"final_step": "last"}},
    )
    run = Simulated(text).run({"start": outcome})
    assert run.issued == ["start#1"]
    assert run.state.status is (Status.COMPLETED if outcome is None else Status.FAILED)
    assert run.state.is_closing
    assert run.state.skipped_steps == {"last": 1}


@pytest.mark.parametrize("asks", [False, True])
def test_a_final_step_with_rules_runs_after_a_failure(asks: bool) -> None:
    when: object = "{{ steps[ctx.which | default('start')].status == 'error' }}" if asks else True
    text = graph(
        step("start"),
        step("last", spec=admit(rule(when, True), otherwise(False))),
        executor={"spec": {"final_step": "last"}},
    )
    run = Simulated(text).run({"start": BOOM})
    assert run.issued == ["start#1", "last#1"]
    assert run.state.status is Status.FAILED


def test_a_final_step_that_its_guard_skips_leads_on_unless_the_execution_fails() -> None:
    text = graph(step("start"), step("last", "more", when=False), step("more"),
                 executor={"spec": {"final_step": "last"}})  # fmt: skip
    assert Simulated(text).run().issued == ["start#1", "more#1"]
    run = Simulated(text).run({"start": BOOM})
    assert run.issued == ["start#1"]
    assert run.state.status is Status.FAILED


def test_while_the_execution_fails_nobody_is_admitted_any_more() -> None:
    text = graph(
        step("split", "left", "right", mode="inclusive"),
        step("left", "after", spec=admit(rule("{{ steps[ctx.which | default('split')].go }}", True))),
        step("right"),
        step("after"),
    )
    run = Simulated(text)
    run.complete("split#1", {"go": True})
    run.fail("right#1")
    assert run.open == ["left#1/eval/1"]
    run.evaluate("left#1/eval/1")
    assert run.decided("left").meta["reason"] == "failing"
    assert run.state.status is Status.FAILED
    assert run.issued == ["split#1", "right#1"]


def test_a_guard_that_fails_stops_what_would_have_begun_behind_it() -> None:
    text = graph(
        step("split", "bad", "good", mode="inclusive"), step("bad", when="{{ missing > 1 }}"), step("good"), step("x")
    )
    run = Simulated(text)
    run.complete("split#1")
    assert run.state.status is Status.FAILED
    assert run.issued == ["split#1"]


# --- loops -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{"spec": admit(otherwise(False))}, {"when": False}])
def test_a_loop_that_is_skipped_opens_no_stage(keys: JsonObject) -> None:
    each = {**loop_step("each", "{{ start.rows }}", "after"), **keys}
    run = Looping(graph(step("start", "each"), each, step("after")))
    run.complete("start#1", {"rows": [1, 2]})
    assert run.of(kinds.LOOP_STARTED) == []
    assert run.state.loop_state == {}
    run.finish()
    assert run.issued == (["start#1", "after#1"] if "when" in keys else ["start#1"])


@pytest.mark.parametrize("rows", ["{{ start.rows }}", "{{ steps[ctx.which | default('start')].rows }}"])
@pytest.mark.parametrize("when", ["{{ start.go }}", ASKED])
def test_a_loop_that_is_admitted_runs(rows: str, when: str) -> None:
    each = {**loop_step("each", rows, "after"), "spec": admit(rule("{{ missing > 1 }}", False), rule(when, True),
                                                              otherwise(False))}  # fmt: skip
    run = Looping(graph(step("start", "each"), each, step("after")))
    run.complete("start#1", {"rows": [1, 2], "go": True})
    run.finish()
    assert run.state.status is Status.COMPLETED
    assert run.issued == ["start#1", "after#1"]
    (started,) = run.of(kinds.LOOP_STARTED)
    assert started.meta["parents"] == ["start"]
    noted = [event for event in run.events if event.meta.get("warnings")]
    assert len(noted) == 1
    assert len({event.transition_key for event in run.events}) == len(run.events)


def test_a_loop_that_was_admitted_but_cannot_begin_fails() -> None:
    rules = [rule("{{ missing > 1 }}", False), rule(ASKED, True), otherwise(False)]
    each = {**loop_step("each", "{{ start.nothing }}"), "spec": admit(*rules)}
    run = Looping(graph(step("start", "each"), each))
    run.complete("start#1", {"go": True})
    run.finish()
    assert "admit rule 0: " in str(run.of(kinds.STAGE_OPENED)[0].meta["warnings"])
    assert run.state.failure is not None
    assert run.state.failure["error"]["code"] == "loop_not_iterable"  # type: ignore[index]


def test_the_opening_of_a_loop_that_is_entered_again_sees_who_requested_it() -> None:
    each = loop_step(
        "each", "{{ result.rows + [output.status, event.step] }}", {"step": "again", "when": "{{ n < 2 }}"}
    )
    text = graph(step("start", "each"), each, step("again", "each", set={"n": "{{ n + 1 }}"}), workload={"n": 1})
    run = Looping(text).finish({"start": {"rows": [1]}, "again": {"rows": [2]}})
    totals = [event.meta["total"] for event in run.of(kinds.LOOP_STARTED)]
    assert totals == [3, 3]
    kept: Any = [run.payloads[e.meta["collection"]["ref"]["sha256"]] for e in run.of(kinds.LOOP_STARTED)]  # type: ignore[index]
    assert [document["rows"] for document in kept] == [[1, "ok", "start"], [2, "ok", "again"]]


# --- bounds and recovery ---------------------------------------------------------------------------------


def test_skipped_steps_that_lead_to_each_other_in_a_circle_are_an_error() -> None:
    run = Simulated(graph(step("start", "a"), step("a", "b", when=False), step("b", "a", when=False)))
    run.complete("start#1")
    assert run.state.status is Status.FAILED
    assert run.state.failure is not None
    error: Any = run.state.failure["error"]
    assert error["code"] == "routing_error"
    assert f"more than {STEPS_SKIPPED_AT_ONCE_MAX:,} steps were skipped in a row" in error["message"]


def test_a_circle_of_skipped_steps_that_counts_ends() -> None:
    again = {"step": "a", "when": "{{ n < 50 }}", "set": {"n": "{{ n + 1 }}"}}
    run = Simulated(graph(step("a", again, "last", when=False), step("last"), workload={"n": 1})).run()
    assert run.issued == ["last#1"]
    assert run.state.skipped_steps == {"a": 50}


def test_an_evaluation_that_failed_as_a_command_counts_as_a_failed_condition() -> None:
    error = {"kind": "unknown", "code": "attempts_exhausted", "retryable": False, "message": "claimed 10 times"}
    run = admitted(rule(ASKED, False))
    event = run.append(
        Draft(
            event_type=kinds.COMMAND_FAILED,
            transition_key=kinds.terminal_key("here#1/eval/1"),
            command_id="here#1/eval/1",
            meta={"step": "here", "attempt": 10},
            result=Result(status="error", context={"error": error}).to_json(),
        )
    )
    (issued,) = decide(run.state, event, run.playbook).drafts
    assert issued.command_id == "here#1"
    assert issued.meta["warnings"] == ["admit rule 0: claimed 10 times"]


def test_deciding_again_adds_nothing_and_the_fold_is_the_same() -> None:
    for run in (
        admitted(rule(ASKED, False), value={"go": True}),
        admitted(otherwise(False)),
        guarded(False, "after"),
        guarded("{{ result.n > 1 }}", {"step": "after", "when": ASKED}, value={"n": 1, "go": True}),
    ):
        for _ in range(5):
            for event in run.events:
                assert run.again(event).drafts == ()
            assert fold_all(run.events) == run.state
            if run.state.is_terminal:
                break
            run.answer(run.open[0], {})


# --- documents -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "code", "says"),
    [
        ("rules", "admit_shape", "must be a mapping with `rules`"),
        ({"rules": {"when": True}}, "admit_shape", "rules must be a list"),
        ({}, "admit_shape", "rules must be a list"),
        ({"rules": [rule(True, True) for _ in range(RULES_PER_TASK_MAX + 1)]}, "too_many_rules", "the limit is "),
        ({"rules": ["x"]}, "rule_shape", "a rule has `when` and `then`"),
        ({"rules": [{"when": "{{ x }}"}]}, "rule_shape", "`then` must be a mapping"),
        ({"rules": [{"then": {"allow": True}}]}, "rule_shape", "a rule without `when` is written as `else`"),
        ({"rules": [{"when": 7, "then": {"allow": True}}]}, "rule_when", "an expression or a boolean"),
        ({"rules": [rule("{{ x }}", "yes")]}, "admit_allow", "then.allow must be true or false, not 'yes'"),  # type: ignore[arg-type]
        ({"rules": [{"when": "{{ x }}", "then": {}}]}, "admit_allow", "then.allow must be true or false"),
        ({"rules": [{"expr": "x", "then": {"allow": True}}]}, "rule_expr", "'expr' is retired"),
    ],
)
def test_a_wrong_admission_is_refused_with_the_step_and_the_key(policy: Any, code: str, says: str) -> None:
    found = problems(graph(step("here", spec={"policy": {"admit": policy}})))
    problem = next(problem for problem in found if problem.code == code)
    assert problem.step == "here"
    assert problem.message.startswith("step 'here', spec.policy.admit: ")
    assert says in problem.message
    assert problem.line is not None
    assert problem.line > 1


def test_a_guard_that_is_no_condition_is_refused() -> None:
    (problem,) = problems(graph(step("here", when=[1])))
    assert (problem.code, problem.step, problem.field) == ("step_when", "here", "when")


def test_what_is_deprecated_or_irregular_is_a_warning() -> None:
    rules = [rule("{{ workload.a }}", True), {"else": {"allow": False}}]
    run = Simulated(graph(step("here", when=True, spec={"policy": {"admit": {"rules": rules, "x": 1}}})))
    assert [warning.code for warning in run.playbook.warnings] == ["unknown_key", "else_shape", "deprecated_when"]
