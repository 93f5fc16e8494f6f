"""Splitting an expression into atoms and a residual must not change what it gives."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from noetl.core.errors import TemplateFailed, TemplateInvalid
from noetl.core.expression import (
    AtomError,
    AtomPlan,
    OutputView,
    Scope,
    Template,
    Undefined,
    atoms_of,
    compile_condition,
    compile_template,
    data_path,
    evaluate_atom,
    is_true,
    parse_count,
    render,
    view_of,
)
from noetl.core.expression.template import evaluate

STEPS = frozenset({"a", "b", "c", "load", "other", "tests/odd name"})


def plan_of(source: str, completing: str | None = "c", *, condition: bool = False) -> AtomPlan:
    return atoms_of(compile_template(source), STEPS, completing, condition=condition)


def sources(plan: AtomPlan) -> list[str]:
    return [atom.expression for atom in plan.atoms]


# -- the shape of plans ------------------------------------------------------------------------------------


def test_a_maximal_expression_over_one_step_is_one_atom_filters_and_tests_included() -> None:
    plan = plan_of("{{ (load.rows | length) > 3 and load.status == 'ok' }}")
    assert sources(plan) == ["load.rows|length > 3 and load.status == 'ok'"]
    assert plan.residual.path == (plan.atoms[0].name,)
    assert plan.atoms[0].step == "load"
    assert plan.atoms[0].bare_path is None


def test_a_bare_path_is_known_as_such() -> None:
    (atom,) = plan_of("{{ load.rows[0]['n'] }}").atoms
    assert atom.bare_path == ("rows", 0, "n")
    (atom,) = plan_of("{{ steps['tests/odd name'].rows }}").atoms
    assert (atom.step, atom.bare_path) == ("tests/odd name", ("rows",))
    (atom,) = plan_of("{{ output.data.rows }}").atoms
    assert (atom.step, atom.bare_path) == ("", ("data", "rows"))
    assert plan_of("{{ load }}").atoms[0].bare_path == ()


def test_keys_are_stable_and_short_and_independent_of_spelling() -> None:
    first, second = (plan_of(source).atoms[0] for source in ("{{ load['n']+1 }}", "{{load.n  +  1}}"))
    assert first == second
    assert first.key == "1f53f0366ce1f505"
    assert first.name == "__atom_1f53f0366ce1f505"


def test_a_whole_step_in_boolean_position_is_reduced_to_its_truth() -> None:
    plan = plan_of("{{ a.x if a else b.x }}")
    assert sources(plan) == ["true if a else false", "a.x", "b.x"]
    assert sources(plan_of("{{ ctx.x if a is defined else b.x }}")) == ["a is defined", "b.x"]
    assert sources(plan_of("{{ not a and ctx.x }}")) == ["not a"]
    assert sources(plan_of("{{ 1 if (a or ctx.x) else 2 }}")) == ["true if a else false"]


def test_a_condition_needs_only_the_truth_of_what_it_reads() -> None:
    assert sources(plan_of("{{ load }}", condition=True)) == ["load|truth"]
    assert sources(plan_of("{{ ctx.x and load.rows }}", condition=True)) == ["load.rows|truth"]
    assert sources(plan_of("{{ load.rows and ctx.x }}", condition=True)) == ["true if load.rows else false"]
    assert sources(plan_of("{{ load.x or ctx.x }}", condition=True)) == ["load.x"]
    assert sources(plan_of("{{ load.x if ctx.y else a.x }}", condition=True)) == ["load.x|truth", "a.x|truth"]
    assert sources(plan_of("{{ load.x > 1 }}", condition=True)) == ["load.x > 1"]


def test_the_completing_step_is_one_step_under_all_its_names() -> None:
    (atom,) = plan_of("{{ output.data.n == c.n and result.n == response.n and not error }}").atoms
    assert atom.step == ""
    assert plan_of("{{ c.n }}").atoms[0].step == "c"
    assert len(plan_of("{{ c.n == output.n }}", completing="load").atoms) == 2


def test_without_a_completing_step_output_is_an_ordinary_name() -> None:
    plan = plan_of("{{ output.n }}", completing=None)
    assert plan.atoms == ()
    assert plan.evaluable


def test_two_steps_give_two_atoms_and_a_residual() -> None:
    plan = plan_of("{{ load.n + other.n * ctx.f }}")
    assert sources(plan) == ["load.n", "other.n"]
    left, right = plan.atoms
    assert plan.residual.source == f"{{{{ {left.name} + {right.name} * ctx.f }}}}"


def test_equal_parts_are_one_atom() -> None:
    assert sources(plan_of("{{ [load.n, load['n'], ctx.x] }}")) == ["load.n"]


def test_text_without_statements_is_a_concatenation() -> None:
    plan = plan_of("n={{ load.n }}, x={{ ctx.x }}, m={{ other.m }}")
    assert sources(plan) == ["load.n", "other.m"]
    outcomes = {plan.atoms[0].key: ("value", 3), plan.atoms[1].key: ("undefined",)}
    warnings: list[str] = []
    names = {**plan.bind(outcomes), "ctx": {"x": [1]}}
    assert render(plan.residual, names, warnings=warnings) == "n=3, x=[1], m="
    assert warnings == ["undefined_in_template: other.m"]
    assert plan_of("<{{ load.n }}").evaluable


@pytest.mark.parametrize(
    "source",
    [
        "{% for r in load.rows %}{{ r }}{% endfor %}",
        "{% if load.n %}x{% endif %}",
        "{% if steps.load.n %}x{% endif %}",
        "{% if ctx.load %}x{% endif %}",
        "{% if output.n %}x{% endif %}",
        "{{ load.rows[ctx.i] }}",
        "{{ load.rows[other.i] }}",
        "{{ load.rows[ctx.i:] }}",
        "{{ load[ctx.k] }}",
        "{{ steps[ctx.k].n }}",
        "{{ steps }}",
        "{{ ctx.load.n }}",
        "{{ ctx[workload.k] }}",
        "{{ load.rows | random }}",
        "{{ (load or other).data }}",
        "{{ (load if ctx.x else none).data }}",
        "{{ (ctx.x or (load if load.ok else none)).data }}",
        "{{ (load | default(ctx.x))['data'] }}",
        "{{ (ctx.x | default(load)).data }}",
        "{{ (ctx.x or (load and load.ok)).data }}",
        "{{ (ctx.x or (load | default(1))).data }}",
        "{{ (ctx.x or steps.load).data }}",
        "{{ [load, other] | map(attribute='data') | list }}",
        "{{ (output.data if ctx.x else none).paging }}",
        "{{ ([load, other] | first).data }}",
        "{{ {'k': load, 'o': ctx.x}.k.data }}",
    ],
)
def test_what_needs_a_worker_is_not_evaluable(source: str) -> None:
    plan = plan_of(source)
    assert not plan.evaluable
    assert plan.atoms == ()
    assert plan.residual == compile_template(source)


@pytest.mark.parametrize(
    "source",
    [
        "plain text",
        "{{ ctx.x }}",
        "{% if ctx.x %}x{% endif %}",
        "{{ now() }}",
        "{{ steps.unknown.n }}",
        "{{ ctx.rows[ctx.i] }}",
        "{{ range(ctx.n) }}",
    ],
)
def test_what_reads_no_step_stays_as_it_is(source: str) -> None:
    plan = plan_of(source, completing=None)
    assert (plan.atoms, plan.evaluable) == ((), True)
    assert plan.residual == compile_template(source)


def test_an_index_that_comes_from_a_step_is_fine() -> None:
    assert sources(plan_of("{{ ctx.rows[load.i] }}")) == ["load.i"]
    assert sources(plan_of("{{ load.rows[load.i] }}")) == ["load.rows[load.i]"]
    assert sources(plan_of("{{ ctx.rows[load.i:other.j] }}")) == ["load.i", "other.j"]
    assert sources(plan_of("{{ (load.x or other.x)[0] }}")) == ["load.x", "other.x"]


def test_what_recording_would_change_stays_in_the_residual() -> None:
    # An undefined entry of a list is null once recorded, and null is defined.
    assert sources(plan_of("{{ ([load.x] + ctx.l) | first }}")) == ["load.x"]
    assert sources(plan_of("{{ (load.rows | map(attribute='x') | list) + ctx.l }}")) == ["load.rows"]
    assert sources(plan_of("{{ (load.rows | groupby('x')) + ctx.l }}")) == ["load.rows"]
    assert sources(plan_of("{{ (load.rows | sort(reverse=true)) + ctx.l }}")) == ["load.rows|sort(reverse=true)"]
    assert sources(plan_of("{{ ctx.x | default([load.x, load.y]) }}")) == ["[load.x, load.y]"]


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("not (load.x or ctx.y)", ["true if load.x else false"]),
        ("- (load.x + ctx.y)", ["load.x"]),
        ("(load.x if load.y else 1) + ctx.n", ["load.x if load.y else 1"]),
        ("(load.x if load.y) or ctx.n", ["load.x if load.y"]),
        ("(load.x + load.y) * ctx.n", ["load.x + load.y"]),
        ("- load.x + ctx.n", ["- load.x"]),
        ("range(load.n) + ctx.l", ["range(load.n)"]),
        ("(load.l or [1, 2]) + ctx.l", ["load.l or [1, 2]"]),
        ("(load.m or {}) == ctx.m", ["load.m or {}"]),
        ("(load.m or {'a': 1}) == ctx.m", ["load.m"]),
        ("(load.x ~ load.y) == ctx.m", ["load.x ~ load.y"]),
        ("load.x < ctx.n < load.y", ["load.x", "load.y"]),
        ("{load.k: load.v, ctx.k: 1}", ["load.k", "load.v"]),
        ("(load.rows | default([load.x])) == ctx.l", ["load.rows", "load.x"]),
    ],
)
def test_parts_are_as_large_as_they_can_be(expression: str, parts: list[str]) -> None:
    assert sources(plan_of("{{ " + expression + " }}")) == parts


def test_calls_with_unpacked_arguments_are_split_too() -> None:
    plan = plan_of("{{ ctx.f | format(*load.args, **other.named) ~ range(load.n, ctx.m) }}")
    assert sources(plan) == ["load.args", "other.named", "load.n"]


def test_a_residual_that_is_too_big_is_left_to_a_worker() -> None:
    deep = "{{ " + "[" * 31 + "load.x and ctx.x" + "]" * 31 + " }}"
    assert plan_of(deep).evaluable
    # The truth of a condition is one level more than the condition, which may be one too many.
    tight = "{{ " + "- " * 47 + "load.x }}"
    assert plan_of(tight).evaluable
    plan = plan_of(tight, condition=True)
    assert not plan.evaluable
    assert plan.residual == compile_template(tight)


# -- atoms that are missing, undefined or failed ------------------------------------------------------------


def test_an_atom_of_a_step_that_did_not_run_is_evaluated_without_it() -> None:
    for source, expected in [
        ("{{ a.x if a else b.x }}", None),
        ("{{ not a and ctx.x }}", 7),
        ("{{ a is not defined and ctx.x }}", 7),
        ("{{ (a.x | default(5)) + ctx.x }}", 12),
    ]:
        plan = plan_of(source)
        assert render(plan.residual, {**plan.bind({}), "ctx": {"x": 7}}) == expected, source


def test_a_failed_atom_fails_only_where_it_is_used() -> None:
    plan = plan_of("{{ ctx.go and a.x > 3 }}")
    (atom,) = plan.atoms
    outcome = evaluate_atom(atom, {"a": view_of({"x": "text"})})
    assert outcome == ("error", "cannot compare a text with a number")
    bound = plan.bind({atom.key: outcome})
    assert render(plan.residual, {**bound, "ctx": {"go": False}}) is False
    with pytest.raises(TemplateFailed, match="cannot compare a text with a number"):
        render(plan.residual, {**bound, "ctx": {"go": True}})


@pytest.mark.parametrize(
    "use",
    ["{0}", "{0} is defined", "{0} | default(1)", "[{0}, 1] | length", "{0}.x", "'a' ~ {0}", "{0} == 1"],
)
def test_a_failed_atom_fails_on_any_use(use: str) -> None:
    template = compile_template("{{ " + use.format("__atom_0") + " }}")
    with pytest.raises(TemplateFailed, match="why"):
        render(template, {"__atom_0": AtomError("why")})


def test_outcomes_are_values_undefined_or_errors() -> None:
    (atom,) = plan_of("{{ a.x }}").atoms
    assert evaluate_atom(atom, {"a": view_of({"x": [1]})}) == ("value", [1])
    assert evaluate_atom(atom, {"a": view_of({})}) == ("undefined",)
    assert evaluate_atom(atom, {}) == ("undefined",)
    (whole,) = plan_of("{{ a }}").atoms
    assert evaluate_atom(whole, {"a": view_of({"x": 1})}) == ("value", {"x": 1})


@pytest.mark.parametrize(
    ("expression", "path"),
    [
        ("c.rows", ("rows",)),
        ("c.rows[0].n", ("rows", 0, "n")),
        ("c.data.rows", ("rows",)),
        ("c.result.rows", ("rows",)),
        ("c.deep.data", ("deep", "data")),
        ("steps.c.data.rows", ("rows",)),
        ("c", ()),
        ("output.data.rows", ("rows",)),
        ("output.rows", ("rows",)),
        ("output.response", ()),
        ("output.paging", ("body", "paging")),
        ("output.data.paging", ("body", "paging")),
        ("output.status", None),
        ("c.missing", None),
        ("c.rows | length", None),
    ],
)
def test_a_bare_path_can_be_found_in_the_raw_result(expression: str, path: tuple[str | int, ...] | None) -> None:
    raw = {"rows": [{"n": [1, 2]}], "deep": {"data": [3]}, "body": {"paging": {"next": 2}}}
    view = view_of(raw, http=True)
    names = {"c": view, "steps": {"c": view}, "output": OutputView(status="ok", data=raw, http_result=True)}
    (atom,) = plan_of("{{ " + expression + " }}").atoms
    assert data_path(atom, names) == path


def test_deciding_parses_nothing() -> None:
    plan = plan_of("{{ a.x if a else b.x }}")
    before = parse_count()
    render(plan.residual, plan.bind({atom.key: evaluate_atom(atom, {}) for atom in plan.atoms}))
    assert parse_count() == before


# -- the property: atoms and residual give what the whole gives -----------------------------------------------

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from([0.5, 2.0]),
    st.sampled_from(["", "x", "ok", "false", "12", "{{ n }}"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["x", "n", "data", "rows"]), inner, max_size=3),
    ),
    max_leaves=6,
)
results = st.one_of(st.dictionaries(st.sampled_from(["x", "n", "rows", "data", "status"]), values, max_size=4), values)
ABSENT = object()

PATHS = """
a a.x a.n a.rows a.data a.data.x a.status a.result.n a.rows[0] a.rows[0].x a.rows[-1] a['n'] a.rows[1:] steps.a.n
b b.x b.n b.rows b.data b.rows[0] b.rows.x steps['b'].x c c.x c.n result.n response.x outcome.data.n error error.kind
output output.status output.data output.data.x output.x output.rows[0] output.error output.error.kind
"""
OTHERS = "ctx.x ctx.n ctx.rows ctx.missing.y workload.x x n missing missing.deep.path steps.zzz.n ctx"
CONSTANTS = "1; 2; 0; 'x'; 'ok'; true; false; none; []; {}; [1, 'x']; {'x': 2}; 1.5; ''"
# Forms that rarely fail stand apart, so that they can be used more often.
CALM = """
(not {0}); ({0} is defined); ({0} is not defined); ({0} is none); ({0} is mapping); ({0} is string); ({0} is eq 1)
({0} is sequence); ({0} is sameas none); ({0}).x; ({0}).data; ({0})['n']; [{0}]; ({0},); {{'x': {0}}}; ({0})
({0} | string); ({0} | tojson); ({0} | default(3)); ({0} | default('d', true)); ({0} | default([])); ({0} | truth)
({0} | get('x')); ({0} | get('n', 4)); ({0} | attr('data')); ({0} | default({1})); ({0} | default({1}, true))
({0} | default(default_value={1})); ({0} == {1}); ({0} != {1}); ({0} and {1}); ({0} or {1}); ({0} ~ {1}); [{0}, {1}]
{{'x': {0}, 'n': {1}}}; '%s-%s' % ({0}, {1}); ({0} if {1}); ({0} if {1} else {2}); [{0}, {1}, {2}]; ({0} and {1} or {2})
([{0}, {1}] | first); ([{0}] | list); ([{0}, {1}] | map('string') | list); ({0} in [{1}, {2}]); ({0}, {1})
"""
RASH = """
(-{0}); ({0})[0]; ({0})[0:1]; ({0} is number); ({0} | length); ({0} | first); ({0} | last); ({0} | list); ({0} | int)
({0} | float); ({0} | join(',')); ({0} | sum); ({0} | max); ({0} | min); ({0} | sort); ({0} | reverse); ({0} | unique)
({0} | map(attribute='x') | list); ({0} | selectattr('x') | list); ({0} | select | list); ({0} | groupby('x'))
({0} | rejectattr('n', 'defined') | list); ({0} | items | list); ({0} | keys | list); ({0} | values | list)
({0} | batch(2) | list); ({0} | upper); ({0} | trim); ({0} | abs); ({0} | round); ({0} | replace('x', 'y'))
({0} | dictsort); ({0} | fromjson); ({0} | count); ({0} | slice(2) | list); ({0} | split('x')); ({0} | wordcount)
({0} | map(attribute='n', default=1) | list); ({0} | sum(attribute='n')); ({0} | map('default', 5) | list)
({0} + {1}); ({0} - {1}); ({0} * {1}); ({0} / {1}); ({0} % {1}); ({0} ** {1}); ({0} < {1}); ({0} >= {1}); ({0} in {1})
({0} not in {1}); ({0})[{1}]; ({0} | join({1})); ({0} | get({1})); ({0} is in {1}); ({0} < {1} < {2})
({0} | selectattr('x', 'eq', {1}) | list); (range({0}) | list)
"""


def forms(text: str) -> list[str]:
    return [form.strip() for line in text.strip().splitlines() for form in line.split(";")]


def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    shapes = st.sampled_from(4 * forms(CALM) + forms(RASH))
    return st.builds(str.format, shapes, inner, inner, inner)


leaves = st.sampled_from(2 * PATHS.split() + OTHERS.split() + forms(CONSTANTS))
expressions = combined(st.one_of(leaves, combined(st.one_of(leaves, combined(leaves)))))
optional_results = st.one_of(st.just(ABSENT), results, results)
settled = Counter[str]()


def names_of(step: str, result: object, error: object = None) -> dict[str, object]:
    if result is ABSENT:
        return {"steps": Scope({})}
    view = view_of(result)
    names: dict[str, object] = {step: view, "steps": Scope({step: view})}
    if step == "c":
        output = OutputView(status="error" if error else "ok", data=result, error=error)
        names |= {"output": output, "outcome": output, "result": view, "response": view, "error": error}
    return names


def outcome_of(template: Template, names: dict[str, object], *, condition: bool) -> tuple[object, ...]:
    try:
        value = evaluate(template, names)
    except TemplateFailed:
        return ("error",)
    if condition:
        return ("value", is_true(value))
    if isinstance(value, Undefined):
        return ("undefined",)
    return ("value", json.dumps(value))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    source=expressions,
    as_text=st.booleans(),
    condition=st.booleans(),
    results_by_step=st.tuples(optional_results, optional_results, results),
    error=st.one_of(st.none(), st.just({"kind": "timeout", "status": 504})),
    context=st.fixed_dictionaries({"x": values, "n": values, "rows": values}),
)
@example("a.x", True, False, ({"x": 3}, ABSENT, {}), None, {"x": 1, "n": 2, "rows": []})
@example("a.x if a else b.x", False, False, (ABSENT, {"x": 3}, {}), None, {"x": 1, "n": 2, "rows": []})
@example("(a or b).data", False, False, ({}, {"x": 3}, {}), None, {"x": 1, "n": 2, "rows": []})
@example("not a and (b is not defined)", False, True, (ABSENT, ABSENT, {}), None, {"x": 1, "n": 2, "rows": []})
def test_atoms_and_residual_give_what_the_whole_expression_gives(
    source: str,
    as_text: bool,
    condition: bool,
    results_by_step: tuple[object, object, object],
    error: object,
    context: dict[str, object],
) -> None:
    try:
        template = compile_template(f"-{{{{ {source} }}}}-" if as_text else f"{{{{ {source} }}}}")
    except TemplateInvalid:
        settled["invalid"] += 1
        return
    by_step = dict(zip("abc", results_by_step, strict=True))
    own = {step: names_of(step, result, error) for step, result in by_step.items()}
    plain_names = {"ctx": context, "workload": context, "x": context["x"], "n": context["n"]}
    views = {step: names[step] for step, names in own.items() if step in names}
    whole_names = {**own["a"], **own["b"], **own["c"], "steps": Scope(views), **plain_names}
    expected = outcome_of(template, whole_names, condition=condition)

    plan = atoms_of(template, STEPS, "c", condition=condition)
    settled[str(expected[0]) if plan.evaluable else "for a worker"] += 1
    settled["several atoms"] += len(plan.atoms) > 1
    if not plan.evaluable:
        return
    outcomes = {}
    for atom in plan.atoms:
        if by_step.get(atom.step or "c", ABSENT) is not ABSENT:
            outcome = evaluate_atom(atom, own[atom.step or "c"])
            outcomes[atom.key] = json.loads(json.dumps(outcome))
    names = {**plan.bind(outcomes), **plain_names}
    actual = outcome_of(plan.residual, names, condition=condition)
    assert actual == expected, (source, sources(plan), plan.residual.source)


def test_the_property_was_tried_on_what_matters() -> None:
    # Runs after the property; alone, it has nothing to look at.
    if settled:
        # Well below what is usual: the examples are drawn anew each time.
        assert settled["several atoms"] > settled.total() / 20, settled
        assert settled["value"] > settled.total() / 8, settled
        assert settled["undefined"], settled
        assert settled["error"], settled
        assert settled["for a worker"], settled


def test_conditions_split_like_templates() -> None:
    plan = atoms_of(compile_condition("load.n > 1 and ctx.x"), STEPS, None, condition=True)
    assert sources(plan) == ["load.n > 1"]


def test_results_inside_a_result_are_views_which_are_not_recorded() -> None:
    """Of `s.pull` only a worker can tell `status`: recorded as data it has lost its aliases."""
    nested = {"s": frozenset({"pull", "results"}), "each": frozenset({"results", "data", "result"})}
    steps = frozenset({"s", "each"})
    for source in (
        "{{ (s.pull if x else 1).status }}",
        "{{ (s.results.pull if x else 1).status }}",
        "{{ (steps.s.pull if x else 1).status }}",
        "{{ (output.pull if x else 1).status }}",
        "{{ (output.data.pull if x else 1).status }}",
        "{{ (each.results[0] if x else 1).status }}",
        "{{ each.results | map(attribute=x) | list }}",
    ):
        template = compile_template(source)
        assert not atoms_of(template, steps, "s", nested=nested).evaluable, source
    for source in ("{{ (s.other if x else 1).status }}", "{{ (s.pull.rows if x else 1)[0] }}", "{{ s.pull.n + x }}"):
        assert atoms_of(compile_template(source), steps, "s", nested=nested).evaluable, source
