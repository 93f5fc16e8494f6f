"""The behaviours with a high risk of breaking, one test each (dsl §12).

Items 20 and 21, about cursors, and item 25, about the keychain, are proved beside these parts: `test_coverage` finds
them by name."""

from __future__ import annotations

from collections import Counter
from urllib.parse import parse_qs, urlsplit

import pytest

from noetl.core import kinds
from noetl.core.execution.state import Status
from noetl.core.limits import EVENT_RESULT_BYTES_MAX
from tests.support.engine import Told
from tests.support.language import World, case

# --- templates and types -----------------------------------------------------------------------------------

ITEMS = case(
    "12_01",
    """
    workflow:
      - step: r
        tool: {kind: python, code: "result = {'items': [7, 8], 'keys': 'k', 'get': {'count': 9}, 'values': None}"}
        set: {ctx.by_router: "{{ r.items }}"}
        next:
          arcs:
            - {step: wrong, when: "{{ r.values }}"}
            - {step: end, when: "{{ r.items[1] == 8 and r.get.count == 9 and output.data.items | length == 2 }}"}
      - {step: wrong, tool: {kind: noop}}
      - step: end
        tool:
          kind: noop
          result: ["{{ r.items }}", "{{ r['items'] }}", "{{ r.keys }}", "{{ r.get.count }}", "{{ r.values }}",
                   "{{ ctx.by_router }}", "items: {{ r.items }}", "{{ r.copy is defined }}"]
    """,
)


def test_12_01_items_is_the_key_not_a_method(world: World) -> None:
    assert world.completed(ITEMS) == [[7, 8], [7, 8], "k", 9, None, [7, 8], "items: [7, 8]", False]


TYPES = case(
    "12_02",
    """
    workload: {n: 100, digits: "007", ratio: 2.0, flag: false}
    workflow:
      - step: start
        tool:
          kind: python
          input:
            values: ["{{ n }}", "{{ digits }}", "{{ ratio }}", "{{ flag }}", "{{ nothing }}", " {{ n }} ",
                     "{{ n }}{{ n }}",
                     "{{ n | tojson }}", "{{ execution_id }}", "{{ execution_id[:2] }}", "n{# note #}",
                     "{{ 10 ** 20 }}"]
          code: "result = [[value, type(value).__name__] for value in values]"
    """,
)


def test_12_02_one_expression_keeps_its_type_and_the_execution_id_is_text(world: World) -> None:
    identity = str(world.play(TYPES).state.execution_id)
    assert identity.isdecimal()
    assert world.completed(TYPES) == [
        [100, "int"],
        ["007", "str"],
        [2.0, "float"],
        [False, "bool"],
        [None, "NoneType"],
        [100, "int"],
        ["100100", "str"],
        ["100", "str"],
        [identity, "str"],
        [identity[:2], "str"],
        ["n", "str"],
        [10**20, "int"],
    ]


QUERY = case(
    "12_03",
    """
    workload: {none: null}
    workflow:
      - step: start
        tool:
          kind: http
          url: "{{ workload.api }}/get"
          params: {a: "{{ none }}", b: null, c: "{{ missing.value }}", d: true, e: [1, "{{ 1 + 1 }}"], f: 0, g: ""}
        next: end
      - {step: end, tool: {kind: noop, result: "{{ start.data.url }}"}}
    """,
)


def test_12_03_null_query_parameters_are_dropped(world: World) -> None:
    query = urlsplit(world.completed(QUERY)).query
    assert parse_qs(query, keep_blank_values=True) == {"d": ["true"], "e": ["1", "2"], "f": ["0"], "g": [""]}


# --- SQL ---------------------------------------------------------------------------------------------------

