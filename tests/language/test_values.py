"""Sentences of the language about loops, pipelines, scopes, templates and results (dsl §4 to §8): what the checklist
and the shapes do not say already."""

from __future__ import annotations

import pytest

from noetl.core import kinds
from tests.support.language import World, case

# --- §4 loops ----------------------------------------------------------------------------------------------

IN_FLIGHT = case(
    "4_1",
    """
    workload: {many: 0}
    workflow:
      - step: each
        loop: {in: [1, 2], iterator: n, spec: {mode: parallel, max_in_flight: "{{ workload.many }}"}}
        tool: {kind: noop, result: "{{ n }}"}
    """,
)


@pytest.mark.parametrize("many", [0, -1, "none", None, 1.5, True])
def test_4_1_a_max_in_flight_that_is_no_number_from_one_fails_the_step(world: World, many: object) -> None:
    failure = world.failed(IN_FLIGHT.given(many=many))
    assert (failure["step"], failure["error"]["kind"]) == ("each", "config")
    assert "max_in_flight" in failure["error"]["message"]


@pytest.mark.parametrize("many", [1, 3])
def test_4_1_a_max_in_flight_may_be_a_template(world: World, many: int) -> None:
    assert world.completed(IN_FLIGHT.given(many=many))["results"] == [1, 2]


DEFAULT = case(
    "4_1_default",
    """
    workflow:
      - {step: start, tool: {kind: http, method: POST, url: "{{ workload.api }}/api/v1/concurrency/reset"}, next: each}
      - step: each
        loop: {in: "{{ range(40) | list }}", iterator: n, spec: {mode: parallel}}
        tool: {kind: http, url: "{{ workload.api }}/api/v1/concurrency/probe", params: {delay_seconds: 0.01}}
        next: end
      - {step: end, tool: {kind: http, url: "{{ workload.api }}/api/v1/concurrency/stats"}}
    """,
)


def test_4_1_four_rows_of_a_parallel_loop_run_at_a_time_unless_told_otherwise(world: World) -> None:
    assert world.completed(DEFAULT)["data"]["max_active"] == 4


COLLECTION = case(
    "4_2",
    """
    workload: {rows: null}
    workflow:
      - {step: each, loop: {in: "{{ workload.rows }}", iterator: n}, tool: {kind: noop, result: "{{ n }}"}}
    """,
)


@pytest.mark.parametrize("rows", [None, 7, True, 1.5])
def test_4_2_what_is_no_collection_fails_and_names_the_step(world: World, rows: object) -> None:
    failure = world.failed(COLLECTION.given(rows=rows))
    assert failure["step"] == "each"
    assert failure["error"]["code"] == "loop_not_iterable"
    assert "'each'" in failure["error"]["message"]


@pytest.mark.parametrize(
    ("rows", "items"),
    [([[]], [[]]), ({"a": 1}, [{"a": 1}]), ("[1, [2]]", [1, [2]]), ('{"a": 1}', ['{"a": 1}']), ("", [""])],
)
def test_4_2_mappings_and_text_are_one_item_and_a_json_list_is_one(world: World, rows: object, items: object) -> None:
    assert world.completed(COLLECTION.given(rows=rows))["results"] == items


# --- §5 pipelines ------------------------------------------------------------------------------------------

NAMES = case(
    "5_1",
    """
    workflow:
      - step: start
        tool:
          - {name: first, kind: noop, result: {n: 1}, set: {mine: 5}}
          - {name: second, kind: noop, result: ["{{ first.n }}", "{{ results.first.n }}", "{{ _prev.n }}",
                                                "{{ output.data.n }}",
                                                "{{ output.status }}", "{{ mine }}", "{{ second is defined }}"]}
          - {name: third, kind: noop, result: {prev: "{{ _prev[5] }}", labels: "{{ results | list }}"}}
        next: end
      - {step: end, tool: {kind: noop, result: ["{{ start.second }}", "{{ start.third }}", "{{ start.results.first }}",
                                                "{{ start._prev.prev }}", "{{ start.n }}", "{{ start.prev }}",
                                                "{{ mine is defined }}"]}}
    """,
)


def test_5_1_the_names_of_a_pipeline_and_of_its_result(world: World) -> None:
    assert world.completed(NAMES) == [
        [1, 1, 1, 1, "ok", 5, False],
        {"prev": 5, "labels": ["first", "second"]},
        {"n": 1},
        5,
        1,
        5,
        False,
    ]


