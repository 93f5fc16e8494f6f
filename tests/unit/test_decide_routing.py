"""Where a finished step leads: modes, guards, writes, failures (dsl §3.2, §3.3, §3.5, §3.7)."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.errors import Failure
from noetl.core.event import Draft
from noetl.core.execution.decide import decide
from noetl.core.execution.state import Status
from noetl.core.limits import ERROR_MESSAGE_CHARS_MAX, WARNINGS_MAX
from noetl.core.reference import Result
from tests.support.playbooks import BOOM, Simulated, graph, step, workflow


def routed(next_block: str, value: object, *, keys: str = "", root: str = "") -> Simulated:
    """One step with this `next`, completed with a value; `a`, `b` and `c` are its possible targets."""
    text = f"- step: start\n  tool: {{kind: noop}}\n  next: {next_block}\n"
    text += "".join(f"  {line}\n" for line in keys.splitlines())
    run = Simulated(workflow(text + "".join(f"- {{step: {name}, next: end}}\n" for name in "abc"), root))
    if isinstance(value, Failure):
        run.fail("start#1", value)
    else:
        run.complete("start#1", value)
    return run


def opened(run: Simulated) -> list[str]:
    return [command_id.partition("#")[0] for command_id in run.open]


# --- modes -----------------------------------------------------------------------------------------------

GUARDED = "arcs: [{step: a, when: '{{ output.data.n > 1 }}'}, {step: b, when: '{{ output.data.n > 0 }}'}, {step: c}]"


@pytest.mark.parametrize(("n", "targets"), [(2, ["a"]), (1, ["b"]), (0, ["c"])])
def test_in_an_exclusive_next_the_first_matching_arc_fires(n: int, targets: list[str]) -> None:
    assert opened(routed(f"{{{GUARDED}}}", {"n": n})) == targets


@pytest.mark.parametrize(("n", "targets"), [(2, ["a", "b", "c"]), (1, ["b", "c"]), (0, ["c"])])
@pytest.mark.parametrize("mode", ["inclusive", "all"])
def test_in_an_inclusive_next_every_matching_arc_fires_in_order(mode: str, n: int, targets: list[str]) -> None:
    run = routed(f"{{spec: {{mode: {mode}}}, {GUARDED}}}", {"n": n})
    assert opened(run) == targets
    assert run.decided("start").meta["targets"] == targets


def test_guards_behind_the_one_that_fired_are_not_evaluated() -> None:
    run = routed("[{step: a}, {step: b, when: '{{ undefined_name > 1 }}'}]", {})
    assert opened(run) == ["a"]
    assert "warnings" not in run.decided("start").meta


@pytest.mark.parametrize(
    ("when", "matches"),
    [
        ("output.data.n == 1", True),
        ("{{ output.data.text }}", False),
        ("{{ output.data.flag }}", False),
        ("{{ output.data.rows }}", False),
        ("{{ 'OFF' }}", False),
        ("{{ missing }}", False),
        ("{{ missing.deep.path is defined }}", False),
        ("{{ output.n == 1 }}", True),
        ("{{ result.n == 1 and response.n == 1 and outcome.data.n == 1 }}", True),
        ("{{ start.n == 1 and steps.start.n == 1 }}", True),
    ],
)
def test_a_guard_is_true_as_conditions_are(when: str, matches: bool) -> None:
    value = {"n": 1, "text": "no", "flag": False, "rows": []}
    run = routed(f'[{{step: a, when: "{when}"}}]', value)
    assert opened(run) == (["a"] if matches else [])


@pytest.mark.parametrize(("when", "targets"), [("true", ["a"]), ("false", ["b"])])
def test_a_guard_may_be_a_boolean(when: str, targets: list[str]) -> None:
    assert opened(routed(f"[{{step: a, when: {when}}}, {{step: b}}]", {})) == targets


def test_two_arcs_to_one_target_request_it_once_and_both_write() -> None:
    arcs = "[{step: a, set: {x: 1}}, {step: a, set: {y: 2}}]"
    run = routed(f"{{spec: {{mode: inclusive}}, arcs: {arcs}}}", {})
    assert opened(run) == ["a"]
    assert run.decided("start").meta["arcs"] == [0, 1]
    assert run.context == {"x": 1, "y": 2}


# --- writes ----------------------------------------------------------------------------------------------


def test_the_step_writes_first_then_its_arcs_see_it_then_the_arc_writes() -> None:
    run = routed(
        "[{step: a, when: '{{ n == 5 }}', set: {m: '{{ n + 1 }}', n: '{{ n * 10 }}'}}]",
        {"x": 5},
        keys="set: {n: '{{ output.data.x }}'}",
    )
    assert opened(run) == ["a"]
    assert run.decided("start").writes == [
        {"path": ["n"], "v": 5},
        {"path": ["m"], "v": 6},
        {"path": ["n"], "v": 50},
    ]
    assert run.context == {"n": 50, "m": 6}


def test_all_values_of_a_block_see_the_state_before_it() -> None:
    run = routed("a", {}, keys="set: {x: '{{ y }}', y: '{{ x }}'}", root="workload: {x: 1, y: 2}")
    assert run.context == {"x": 2, "y": 1}


def test_an_inclusive_arc_sees_what_the_arc_before_it_wrote() -> None:
    arcs = "[{step: a, set: {n: 1}}, {step: b, when: '{{ n == 1 }}', set: {n: '{{ n + 1 }}'}}]"
    run = routed(f"{{spec: {{mode: inclusive}}, arcs: {arcs}}}", {})
    assert opened(run) == ["a", "b"]
    assert run.context == {"n": 2}


def test_writes_are_recorded_before_the_target_is_asked_for() -> None:
    run = routed("[{step: a, set: {n: 1}}]", {})
    tail = [event.event_type for event in run.events[-2:]]
    assert tail == [kinds.STEP_DECIDED, kinds.COMMAND_ISSUED]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("text", "text"),
        ("null", None),
        ("'{{ output.data.n }}'", 1),
        ("'{{ output.data.missing }}'", None),
        ("'n is {{ output.data.n }}'", "n is 1"),
        ("{a: {b: ['{{ output.data.n }}', x]}, c: '{{ output.data.rows }}'}", {"a": {"b": [1, "x"]}, "c": [1, 2]}),
        ("'{{ output.data }}'", {"n": 1, "rows": [1, 2], "digits": "007"}),
        ("'{{ start }}'", {"n": 1, "rows": [1, 2], "digits": "007"}),
        ("'{{ output.data.digits }}'", "007"),
        ("'{{ output.data.n == 1 }}'", True),
        ("'a{# a comment #}b'", "ab"),
        ("'{% raw %}{{ x }}{% endraw %}'", "{{ x }}"),
        ("'{{ {1: 2} }}'", {"1": 2}),
        ("'{{ (1, 2) }}'", [1, 2]),
        ("'{{ now() }}'", "2026-01-01T00:00:03Z"),
        ("'{{ execution_id }}'", "77"),
        ("'{{ event.name }}'", "call.done"),
        ("'{{ event.step }} at {{ event.timestamp }}'", "start at 2026-01-01T00:00:03Z"),
    ],
)
def test_a_written_value_keeps_its_type(text: str, value: object) -> None:
    result = {"n": 1, "rows": [1, 2], "digits": "007"}
    run = routed("a", result, keys=f"set: {{x: {text}}}")
    assert run.context == {"x": value}
    assert type(run.context["x"]) is type(value)


def test_a_recorded_event_is_plain_data_without_synonyms() -> None:
    arcs = "[{step: a, when: '{{ e.name == \"step.done\" }}'}, {step: b}]"
    run = routed(arcs, {"n": 1}, keys="set: {e: '{{ event }}'}")
    run.evaluate("start#1/eval/1")
    assert run.context["e"] == {
        "name": "call.done",
        "step": "start",
        "timestamp": "2026-01-01T00:00:03Z",
        "payload": {"n": 1},
    }
    assert opened(run) == ["b"]


def test_a_value_that_cannot_be_evaluated_or_recorded_is_skipped_with_a_warning() -> None:
    run = routed("a", {}, keys="set: {bad: '{{ missing + 1 }}', good: 2, lone: \"{{ '\\\\ud800' }}\"}")
    assert run.context == {"good": 2}
    warnings: Any = run.decided("start").meta["warnings"]
    assert [warning.split(":")[0] for warning in warnings] == ["set bad", "set lone"]
    assert opened(run) == ["a"]


def test_warnings_are_few_and_short() -> None:
    block = ", ".join(f"k{n}: '{{{{ {'x' * 3_000}_{n} + 1 }}}}'" for n in range(WARNINGS_MAX + 5))
    run = routed("a", {}, keys=f"set: {{{block}}}")
    warnings: Any = run.decided("start").meta["warnings"]
    assert len(warnings) == WARNINGS_MAX
    assert max(map(len, warnings)) <= ERROR_MESSAGE_CHARS_MAX


def test_deep_paths_update_and_the_workload_stays() -> None:
    run = routed(
        "[{step: a, set: {'ctx.c.y': '{{ workload.c.x }}', ctx.c.z.deep: 3, iter.i: 4}}]",
        {},
        keys="set: {c: {x: 1}}",
        root="workload: {c: {x: 9}}",
    )
    assert run.context == {"c": {"x": 1, "y": 9, "z": {"deep": 3}}, "i": 4}
    assert run.state.workload["c"].value == {"x": 9}


# --- nothing matches -------------------------------------------------------------------------------------

NO_MATCH = "[{step: a, when: '{{ output.data.n > 5 }}'}]"


@pytest.mark.parametrize("on_no_match", ["", "spec: {on_no_match: complete}, ", "spec: {on_no_match: quiet}, "])
def test_a_branch_where_nothing_matches_just_ends(on_no_match: str) -> None:
    run = routed(f"{{{on_no_match}arcs: {NO_MATCH}}}", {"n": 1})
    assert run.state.status is Status.COMPLETED
    assert run.decided("start").meta["outcome"] == "completed"


def test_no_match_is_an_error_when_the_playbook_says_so() -> None:
    run = routed(NO_MATCH, {"n": 1}, root="executor: {spec: {no_next_is_error: true}}")
    assert run.state.status is Status.FAILED
    error = run.decided("start").meta["error"]
    assert error == {
        "kind": "policy",
        "code": "routing_no_match",
        "retryable": False,
        "message": "step 'start': no arc matched",
    }


def test_a_step_without_arcs_has_nothing_to_match() -> None:
    root = "executor: {spec: {no_next_is_error: true}}"
    assert routed("{arcs: []}", {}, root=root).state.status is Status.COMPLETED
    run = Simulated(workflow("- {step: start, tool: {kind: noop}}", root))
    assert run.run().state.status is Status.COMPLETED


def test_a_guard_that_fails_does_not_match_and_leaves_a_warning() -> None:
    run = routed("[{step: a, when: '{{ missing > 1 }}'}, {step: b}]", {})
    assert opened(run) == ["b"]
    (warning,) = run.decided("start").meta["warnings"]  # type: ignore[misc]
    assert warning.startswith("arc 0 to 'a': ")


@pytest.mark.parametrize("mode", ["exclusive", "inclusive"])
def test_a_guard_that_fails_while_no_other_matches_is_a_routing_error(mode: str) -> None:
    arcs = "[{step: a, when: '{{ output.data.n > \"x\" }}'}, {step: b, when: false}]"
    run = routed(f"{{spec: {{mode: {mode}}}, arcs: {arcs}}}", {"n": 1})
    assert run.state.status is Status.FAILED
    error: Any = run.decided("start").meta["error"]
    assert (error["kind"], error["code"], error["retryable"]) == ("template", "routing_error", False)
    assert error["message"].startswith("step 'start': no arc matched and a guard failed: arc 0 to 'a': ")
    assert len(error["message"]) <= ERROR_MESSAGE_CHARS_MAX
    assert run.state.failure == {"step": "start", "error": error}


def test_the_writes_of_a_step_that_could_not_be_routed_are_kept() -> None:
    run = routed("[{step: a, when: '{{ missing > 1 }}'}]", {}, keys="set: {n: 1}")
    assert run.context == {"n": 1}


# --- failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "when",
    [
        "{{ output.status == 'error' }}",
        "{{ output.error.kind == 'python' }}",
        "{{ error.message == 'boom' }}",
        "{{ error }}",
        "{{ event.name == 'call.error' }}",
        "{{ event.name == 'step.failed' }}",
        "{{ event.name == 'command.failed' }}",
        "{{ start.error.exception_type == 'ValueError' }}",
        "{{ start.status == 'error' }}",
        "{{ steps['start'].status == 'error' }}",
        "{{ outcome.status != 'ok' }}",
    ],
)
def test_an_arc_that_mentions_failure_handles_it(when: str) -> None:
    run = routed(f'[{{step: b}}, {{step: a, when: "{when}"}}]', BOOM)
    assert opened(run) == ["a"]
    assert run.decided("start").meta["outcome"] == "handled"
    run.run()
    assert run.state.status is Status.COMPLETED


@pytest.mark.parametrize(
    "arc",
    [
        "{step: a}",
        "{step: a, when: true}",
        "{step: a, when: '{{ 1 == 1 }}'}",
        "{step: a, when: '{{ output.data is defined }}'}",
        "{step: a, when: '{{ ctx.n is not defined }}'}",
    ],
)
def test_an_arc_that_does_not_mention_failure_never_fires_on_one(arc: str) -> None:
    run = routed(f"[{arc}]", BOOM)
    assert run.issued == ["start#1"]
    assert run.state.status is Status.FAILED


def test_an_arc_that_mentions_failure_fires_on_success_when_it_matches() -> None:
    assert opened(routed("[{step: a, when: \"{{ output.status == 'ok' }}\"}]", {})) == ["a"]
    assert opened(routed("[{step: a, when: \"{{ event.name == 'call.done' }}\"}]", {})) == ["a"]
    assert opened(routed("[{step: a, when: \"{{ event.name == 'loop.done' }}\"}]", {})) == []
    assert opened(routed("[{step: a, when: \"{{ event.name == 'call.error' }}\"}]", {})) == []


def test_error_arcs_follow_the_mode() -> None:
    arcs = "[{step: a, when: '{{ error }}'}, {step: b, when: '{{ output.error }}'}, {step: c}]"
    assert opened(routed(arcs, BOOM)) == ["a"]
    assert opened(routed(f"{{spec: {{mode: inclusive}}, arcs: {arcs}}}", BOOM)) == ["a", "b"]


def test_on_failure_the_step_writes_nothing_and_its_error_arc_does() -> None:
    run = routed(
        "[{step: a, when: '{{ error }}', set: {why: '{{ error.message }}', kind: '{{ output.error.kind }}'}}]",
        BOOM,
        keys="set: {n: 1}",
    )
    assert run.context == {"why": "boom", "kind": "python"}


def test_an_error_arc_may_lead_to_the_undeclared_end() -> None:
    run = routed("[{step: end, when: '{{ error }}'}]", BOOM)
    assert run.state.status is Status.COMPLETED
    assert run.decided("start").meta["targets"] == []


def test_an_error_arc_that_does_not_match_or_fails_leaves_the_failure_unhandled() -> None:
    for when in ("{{ error.kind == 'timeout' }}", "{{ error.missing > 1 }}"):
        run = routed(f'[{{step: a, when: "{when}"}}]', BOOM)
        assert run.state.status is Status.FAILED
        error: Any = run.decided("start").meta["error"]
        assert (error["kind"], error["message"]) == ("python", "boom")


def test_a_user_value_is_never_a_failure() -> None:
    run = routed("[{step: a, when: \"{{ start.status == 'error' }}\"}]", {"status": "error"})
    assert opened(run) == ["a"]
    assert run.decided("start").meta["outcome"] == "completed"


def test_a_failure_without_a_recorded_error_still_fails() -> None:
    run = Simulated(graph(step("start")))
    event = run.append(
        Draft(
            event_type=kinds.COMMAND_FAILED,
            transition_key=kinds.terminal_key("start#1"),
            command_id="start#1",
            meta={"step": "start", "attempt": 1},
            result=Result(status="error").to_json(),
        )
    )
    drafts = decide(run.state, event, run.playbook).drafts
    assert drafts[0].meta["error"] == {"kind": "unknown", "message": "failed"}
    assert drafts[1].event_type == kinds.PLAYBOOK_FAILED
