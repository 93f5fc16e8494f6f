"""Each limit has a name, and whoever meets it is told which, where, and what it was that was too much."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from noetl.cli.limits_page import VISIBLE, limits_markdown
from noetl.core import limits
from noetl.core.errors import PlaybookInvalid, Problem, TemplateInvalid, TemplateRefused
from noetl.core.expression import compile_template, render
from tests.support.playbooks import compiled, document, graph, problems, step, workflow

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "limits.md"


def only(text: str) -> Problem:
    (problem,) = problems(text)
    return problem


def refused(text: str, code: str, *says: str) -> Problem:
    problem = only(text)
    assert problem.code == code
    for words in says:
        assert words in problem.message
    return problem


# --- documents -------------------------------------------------------------------------------------------


def test_document_size() -> None:
    text = document("# " + "x" * limits.DOCUMENT_BYTES_MAX)
    size = len(text.encode())
    refused(text, "document_too_large", f"{size:,} bytes", "the limit is 1,000,000")


def test_document_size_with_aliases_written_out() -> None:
    text = document(f"a: &a {'x' * 20_000}\nb: [{', '.join(['*a'] * 60)}]")
    problem = refused(text, "document_too_complex", "larger than 1,000,000 bytes", "aliases")
    assert problem.line == 4


def test_document_depth() -> None:
    depth = limits.DOCUMENT_DEPTH_MAX + 1
    problem = refused(document("a: " + "[" * depth + "]" * depth), "document_too_complex", "deeper than 32 levels")
    assert (problem.line, problem.column) == (4, 4 + limits.DOCUMENT_DEPTH_MAX)


def test_document_aliases() -> None:
    text = document(f"a: &a [1]\nb: [{', '.join(['*a'] * (limits.DOCUMENT_ALIASES_MAX + 1))}]")
    problem = refused(text, "document_too_complex", "more than 100 aliases")
    assert problem.line is not None


def test_document_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl.core.playbook.document.DOCUMENT_NODES_MAX", 500)
    problem = refused(document(f"a: [{', '.join(['x'] * 600)}]"), "document_too_complex", "more than 500 values")
    assert problem.line == 4


def test_document_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl.core.playbook.document.DOCUMENT_TEMPLATES_MAX", 5)
    lines = "".join(f"  k{number}: '{{{{ x }}}}'\n" for number in range(6))
    problem = refused(document(f"workload:\n{lines}"), "document_too_complex", "more than 5 templates")
    assert (problem.line, problem.column) == (10, 7)


def test_a_document_of_a_million_bytes_in_one_template_is_a_warning_and_no_crash() -> None:
    text = workflow("- step: s\n  tool:\n    kind: noop\n    x: '{{ " + "a" * (limits.TEMPLATE_CHARS_MAX + 1) + " }}'")
    (warning,) = compiled(text).warnings
    assert warning.code == "template_invalid"
    assert "the template has 256,007 characters, the limit is 256,000" in warning.message
    assert "step 's', task 's_task', field 'x'" in warning.message
    assert warning.line == 9


# --- playbooks -------------------------------------------------------------------------------------------


def test_steps() -> None:
    text = graph(*(step(f"s{number}") for number in range(limits.STEPS_MAX + 1)))
    problem = refused(text, "too_many_steps", "1,001 steps", "the limit is 1,000")
    assert problem.line == 6


def test_the_length_of_a_step_name() -> None:
    problem = refused(graph(step("x" * 201)), "step_name", "at most 200 characters", "this one has 201")
    assert (problem.line, problem.field) == (6, "step")


def test_arcs_of_a_step() -> None:
    targets = ", ".join(["end"] * (limits.ARCS_PER_STEP_MAX + 1))
    problem = refused(workflow(f"- {{step: s, next: [{targets}]}}"), "too_many_arcs", "201 arcs", "the limit is 200")
    assert (problem.step, problem.line) == ("s", 6)


def test_arcs_of_a_playbook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl.core.playbook.reading.steps.ARCS_MAX", 3)
    refused(graph(step("a", "b", "b"), step("b", "a", "a")), "too_many_arcs", "4 arcs", "the limit is 3")


def test_a_thousand_steps_that_all_lead_to_each_other_are_refused() -> None:
    names = [f"s{number}" for number in range(150)]
    everywhere = ", ".join(names)
    text = workflow("".join(f"- {{step: {name}, next: [{everywhere}]}}\n" for name in names))
    refused(text, "too_many_arcs", "22,500 arcs", "the limit is 20,000")
    # The same with aliases, which cost no bytes.
    steps = "".join(f"- {{step: s{number}, next: *all}}\n" for number in range(1, 1_000))
    text = workflow(f"- {{step: s0, next: &all [{', '.join(f's{number}' for number in range(200))}]}}\n{steps}")
    with pytest.raises(PlaybookInvalid, match="more than 100 aliases"):
        compiled(text)


def test_tasks_of_a_step() -> None:
    tasks = "[" + ", ".join(["{kind: noop}"] * (limits.TASKS_PER_STEP_MAX + 1)) + "]"
    problem = refused(workflow(f"- {{step: s, tool: {tasks}}}"), "too_many_tasks", "201 tasks", "the limit is 200")
    assert (problem.step, problem.line) == ("s", 6)


def test_tasks_of_a_playbook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl.core.playbook.reading.steps.TASKS_MAX", 3)
    text = workflow("- {step: a, tool: [{kind: noop}, {kind: noop}]}\n- {step: b, tool: [{kind: noop}, {kind: noop}]}")
    refused(text, "too_many_tasks", "4 tasks", "the limit is 3")


def test_rules_of_a_task() -> None:
    rules = "[" + ", ".join(["{when: true, then: {do: continue}}"] * (limits.RULES_PER_TASK_MAX + 1)) + "]"
    text = workflow(f"- {{step: s, tool: {{kind: noop, spec: {{policy: {{rules: {rules}}}}}}}}}")
    problem = refused(text, "too_many_rules", "step 's', task 's_task'", "101 rules", "the limit is 100")
    assert (problem.step, problem.field) == ("s", "rules")


def test_rules_of_admission() -> None:
    rules = "[" + ", ".join(["{when: true, then: {allow: true}}"] * (limits.RULES_PER_TASK_MAX + 1)) + "]"
    text = workflow(f"- {{step: s, tool: {{kind: noop}}, spec: {{policy: {{admit: {{rules: {rules}}}}}}}}}")
    refused(text, "too_many_rules", "step 's', spec.policy.admit", "101 rules", "the limit is 100")


def test_entries_of_the_keychain() -> None:
    entries = "".join(f"- {{name: k{number}, kind: static, map: {{a: 1}}}}\n" for number in range(101))
    text = workflow("- {step: s, tool: {kind: noop}}", f"keychain:\n{entries}")
    refused(text, "keychain_shape", "101 entries", "the limit is 100")


def test_entries_of_the_workbook() -> None:
    entries = "".join(f"- {{name: w{number}, tool: {{kind: noop}}}}\n" for number in range(1_001))
    text = workflow("- {step: s, tool: {kind: noop}}", f"workbook:\n{entries}")
    refused(text, "workbook_shape", "1,001 entries", "the limit is 1,000")


def test_errors_and_warnings_that_are_told() -> None:
    many = problems(workflow("".join(f"- {{step: s{number}, next: nowhere}}\n" for number in range(300))))
    assert len(many) == limits.DOCUMENT_ERRORS_MAX + 1
    assert "more errors than the 200 above" in many[-1].message
    warned = compiled(workflow("".join(f"- {{step: s{number}, next: end}}\n" for number in range(300)))).warnings
    assert len(warned) == limits.DOCUMENT_WARNINGS_MAX + 1
    assert "more warnings than the 200 above" in warned[-1].message


def test_what_a_document_says_is_quoted_only_so_far() -> None:
    problem = only(workflow(f"- {{step: s, tool: {{kind: {'x' * 50_000}}}}}"))
    assert problem.code == "unknown_kind"
    assert len(problem.message) == limits.ERROR_MESSAGE_CHARS_MAX


# --- templates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ " + "x" * limits.TEMPLATE_CHARS_MAX + " }}", "the template has 256,006 characters, the limit is 256,000"),
        ("{{ [" + ",".join(["a"] * 4_999) + "] }}", "more than 5,000 parts"),
        ("{{ " + "a, " * 6_000 + " }}", "more than 10,000 words"),
        ("{{ " + "(" * 33 + "a" + ")" * 33 + " }}", "more than 32 brackets are open at once"),
        ("{{ " + "not " * 60 + "a }}", "over 50 levels"),
        ("{{ " + "9" * 2_000 + " }}", "4,096 bits at most"),
    ],
)
def test_the_size_of_a_template(source: str, says: str) -> None:
    with pytest.raises(TemplateInvalid, match=re.escape(says)):
        compile_template(source)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ 'ab' * 600000 }}", "1,200,000 characters, the limit is 1,000,000"),
        ("{{ (range(100000) | list) * 11 }}", "1,100,000 items, the limit is 1,000,000"),
        ("{{ range(200000) }}", "at most 100,000 numbers"),
        ("{{ 2 ** 5000 }}", "at most 4,096 bits"),
        ("{{ 'a' | center(20000) }}", "0 to 10,000"),
        ("{{ rows | sort | sort | sort }}", "too much work, the limit is 1,000,000 elements"),
    ],
)
def test_what_a_template_makes(source: str, says: str) -> None:
    with pytest.raises(TemplateRefused, match=re.escape(says)):
        render(compile_template(source), {"rows": list(range(60_000, 0, -1))})


# --- the page --------------------------------------------------------------------------------------------


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == limits_markdown(), "run: python -m noetl.cli.reference"


def test_every_limit_of_documents_and_templates_is_on_the_page() -> None:
    told = {name for section in VISIBLE.values() for name in section}
    own = {name for name in vars(limits) if name.startswith(("DOCUMENT_", "TEMPLATE_", "ARCS_", "TASKS_", "RULES_"))}
    assert own <= told
    assert all(isinstance(getattr(limits, name), int | float) for name in told)
