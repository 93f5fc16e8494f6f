"""Names that nothing can give are told at registration, with their place; names that may exist never are."""

from __future__ import annotations

import pytest

from noetl.core.errors import Problem
from tests.support.playbooks import compiled, graph, step, workflow

CODES = ("unknown_name", "never_ran_before")


def found(text: str) -> list[Problem]:
    return [warning for warning in compiled(text).warnings if warning.code in CODES]


def told(text: str) -> list[str]:
    return [warning.message for warning in found(text)]


def in_task(fields: str, root: str = "workload: {api_url: x, limit: 10}") -> list[str]:
    """The warnings about one task of a step `load` that a step `start` leads to."""
    return told(
        workflow(f"- {{step: start, tool: {{kind: noop}}, next: load}}\n- {{step: load, tool: {{{fields}}}}}", root)
    )


# --- what is told ----------------------------------------------------------------------------------------


def test_a_slip_of_the_pen_is_told_with_step_task_field_place_and_suggestion() -> None:
    text = workflow(
        """
        - step: load
          tool:
            - name: fetch
              kind: noop
              headers: {X-Key: ["{{ api_ulr }}"]}
        """,
        "workload: {api_url: x}",
    )
    (warning,) = found(text)
    assert warning.message == (
        "step 'load', task 'fetch', field 'headers.X-Key.0': nothing is called 'api_ulr' (did you mean 'api_url'?): "
        "give it a default in workload if requests bring it"
    )
    assert (warning.code, warning.step, warning.field) == ("unknown_name", "load", "0")
    assert warning.line == text[: text.index("api_ulr")].count("\n") + 1
    assert warning.column == text.splitlines()[warning.line - 1].index('"{{ api') + 1


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("kind: noop, url: '{{ missing }}'", "field 'url': nothing is called 'missing'"),
        ("kind: noop, url: '{{ missing.deep[0] }}/x'", "nothing is called 'missing'"),
        ("kind: noop, input: {a: '{{ missing }}'}", "field 'input.a': nothing is called 'missing'"),
        ("kind: noop, timeout: '{{ missing }}'", "field 'timeout': nothing is called 'missing'"),
        ("kind: noop, set: {a: '{{ missing }}'}", "field 'set.a': nothing is called 'missing'"),
        ("kind: noop, url: '{{ steps.strat.x }}'", "there is no step 'strat' (did you mean 'start'?)"),
        ("kind: noop, url: '{{ steps[\"no such\"] }}'", "there is no step 'no such'"),
        ("kind: noop, url: '{{ ctx.limti }}'", "nothing writes the key 'limti' of ctx (did you mean 'limit'?)"),
        ("kind: noop, url: '{{ workload.limt }}'", "the workload has no 'limt' (did you mean 'limit'?)"),
        ("kind: noop, url: '{{ job.execution }}'", "'job' has no 'execution' here"),
        ("kind: noop, url: '{{ results.fetch }}'", "'results' has no 'fetch' here"),
        ("kind: noop, url: '{{ iter.page }}'", "'iter' has no 'page' here"),
        ("kind: noop, url: '{{ step.page }}'", "'step' has no 'page' here"),
        ("kind: noop, input: {a: 1}, url: '{{ input.b }}'", "'input' has no 'b' here"),
        ("kind: noop, url: '{{ event.name }}'", "'event' does not exist at this place"),
        ("kind: noop, url: '{{ _index }}'", "'_index' does not exist at this place"),
        ("kind: noop, url: '{{ loop.index }}'", "'loop' does not exist at this place"),
        ("kind: noop, url: '{{ spec.x }}'", "'spec' does not exist at this place"),
        ("kind: noop, url: '{{ args.x }}'", "'args' does not exist at this place"),
        ("kind: python, code: x, input: {a: '{{ b }}', b: 1}", "nothing is called 'b'"),
        ("kind: noop, url: '{% for r in rows %}{{ r.x }}{{ lots }}{% endfor %}'", "nothing is called 'lots'"),
        ('kind: noop, url: "{{ load.x }}"', "reads step 'load', which can never have run before"),
    ],
)
def test_what_cannot_be_there_is_told(fields: str, says: str) -> None:
    messages = in_task(fields)
    assert any(says in message for message in messages), messages
    assert all(message.startswith("step 'load', task 'load_task', field ") for message in messages)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("set: {x: '{{ missing }}'}", "step 'load', field 'set.x': nothing is called 'missing'"),
        ("next: [{step: end, when: '{{ missing > 1 }}'}]", "field 'next.0.when': nothing is called 'missing'"),
        ("next: [{step: end, when: missing}]", "nothing is called 'missing'"),
        ("next: {arcs: [{step: end, set: {x: '{{ missing }}'}}]}", "field 'next.arcs.0.set.x': nothing is called"),
        ("next: [{step: end, when: '{{ _prev }}'}]", "'_prev' does not exist at this place"),
        ("next: [{step: end, when: '{{ iter.page > 1 }}'}]", "'iter' has no 'page' here"),
        ("next: [{step: end, when: '{{ row }}'}], loop: {in: [1], iterator: row}", "nothing is called 'row'"),
        ("next: [{step: end, when: '{{ fanin.status }}'}]", "'fanin' does not exist at this place"),
        ("loop: {in: '{{ missing }}', iterator: row}", "field 'loop.in': nothing is called 'missing'"),
        ("loop: {in: '{{ row }}', iterator: row}", "nothing is called 'row'"),
        (
            "loop: {in: [1], iterator: row, spec: {mode: parallel, max_in_flight: '{{ many }}'}}",
            "field 'loop.spec.max_in_flight': nothing is called 'many'",
        ),
        ("spec: {policy: {admit: {rules: [{when: '{{ go }}', then: {allow: true}}]}}}", "nothing is called 'go'"),
    ],
)
def test_what_cannot_be_there_is_told_of_steps_arcs_and_loops(keys: str, says: str) -> None:
    messages = told(workflow(f"- {{step: load, tool: {{kind: noop}}, {keys}}}"))
    assert any(says in message for message in messages), messages