TRUTH = case(
    "5_2",
    """
    workload: {value: null}
    workflow:
      - step: start
        tool: {kind: noop, result: 0, spec: {policy: {rules: [{when: "{{ workload.value }}",
                                                               then: {do: continue, set: {ctx.yes: true}}}]}}}
        next: [{step: a, when: "{{ workload.value }}"}, {step: b}]
      - {step: a, tool: {kind: noop, result: ["{{ ctx.yes is defined }}", true]}}
      - {step: b, tool: {kind: noop, result: ["{{ ctx.yes is defined }}", false]}}
    """,
)


@pytest.mark.parametrize(
    ("value", "is_true"),
    [
        *((text, False) for text in ("", "false", "FALSE", "0", "no", "None", "null", "Off", 0, [], {}, None, 0.0)),
        *((text, True) for text in ("yes", "x", "00", 1, [0], {"a": 0}, "true")),
    ],
)
def test_5_2_the_truth_of_a_condition(world: World, value: object, is_true: bool) -> None:
    assert world.completed(TRUTH.given(value=value)) == [is_true, is_true]


UNMATCHED = case(
    "5_2_unmatched",
    """
    workflow:
      - step: a
        tool: {kind: python, code: "raise ValueError()", spec: {policy: {on_unmatched: continue,
                                                                         rules: [{when: "{{ false }}",
                                                                                  then: {do: fail}}]}}}
        next: b
      - step: b
        tool: {kind: noop, spec: {policy: {on_unmatched: fail, rules: [{when: "{{ false }}", then: {do: break}}]}}}
        next: [{step: c, when: "{{ output.error.kind == 'policy' }}"}]
      - {step: c, tool: {kind: noop, result: "{{ b.error.kind }}"}}
    """,
)


def test_5_2_what_happens_when_no_rule_matches_can_be_said(world: World) -> None:
    assert world.completed(UNMATCHED) == "policy"


TASK_SET = case(
    "5_3",
    """
    workflow:
      - step: start
        tool:
          - name: page
            kind: http
            url: "{{ workload.api }}/api/v1/assessments"
            set: {page: "{{ output }}", more: "{{ output.paging.hasMore }}"}
          - name: gone
            kind: http
            url: "{{ workload.api }}/api/v1/errors?error_type=404"
            spec: {policy: {rules: [{when: true, then: {do: continue, set: {ctx.by_rule: rule, ctx.order: rule}}}]}}
            set: {failed: ["{{ output.status }}", "{{ output.error.kind }}"], ctx.order: "{{ ctx.order }} task"}
          - {name: look, kind: noop, result: {items: "{{ page.data.data | length }}", more: "{{ more }}",
                                              failed: "{{ failed }}"}}
        next: end
      - {step: end, tool: {kind: noop, result: ["{{ start.look }}", "{{ ctx.order }}"]}}
    """,
)


def test_5_3_task_set_comes_after_the_rule_and_sees_the_result_view(world: World) -> None:
    look, order = world.completed(TASK_SET)
    assert look == {"items": 10, "more": True, "failed": ["error", "not_found"]}
    assert order == "rule task"


# --- §6 scopes ---------------------------------------------------------------------------------------------

SCOPES = case(
    "6",
    """
    workflow:
      - step: start
        tool:
          - {name: a, kind: noop, result: 1, set: {iter.i: 1, step.s: 2, ctx.deep.x: 3, bare: 4}}
          - {name: b, kind: noop, result: ["{{ iter.i }}", "{{ step.s }}", "{{ ctx.deep.x }}", "{{ bare }}",
                                           "{{ ctx.bare is defined }}"]}
        set: {iter.from_step: 5, bare_step: 6, ctx.deep.y: 7, ctx.bad: "{{ 1 / 0 }}", ctx.good: 8}
        next: [{step: end, set: {step.from_arc: 9, bare_arc: 10}}]
      - step: end
        tool: {kind: noop, result: ["{{ start.b }}", "{{ ctx.from_step }}", "{{ ctx.bare_step }}", "{{ ctx.deep }}",
                                    "{{ ctx.good }}",
                                    "{{ ctx.bad is defined }}", "{{ ctx.from_arc }}", "{{ bare_arc }}",
                                    "{{ iter.i is defined }}"]}
    """,
)