RETURNING = case(
    "12_04",
    """
    workflow:
      - step: fill
        tool:
          kind: postgres
          auth: pg_work
          command: |
            CREATE TABLE IF NOT EXISTS returning_rows (id integer GENERATED ALWAYS AS IDENTITY, name text);
            INSERT INTO returning_rows (name) VALUES ('a'), ('b') RETURNING name
        next: end
      - step: end
        tool:
          kind: python
          input: {whole: "{{ fill }}", rows: "{{ fill.rows }}", first: "{{ fill.command_1.rows[0].name }}",
                  count: "{{ fill.row_count }}"}
          code: |
            result = {"rows": rows, "first": first, "count": count,
                      "in_code": [whole["command_0"]["row_count"], whole["command_1"]["rows"], whole["rows"]]}
    """,
)


def test_12_04_insert_returning_yields_rows_and_command_n(world: World) -> None:
    rows = [{"name": "a"}, {"name": "b"}]
    assert world.completed(RETURNING) == {"rows": rows, "first": "a", "count": 2, "in_code": [0, rows, rows]}


SPLITTING = case(
    "12_05",
    """
    workflow:
      - step: start
        tool:
          kind: postgres
          auth: pg_work
          command: |
            -- it's a comment; don't split here
            /* nor /* here; isn't it */ ; */
            CREATE OR REPLACE FUNCTION shout(t text) RETURNS text LANGUAGE plpgsql AS $$
            BEGIN
              -- what's this; a semicolon
              RETURN upper(t) || ';';
            END;
            $$;
            SELECT shout('it''s 100%; done') AS said, 7 % 4 AS rest, 'a%sb' LIKE 'a%' AS alike;
            -- nothing; but a comment
        next: end
      - {step: end, tool: {kind: noop, result: ["{{ start.rows }}", "{{ start.statement_count }}"]}}
    """,
)


def test_12_05_apostrophes_in_comments_and_bodies_and_percent_signs_are_harmless(world: World) -> None:
    assert world.completed(SPLITTING) == [[{"said": "IT'S 100%; DONE;", "rest": 3, "alike": True}], 2]


LITERALS = case(
    "12_06",
    """
    workload: {v: null}
    workflow:
      - step: start
        tool:
          kind: postgres
          auth: pg_work
          query: SELECT '{{ v | tojson | replace("'", "''") }}'::jsonb AS v
        next: end
      - {step: end, tool: {kind: noop, result: "{{ start.rows[0].v }}"}}
    """,
)


@pytest.mark.parametrize(
    "value",
    [
        "it's",
        'say "hi"',
        "back\\slash",
        "'; DROP TABLE x; --",
        "<b>&amp; ü €",
        {"a'b": ["\\'", None, 1.5]},
        "\n\t{{ x }}",
    ],
)
def test_12_06_tojson_and_replace_make_valid_sql_literals(world: World, value: object) -> None:
    assert world.completed(LITERALS.given(v=value)) == value


# --- names and Python --------------------------------------------------------------------------------------

NEVER_RAN = case(
    "12_07",
    """
    workload: {which: b}
    workflow:
      - step: start
        tool: {kind: noop}
        next: [{step: a, when: "{{ which == 'a' }}"}, {step: b}]
      - {step: a, tool: {kind: python, code: "result = {'x': 'from a'}"}, next: end}
      - {step: b, tool: {kind: python, code: "result = {'x': 'from b'}"}, next: end}
      - step: end
        tool: {kind: noop, result: ["{{ a.x if a else b.x }}", "{{ a.x.y.z is defined }}", "<{{ a.x if a else b.x }}>"]}
        set: {ctx.by_router: "{{ a.x if a else b.x }}"}
        next: [{step: last, when: "{{ (a.x if a else b.x) == 'from ' + which }}"}]
      - {step: last, tool: {kind: noop, result: ["{{ ctx.by_router }}", "{{ end }}"]}}
    """,
)


@pytest.mark.parametrize("which", ["a", "b"])
def test_12_07_a_step_that_never_ran_is_false_in_a_choice(world: World, which: str) -> None:
    said = f"from {which}"
    assert world.completed(NEVER_RAN.given(which=which)) == [said, [said, False, f"<{said}>"]]


