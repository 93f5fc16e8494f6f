"""The two tables of the language about forms that are not right (dsl §11, and the documents that §1.1 refuses).

The keys are the words of these tables; `tests/language/test_coverage.py` knows them too and misses none.  A rejected
form is a minimal document: it has one error, which names the step (and the task) and the key.  `»` marks the place at
which a finding must point.  A form with a warning stands beside the one that it is treated as."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

import pytest

from noetl.core.errors import PlaybookInvalid, Problem
from noetl.core.playbook.model import Arc, Mode, Next
from noetl.core.playbook.reading.root import ParsedPlaybook, parse_playbook
from noetl.engine.work.pipeline.retry import retry_delay
from tests.support.playbooks import FILE, HEAD

KINDS = frozenset(("noop", "python", "http", "postgres", "playbook"))


class Rejected(NamedTuple):
    code: str
    text: str
    names: tuple[str, ...]
    """What the message must name: the key, and the task if the error is in one.  The step is always `load`."""


class Warned(NamedTuple):
    code: str | None
    """None: the language calls the form a regular one, it is accepted in silence."""
    form: str
    treated_as: str
    step: str | None = "load"


def document(body: str) -> str:
    return HEAD + textwrap.dedent(body).strip("\n") + "\n"


def steps(text: str) -> str:
    return document("workflow:\n" + textwrap.indent(textwrap.dedent(text).strip("\n"), "  "))


def one(text: str) -> str:
    """A document with the step `load`, of which the rest is given."""
    return steps("- step: load\n" + textwrap.indent(textwrap.dedent(text).strip("\n"), "  "))


def noop(text: str) -> str:
    return one("tool: {kind: noop}\n" + textwrap.dedent(text).strip("\n"))


def task(text: str, kind: str = "noop") -> str:
    """A document with the task `pull` of the step `load`, of which the rest is given."""
    return one(
        f"tool:\n  - name: pull\n    kind: {kind}\n" + textwrap.indent(textwrap.dedent(text).strip("\n"), "    ")
    )


def rule(text: str) -> str:
    return task(f"spec:\n  policy:\n    rules:\n      - {text}")


def refused(text: str) -> tuple[str, list[Problem], tuple[int, int]]:
    """The errors of a document, and the place of its mark."""
    before, mark, after = text.partition("»")
    assert mark, text
    with pytest.raises(PlaybookInvalid) as caught:
        parse_playbook(before + after, file=FILE, kinds=KINDS)
    place = before.count("\n") + 1, len(before) - before.rfind("\n")
    return before + after, caught.value.problems, place


def read(text: str) -> ParsedPlaybook:
    return parse_playbook(text.replace("»", ""), file=FILE, kinds=KINDS)


# --- rejected at registration ------------------------------------------------------------------------------

DOCUMENTS = {
    "YAML error": Rejected("yaml_invalid", HEAD + "workflow: »]", ("YAML",)),
    "apiVersion": Rejected(
        "api_version",
        HEAD.replace("noetl.io/v2", "»noetl.io/v1") + "workflow: [{step: a, next: end}]",
        ("'noetl.io/v1'",),
    ),
    "kind": Rejected(
        "document_kind",
        HEAD.replace("Playbook", "»Subscription") + "workflow: [{step: a, next: end}]",
        ("'Subscription'",),
    ),
    "metadata.name": Rejected(
        "metadata_name",
        HEAD.replace("{name: demo}", "»{path: x}") + "workflow: [{step: a, next: end}]",
        ("metadata.name",),
    ),
    "empty `workflow`": Rejected("workflow_empty", document("workflow: »[]"), ("workflow",)),
    "root `vars`": Rejected(
        "root_vars", document("vars: »{a: 1}\nworkflow: [{step: a, next: end}]"), ("'vars'", "workload", "ctx")
    ),
    "executor.spec.entry_step": Rejected(
        "unknown_step",
        document("executor: {spec: {entry_step: »laod}}\nworkflow: [{step: load, next: end}]"),
        ("executor.spec.entry_step", "'laod'", "did you mean 'load'?"),
    ),
    "executor.spec.final_step": Rejected(
        "unknown_step",
        document("executor: {spec: {final_step: »gone}}\nworkflow: [{step: a, next: end}]"),
        ("executor.spec.final_step", "'gone'"),
    ),
    "executor.requires.tools": Rejected(
        "tool_missing",
        document("executor: {requires: {tools: [»rhai]}}\nworkflow: [{step: a, next: end}]"),
        ("executor.requires.tools", "'rhai'"),
    ),
}

REJECTED = {
    "duplicate step names": Rejected(
        "duplicate_step", steps("- {step: load, tool: {kind: noop}}\n- {step: »load, tool: {kind: noop}}"), ("twice",)
    ),
    "duplicate task labels": Rejected(
        "duplicate_label", one("tool: [{name: pull, kind: noop}, »{pull: {kind: noop}}]"), ("'pull'", "label")
    ),
    "jump to an absent label": Rejected(
        "unknown_label", rule("{when: true, then: {do: jump, to: »pul}}"), ("'pull'", "jump", "'pul'", "mean 'pull'?")
    ),
    "unknown arc target": Rejected(
        "unknown_step", noop("next: {arcs: [{step: »laod}]}"), ("arc", "'laod'", "did you mean 'load'?")
    ),
    "unknown `next`": Rejected("unknown_step", noop("next: »gone"), ("arc", "'gone'")),
    "step `case`": Rejected("retired_step_key", noop("case: »[]"), ("'case'", "next.arcs")),
    "step `type`": Rejected("retired_step_key", noop("type: »http"), ("'type'", "tool.kind")),
    "step `vars`": Rejected("retired_step_key", noop("vars: »{a: 1}"), ("'vars'", "set")),
    "step `sink`": Rejected("retired_step_key", noop("sink: »{}"), ("'sink'",)),
    "step-level `retry`": Rejected("retired_step_key", noop("retry: »{max_attempts: 2}"), ("'retry'", "spec.policy")),
    "step `result`": Rejected("retired_step_key", noop("result: »{}"), ("'result'", "set")),
    "step `outcome`": Rejected("retired_step_key", noop("outcome: »{}"), ("'outcome'", "set")),
    "tool `eval`": Rejected("retired_task_key", task("eval: »[]"), ("'pull'", "'eval'", "spec.policy.rules")),
    "`expr` in rules": Rejected(
        "rule_expr", rule("{when: true, expr: »x, then: {do: break}}"), ("'pull'", "'expr'", "when")
    ),
    "`expr` in arcs": Rejected(
        "retired_arc_key", noop("next: {arcs: [{step: end, expr: »x}]}"), ("arc", "'expr'", "when")
    ),
    "`set_vars` of a step": Rejected("retired_step_key", noop("set_vars: »{a: 1}"), ("'set_vars'", "set")),
    "`set_vars` of a task": Rejected("retired_task_key", task("set_vars: »{a: 1}"), ("'pull'", "'set_vars'", "set")),
    "`set_vars` of a rule": Rejected(
        "retired_task_key", rule("{when: true, then: {do: break, set_vars: »{}}}"), ("'pull'", "set_vars", "set")
    ),
    "`set_vars` of an arc": Rejected(
        "retired_arc_key", noop("next: {arcs: [{step: end, set_vars: »{}}]}"), ("arc", "'set_vars'", "set")
    ),
    "`spec.next_mode` with another `next.spec.mode`": Rejected(
        "next_mode",
        noop("spec: {next_mode: inclusive}\nnext: {spec: {mode: »exclusive}, arcs: [{step: end}]}"),
        ("spec.next_mode", "next.spec.mode"),
    ),
    "scalar `tool`": Rejected("tool_shape", one("tool: »http\nurl: x"), ("tool", "`kind`")),
    "empty list of tools": Rejected("tool_empty", one("tool: »[]"), ("tools",)),
    "tool without `kind`": Rejected("tool_shape", one("tool: [»{name: pull, url: x}]"), ("task 0", "`kind`")),
    "step with neither `tool` nor `next`": Rejected(
        "tool_required", steps("- »step: load\n  desc: nothing"), ("`tool`", "`next`")
    ),
    "`loop` without `iterator`": Rejected("loop_iterator", noop("loop: »{in: [1]}"), ("loop.iterator",)),
    "`loop` with both `in` and `cursor`": Rejected(
        "loop_source",
        noop("loop: »{in: [1], cursor: {auth: pg, claim: SELECT 1}, iterator: row}"),
        ("`in`", "`cursor`"),
    ),
    "`loop` with neither `in` nor `cursor`": Rejected(
        "loop_source", noop("loop: »{iterator: row}"), ("`in`", "`cursor`")
    ),
    "unknown `loop.spec.mode`": Rejected(
        "loop_mode",
        noop("loop: {in: [1], iterator: row, spec: {mode: »paralel}}"),
        ("loop.spec.mode", "'paralel'", "mean 'parallel'?"),
    ),
    "unknown `next.spec.mode`": Rejected(
        "next_mode", noop("next: {spec: {mode: »some}, arcs: [{step: end}]}"), ("next.spec.mode", "'some'")
    ),
    "unknown `then.do`": Rejected(
        "rule_do", rule("{when: true, then: {do: »retyr}}"), ("'pull'", "then.do", "'retyr'", "mean 'retry'?")
    ),
    "unknown `on_no_match`": Rejected(
        "on_no_match", noop("next: {spec: {on_no_match: »panic}, arcs: [{step: end}]}"), ("on_no_match", "'panic'")
    ),
    "`jump` without `to`": Rejected("jump_to", rule("{when: true, then: »{do: jump}}"), ("'pull'", "jump", "`to`")),
    "unknown tool kind": Rejected(
        "unknown_kind", one("tool: [{name: pull, kind: »htpp}]"), ("'pull'", "kind", "'htpp'", "mean 'http'?")
    ),
    "unknown workbook name": Rejected(
        "unknown_workbook",
        document(
            "workbook: [{name: greet, tool: {kind: noop}}]\n"
            "workflow: [{step: load, tool: [{pull: {kind: workbook, name: »gret}}]}]"
        ),
        ("'pull'", "workbook", "'gret'"),
    ),
    "direct connection fields of postgres": Rejected(
        "connection_field", task("db_host: »localhost", "postgres"), ("'pull'", "'db_host'", "auth")
    ),
}


@pytest.mark.parametrize("words", DOCUMENTS)
def test_a_document_is_rejected_as_a_whole(words: str) -> None:
    row = DOCUMENTS[words]
    _, problems, place = refused(row.text)
    assert [problem.code for problem in problems] == [row.code]
    (problem,) = problems
    assert (problem.file, problem.line, problem.column) == (FILE, *place)
    for name in row.names:
        assert name in problem.message


@pytest.mark.parametrize("words", REJECTED)
def test_a_form_is_rejected_by_a_message_that_names_step_and_key(words: str) -> None:
    row = REJECTED[words]
    _, problems, place = refused(row.text)
    assert [problem.code for problem in problems] == [row.code]
    (problem,) = problems
    assert (problem.file, problem.line, problem.column) == (FILE, *place)
    assert problem.step == "load"
    for name in ("'load'", *row.names):
        assert name in problem.message


def test_the_target_end_need_not_exist() -> None:
    assert read(noop("next: {arcs: [{step: end}]}")).playbook.steps[0].next == Next(
        mode=Mode.EXCLUSIVE, arcs=(Arc(step="end"),)
    )


# --- accepted with a warning -------------------------------------------------------------------------------

OWN_RULE = "{when: '{{ output.data }}', then: {do: break}}"
FAILED = "output.status == 'error'"

WARNED = {
    "`else` without `then`": Warned(
        "else_shape", rule("»else: {do: fail, set: {a: 1}}"), rule("else: {then: {do: fail, set: {a: 1}}}")
    ),
    "`{else: null, then: …}`": Warned(
        "else_shape", rule("»{else: null, then: {do: break}}"), rule("else: {then: {do: break}}")
    ),
    "tool fields inside `spec`": Warned(
        "tool_field_in_spec",
        task("spec: {url: »u, policy: {rules: []}, timeout: 3}", "http"),
        task("url: u\ntimeout: 3", "http"),
    ),
    "`credential:` on postgres": Warned(
        "deprecated_credential", task("credential: »pg\nquery: q", "postgres"), task("auth: pg\nquery: q", "postgres")
    ),
    "tool `args`": Warned("deprecated_args", task("args: »{a: 1}"), task("input: {a: 1}")),
    "`payload` on playbook": Warned(
        "deprecated_payload",
        task("path: p\npayload: »{a: 1}", "playbook"),
        task("path: p\ninput: {a: 1}", "playbook"),
    ),
    "tool-level `retry`": Warned(
        "deprecated_retry",
        task(f"retry: »{{max_attempts: 4, backoff: linear, delay: 0.5}}\nspec: {{policy: {{rules: [{OWN_RULE}]}}}}"),
        task(
            "spec:\n  policy:\n    rules:\n"
            f'      - {{when: "{FAILED}", then: {{do: retry, attempts: 4, backoff: linear, delay: 0.5}}}}\n'
            f"      - {OWN_RULE}"
        ),
    ),
    "arc `cond`": Warned(
        "arc_cond", noop("next: {arcs: [{step: end, cond: »x}]}"), noop("next: {arcs: [{step: end, when: x}]}")
    ),
    "`libs` list": Warned("libs_ignored", task("code: c\nlibs: »[requests]", "python"), task("code: c", "python")),
    "python-task `iterator`": Warned(
        "iterator_ignored",
        task("code: c\niterator: »{items: '{{ xs }}', item: x}", "python"),
        task("code: c", "python"),
    ),
    "`set_ctx`": Warned(
        "deprecated_set",
        rule("else: {then: {do: break, set_ctx: »{a: 1}}}"),
        rule("else: {then: {do: break, set: {ctx.a: 1}}}"),
    ),
    "`set_iter`": Warned(
        "deprecated_set",
        rule("else: {then: {do: break, set_iter: »{a: 1}}}"),
        rule("else: {then: {do: break, set: {iter.a: 1}}}"),
    ),
    "step `args`": Warned("deprecated_args", noop("args: »{a: 1}"), noop("input: {a: 1}")),
    "`next` with one arc": Warned(
        "next_shape", noop("next: »{step: end, when: x}"), noop("next: {arcs: [{step: end, when: x}]}")
    ),
    "`loop.mode`": Warned(
        "loop_mode_place",
        noop("loop: {in: [1], iterator: x, mode: »parallel}"),
        noop("loop: {in: [1], iterator: x, spec: {mode: parallel}}"),
    ),
    "`loop.concurrency`": Warned(
        "loop_mode_place",
        noop("loop: {in: [1], iterator: x, spec: {mode: parallel}, concurrency: »3}"),
        noop("loop: {in: [1], iterator: x, spec: {mode: parallel, max_in_flight: 3}}"),
    ),
    "step without `tool`": Warned("implicit_noop", one("next: end").replace("- step", "- »step"), noop("next: end")),
    "`then` without `do`": Warned(
        "rule_do", rule("{when: x, then: »{set: {a: 1}}}"), rule("{when: x, then: {do: continue, set: {a: 1}}}")
    ),
    "unknown root key": Warned(
        "unknown_root_key",
        document("worklaod: »{a: 1}\nworkflow: [{step: load, tool: {kind: noop}}]"),
        document("workflow: [{step: load, tool: {kind: noop}}]"),
        step=None,
    ),
    "root `tracing`": Warned(
        "deprecated_root_key",
        document("tracing: »{on: true}\nworkflow: [{step: load, tool: {kind: noop}}]"),
        document("workflow: [{step: load, tool: {kind: noop}}]"),
        step=None,
    ),
    "unknown step key": Warned("unknown_step_key", noop("url: »u"), noop("")),
    # Regular forms, by the sections that define them.
    "`next` list of names": Warned(
        None, noop("next: [load, end]"), noop("next: {spec: {mode: inclusive}, arcs: [{step: load}, {step: end}]}")
    ),
    "`next` list of arcs": Warned(
        None,
        noop("next: [{step: end, when: x}]"),
        noop("next: {spec: {mode: exclusive}, arcs: [{step: end, when: x}]}"),
    ),
    "`next` string": Warned(None, noop("next: end"), noop("next: {arcs: [{step: end}]}")),
    "label-as-key tasks": Warned(None, one("tool: [{pull: {kind: noop, result: 1}}]"), task("result: 1")),
}


@pytest.mark.parametrize("words", WARNED)
def test_a_form_is_accepted_and_treated_as_another(words: str) -> None:
    row = WARNED[words]
    found = read(row.form)
    assert found.playbook == read(row.treated_as).playbook
    assert [problem.code for problem in found.warnings] == [code for code in (row.code,) if code]
    assert row.code is not None or "»" not in row.form
    for problem in found.warnings:
        before = row.form.partition("»")[0]
        assert (problem.line, problem.column) == (before.count("\n") + 1, len(before) - before.rfind("\n"))
        assert problem.file == FILE
        assert problem.step == row.step
        assert row.step is None or "'load'" in problem.message


def test_the_forms_beside_them_need_no_warning() -> None:
    for row in WARNED.values():
        assert read(row.treated_as).warnings == ()


# The rest of the table: these are names and values, whose treatment shows when they are used.
OTHERS = {
    "`when: true` (boolean)": "test_a_boolean_is_a_constant_condition",
    "`backoff: fixed`": "test_a_fixed_backoff_is_a_constant_delay",
    "root `spec` as inputs": "test_root_spec_is_a_name",
    "arc `args`": "test_arc_args_are_kept_with_a_warning",
    "`output_select` lists": "test_output_select_is_accepted_at_tool_and_step",
    "templates in `frame` numbers": "test_frame_numbers_may_be_templates",
    "`result` / `response` names": "test_11_result_and_response_are_the_completing_or_requesting_step",
    "`outcome`": "test_11_outcome_is_output",
    "`event.name == 'step.done'`": "test_11_every_synonym_of_an_event_name_is_equal",
}


@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_is_a_constant_condition(value: bool) -> None:
    text = str(value).lower()
    found = read(rule(f"{{when: {text}, then: {{do: break}}}}"))
    assert found.playbook.steps[0].tasks[0].rules[0].when is value
    arc = read(noop(f"next: {{arcs: [{{step: end, when: {text}}}]}}"))
    assert arc.playbook.steps[0].next == Next(mode=Mode.EXCLUSIVE, arcs=(Arc(step="end", when=value),))
    assert (found.warnings, arc.warnings) == ((), ())


def test_a_fixed_backoff_is_a_constant_delay() -> None:
    found = read(rule("{when: x, then: {do: retry, backoff: fixed, delay: 0.5}}"))
    assert found.playbook.steps[0].tasks[0].rules[0].backoff == "fixed"
    assert found.warnings == ()
    assert [retry_delay("fixed", 0.5, n) for n in (1, 2, 7)] == [retry_delay("constant", 0.5, n) for n in (1, 2, 7)]
    assert retry_delay("fixed", 0.5, 7) == 0.5


def test_root_spec_is_a_name() -> None:
    found = read(document("spec: »{city: Bern}\nworkflow: [{step: load, tool: {kind: noop}}]"))
    assert found.playbook.spec == {"city": "Bern"}
    assert [(p.code, p.line, p.column) for p in found.warnings] == [("deprecated_root_key", 4, 7)]


def test_arc_args_are_kept_with_a_warning() -> None:
    found = read(noop("next: {arcs: [{step: end, args: »{n: 1}, set: {m: 2}}]}"))
    assert found.playbook.steps[0].next == Next(
        mode=Mode.EXCLUSIVE, arcs=(Arc(step="end", set={"m": 2}, args={"n": 1}),)
    )
    assert [(p.code, p.step, p.line, p.column) for p in found.warnings] == [("deprecated_args", "load", 7, 37)]


def test_output_select_is_accepted_at_tool_and_step() -> None:
    select = "output_select: [id, data.total]"
    for form in (task(select), noop(select), task(f"output: {{{select}}}"), noop(f"output: {{{select}}}")):
        assert read(form).warnings == ()


def test_frame_numbers_may_be_templates() -> None:
    number = "{{ workload.many }}"
    found = read(noop(f"loop: {{in: [1], iterator: row, spec: {{frame: {{max_rows: '{number}'}}}}}}"))
    assert found.warnings == ()
    with pytest.raises(PlaybookInvalid, match="max_rows"):
        read(noop("loop: {in: [1], iterator: row, spec: {frame: {max_rows: many}}}"))