def test_a_name_of_a_later_task_does_not_exist_yet() -> None:
    steps = """
    - step: load
      tool:
        - {name: one, kind: noop, url: "{{ two.x }} {{ made }}", set: {own: "{{ made }}"}}
        - {name: two, kind: noop, set: {made: 1}}
    """
    assert [message.partition(": nothing is called ")[2][:6] for message in told(workflow(steps))] == [
        "'made'",
        "'two':",
        "'made'",
    ]


def test_each_pipeline_has_its_own_labels_and_names() -> None:
    steps = """
    - {step: one, tool: [{name: fetch, kind: noop, set: {page: 1, ctx.kept: 2}}], next: two}
    - {step: two, tool: [{name: other, kind: noop, url: "{{ fetch }} {{ page }} {{ kept }} {{ one.fetch }}"}]}
    """
    assert sorted(message.partition("called ")[2][:7] for message in told(workflow(steps))) == ["'fetch'", "'page':"]


def test_the_workload_is_rendered_in_its_order() -> None:
    root = """
    workload:
      base: http://x
      url: "{{ base }}/{{ later }}/{{ bas }}/{{ user }}/{{ payload.x }}/{{ execution_id }}"
      later: 1
      self: "{{ self_given }}"
      user: "{{ user }}"
    """
    text = workflow("- {step: s, tool: {kind: noop}}", root)
    assert told(text) == [
        "workload.url: nothing is called 'bas' (did you mean 'base'?)",
        "workload.url: reads 'later', which comes later in the workload",
        "workload.url: reads 'user', which comes later in the workload",
    ]
    assert found(text)[0].line == text[: text.index('"{{ base')].count("\n") + 1