INPUT_DATA = case(
    "12_08",
    """
    workflow:
      - step: own
        tool: {kind: python, input: {input_data: {a: 1}, args: [2], b: 3}, code: "result = [input_data, args, b]"}
        next: whole
      - step: whole
        tool: {kind: python, input: {b: 3, c: "{{ own[0] }}"}, code: "result = [input_data, args, b]"}
        next: end
      - {step: end, tool: {kind: noop, result: ["{{ own }}", "{{ whole }}"]}}
    """,
)


def test_12_08_an_input_called_input_data_wins_over_the_whole(world: World) -> None:
    whole = {"b": 3, "c": {"a": 1}}
    assert world.completed(INPUT_DATA) == [[{"a": 1}, [2], 3], [whole, whole, 3]]


RETURN = case(
    "12_09",
    """
    workflow:
      - step: start
        tool:
          kind: python
          input: {rows: [3, 1, 2], limit: 2}
          code: |
            rows = sorted(rows)
            if limit:
                rows = rows[:limit]
                return {"rows": rows, "limit": limit}
            result = "not reached"
    """,
)


def test_12_09_a_top_level_return_may_stand_behind_a_reassigned_input(world: World) -> None:
    assert world.completed(RETURN) == {"rows": [1, 2], "limit": 2}


# --- pipelines ---------------------------------------------------------------------------------------------

ATTEMPTS = case(
    "12_10",
    """
    workflow:
      - step: start
        tool:
          - name: try
            kind: http
            url: "{{ workload.api }}/api/v1/journal/note"
            method: POST
            params: {item: "attempt {{ _attempt }} of {{ execution_id }}"}
            spec: {policy: {rules: [{when: true, then: {do: retry, attempts: 3, delay: 0}}]}}
    """,
)


def test_12_10_attempts_counts_the_first_try(world: World) -> None:
    failure = world.failed(ATTEMPTS)
    identity = world.play(ATTEMPTS).state.execution_id
    noted = [item for item in world.ask("/api/v1/journal")["entries"] if item.endswith(f"of {identity}")]
    assert noted == [f"attempt {n} of {identity}" for n in (1, 2, 3)]
    assert failure["error"]["kind"] == "policy"


CONTINUED = case(
    "12_11",
    """
    workflow:
      - step: start
        tool:
          - name: broken
            kind: python
            code: "raise ValueError('no')"
            spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: continue}}]}}
          - name: after
            kind: python
            input: {before: "{{ output.status }}", kind: "{{ broken.error.kind }}", prev: "{{ _prev }}"}
            code: "result = {'before': before, 'kind': kind, 'prev': prev}"
        next: [{step: end, when: "{{ output.status == 'ok' }}"}]
      - {step: end, tool: {kind: noop, result: ["{{ start.after }}", "{{ start.broken.status }}",
                                                "{{ start.status }}"]}}
    """,
)


def test_12_11_continue_after_an_error_runs_the_next_task_and_the_step_succeeds(world: World) -> None:
    after, broken, _ = world.completed(CONTINUED)
    assert after == {"before": "error", "kind": "python", "prev": None}
    assert broken == "error"


SETS = case(
    "12_12",
    """
    workflow:
      - step: start
        tool:
          - name: make
            kind: python
            code: "result = {'status': 'mine', 'n': 5}"
            set: {iter.task: "{{ output.status }}", iter.task_n: "{{ output.n }}",
                  iter.task_data: "{{ output.data.n }}",
                  iter.task_meta: "{{ output.meta is defined }}"}
            spec:
              policy:
                rules:
                  - else:
                      then:
                        do: continue
                        set: {iter.rule: "{{ output.status }}", iter.rule_own: "{{ output.data.status }}",
                              iter.rule_n: "{{ output.n }}", iter.rule_meta: "{{ output.meta.attempt }}"}
          - {name: look, kind: noop, result: "{{ iter }}"}
        next: end
      - {step: end, tool: {kind: noop, result: "{{ start.look }}"}}
    """,
)


