"""The root of a document, its executor and its steps: what is read, and what is warned about."""

from __future__ import annotations

import pytest

from noetl.core.playbook.model import Playbook
from noetl.core.playbook.reading.root import ParsedPlaybook, parse_playbook
from tests.support.playbooks import FILE, INSTALLED, document, workflow

ONE = "workflow: [{step: a, next: end}]"


def parsed(text: str) -> ParsedPlaybook:
    return parse_playbook(text, file=FILE, kinds=INSTALLED)


def playbook(text: str) -> Playbook:
    return parsed(text).playbook


def warnings(text: str) -> dict[str, str]:
    return {problem.code: problem.message for problem in parsed(text).warnings}


# --- root ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["noetl.io/v2", "noetl.io/v10"])
def test_both_names_of_the_language_are_known(version: str) -> None:
    text = f"apiVersion: {version}\nkind: Playbook\nmetadata: {{name: x}}\n{ONE}"
    assert playbook(text).name == "x"
    assert parsed(text).warnings[0].code == "implicit_noop"


@pytest.mark.parametrize(
    ("metadata", "path"),
    [
        ("{name: x}", "x"),
        ("{name: x, path: demo/x}", "demo/x"),
        ("{name: x, path: }", "x"),
        ("{name: x, path: ''}", "x"),
    ],
)
def test_the_path_is_the_name_unless_given(metadata: str, path: str) -> None:
    text = f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {metadata}\n{ONE}"
    assert playbook(text).path == path


def test_metadata_is_free() -> None:
    text = f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: x, tags: [a], agent: true}}\n{ONE}"
    assert playbook(text).metadata == {"name": "x", "tags": ["a"], "agent": True}


@pytest.mark.parametrize(
    ("workload", "value"), [("", {}), ("workload:", {}), ("workload: {a: {b: 1}}", {"a": {"b": 1}})]
)
def test_the_workload_is_a_mapping_of_defaults(workload: str, value: object) -> None:
    assert playbook(document(f"{workload}\n{ONE}")).workload == value


@pytest.mark.parametrize("key", ["keychain", "workbook", "limits"])
def test_an_empty_part_that_is_not_supported_is_no_harm(key: str) -> None:
    assert playbook(document(f"{key}: \n{ONE}")).entry == "a"


def test_root_spec_is_a_name_for_templates_with_a_warning() -> None:
    text = document(f"spec: {{city: Bern}}\ntracing: {{on: true}}\n{ONE}")
    assert playbook(text).spec == {"city": "Bern"}
    assert warnings(text)["deprecated_root_key"] == "root key 'tracing' is deprecated"
    assert playbook(document(f"spec: 7\n{ONE}")).spec is None


def test_an_unknown_root_key_is_ignored_with_a_suggestion() -> None:
    message = warnings(document(f"worklaod: {{a: 1}}\n{ONE}"))["unknown_root_key"]
    assert message == "unknown root key 'worklaod' is ignored (did you mean 'workload'?)"


def test_a_key_that_is_given_twice_is_warned_about_at_its_place() -> None:
    found = parsed(document(f"workload:\n  a: 1\n  a: 2\n{ONE}"))
    (warning,) = [problem for problem in found.warnings if problem.code == "duplicate_key"]
    assert warning.message == "the key 'a' is given twice: the last one counts"
    assert (warning.file, warning.line, warning.column) == (FILE, 6, 6)
    assert found.playbook.workload == {"a": 2}


# --- executor --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("executor", "steps", "entry"),
    [
        ("", "[{step: a, next: end}, {step: b, next: end}]", "a"),
        ("", "[{step: a, next: end}, {step: start, next: end}]", "start"),
        ("executor: {spec: {entry_step: b}}", "[{step: start, next: end}, {step: b, next: end}]", "b"),
        ("executor: {profile: local}", "[{step: a, next: end}]", "a"),
        ("executor: {spec: }", "[{step: a, next: end}]", "a"),
    ],
)
def test_the_entry_is_named_else_start_else_the_first(executor: str, steps: str, entry: str) -> None:
    assert playbook(document(f"{executor}\nworkflow: {steps}")).entry == entry


def test_the_executor_has_four_settings_that_count() -> None:
    spec = "{final_step: a, no_next_is_error: true, strict_templates: true, policy: {defaults: {timeout_s: 7}}}"
    found = playbook(document(f"executor: {{spec: {spec}}}\n{ONE}"))
    assert found.final_step == "a"
    assert found.no_next_is_error is True
    assert found.strict_templates is True
    assert found.task_timeout_seconds == 7.0


def test_the_executor_has_defaults() -> None:
    found = playbook(document(f"executor: {{spec: {{policy: {{limits: 1, defaults: 2}}}}}}\n{ONE}"))
    assert found.final_step is None
    assert found.no_next_is_error is False
    assert found.strict_templates is False
    assert found.task_timeout_seconds is None


def test_required_tools_that_are_there_are_fine_and_features_are_unknown() -> None:
    text = document(f"executor: {{requires: {{tools: [NOOP, python], features: [x]}}}}\n{ONE}")
    assert "no features are known" in warnings(text)["unknown_feature"]
    assert "unknown_feature" not in warnings(document(f"executor: {{requires: {{tools: []}}}}\n{ONE}"))


# --- steps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tests/retry/simple_config", "with space", "ünïcode", "a#1", "x.y", "s" * 200])
def test_a_step_name_is_any_line_of_text(name: str) -> None:
    assert playbook(workflow(f"- {{step: {name!r}, next: end}}")).steps[0].name == name


def test_a_step_with_only_next_does_nothing_with_a_warning() -> None:
    text = workflow("- {step: a, next: end, input: {x: 1}}")
    (task,) = playbook(text).steps[0].tasks
    assert (task.kind, task.label, task.input) == ("noop", "a_task", {"x": 1})
    assert warnings(text)["implicit_noop"] == "step 'a': has no tool and does nothing"


def test_step_args_are_input_with_a_warning() -> None:
    text = workflow("- {step: a, tool: {kind: noop}, args: {x: 1}}")
    assert playbook(text).steps[0].tasks[0].input == {"x": 1}
    assert warnings(text)["deprecated_args"] == "step 'a': use input instead of args"


def test_the_keys_of_a_task_win_over_those_of_its_step() -> None:
    text = workflow("- {step: a, tool: {kind: noop, input: {x: 2, y: 3}}, input: {x: 1, z: 4}}")
    assert playbook(text).steps[0].tasks[0].input == {"x": 2, "y": 3, "z": 4}


def test_an_unknown_step_key_is_ignored_with_a_suggestion() -> None:
    text = workflow("- {step: a, tool: {kind: noop}, nxet: b, desc: text, output: {}}")
    assert warnings(text) == {"unknown_step_key": "step 'a': unknown key 'nxet' is ignored (did you mean 'next'?)"}


def test_whether_a_step_has_a_next_key_at_all_is_remembered() -> None:
    steps = playbook(workflow("- {step: a, next: }\n- {step: b, tool: {kind: noop}}")).steps
    assert steps[0].next is not None
    assert steps[0].next.arcs == ()
    assert steps[1].next is None
