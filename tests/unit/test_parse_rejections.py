"""Rejections of the language beside those of `test_negative_table.py`: shapes, limits, templates (dsl §1, §2, §3, §5).
Each names step and key, and points to the place.

`»` marks the place at which a finding must point; it is taken out before the text is read."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from noetl.core.errors import Problem
from noetl.core.limits import DOCUMENT_ERRORS_MAX
from tests.support.playbooks import FILE, compiled, document, problems, workflow


class Rejected(NamedTuple):
    code: str
    says: str
    text: str
    step: str | None = None


def step(code: str, says: str, text: str) -> Rejected:
    """A document whose offence is in step `load`."""
    return Rejected(code, says, workflow(text), "load")


def rule(code: str, says: str, text: str) -> Rejected:
    """A document whose offence is in a policy rule of task `pull`."""
    lines = "\n".join(" " * 8 + line for line in text.splitlines())
    before = "- step: load\n  tool:\n    - name: pull\n      kind: noop\n      spec: {policy: {rules: [\n"
    return step(code, says, before + lines + "\n      ]}}\n")


ROOT = [
    Rejected("not_a_playbook", "a playbook is a mapping", "»- 1"),
    Rejected("not_a_playbook", "a playbook is a mapping", "»just text"),
    Rejected(
        "metadata_name",
        "metadata.name is required",
        "»apiVersion: noetl.io/v2\nkind: Playbook\nworkflow: [{step: a, next: end}]",
    ),
    Rejected(
        "metadata_name",
        "must be text in one line",
        'apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: »"a\\0b"}\nworkflow: [{step: a, next: end}]',
    ),
    Rejected(
        "metadata_path",
        "metadata.path must be text",
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x, path: »[a]}\nworkflow: [{step: a, next: end}]",
    ),
    Rejected(
        "keychain_kind",
        "keychain entry 'x' needs a kind",
        document("keychain: [»{name: x}]\nworkflow: [{step: a, next: end}]"),
    ),
    *(
        Rejected(code, says, document(f"limits: {text}\nworkflow: [{{step: a, next: end}}]"))
        for code, says, text in (
            ("limits_shape", "limits: must be a mapping from names", "»[api]"),
            ("limit_shape", "limit 'api': must be a mapping with `rate`", "{api: »50/s}"),
            ("limit_shape", "limit 'api': allows everything", "{api: »{}}"),
            ("limit_rate", "limit 'api': '50/day' is no rate: write 50/s, 600/min", "{api: {rate: »50/day}}"),
            ("limit_rate", "templates are not possible here", "{api: {rate: »'{{ workload.r }}'}}"),
            ("limit_rate", "0 is no rate", "{api: {rate: »0, concurrency: 1}}"),
            ("limit_concurrency", "a whole number from 1 to 1,000,000, not 0", "{api: {concurrency: »0}}"),
            ("limit_concurrency", "not '2'", "{api: {concurrency: »'2'}}"),
            ("limit_name", "one line of at most 100", '{" api": »{rate: 1/s}}'),
        )
    ),
    Rejected(
        "workload_shape", "workload must be a mapping", document("workload: »[1]\nworkflow: [{step: a, next: end}]")
    ),
    Rejected("workflow_empty", "must be a list", document("workflow: »{a: 1}")),
    Rejected("workflow_empty", "must be a list", "»apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x}"),
    Rejected(
        "too_many_steps",
        "1,001 steps, the limit is 1,000",
        document("workflow: »[" + ", ".join(f"{{step: s{n}, next: end}}" for n in range(1_001)) + "]"),
    ),
    Rejected("step_name", "a non-empty `step` name", workflow("- »tool: {kind: noop}")),
    Rejected("step_name", "a non-empty `step` name", workflow("- »{step: 7, next: end}")),
    Rejected("step_name", "a non-empty `step` name", workflow("- »{step: '', next: end}")),
    Rejected("step_name", "a step is a mapping", workflow("- »only text")),
    Rejected(
        "executor_shape",
        "executor and executor.spec must be mappings",
        document("executor: »[1]\nworkflow: [{step: a, next: end}]"),
    ),
    Rejected(
        "executor_shape",
        "executor.spec must be mappings",
        document("executor: »{spec: 1}\nworkflow: [{step: a, next: end}]"),
    ),
    Rejected(
        "executor_shape",
        "no_next_is_error must be true or false",
        document("executor: {spec: {no_next_is_error: »'yes'}}\nworkflow: [{step: a, next: end}]"),
    ),
    Rejected(
        "executor_shape",
        "strict_templates must be true or false",
        document("executor: {spec: {strict_templates: »1}}\nworkflow: [{step: a, next: end}]"),
    ),
    Rejected(
        "timeout",
        "timeout_s must be a number above 0",
        document("executor: {spec: {policy: {defaults: {timeout_s: »0}}}}\nworkflow: [{step: a, next: end}]"),
    ),
    Rejected(
        "timeout",
        "timeout_s must be a number above 0",
        document("executor: {spec: {policy: {defaults: {timeout_s: »true}}}}\nworkflow: [{step: a, next: end}]"),
    ),
    Rejected(
        "timeout",
        "timeout_s must be a number above 0 and at most 31,622,400",
        document("executor: {spec: {policy: {defaults: {timeout_s: »1" + "0" * 400 + "}}}}\nworkflow: [{step: a}]"),
    ),
    Rejected(
        "tool_missing",
        "tool kind 'duckdb' is not available",
        document("executor: {requires: {tools: [noop, »duckdb]}}\nworkflow: [{step: a, next: end}]"),
    ),
    Rejected(
        "executor_shape",
        "executor.requires.tools must be a list",
        document("executor: {requires: »[noop]}\nworkflow: [{step: a, next: end}]"),
    ),
    Rejected(
        "executor_shape",
        "executor.requires.tools must be a list",
        document("executor: {requires: »{tools: noop}}\nworkflow: [{step: a, next: end}]"),
    ),
]

STEPS = [
    step("step_when", "when must be an expression or a boolean", "- {step: load, tool: {kind: noop}, when: »[1]}"),
    step(
        "admit_shape",
        "spec.policy.admit: rules must be a list",
        "- step: load\n  tool: {kind: noop}\n  spec: {policy: {admit: {rules: »{x: 1}}}}",
    ),
    step(
        "admit_allow",
        "then.allow must be true or false, not 1",
        "- step: load\n  tool: {kind: noop}\n  spec: {policy: {admit: {rules: [{when: x, then: {allow: »1}}]}}}",
    ),
    step("set_shape", "arc args must be a mapping", "- {step: load, next: [{step: end, args: »7}]}"),
    step("input_shape", "input must be a mapping", "- {step: load, next: end, input: »[1]}"),
    step("set_shape", "set must be a mapping", "- {step: load, next: end, set: »[1]}"),
    # --- tool
    step("tool_shape", "tool must be a mapping with `kind`", "- {step: load, tool: »{pull: {kind: noop}}}"),
    step("tool_shape", "task 1 has neither `kind` nor one label", "- {step: load, tool: [{kind: noop}, »{url: x}]}"),
    step(
        "tool_shape",
        "task 0 has neither `kind` nor one label",
        "- {step: load, tool: [»{a: {kind: noop}, b: {kind: noop}}]}",
    ),
    step("tool_shape", "task 0 has neither `kind` nor one label", "- {step: load, tool: [»{a: noop}]}"),
    step("tool_shape", "task 0 has neither `kind` nor one label", "- {step: load, tool: [»noop]}"),
    step("unknown_kind", "unknown tool kind None", "- {step: load, tool: {kind: »null}}"),
    step(
        "retry_shape",
        "retry must be a mapping with max_attempts",
        "- {step: load, tool: {kind: noop, retry: »often}}",
    ),
    step(
        "retry_shape",
        "retry.retry_on must be a list",
        "- {step: load, tool: {kind: noop, retry: {retry_on: »{a: 1}}}}",
    ),
    step("backoff", "unknown backoff 'wild'", "- {step: load, tool: {kind: noop, retry: {backoff: »wild}}}"),
    step("input_shape", "task 'load_task': input must be a mapping", "- {step: load, tool: {kind: noop, input: »[1]}}"),
    step("set_shape", "task 'load_task': set must be a mapping", "- {step: load, tool: {kind: noop, set: »[1]}}"),
    step("policy_shape", "spec.policy must be a mapping", "- {step: load, tool: {kind: noop, spec: {policy: »[]}}}"),
    step(
        "policy_shape",
        "spec.policy.rules must be a list",
        "- {step: load, tool: {kind: noop, spec: {policy: {rules: »{}}}}}",
    ),
    step(
        "on_unmatched",
        "unknown on_unmatched 'explode'",
        "- {step: load, tool: {kind: noop, spec: {policy: {on_unmatched: »explode}}}}",
    ),
    # --- next
    step("next_shape", "next must be a step name, a list or a mapping", "- {step: load, tool: {kind: noop}, next: »5}"),
    step("next_shape", "next.arcs must be a list", "- {step: load, tool: {kind: noop}, next: {arcs: »x}}"),
    step(
        "next_shape", "next.arcs must be a list", "- {step: load, tool: {kind: noop}, next: »{spec: {mode: exclusive}}}"
    ),
    step("next_shape", "next.spec must be a mapping", "- {step: load, tool: {kind: noop}, next: {spec: »x, arcs: []}}"),
    step(
        "next_mode",
        "unknown spec.next_mode 'both'",
        "- {step: load, tool: {kind: noop}, spec: {next_mode: »both}, next: end}",
    ),
    step("unknown_step", "an arc leads to 'gone'", "- {step: load, next: [end, »gone]}"),
    step("arc_shape", "an arc is a mapping with `step`", "- {step: load, next: {arcs: [»{when: true}]}}"),
    step("arc_shape", "an arc is a mapping with `step`", "- {step: load, next: [»7]}"),
    step(
        "arc_when", "when must be an expression or a boolean", "- {step: load, next: {arcs: [{step: end, when: »[1]}]}}"
    ),
    step("set_shape", "arc set must be a mapping", "- {step: load, next: {arcs: [{step: end, set: »[1]}]}}"),
    # --- templates
    step("template_refused", "field 'set.n'", "- {step: load, next: end, set: {n: »'{{ x.format() }}'}}"),
    step(
        "template_refused",
        "task 'load_task', field 'url'",
        "- {step: load, tool: {kind: noop, url: »'{{ x.format() }}'}}",
    ),
    step(
        "server_random",
        "'when': the filter random is not allowed",
        "- {step: load, next: [{step: end, when: »'{{ [1, 2] | random }}'}]}",
    ),
    step(
        "server_random",
        "'set.a.b': the filter random is not allowed",
        "- {step: load, next: end, set: {a: {b: »'{{ [1] | random }}'}}}",
    ),
]

RULES = [
    rule("rule_shape", "a rule has `when` and `then`, or `else`", "»{do: retry}"),
    rule("rule_shape", "a rule has `when` and `then`, or `else`", "»text"),
    rule("rule_shape", "`then` must be a mapping", "{when: true, then: »retry}"),
    rule("rule_shape", "`then` must be a mapping", "»{when: true}"),
    rule("rule_shape", "a rule without `when` is written as `else`", "»{then: {do: continue}}"),
    rule("rule_when", "when must be an expression or a boolean", "{when: »[1], then: {do: continue}}"),
    rule("rule_do", "unknown then.do ['retry']", "{when: true, then: {do: »[retry]}}"),
    rule("jump_to", "jump needs `to`, a task label", "{when: true, then: »{do: jump, to: 3}}"),
    rule("backoff", "unknown backoff 'wild'", "{when: true, then: {do: retry, backoff: »wild}}"),
    rule("set_shape", "set must be a mapping", "{when: true, then: {do: retry, set: »[1]}}"),
    rule("set_shape", "set_ctx must be a mapping", "{when: true, then: {do: retry, set_ctx: »1}}"),
]

# Text that is no template may be meant as it stands, or never be reached: it is told, and what evaluates it fails.
TEMPLATES = [
    step("template_invalid", "field 'when'", "- {step: load, next: {arcs: [{step: end, when: »'{{ a b }}'}]}}"),
    step("template_invalid", "field 'when'", "- {step: load, next: {arcs: [{step: end, when: »''}]}}"),
    step("template_invalid", "field 'set.rows'", "- {step: load, next: end, set: {rows: »'{{ }'}}"),
    step("template_invalid", "field 'set.n'", "- {step: load, next: [{step: end, set: {n: »'{{ 1 +'}}]}"),
    step("template_invalid", "field 'set.n'", "- {step: load, tool: {kind: noop, set: {n: »'{{ 1 +'}}}"),
    rule("template_invalid", "field 'when'", "{when: »'{{ a b }}', then: {do: retry}}"),
    rule("template_invalid", "field 'attempts'", "{when: true, then: {do: retry, attempts: »'{{ 1 +'}}"),
    rule("template_invalid", "field 'delay'", "{when: true, then: {do: retry, delay: »'{{ 1 +'}}"),
    rule("template_invalid", "field 'set.n'", "{when: true, then: {do: retry, set: {n: »'{{ 1 +'}}}"),
]


def placed(marked: str) -> tuple[str, int, int]:
    before, mark, after = marked.partition("»")
    assert mark
    return before + after, before.count("\n") + 1, len(before) - before.rfind("\n")


def named(item: Rejected) -> str:
    return item.says[:60]


@pytest.mark.parametrize("item", [*ROOT, *STEPS, *RULES], ids=named)
def test_a_document_that_breaks_a_rule_is_refused_with_its_place(item: Rejected) -> None:
    text, line, column = placed(item.text)
    found = [problem for problem in problems(text) if problem.code == item.code]
    assert found, problems(text)
    problem = found[0]
    assert item.says in problem.message
    assert (problem.file, problem.line, problem.column) == (FILE, line, column)
    assert str(problem).startswith(f"{FILE}:{line}:{column}: ")


@pytest.mark.parametrize("item", [*STEPS, *RULES], ids=named)
def test_a_rejection_names_the_step(item: Rejected) -> None:
    text, _, _ = placed(item.text)
    for problem in problems(text):
        assert problem.step == "load"
        assert "'load'" in problem.message


@pytest.mark.parametrize("item", RULES, ids=named)
def test_a_rejection_of_a_task_names_the_task(item: Rejected) -> None:
    text, _, _ = placed(item.text)
    assert all("'pull'" in problem.message for problem in problems(text))


@pytest.mark.parametrize("item", TEMPLATES, ids=named)
def test_text_that_is_no_template_is_a_warning_with_its_place(item: Rejected) -> None:
    text, line, column = placed(item.text)
    (found,) = (problem for problem in compiled(text).warnings if problem.code == item.code)
    assert item.says in found.message
    assert (found.step, found.line, found.column) == ("load", line, column)


def test_a_long_or_unprintable_step_name_is_refused() -> None:
    assert problems(workflow(f"- {{step: {'x' * 201}, next: end}}"))[0].code == "step_name"
    assert problems(workflow('- {step: "a\\0b", next: end}'))[0].code == "step_name"
    problem = problems(workflow('- {step: "a\\nb", next: end}'))[0]
    assert "one line of at most 200 characters" in problem.message


def test_all_errors_are_found_at_once() -> None:
    text = document(
        """
        vars: {a: 1}
        workflow:
          - {step: a, tool: {kind: htp}, next: b}
          - {step: a, tool: [], case: []}
        """
    )
    codes = [problem.code for problem in problems(text)]
    assert codes == [
        "root_vars",
        "unknown_kind",
        "duplicate_step",
        "retired_step_key",
        "tool_empty",
        "unknown_step",
    ]


def test_templates_that_are_refused_are_found_at_once_too() -> None:
    text = workflow(
        """
        - step: a
          set: {x: "{{ 'a'.format() }}"}
          next: [{step: end, when: "{{ x.__class__ }}"}]
        - {step: b, tool: {kind: noop, set: {y: "{{ y.format() }}"}}}
        """
    )
    assert [problem.field for problem in problems(text)] == ["when", "x", "y"]


def test_a_step_behind_a_broken_one_is_still_found_at_its_own_line() -> None:
    text = workflow("- {tool: {kind: noop}}\n- {step: b, next: gone}\n")
    places: dict[str, Problem] = {problem.code: problem for problem in problems(text)}
    assert places["unknown_step"].line == places["step_name"].line + 1  # type: ignore[operator]


def test_a_thousand_errors_are_found_in_no_time() -> None:
    steps = "".join(f"- {{step: step_{n}, next: stepp_{n}}}\n" for n in range(1_000))
    found = problems(workflow(steps))
    assert len(found) == DOCUMENT_ERRORS_MAX + 1
    assert {problem.code for problem in found[:-1]} == {"unknown_step"}
    assert found[-1].code == "too_many_errors"