def test_12_12_task_set_sees_the_raw_result_and_policy_the_envelope(world: World) -> None:
    assert world.completed(SETS) == {
        "task": "mine",
        "task_n": 5,
        "task_data": 5,
        "task_meta": False,
        "rule": "ok",
        "rule_own": "mine",
        "rule_n": 5,
        "rule_meta": 1,
    }


ITER = case(
    "12_13",
    """
    workflow:
      - step: pages
        tool:
          - {name: begin, kind: noop, result: "{{ iter.page | default('none') }}", set: {iter.page: 1}}
          - name: page
            kind: http
            url: "{{ workload.api }}/api/v1/assessments"
            params: {page: "{{ iter.page }}"}
            spec:
              policy:
                rules:
                  - when: "{{ output.data.paging.hasMore }}"
                    then: {do: jump, to: page, set: {iter.page: "{{ iter.page + 1 }}"}}
          - {name: last, kind: noop, result: {page: "{{ iter.page }}"}}
        set: {ctx.seen: "{{ (ctx.seen | default([])) + [[pages.begin, pages.last.page]] }}"}
        next: [{step: pages, when: "{{ ctx.seen | length < 2 }}"}, {step: end}]
      - {step: end, tool: {kind: noop, result: ["{{ ctx.seen }}", "{{ iter.page is defined }}"]}}
    """,
)


def test_12_13_iter_outside_loops_belongs_to_one_run_of_the_step(world: World) -> None:
    assert world.completed(ITER) == [[["none", 4], ["none", 4]], False]


# --- loops, cycles and joins -------------------------------------------------------------------------------

SEQUENTIAL = case(
    "12_14",
    """
    workflow:
      - step: each
        loop: {in: [10, 20, 30], iterator: n, spec: {mode: sequential}}
        tool:
          kind: python
          input: {n: "{{ n }}", seen: "{{ ctx.seen | default([]) }}"}
          code: "result = seen"
          set: {ctx.seen: "{{ (ctx.seen | default([])) + [n] }}"}
        next: end
      - {step: end, tool: {kind: noop, result: ["{{ each.results }}", "{{ ctx.seen }}"]}}
    """,
)


def test_12_14_sequential_iterations_see_what_earlier_ones_wrote(world: World) -> None:
    assert world.completed(SEQUENTIAL) == [[[], [10], [10, 20]], [10, 20, 30]]


SELF_LOOP = case(
    "12_15",
    """
    workload: {times: 5}
    workflow:
      - step: s
        tool: {kind: python, input: {n: "{{ ctx.n | default(0) }}"}, code: "result = {'n': n + 1}"}
        set: {ctx.n: "{{ s.n }}"}
        next: {arcs: [{step: s, when: "{{ ctx.n < workload.times }}"}, {step: end}]}
      - {step: end, tool: {kind: noop, result: "{{ s.n }}"}}
    """,
)


def runs(told: Told) -> Counter[str]:
    """How often each step was begun."""
    begun = [e for e in told.of_type(kinds.COMMAND_ISSUED) if e.meta["kind"] == "step"]
    return Counter(str(event.meta["step"]) for event in (*begun, *told.of_type(kinds.LOOP_STARTED)))


def test_12_15_a_self_loop_enters_again_and_ends(world: World) -> None:
    assert world.completed(SELF_LOOP) == 5
    assert runs(world.play(SELF_LOOP)) == {"s": 5, "end": 1}


TWO_STEPS = case(
    "12_16",
    """
    workload: {times: 4}
    workflow:
      - {step: start, tool: {kind: noop}, set: {ctx.n: 0}, next: ping}
      - {step: ping, tool: {kind: noop, result: "{{ ctx.n }}"}, next: pong}
      - step: pong
        tool: {kind: noop, result: "{{ ping }}"}
        next:
          arcs:
            - {step: ping, when: "{{ ctx.n + 1 < workload.times }}", set: {ctx.n: "{{ ctx.n + 1 }}"}}
            - {step: end}
      - {step: end, tool: {kind: noop, result: ["{{ ctx.n }}", "{{ pong }}"]}}
    """,
)


