"""A tool's own `retry` is the rule that it stands for, before the task's own rules (dsl §11)."""

from __future__ import annotations

import pytest

from noetl.core.expression import is_true, render
from noetl.core.playbook.compiled import CompiledTask
from noetl.core.playbook.model import Action
from tests.support.playbooks import compiled, workflow


def task(retry: str, more: str = "") -> CompiledTask:
    return compiled(workflow(f"- {{step: s, tool: {{kind: noop, retry: {retry}{more}}}}}")).steps["s"].tasks[0]


def matches(retry: str, **error: object) -> bool:
    rule = task(retry).rules[0]
    assert rule.when is not None
    output = {"status": "error" if error else "ok", "error": error or None}
    return is_true(render(rule.when, {"output": output}))


def test_without_a_list_every_error_is_tried_again_and_success_is_not() -> None:
    assert matches("{max_attempts: 5}", kind="python")
    assert not matches("{max_attempts: 5}")


@pytest.mark.parametrize(
    ("listed", "error"),
    [
        ("[timeout, connection]", {"kind": "timeout"}),
        ("rate_limit", {"kind": "rate_limit"}),
        ("[429, 503]", {"kind": "server_error", "status": 503}),
        ("['429']", {"kind": "rate_limit", "status": 429}),
        ("[HTTP_500]", {"kind": "server_error", "code": "HTTP_500"}),
        ("[5xx]", {"kind": "server_error", "status": 502}),
        ("[any]", {"kind": "python"}),
    ],
)
def test_listed_errors_are_tried_again_and_others_are_not(listed: str, error: dict[str, object]) -> None:
    assert matches(f"{{retry_on: {listed}}}", **error)
    assert listed == "[any]" or not matches(f"{{retry_on: {listed}}}", kind="parse", code="X", status=418)


def test_a_condition_of_its_own_counts_for_errors_only() -> None:
    retry = "{retry_when: '{{ output.error.status == 500 }}'}"
    assert matches(retry, status=500)
    assert not matches(retry, status=501)


@pytest.mark.parametrize(
    ("retry", "attempts", "backoff", "delay"),
    [
        ("{max_attempts: 4, backoff: linear, delay: 0.5}", 4, "linear", 0.5),
        ("{max_attempts: 4, backoff: 2}", 4, "fixed", 2),
        ("{initial_delay: 1.5, backoff_multiplier: 2.0}", 3, "exponential", 1.5),
        ("{attempts: 2}", 2, None, None),
        ("5", 5, None, None),
    ],
)
def test_the_waits_are_those_of_the_rule(retry: str, attempts: int, backoff: str | None, delay: object) -> None:
    rule = task(retry).rules[0]
    assert (rule.do, rule.attempts.source, rule.backoff) == (Action.RETRY, attempts, backoff)
    assert (rule.delay.source if rule.delay else None) == delay


@pytest.mark.parametrize("retry", ["null", "false", "{enabled: false, max_attempts: 3}"])
def test_a_retry_that_is_switched_off_is_no_rule(retry: str) -> None:
    assert task(retry).rules == ()


def test_it_stands_before_the_rules_of_the_task_and_is_told_as_deprecated() -> None:
    more = ", spec: {policy: {rules: [{else: {then: {do: fail}}}]}}"
    found = task("{max_attempts: 2}", more)
    assert [rule.do for rule in found.rules] == [Action.RETRY, Action.FAIL]
    text = workflow("- {step: s, tool: {kind: noop, retry: {max_attempts: 2, jitter: true, atempts: 1}}}")
    warnings = {one.code: one for one in compiled(text).warnings}
    assert warnings.keys() == {"deprecated_retry", "not_applied", "unknown_key"}
    assert warnings["deprecated_retry"].message == "step 's', task 's_task': write retry as a rule of spec.policy"
    assert warnings["deprecated_retry"].line is not None