def test_6_scopes_of_set_and_a_value_that_cannot_be_rendered(world: World) -> None:
    assert world.completed(SCOPES) == [[1, 2, 3, 4, False], 5, 6, {"x": 3, "y": 7}, 8, False, 9, 10, False]
    decided = world.play(SCOPES).of_type(kinds.STEP_DECIDED)[0]
    assert "bad" in str(decided.meta["warnings"])


# --- §7 templates ------------------------------------------------------------------------------------------

TEXT = case(
    "7_2",
    """
    workload: {d: {a: [1, null, true]}, n: 1.50}
    workflow:
      - step: start
        tool:
          kind: noop
          result: ["x{{ d }}", "x{{ d.a }}", "x{{ none }}", "x{{ d.a[2] }}", "{{ d.a[2] }}",
                   "{{ missing | default({'a': {'b': 1}}) }}",
                   "  {{ d }}  ", "{% if n %}{{ n }}{% endif %}", "{{ d | tojson }}", "{{ '{{' }}", "{{ [1] + [2] }}",
                   "{{ 7 // 2 }}",
                   "{{ d.a | first }}", "{{ 'a,b' | split(',') }}", "{{ 'x' | b64encode | b64decode }}",
                   "{{ '[1]' | fromjson }}",
                   "{{ d | keys }}", "{{ d | items }}", "{{ d | get('z', 9) }}",
                   "{{ True and not False and None is none }}"]
    """,
)


def test_7_2_native_values_and_text(world: World) -> None:
    d = {"a": [1, None, True]}
    text = '{"a": [1, null, true]}'
    result = world.completed(TEXT)
    assert [str(value).replace(" ", "") for value in result[:2]] == ["x" + text.replace(" ", ""), "x[1,null,true]"]
    assert result[2:8] == ["xNone", "xTrue", True, {"a": {"b": 1}}, d, "1.5"]
    assert result[8].replace(" ", "") == text.replace(" ", "")
    assert result[9:] == [
        *("{{", [1, 2], 3, 1, ["a", "b"], "x", [1]),
        *(["a"], [["a", [1, None, True]]], 9, True),
    ]


RANDOM = case(
    "7_1",
    """
    workload: {l: [3, 1, 2]}
    workflow:
      - {step: start, tool: {kind: noop, result: ["{{ l | random in l }}", "{{ [7] | random }}"]}}
    """,
)


def test_7_1_random_is_for_the_fields_of_tasks(world: World) -> None:
    assert world.completed(RANDOM) == [True, 7]


PRECEDENCE = case(
    "7_3",
    """
    workload: {a: workload, b: workload, c: workload, d: workload, execution_id: mine, e: workload}
    workflow:
      - {step: b, tool: {kind: noop, result: step}, set: {ctx.c: ctx}, next: c}
      - step: c
        loop: {in: [item], iterator: d}
        tool:
          - {name: x, kind: noop, set: {e: local}}
          - {name: y, kind: noop, result: ["{{ a }}", "{{ b }}", "{{ c }}", "{{ d }}", "{{ e }}",
                                           "{{ execution_id == 'mine' }}", "{{ x is defined }}"]}
        next: end
      - step: end
        tool: {kind: noop, result: ["{{ c }}", "{{ steps.c.results[0].y }}", "{{ ctx.a }}", "{{ ctx.b }}",
                                    "{{ ctx.zzz is defined }}",
                                    "{{ workload.execution_id }}", "{{ path }}", "{{ parent_execution_id }}",
                                    "{{ job.id == execution_id }}"]}
    """,
)


def test_7_3_names_and_which_of_them_win(world: World) -> None:
    bare, inner, *rest = world.completed(PRECEDENCE)
    assert bare == "ctx"
    assert inner == ["workload", "step", "ctx", "item", "local", False, True]
    assert rest == ["workload", "workload", False, "mine", "checklist/7_3", None, True]


