"""`tool` in its four shapes, and policies in their normal form (dsl §2.2, §5.2, §11)."""

from __future__ import annotations

import textwrap

import pytest

from noetl.core.playbook.model import Action, Rule, Task
from noetl.core.playbook.reading.root import ParsedPlaybook, parse_playbook
from tests.support.playbooks import FILE, INSTALLED, workflow


def parsed(tool: str, kinds: frozenset[str] = INSTALLED | {"http"}) -> ParsedPlaybook:
    body = "- step: load\n  tool:\n" + textwrap.indent(textwrap.dedent(tool).strip(), "    ")
    return parse_playbook(workflow(body), file=FILE, kinds=kinds)


def tasks(tool: str) -> tuple[Task, ...]:
    return parsed(tool).playbook.steps[0].tasks


def warned(tool: str) -> list[tuple[str, str]]:
    return [(problem.code, problem.message) for problem in parsed(tool).warnings]


# --- shapes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "label", "is_pipeline"),
    [
        ("{kind: http, url: u}", "load_task", False),
        ("[{name: pull, kind: http, url: u}]", "pull", True),
        ("[{kind: http, url: u}]", "task_0", True),
        ("[{pull: {kind: http, url: u}}]", "pull", True),
    ],
)
def test_four_shapes_give_the_same_task_under_different_labels(tool: str, label: str, is_pipeline: bool) -> None:
    step = parsed(tool).playbook.steps[0]
    assert step.is_pipeline is is_pipeline
    (task,) = step.tasks
    assert task == Task(label=label, kind="http", config={"url": "u"}, input={}, set={}, rules=())


def test_shapes_may_be_mixed_and_labels_count_from_zero() -> None:
    found = tasks("[{kind: noop}, {x: {kind: noop}}, {name: y, kind: noop}, {kind: noop}]")
    assert [task.label for task in found] == ["task_0", "x", "y", "task_3"]


@pytest.mark.parametrize("kind", ["HTTP", "Http", "http"])
def test_a_kind_is_matched_in_any_case(kind: str) -> None:
    assert tasks(f"{{kind: {kind}}}")[0].kind == "http"


@pytest.mark.parametrize("kind", ["postgres", "agent", "task_sequence"])
def test_a_kind_of_the_language_that_is_not_installed_passes_with_a_warning(kind: str) -> None:
    ((code, message),) = warned(f"{{kind: {kind}}}")
    assert code == "unsupported_kind"
    assert message == (
        f"step 'load', task 'load_task': tool kind '{kind}' is not available in this installation; running it fails"
    )


def test_a_plugin_may_bring_a_kind_of_its_own() -> None:
    assert parsed("{kind: teleport}", INSTALLED | {"teleport"}).warnings == ()


def test_common_keys_are_no_configuration_and_all_others_are() -> None:
    (task,) = tasks(
        """
        kind: http
        name: ignored
        desc: text
        input: {a: 1}
        set: {b: 2}
        output: {}
        output_select: [x]
        timeout: 5
        auth: key
        url: u
        headers: {x: y}
        """
    )
    assert task.config == {"auth": "key", "url": "u", "headers": {"x": "y"}}
    assert (task.input, task.set, task.timeout) == ({"a": 1}, {"b": 2}, 5)


def test_timeout_seconds_is_another_word_for_timeout() -> None:
    assert tasks("{kind: http, timeout_seconds: 5}")[0].timeout == 5


def test_a_mapping_of_args_is_input_with_a_warning_and_a_list_is_not() -> None:
    assert tasks("{kind: http, args: {a: 1}}")[0].input == {"a": 1}
    assert warned("{kind: http, args: {a: 1}}") == [
        ("deprecated_args", "step 'load', task 'load_task': use input instead of args")
    ]
    assert tasks("{kind: http, args: [a, b]}")[0].config == {"args": ["a", "b"]}
    assert warned("{kind: http, args: [a, b]}") == []
    assert tasks("{kind: http, args: {a: 1}, input: {b: 2}}")[0].input == {"b": 2}


def test_tool_fields_below_spec_are_hoisted_with_a_warning() -> None:
    tool = "{kind: http, method: GET, spec: {url: u, method: POST, timeout: 3, policy: {}, result: {}}}"
    (task,) = tasks(tool)
    assert task.config == {"url": "u", "method": "GET"}
    assert task.timeout == 3
    assert warned(tool) == [
        ("tool_field_in_spec", "step 'load', task 'load_task': 'url' belongs to the tool, not to spec"),
        ("tool_field_in_spec", "step 'load', task 'load_task': 'method' belongs to the tool, not to spec"),
    ]


