"""From model to code: templates parsed once, atoms cut out, reachability known, needs counted."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.core.errors import TemplateFailed
from noetl.core.expression import parse_count, render_value
from noetl.core.limits import DOCUMENT_WARNINGS_MAX
from noetl.core.playbook.compiled import Assignment, CompiledPlaybook, CompiledStep, CompiledTask
from noetl.core.playbook.model import Action
from noetl.core.playbook.needs import Needs
from tests.support.playbooks import FILE, compiled, document, graph, problems, step, workflow


def warned(text: str) -> list[tuple[str, str]]:
    return [(problem.code, problem.message) for problem in compiled(text).warnings]


def reached(playbook: CompiledPlaybook, name: str) -> set[str]:
    bits = playbook.steps[name].reaches
    return {other.name for other in playbook.steps.values() if bits >> other.number & 1}


def task(tool: str) -> CompiledTask:
    return compiled(workflow(f"- {{step: s, tool: {tool}}}")).steps["s"].tasks[0]


# --- identity --------------------------------------------------------------------------------------------


def test_a_playbook_is_known_by_the_digest_of_its_text() -> None:
    text = graph(step("a"))
    assert compiled(text).digest == hashlib.sha256(text.encode()).hexdigest()
    assert compiled(text).digest != compiled(text + "\n").digest


def test_compiling_twice_gives_equal_code() -> None:
    text = workflow(
        """
        - step: a
          tool: [{name: t, kind: noop, set: {x: "{{ output.n + 1 }}"}}]
          set: {rows: "{{ output.data.rows | length }}"}
          next: [{step: a, when: "{{ a.n < 3 and rows > 2 }}"}]
        """
    )
    assert compiled(text) == compiled(text)


def test_the_steps_keep_their_order() -> None:
    playbook = compiled(graph(step("z", "a"), step("a", "m"), step("m")))
    assert [(one.name, one.number) for one in playbook.steps.values()] == [("z", 0), ("a", 1), ("m", 2)]


# --- reachability ----------------------------------------------------------------------------------------


def test_reachability_follows_arcs_whatever_their_guards() -> None:
    playbook = compiled(
        graph(
            step("a", {"step": "b", "when": False}, {"step": "c", "when": "{{ x }}"}),
            step("b", "d"),
            step("c", "d", "end"),
            step("d"),
            step("e", "a"),
        )
    )
    assert reached(playbook, "a") == {"b", "c", "d"}
    assert reached(playbook, "b") == {"d"}
    assert reached(playbook, "d") == set()
    assert reached(playbook, "e") == {"a", "b", "c", "d"}


def test_a_step_in_a_cycle_reaches_itself() -> None:
    playbook = compiled(graph(step("a", "b"), step("b", "a", "c"), step("c", "c")))
    assert reached(playbook, "a") == {"a", "b", "c"}
    assert reached(playbook, "c") == {"c"}


EDGES = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20)


@settings(max_examples=30)
@given(EDGES)
def test_reachability_is_the_transitive_closure_of_the_arcs(edges: list[tuple[int, int]]) -> None:
    playbook = compiled(graph(*(step(f"s{n}", *(f"s{to}" for at, to in edges if at == n)) for n in range(8))))
    closure = {(at, to) for at, to in edges}
    for middle in range(8):
        closure |= {(a, d) for a, b in closure if b == middle for c, d in closure if c == middle}
    for n in range(8):
        assert reached(playbook, f"s{n}") == {f"s{to}" for at, to in closure if at == n}


def test_a_thousand_steps_compile_in_a_moment() -> None:
    targets = {n: ", ".join(f"s{min(n + k, 999)}" for k in range(1, 6)) for n in range(1_000)}
    text = workflow("".join(f"- {{step: s{n}, next: [{targets[n]}]}}\n" for n in range(1_000)))
    started = time.process_time()
    playbook = compiled(text)
    assert time.process_time() - started < 10
    assert playbook.steps["s0"].reaches.bit_count() == 999
    assert len(playbook.warnings) == DOCUMENT_WARNINGS_MAX + 1
    assert playbook.warnings[-1].code == "too_many_warnings"


def test_a_step_that_nothing_leads_to_is_legal_with_a_warning() -> None:
    text = graph(step("a", "b"), step("b"), step("lost", "also"), step("also"), step("end"), step("last"),
                 executor={"spec": {"final_step": "last"}})  # fmt: skip
    assert warned(text) == [
        ("unreachable_step", "step 'lost': no arc leads here, it never runs"),
        ("unreachable_step", "step 'also': no arc leads here, it never runs"),
    ]
    (lost, _) = compiled(text).warnings
    assert lost.line == text[: text.index("step: lost")].count("\n") + 1


# --- what the router evaluates ---------------------------------------------------------------------------


def test_each_atom_belongs_to_the_step_whose_result_it_reads() -> None:
    playbook = compiled(
        workflow(
            """
            - {step: load, tool: {kind: noop}, next: check}
            - step: check
              tool: {kind: noop}
              next: [{step: end, when: "{{ load.rows | length > output.data.limit }}"}]
            """
        )
    )
    sources = {one.name: [atom.template.source for atom in one.atoms] for one in playbook.steps.values()}
    assert sources == {"load": ["{{ load.rows|length }}"], "check": ["{{ output.data.limit }}"]}


@pytest.mark.parametrize(
    "shadow",
    [
        "workload: {load: 1}",
        "workflow: [{step: x, next: end, set: {load: 1}}]",
        "workflow: [{step: x, next: end, set: {ctx.load.n: 1}}]",
        "workflow: [{step: x, next: end, set: {iter.load: 1}}]",
        "workflow: [{step: x, next: [{step: end, set: {load: 1}}]}]",
        "workflow: [{step: x, tool: {kind: noop, set: {load: 1}}}]",
        "workflow: [{step: x, tool: {kind: noop, spec: {policy: {rules: [{when: true, then: {set: {load: 1}}}]}}}}]",
    ],
)
def test_no_atom_is_cut_for_a_name_that_may_mean_a_value(shadow: str) -> None:
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x}\n"
    root, _, extra = shadow.partition("workflow: [")
    steps = "workflow:\n- {step: load, next: [{step: end, when: '{{ load.n > 1 }}'}]}\n"
    text = head + root + "\n" + steps + (f"- {extra.removesuffix(']')}\n" if extra else "")
    playbook = compiled(text)
    assert playbook.steps["load"].atoms == ()
    (expression,) = [one for key, one in playbook.expressions.items() if key.endswith("when")]
    assert expression.plan.atoms == ()


def test_the_key_of_an_expression_is_unique_whatever_steps_and_values_are_called() -> None:
    playbook = compiled(
        graph(
            step("a", {"step": "end", "set": {"x": "{{ 1 }}"}}, set={"x": {"y": "{{ 1 }}"}, "x/y": "{{ 2 }}"}),
            step("a/arc/0", set={"0": ["{{ 3 }}", "{{ 4 }}"]}),
            step("0", {"step": "end", "when": "{{ 5 }}"}),
        )
    )
    sources = sorted(one.template.source for one in playbook.expressions.values() if one.value is None)
    assert sources == ["{{ 1 }}", "{{ 1 }}", "{{ 2 }}", "{{ 3 }}", "{{ 4 }}", "{{ 5 }}"]
    assert all(key == expression.key for key, expression in playbook.expressions.items())


@pytest.mark.parametrize(
    ("when", "mentions"),
    [
        ("{{ event.name == 'call.error' }}", True),
        ("{{ error }}", True),
        ("{{ error.kind == 'x' }}", True),
        ("{{ output.status == 'error' }}", True),
        ("{{ output['status'] == 'error' }}", True),
        ("{{ output.error }}", True),
        ("{{ outcome.status == 'ok' }}", True),
        ("{{ outcome.error.kind }}", True),
        ("{{ load.error }}", True),
        ("{{ load.status == 'error' }}", True),
        ("{{ steps.load.status }}", True),
        ("{{ steps['load'].error.kind }}", True),
        ("output.status", True),
        ("{{ output.data.status }}", False),
        ("{{ output.data.error }}", False),
        ("{{ other.error }}", False),
        ("{{ steps.other.error }}", False),
        ("{{ load.rows }}", False),
        ("{{ ctx.error }}", False),
        ("{{ 'error' }}", False),
        (True, False),
        ("true", False),
    ],
)
def test_an_arc_mentions_failure_or_it_does_not(when: object, mentions: bool) -> None:
    playbook = compiled(graph(step("load", {"step": "end", "when": when}), step("other")))
    assert playbook.steps["load"].arcs[0].mentions_failure is mentions


def test_the_keys_of_a_set_name_a_scope_and_a_path() -> None:
    text = graph(step("s", set={"a": 1, "b.c": 2, "ctx.d": 3, "ctx.e.f": 4, "iter.g": 5, "step.h.i": 6, "ctx": 7}))
    sets = compiled(text).steps["s"].sets
    assert [(one.scope, one.path) for one in sets] == [
        ("ctx", ("a",)),
        ("ctx", ("b", "c")),
        ("ctx", ("d",)),
        ("ctx", ("e", "f")),
        ("ctx", ("g",)),
        ("ctx", ("h", "i")),
        ("ctx", ("ctx",)),
    ]
    assert warned(text) == [
        ("set_scope", "step 's': 'iter.g' in a step or arc set is written to ctx"),
        ("set_scope", "step 's': 'step.h.i' in a step or arc set is written to ctx"),
    ]


def test_whoever_writes_to_the_workload_is_told_where_it_goes() -> None:
    text = graph(step("s", {"step": "end", "set": {"workload.n": 1}}))
    assert compiled(text).steps["s"].arcs[0].sets[0].path == ("workload", "n")
    message = "step 's': the workload never changes: 'workload.n' is written to ctx.workload.n"
    assert warned(text) == [("set_scope", message)]


def test_scopes_of_tasks_and_rules_stay_as_they_are() -> None:
    rules = "{policy: {rules: [{when: true, then: {do: break, set: {e: 1, iter.f: 2}}}]}}"
    found = task(f"{{kind: noop, set: {{a: 1, ctx.b: 2, iter.c: 3, step.d: 4}}, spec: {rules}}}")

    def places(sets: tuple[Assignment, ...]) -> list[tuple[str, tuple[str, ...]]]:
        return [(one.scope, one.path) for one in sets]

    assert places(found.sets) == [("local", ("a",)), ("ctx", ("b",)), ("iter", ("c",)), ("step", ("d",))]
    assert places(found.rules[0].sets) == [("ctx", ("e",)), ("iter", ("f",))]


# --- what the worker evaluates ---------------------------------------------------------------------------


def test_rules_are_compiled_with_their_numbers() -> None:
    playbook = compiled(
        workflow(
            """
            - step: s
              tool:
                - {name: a, kind: noop, spec: {policy: {rules: [{when: x, then: {do: jump, to: prev}}]}}}
                - {name: b, kind: noop, spec: {policy: {rules: [{when: x, then: {do: jump, to: previous}}]}}}
                - name: c
                  kind: noop
                  spec:
                    policy:
                      on_unmatched: fail
                      rules:
                        - {when: "{{ x }}", then: {do: jump, to: b}}
                        - {else: {then: {do: retry, attempts: "{{ n }}", delay: "{{ d }}", backoff: linear}}}
            """
        )
    )
    a, b, c = playbook.steps["s"].tasks
    assert (a.rules[0].to, b.rules[0].to) == (0, 0)
    jump, retry = c.rules
    assert (jump.do, jump.to, jump.delay) == (Action.JUMP, 1, None)
    assert retry.when is None
    assert retry.delay is not None
    assert (retry.attempts.source, retry.delay.source, retry.backoff) == ("{{ n }}", "{{ d }}", "linear")
    assert (a.fails_unmatched, c.fails_unmatched) == (None, True)


def test_text_that_is_no_template_stays_as_it_is_with_a_warning_and_the_rest_is_rendered() -> None:
    tool = "{kind: noop, input: {awk: '{{ print $1 ', n: '{{ n + 1 }}', l: [1, '{{ n }}', {x: '{{ }'}]}}"
    found = task(tool)
    names: dict[str, Any] = {"n": 1}
    assert render_value(found.input, names) == {"awk": "{{ print $1 ", "n": 2, "l": [1, 1, {"x": "{{ }"}]}
    assert found.input.roots == {"n"}
    found_here = warned(workflow(f"- {{step: s, tool: {tool}}}", "workload: {n: 1}"))
    assert [code for code, _ in found_here] == ["template_invalid", "template_invalid"]
    assert [message.partition(": ")[0] for _, message in found_here] == [
        "step 's', task 's_task', field 'input.awk'",
        "step 's', task 's_task', field 'input.l.2.x'",
    ]


@pytest.mark.parametrize("code", ["print(f'{{x}} {{ a b }}')", "d = '{{ x.format() }}'", "s = '{% nope %}'"])
def test_program_text_is_never_refused_for_what_looks_like_a_template(code: str) -> None:
    found = task(f'{{kind: python, code: "{code}"}}')
    assert found.fields["code"].source == code
    assert found.fields["code"].roots == frozenset()
    assert found.lenient == {"code"}
    assert len(warned(workflow(f'- {{step: s, tool: {{kind: python, code: "{code}"}}}}'))) == 1


def test_a_field_that_is_null_is_left_out_and_a_warning_has_a_place() -> None:
    assert task("{kind: noop, url: null, x: 1}").fields.keys() == {"x"}
    (warning,) = compiled(workflow("- step: s\n  tool: {kind: noop, x: '{{ }'}")).warnings
    assert (warning.file, warning.line, warning.column, warning.field) == (FILE, 7, 27, "x")


def test_the_defaults_of_the_workload_are_compiled_and_what_is_no_template_is_a_warning() -> None:
    text = document("workload:\n  a: {b: ['{{ }', '{{ n + 1 }}']}\nworkflow: [{step: s, tool: {kind: noop}}]\n")
    playbook = compiled(text)
    (warning,) = playbook.warnings
    assert (warning.code, warning.line, warning.column) == ("template_invalid", 5, 11)
    assert warning.message.startswith("workload.a: line 1: ")
    with pytest.raises(TemplateFailed, match="line 1"):
        render_value(playbook.workload["a"], {"n": 1})
    (refused,) = problems(text.replace("{{ }", "{{ n.upper() }}"))
    assert (refused.code, refused.line) == ("template_refused", 5)


# --- needs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "names"),
    [
        ("{kind: noop}", set()),
        (
            "{kind: noop, input: {a: '{{ x }}', b: ['{{ y.z[0] }}', '{{ ctx.c }} {{ workload.w.v }}']}}",
            {"x", "y", "c", "w"},
        ),
        ("{kind: noop, url: '{{ steps.load.url }}/{{ steps[\"a b\"] }}'}", {"load", "a b"}),
        ("{kind: noop, set: {a: '{{ one }}'}, timeout: '{{ two }}'}", {"one", "two"}),
        (
            "{kind: noop, spec: {policy: {rules: [{when: '{{ a }}', then: {do: retry, attempts: '{{ b }}', "
            "delay: '{{ c }}', set: {x: '{{ d }}'}}}]}}}",
            {"a", "b", "c", "d"},
        ),
        ("{kind: noop, input: {a: '{% for row in rows %}{{ row }}{% endfor %}'}}", {"rows"}),
        ("{kind: noop, input: {a: '{{ result.x }}'}}", {"result"}),
        ("{kind: python, code: 'result = 1'}", set()),
        ("{kind: noop, set: {ctx.a: 1, ctx.b.c: 2, local.d: 3}}", {"b"}),
    ],
)
def test_a_command_needs_the_names_its_templates_read(tool: str, names: set[str]) -> None:
    needs = compiled(workflow(f"- {{step: s, tool: {tool}}}")).steps["s"].needs
    assert needs == Needs(names=frozenset(names), everything=False)


@pytest.mark.parametrize(
    "tool",
    [
        "{kind: noop, input: {a: '{{ ctx }}'}}",
        "{kind: noop, input: {a: '{{ ctx[key] }}'}}",
        "{kind: noop, input: {a: '{{ steps | length }}'}}",
        "{kind: noop, input: {a: '{{ workload }}'}}",
        "{kind: python, code: 'result = context'}",
    ],
)
def test_a_command_that_reads_a_whole_scope_needs_everything(tool: str) -> None:
    assert compiled(workflow(f"- {{step: s, tool: {tool}}}")).steps["s"].needs.everything


def test_an_expression_of_the_router_needs_its_own_names_only() -> None:
    playbook = compiled(
        workflow(
            """
            - step: load
              tool: {kind: noop}
              set: {a: "{{ output.data.x + b }}", c: "{{ other.n }}"}
            - {step: other, tool: {kind: noop, input: {y: "{{ big }}"}}}
            """
        )
    )
    needs = {one.template.source: one.needs.names for one in playbook.expressions.values() if one.value is None}
    assert needs == {"{{ output.data.x + b }}": {"output", "load", "b"}, "{{ other.n }}": {"other"}}


# --- parsing once ----------------------------------------------------------------------------------------


def test_every_template_is_parsed_when_the_playbook_is_compiled() -> None:
    text = workflow("- {step: s, tool: {kind: noop, input: {a: '{{ unusual_name_1 + 1 }}'}}}")
    before = parse_count()
    first: CompiledStep = compiled(text).steps["s"]
    assert parse_count() > before
    after = parse_count()
    render_value(first.tasks[0].input, {"unusual_name_1": 1})
    assert parse_count() == after