@pytest.mark.parametrize("times", [1, 4])
def test_12_16_a_cycle_of_two_steps_ends_with_the_exact_count(world: World, times: int) -> None:
    what = TWO_STEPS.given(times=times)
    assert world.completed(what) == [times - 1, times - 1]
    assert runs(world.play(what)) == {"start": 1, "ping": times, "pong": times, "end": 1}


JOIN = case(
    "12_17",
    """
    workflow:
      - {step: split, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: short}, {step: long_1}]}}
      - {step: short, tool: {kind: noop, result: 1}, next: join}
      - {step: long_1, tool: {kind: noop}, next: long_2}
      - {step: long_2, tool: {kind: python, code: "import time; time.sleep(0.05); result = 2"}, next: join}
      - {step: join, tool: {kind: noop, result: "{{ short + long_2 }}"}}
    """,
)


def test_12_17_a_join_runs_once(world: World) -> None:
    assert world.completed(JOIN) == 3
    told = world.play(JOIN)
    assert runs(told)["join"] == 1
    issued = next(e for e in told.of_type(kinds.COMMAND_ISSUED) if e.meta["step"] == "join")
    assert issued.meta["parents"] == ["short", "long_2"]


UNTAKEN = case(
    "12_18",
    """
    workload: {big: false}
    workflow:
      - {step: start, tool: {kind: noop}, next: [{step: big, when: "{{ workload.big }}"}, {step: small}]}
      - {step: big, tool: {kind: noop, result: 1}, next: more}
      - {step: more, tool: {kind: noop}, next: join}
      - {step: small, tool: {kind: noop, result: 2}, next: join}
      - {step: join, tool: {kind: noop, result: "{{ big if workload.big else small }}"}}
    """,
)


@pytest.mark.parametrize(("big", "result"), [(False, 2), (True, 1)])
def test_12_18_a_branch_that_is_not_taken_does_not_block_the_join(world: World, big: bool, result: int) -> None:
    what = UNTAKEN.given(big=big)
    assert world.completed(what) == result
    begun = runs(world.play(what))
    assert begun["join"] == 1
    assert ("small" in begun) is not big


EMPTY = case(
    "12_19",
    """
    workload: {rows: []}
    workflow:
      - step: each
        loop: {in: "{{ workload.rows }}", iterator: row, spec: {mode: parallel}}
        tool: {kind: python, code: "raise ValueError('no row')"}
        set: {ctx.after: "{{ each.count }}"}
        next: [{step: end, when: "{{ event.name == 'loop.done' and each.stats.total == 0 }}"}]
      - {step: end, tool: {kind: noop, result: ["{{ each }}", "{{ ctx.after }}"]}}
    """,
)


def test_12_19_an_empty_collection_still_routes(world: World) -> None:
    empty = {"results": [], "stats": {"total": 0, "success": 0, "failed": 0}, "count": 0, "status": "ok"}
    assert world.completed(EMPTY) == [empty, 0]


# --- names of steps, state and large results ---------------------------------------------------------------

SLASHES = case(
    "12_22",
    """
    workflow:
      - step: tests/retry/simple config
        tool: {kind: python, code: "result = {'n': 1}"}
        next: [{step: "ends / here#1", when: "{{ steps['tests/retry/simple config'].n == 1 }}"}]
      - step: "ends / here#1"
        loop: {in: [1, 2], iterator: n}
        tool: [{name: a/b, kind: noop, result: "{{ n }}"}]
        next: [{step: "100%", when: "{{ steps['ends / here#1'].results[1]['a/b'] == 2 }}"}]
      - {step: "100%", tool: {kind: noop, result: "{{ steps['tests/retry/simple config'] }}"}}
    """,
)