def test_a_timeout_in_parts_belongs_to_the_tool_and_spec_need_not_be_a_mapping() -> None:
    parted = tasks("{kind: http, timeout: 9, spec: {timeout: {connect: 1}}}")[0]
    assert (parted.timeout, parted.config) == (9, {"timeout": {"connect": 1}})
    assert tasks("{kind: http, spec: {timeout: {connect: 1}}}")[0].timeout is None
    assert tasks("{kind: http, spec: 7}")[0].rules == ()


# --- policies --------------------------------------------------------------------------------------------


def policy(rules: str) -> str:
    return f"{{kind: noop, spec: {{policy: {{rules: [{rules}]}}}}}}"


@pytest.mark.parametrize(
    ("rule", "normal", "codes"),
    [
        ("{when: x, then: {do: retry}}", Rule(when="x", do=Action.RETRY), []),
        ("{when: true, then: {do: break}}", Rule(when=True, do=Action.BREAK), []),
        ("{when: false, then: {do: fail}}", Rule(when=False, do=Action.FAIL), []),
        ("{else: {then: {do: continue}}}", Rule(when=None, do=Action.CONTINUE), []),
        ("{else: {do: fail}}", Rule(when=None, do=Action.FAIL), ["else_shape"]),
        ("{else: null, then: {do: break}}", Rule(when=None, do=Action.BREAK), ["else_shape"]),
        ("{when: x, then: {}}", Rule(when="x", do=Action.CONTINUE), ["rule_do"]),
        ("{when: x, else: {then: {do: fail}}}", Rule(when=None, do=Action.FAIL), []),
        (
            "{when: x, then: {do: retry, attempts: 5, backoff: fixed, delay: '0.5'}}",
            Rule(when="x", do=Action.RETRY, attempts=5, backoff="fixed", delay="0.5"),
            [],
        ),
        ("{when: x, then: {do: jump, to: prev}}", Rule(when="x", do=Action.JUMP, to="prev"), []),
        ("{when: x, then: {do: continue, to: a}}", Rule(when="x", do=Action.CONTINUE), []),
        (
            "{when: x, then: {do: break, set: {a: 1}, set_ctx: {b: 2}, set_iter: {c: 3}}}",
            Rule(when="x", do=Action.BREAK, set={"a": 1, "ctx.b": 2, "iter.c": 3}),
            ["deprecated_set", "deprecated_set"],
        ),
        ("{when: x, wen: y, then: {do: break}}", Rule(when="x", do=Action.BREAK), ["unknown_key"]),
        ("{when: x, then: {do: break, dleay: 3}}", Rule(when="x", do=Action.BREAK), ["unknown_key"]),
    ],
)
def test_every_way_to_write_a_rule_has_one_normal_form(rule: str, normal: Rule, codes: list[str]) -> None:
    (task,) = tasks(policy(rule))
    assert task.rules == (normal,)
    assert [code for code, _ in warned(policy(rule))] == codes


@pytest.mark.parametrize("backoff", ["none", "fixed", "constant", "linear", "exponential"])
def test_every_backoff_is_known(backoff: str) -> None:
    (task,) = tasks(policy(f"{{when: x, then: {{do: retry, backoff: {backoff}}}}}"))
    assert task.rules[0].backoff == backoff


def test_a_typing_error_in_a_rule_is_named_with_a_suggestion() -> None:
    ((_, message),) = warned(policy("{when: x, then: {do: retry, atempts: 3}}"))
    assert message == (
        "step 'load', task 'load_task', then: unknown key 'atempts' is ignored (did you mean 'attempts'?)"
    )


@pytest.mark.parametrize(
    ("given", "fails"), [("{}", None), ("{on_unmatched: fail}", True), ("{on_unmatched: continue}", False)]
)
def test_what_happens_when_no_rule_matches_can_be_said(given: str, fails: bool | None) -> None:
    assert tasks(f"{{kind: noop, spec: {{policy: {given}}}}}")[0].fails_unmatched is fails


def test_a_jump_goes_to_any_label_of_the_same_pipeline() -> None:
    found = tasks(
        """
        - {name: a, kind: noop, spec: {policy: {rules: [{when: x, then: {do: jump, to: c}}]}}}
        - {b: {kind: noop, spec: {policy: {rules: [{when: x, then: {do: jump, to: previous}}]}}}}
        - {name: c, kind: noop, spec: {policy: {rules: [{when: x, then: {do: jump, to: a}}]}}}
        """
    )
    assert [task.rules[0].to for task in found] == ["c", "previous", "a"]


def test_payload_of_a_playbook_is_an_older_word_for_input() -> None:
    warnings = parsed("{kind: playbook, path: lib/x, payload: {a: 1}}", INSTALLED | {"playbook"}).warnings
    assert [(problem.code, problem.field) for problem in warnings] == [("deprecated_payload", "payload")]