UNDEFINED = case(
    "7_4",
    """
    workload: {none: null}
    workflow:
      - step: start
        tool:
          kind: noop
          result: ["{{ a.b.c is defined }}", "{{ 1 if a.b.c else 2 }}", "{{ a == b }}", "{{ a == none }}",
                   "{{ a != 1 }}", "{{ a.b | default(3) }}",
                   "{{ none | default(4) }}", "{{ none | default(4, true) }}", "[{{ a.b }}]", "{{ a.b }}",
                   "{{ a or [] }}"]
        next: [{step: bad, when: "{{ a.b.c or a['x'] or not none == none }}"}, {step: compare}]
      - {step: bad, tool: {kind: noop}}
      - step: compare
        tool: [{name: greater, kind: noop, result: "{{ a > 1 }}",
                spec: {policy: {rules: [{when: "{{ error.kind == 'template' }}", then: {do: continue}}]}}},
               {name: sum, kind: noop, result: "{{ a.b + 1 }}",
                spec: {policy: {rules: [{when: "{{ error.kind == 'template' }}", then: {do: continue}}]}}}]
        next: end
      - {step: end, tool: {kind: noop, result: ["{{ start }}", "{{ compare.greater.status }}",
                                                "{{ compare.sum.status }}"]}}
    """,
)


def test_7_4_undefined(world: World) -> None:
    start, greater, total = world.completed(UNDEFINED)
    assert start == [False, 2, False, False, True, 3, None, 4, "[]", None, []]
    assert (greater, total) == ("error", "error")


# --- §8 results --------------------------------------------------------------------------------------------

VIEWS = case(
    "8_2",
    """
    workflow:
      - {step: mapping, tool: {kind: python, code: "result = {'a': 1}"}, next: own}
      - {step: own, tool: {kind: python, code: "result = {'status': 'mine', 'data': {'t': 1}, 'result': 2}"},
         next: items}
      - {step: items, tool: {kind: python, code: "result = [1, 2]"}, next: scalar}
      - {step: scalar, tool: {kind: python, code: "result = 7"}, next: api}
      - {step: api, tool: {kind: http, url: "{{ workload.api }}/api/v1/assessments?pageSize=1"}, next: end}
      - step: end
        tool:
          kind: noop
          result:
            mapping: ["{{ mapping.data.a }}", "{{ mapping.result.a }}", "{{ mapping.status }}", "{{ mapping }}"]
            own: ["{{ own.status }}", "{{ own.data.t }}", "{{ own.result }}", "{{ own }}"]
            items: ["{{ items }}", "{{ items.data }}", "{{ items.result[1] }}"]
            scalar: ["{{ scalar + 1 }}", "{{ scalar.data }}"]
            api: ["{{ api.paging.total }}", "{{ api.data.paging.total }}", "{{ api.body.paging.total }}",
                  "{{ api.status_code }}", "{{ api | list }}"]
            none: ["{{ mapping._ref is defined }}", "{{ never is defined }}", "{{ steps.never is defined }}"]
    """,
)


def test_8_2_the_views_of_results(world: World) -> None:
    result = world.completed(VIEWS)
    assert result["mapping"] == [1, 1, "ok", {"a": 1}]
    assert result["own"] == ["mine", 1, 2, {"status": "mine", "data": {"t": 1}, "result": 2}]
    assert result["items"] == [[1, 2], [1, 2], 2]
    assert result["scalar"] == [8, 7]
    assert result["api"][:4] == [35, 35, 35, 200]
    assert sorted(result["api"][4]) == ["body", "data", "elapsed", "headers", "status_code", "url"]
    assert result["none"] == [False, False, False]


NORMAL = case(
    "8_6",
    """
    workflow:
      - step: start
        tool:
          kind: python
          code: |
            import datetime, decimal, uuid
            moment = datetime.datetime(2024, 2, 29, 12)
            result = {"whole": decimal.Decimal(7), "part": decimal.Decimal("7.50"), "day": moment.date(),
                      "naive": moment, "aware": moment.replace(tzinfo=datetime.timezone.utc), "uuid": uuid.UUID(int=42),
                      "bytes": b"\\x00\\xff", "tuple": (1, 2), "set": {3}, "nan": float("nan"), "inf": float("inf"),
                      "type": int, 5: "key"}
    """,
)


def test_8_6_values_are_normalised(world: World) -> None:
    assert world.completed(NORMAL) == {
        "whole": 7,
        "part": 7.5,
        "day": "2024-02-29",
        "naive": "2024-02-29T12:00:00",
        "aware": "2024-02-29T12:00:00+00:00",
        "uuid": "00000000-0000-0000-0000-00000000002a",
        "bytes": "AP8=",
        "tuple": [1, 2],
        "set": [3],
        "nan": None,
        "inf": None,
        "type": "<class 'int'>",
        "5": "key",
    }