def test_12_22_step_names_are_any_text(world: World) -> None:
    assert world.completed(SLASHES) == {"n": 1}


WORKLOAD = case(
    "12_23",
    """
    workload: {x: 1, deep: {a: {b: 2}}}
    workflow:
      - step: start
        tool: {kind: noop, set: {ctx.deep.a.c: 4}}
        set: {ctx.x: "{{ workload.x + 10 }}", ctx.deep.a.b: 3}
        next: [{step: end, when: "{{ workload.x == 1 and x == 11 }}", set: {x: "{{ ctx.x + 100 }}"}}]
      - step: end
        tool: {kind: noop, result: ["{{ workload }}", "{{ ctx.x }}", "{{ x }}", "{{ ctx.deep }}"]}
    """,
)


def test_12_23_the_workload_is_unchanged_after_ctx_was_set(world: World) -> None:
    workload, by_scope, bare, deep = world.completed(WORKLOAD)
    assert workload == {"x": 1, "deep": {"a": {"b": 2}}}
    assert (by_scope, bare) == (111, 111)
    assert deep["a"] == {"b": 3, "c": 4}


NESTED = case(
    "12_24",
    """
    workload: {n: 1, rows: [1, 2]}
    workflow:
      - step: start
        tool:
          - name: t
            kind: noop
            set: {local: {deep: [{n: "{{ n }}"}]}}
            spec: {policy: {rules: [{else: {then: {do: continue,
                                                   set: {ctx.rule: {deep: {n: ["{{ n }}", "n={{ n }}"]}}}}}}]}}
          - {name: u, kind: noop, result: "{{ local }}"}
        set: {ctx.step: {list: ["{{ rows }}", {n: "{{ n }}", text: plain}], "{{ n }}": 0}}
        next: [{step: end, set: {ctx.arc: {a: {b: {c: "{{ start.u.deep[0].n }}"}}}}}]
      - {step: end, tool: {kind: noop, result: ["{{ ctx.step }}", "{{ ctx.rule }}", "{{ ctx.arc }}", "{{ start.u }}"]}}
    """,
)


def test_12_24_nested_values_inside_set_are_rendered(world: World) -> None:
    by_step, by_rule, by_arc, by_task = world.completed(NESTED)
    assert by_step == {"list": [[1, 2], {"n": 1, "text": "plain"}], "{{ n }}": 0}
    assert by_rule == {"deep": {"n": [1, "n=1"]}}
    assert by_arc == {"a": {"b": {"c": 1}}}
    assert by_task == {"deep": [{"n": 1}]}


LARGE = case(
    "12_26",
    """
    workflow:
      - {step: small, tool: {kind: python, code: "result = {'rows': [[1], [2]]}"}, next: large}
      - step: large
        tool: {kind: python, code: "result = {'rows': [[n, 'x' * 100] for n in range(1200)], 'count': 1200}"}
        next: [{step: end,
                when: "{{ large.rows[1100][0] == 1100 and large._ref is defined and small._ref is not defined }}"}]
      - step: end
        tool:
          kind: python
          input: {deep: "{{ large.rows[1100][0] }}", count: "{{ large.count }}", ref: "{{ large._ref is defined }}",
                  small: "{{ small._ref is defined }}", store: "{{ large._store }}",
                  none: "{{ small._store is defined }}",
                  whole: "{{ large }}"}
          code: |
            result = [deep, count, ref, small, store, none, sorted(whole), len(whole["rows"])]
    """,
)


def test_12_26_a_large_result_has_a_reference_and_a_deep_index_still_resolves(world: World) -> None:
    assert world.completed(LARGE) == [1100, 1200, True, False, "kv", False, ["count", "rows"], 1200]
    told = world.play(LARGE)
    assert max(len(str(event.result)) for event in told.events) < EVENT_RESULT_BYTES_MAX
    assert told.state.status is Status.COMPLETED