def test_long_names_make_short_messages() -> None:
    (message,) = in_task("kind: noop, url: '{{ " + "x" * 5_000 + " }}'")
    assert len(message) < 250


# --- the order of steps ----------------------------------------------------------------------------------


def reading(reader: str, name: str) -> dict[str, object]:
    return {"tool": {"kind": "noop", "url": "{{ " + name + ".x }}"}, "step": reader}


def test_a_step_that_only_comes_later_has_never_run() -> None:
    text = graph(
        {**step("a", "b"), **reading("a", "b")},
        {**step("b", "c"), **reading("b", "a")},
        step("c"),
    )
    assert told(text) == [
        "step 'a', task 'a_task', field 'url': reads step 'b', which can never have run before",
    ]


def test_a_step_that_nothing_leads_to_has_never_run() -> None:
    text = graph({**step("a"), **reading("a", "lost")}, {**step("lost"), **reading("lost", "a")})
    assert told(text) == ["step 'a', task 'a_task', field 'url': reads step 'lost', which can never have run before"]


@pytest.mark.parametrize(
    "steps",
    [
        # a way back
        [step("a", "b"), step("b", "c", {"step": "a", "when": "{{ b.again }}"}), step("c")],
        # a branch that may have been faster
        [step("start", "a", "b", mode="inclusive"), step("a"), step("b")],
        # the step repeats itself, and beside it runs what it started
        [step("a", {"step": "a", "when": "{{ a.again }}"}, "b", mode="inclusive"), step("b")],
        # the end comes when everything else has run
        [step("start", "b"), step("b"), step("a"), step("end", "a")],
    ],
)
def test_a_step_that_may_have_run_is_not_told(steps: list[dict[str, object]]) -> None:
    reader = next(one for one in steps if one["step"] == "a")
    reader["tool"] = {"kind": "noop", "url": "{{ b.x }} {{ steps.b }} {{ ctx.b }}"}
    assert told(graph(*steps)) == []


def test_the_arcs_of_a_step_may_read_it() -> None:
    assert told(graph(step("a", {"step": "b", "when": "{{ a.n > 1 }}"}, set={"x": "{{ a.n }}"}), step("b"))) == []
    assert told(graph(step("a", {"step": "b", "when": "{{ b.n > 1 }}"}), step("b"))) == [
        "step 'a', field 'next.arcs.0.when': reads step 'b', which can never have run before"
    ]


def test_two_ways_to_begin_have_nothing_above_them() -> None:
    """`late` is reached from the entry and from the final step, so neither of them stands above it."""
    text = graph(
        {**step("a", "late"), **reading("a", "late")},
        {**step("last", "late"), **reading("last", "late")},
        step("late"),
        executor={"spec": {"final_step": "last"}},
    )
    assert told(text) == []


def test_a_key_of_ctx_may_be_a_step_that_never_ran() -> None:
    steps = [step("a", "b", set={"x": "{{ ctx.b.n }}"}), step("b")]
    assert told(graph(*steps)) == ["step 'a', field 'set.x': reads step 'b', which can never have run before"]


def test_arcs_that_are_too_entangled_exclude_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = graph({**step("a", "b"), **reading("a", "b")}, step("b"))
    assert told(text)
    monkeypatch.setattr("noetl.core.playbook.checks.order.PASSES_MAX", 0)
    assert told(text) == []


def test_a_hundred_entangled_steps_exclude_nothing_wrongly() -> None:
    names = [f"s{n}" for n in range(100)]
    steps = [
        {**step(name, *(f"s{(n * 7 + k * 13) % 100}" for k in range(5))), **reading(name, f"s{(n * 31) % 100}")}
        for n, name in enumerate(names)
    ]
    assert told(graph(*steps)) == []


