"""`workbook`: entries replace the tasks that ask for them (dsl §9.8)."""

from __future__ import annotations

import pytest

from noetl.core.playbook.model import Task
from tests.support.playbooks import compiled, document, problems

ENTRIES = {
    "list": """
        workbook:
          - name: greet
            desc: says hello
            input: {who: null, word: hello}
            tool: {kind: python, code: "result = word + who", input: {mark: "!"}, assert: {who: str}}
        """,
    "mapping": """
        workbook:
          greet:
            input: {who: null, word: hello}
            tool: {kind: python, code: "result = word + who", input: {mark: "!"}}
        """,
    "tool itself": """
        workbook:
          greet: {kind: python, code: "result = word + who", input: {who: null, word: hello, mark: "!"}}
        """,
}
ENTRY = ENTRIES["list"]


def text(tool: str, entries: str = ENTRY, more: str = "") -> str:
    return document(entries) + f"workflow:\n- {{step: load, tool: {tool}{more}}}\n"


def task(tool: str, entries: str = ENTRY, more: str = "") -> Task:
    return compiled(text(tool, entries, more)).playbook.steps[0].tasks[0]


def codes(tool: str, more: str = "") -> list[tuple[str, str]]:
    return [(one.code, one.message) for one in compiled(text(tool, more=more)).warnings]


@pytest.mark.parametrize("entries", ENTRIES.values(), ids=ENTRIES)
def test_an_entry_takes_the_place_of_the_task_with_its_defaults(entries: str) -> None:
    found = task("{kind: workbook, name: greet, input: {who: you}}", entries)
    assert (found.kind, found.label) == ("python", "load_task")
    assert dict(found.config) == {"code": "result = word + who"}
    assert dict(found.input) == {"who": "you", "word": "hello", "mark": "!"}


def test_the_input_of_the_step_and_of_the_task_stand_above_the_defaults() -> None:
    found = task("{kind: Workbook, task: greet, input: {who: you}}", more=", input: {word: hi, who: nobody}")
    assert dict(found.input) == {"who": "you", "word": "hi", "mark": "!"}


def test_an_argument_that_is_wanted_and_not_given_stays_unset_with_a_warning() -> None:
    assert dict(task("{kind: workbook, name: greet}").input) == {"word": "hello", "mark": "!"}
    ((code, message),) = codes("{kind: workbook, name: greet}")
    assert code == "workbook_argument"
    assert message == "step 'load', task 'load_task': the workbook entry 'greet' wants 'who' in input"


def test_what_belongs_to_the_task_stays_with_it() -> None:
    rules = "spec: {policy: {rules: [{else: {then: {do: retry, attempts: 7}}}]}}"
    found = task(f"{{kind: workbook, name: greet, input: {{who: x}}, set: {{a: 1}}, timeout: 3, {rules}}}")
    assert (dict(found.set), found.timeout, found.rules[0].attempts) == ({"a": 1}, 3, 7)


def test_in_a_list_the_name_is_label_and_entry_unless_the_entry_is_named_by_task() -> None:
    both = (
        "[{name: greet, kind: workbook, input: {who: a}}, {name: other, kind: workbook, task: greet, input: {who: b}}]"
    )
    first, second = compiled(text(both)).playbook.steps[0].tasks
    assert (first.label, second.label, first.kind, second.kind) == ("greet", "other", "python", "python")


def test_an_unknown_entry_is_refused_with_its_place_and_a_suggestion() -> None:
    (problem,) = problems(text("{kind: workbook, name: gret}"))
    assert problem.code == "unknown_workbook"
    assert "'load_task': name: the workbook has no entry 'gret' (did you mean 'greet'?)" in problem.message
    assert (problem.step, problem.field, problem.line) == ("load", "name", 11)


@pytest.mark.parametrize(
    ("entries", "code", "says"),
    [
        ("workbook: 3", "workbook_shape", "must be a list of {name, tool}"),
        ("workbook: [3]", "workbook_shape", "an entry is a mapping with `name` and `tool`"),
        ("workbook: {a: 3}", "workbook_shape", "workbook entry 'a': must be a mapping with `tool`"),
        ("workbook: {a: {tool: python}}", "workbook_shape", "workbook entry 'a': tool must be a mapping with `kind`"),
        ("workbook: {a: {tool: {kind: workbook}}}", "workbook_shape", "cannot be of kind workbook"),
        ("workbook: {a: {tool: {kind: pyton}}}", "unknown_kind", "unknown tool kind 'pyton' (did you mean 'python'?)"),
        ("workbook: {a: {input: [1], tool: {kind: noop}}}", "input_shape", "input must be a mapping"),
        ("workbook: [{name: a, kind: noop}, {name: a, kind: noop}]", "duplicate_workbook", "is declared twice"),
    ],
)
def test_an_entry_that_is_no_tool_is_refused(entries: str, code: str, says: str) -> None:
    (problem,) = problems(document(entries) + "\nworkflow: [{step: a, next: end}]\n")
    assert problem.code == code
    assert says in problem.message
    assert problem.line is not None


def test_a_field_that_the_use_cannot_change_is_told() -> None:
    ((code, message),) = codes("{kind: workbook, name: greet, input: {who: x}, code: other}")
    assert code == "unknown_key"
    assert "'code' is ignored, the workbook entry 'greet' says what runs" in message