# --- what is asked about first is nobody's slip ----------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        "x is defined",
        "x is not defined",
        "x.y is none",
        "x | default(1)",
        "x.y.z | d('')",
        "x | int | default(0)",
        "(x | default(0)) + 1",
        "x or 1",
        "x.y or []",
        "(x or 0) + (x or 1)",
        "x.y if x else 1",
        "x.y if x is defined else 1",
        "x and x.y > 1",
        "not x",
        "x.n | default(0) > 1 and x.n < 3",
        "ctx.x | default(0) + 1",
        "steps.x is defined",
        "workload.limi | default(3)",
        "iter.n | default(0) + 1",
        "results.x | default(none)",
    ],
)
def test_names_that_are_asked_about_first_are_not_told(expression: str) -> None:
    assert in_task('kind: noop, url: "{{ ' + expression + ' }}"') == []
    assert in_task('kind: noop, url: "a {% if ' + expression + ' %}{{ 1 }}{% endif %}"') == []


def test_what_is_asked_about_is_one_path_and_not_its_neighbours() -> None:
    (message,) = in_task('kind: noop, url: "{{ (ctx.n | default(0)) + ctx.missing }}"')
    assert "'missing' of ctx" in message


# --- whatever may exist is known -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        *("api_url", "workload.api_url", "ctx.api_url", "workload.given_by_the_request", "workload", "ctx", "steps"),
        *("start.x.y", "steps.start.x", "steps['start']", "ctx.start", "result.x", "response.x"),
        *("output.x", "outcome.status", "error.kind", "_prev", "_task", "_attempt", "results", "input", "step", "iter"),
        *("iter.parent.n", "execution_id", "job.uuid", "catalog_id", "parent_execution_id", "path", "version", "env.X"),
        *("now()", "range(limit)", "load_task_result is defined", "keychain.a.b"),
    ],
)
def test_a_name_of_the_table_is_known_in_a_task(expression: str) -> None:
    assert in_task('kind: noop, url: "{{ ' + expression + ' }}"') == []


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "row",
            "row.id",
            "iter.row",
            "iter.index",
            "iter._index",
            "_index",
            "loop_index",
            "iter._first",
            "iter._last",
        ),
        *("iter._total", "_total", "loop.index", "loop.first", "loop.last", "loop.length", "loop.done", "iter.parent"),
        *("frame.rows", "frame.row_count", "iter.row_rows", "iter._frame_index", "iter._frame_row_count"),
    ],
)
def test_a_name_of_a_loop_is_known_in_its_tasks(expression: str) -> None:
    tool = '{kind: noop, url: "{{ ' + expression + ' }}"}'
    assert told(workflow(f"- {{step: s, tool: {tool}, loop: {{in: [1], iterator: row}}}}")) == []


@pytest.mark.parametrize("expression", ["event.name", "event.payload.x", "output.error", "result", "args.n", "made"])
def test_a_name_of_an_outcome_is_known_where_routes_are_chosen(expression: str) -> None:
    when = '"{{ ' + expression + ' }}"'
    steps = f"- {{step: a, tool: {{kind: noop}}, next: [{{step: b, when: {when}, args: {{n: 1}}, set: {{made: 2}}}}]}}"
    admit = f"spec: {{policy: {{admit: {{rules: [{{when: {when}, then: {{allow: true}}}}]}}}}}}"
    assert told(workflow(f"{steps}\n- {{step: b, tool: {{kind: noop}}, {admit}, set: {{x: {when}}}}}")) == []


def test_program_text_is_nobodys_business() -> None:
    code = 'f"{{missing}}"; x = "{{ nothing_of_that_name }}"'
    assert told(graph({"step": "s", "tool": {"kind": "python", "code": code}})) == []


def test_many_slips_are_told_up_to_a_number() -> None:
    fields = ", ".join(f"f{n}: '{{{{ missing_{n} }}}}'" for n in range(500))
    warnings = compiled(workflow(f"- {{step: s, tool: {{kind: noop, {fields}}}}}")).warnings
    assert len(warnings) == 201
    assert warnings[-1].code == "too_many_warnings"
