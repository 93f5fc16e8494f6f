"""Older and irregular forms do what their newer ones do (dsl §11): those whose treatment shows only when they run.

`tests/unit/test_negative_table.py` holds the whole table."""

from __future__ import annotations

import pytest

from noetl.core import kinds
from tests.language.test_checklist import runs
from tests.support.language import World, case

RESULT = case(
    "11_result",
    """
    workflow:
      - step: start
        tool: {kind: python, code: "result = {'n': 5, 'data': {'deep': 6}}"}
        set: {ctx.step_n: "{{ result.n }}", ctx.step_deep: "{{ response.data.deep }}"}
        next: [{step: other, when: "{{ result.n == 5 and response.n == 5 }}", set: {ctx.arc_n: "{{ response.n + 1 }}"}}]
      - step: other
        tool:
          - {name: first, kind: noop, result: ["{{ result.n }}", "{{ response.data.deep }}"]}
          - {name: second, kind: noop, result: "{{ result.n }}"}
        next: end
      - step: end
        tool: {kind: noop, result: ["{{ ctx.step_n }}", "{{ ctx.step_deep }}", "{{ ctx.arc_n }}", "{{ other.first }}",
                                    "{{ other.second }}", "{{ result.second }}"]}
    """,
)


def test_11_result_and_response_are_the_completing_or_requesting_step(world: World) -> None:
    assert world.completed(RESULT) == [5, 6, 6, [5, 6], 5, 5]


OUTCOME = case(
    "11_outcome",
    """
    workflow:
      - step: start
        tool:
          - name: make
            kind: python
            code: "result = {'n': 5}"
            spec: {policy: {rules: [{when: "{{ outcome.status == 'ok' and outcome.result.n == outcome.data.n }}",
                                     then: {do: continue, set_ctx: {seen: "{{ outcome.result }}"},
                                            set_iter: {mine: 1}}}]}}
          - {name: look, kind: noop, result: ["{{ outcome.n }}", "{{ iter.mine }}", "{{ output.response.n }}"]}
        next: [{step: end, when: "{{ outcome.status == 'ok' }}"}]
      - {step: end, tool: {kind: noop, result: ["{{ ctx.seen }}", "{{ start.look }}"]}}
    """,
)


def test_11_outcome_is_output(world: World) -> None:
    assert world.completed(OUTCOME) == [{"n": 5}, [5, 1, 5]]


SYNONYMS = case(
    "11_events",
    """
    workflow:
      - step: start
        tool: {kind: noop}
        set: &names
          ctx.{0}: ["{{ event.name == 'call.done' }}", "{{ event.name == 'step.done' }}",
                    "{{ event.name == 'step.exit' }}",
                    "{{ event.name == 'command.completed' }}", "{{ event.name == 'loop.done' }}",
                    "{{ event.name in ['call.error', 'step.failed', 'command.failed'] }}", "{{ event.step }}"]
        next: each
      - step: each
        loop: {in: [1], iterator: n}
        tool: {kind: noop}
        set: *names
        next: broken
      - step: broken
        tool: {kind: python, code: "1 / 0"}
        next:
          spec: {mode: inclusive}
          arcs:
            - {step: a, when: "{{ event.name == 'call.error' }}"}
            - {step: b, when: "{{ event.name == 'step.failed' and event.step == 'broken' }}"}
            - {step: c, when: "{{ event.name == 'command.failed' }}"}
            - {step: d, when: "{{ event.name == 'step.done' or event.name != 'call.error' }}"}
            - {step: d}
      - {step: a, tool: {kind: noop}}
      - {step: b, tool: {kind: noop}}
      - {step: c, tool: {kind: noop}}
      - {step: d, tool: {kind: noop}}
    """.replace("ctx.{0}", "ctx.names"),
)


def test_11_every_synonym_of_an_event_name_is_equal(world: World) -> None:
    told = world.play(SYNONYMS)
    decided = {e.meta["step"]: e for e in told.of_type(kinds.STEP_DECIDED)}
    for step, is_loop in (("start", False), ("each", True)):
        (write,) = decided[step].writes or ()
        assert write["v"] == [True, True, True, True, is_loop, False, step]
    assert decided["broken"].meta["targets"] == ["a", "b", "c"]
    assert "d" not in runs(told)


RETRY = case(
    "11_retry",
    """
    workload: {kinds: [timeout, connection]}
    workflow:
      - step: start
        tool:
          - name: pull
            kind: python
            input: {attempt: "{{ _attempt }}"}
            code: |
              if attempt < 3:
                  raise ConnectionError("not yet")
              result = {"attempt": attempt}
            retry: {max_attempts: 4, retry_on: [timeout, connection], delay: 0}
        next: other
      - step: other                                      # an error of another kind is not tried again
        tool:
          kind: python
          input: {attempt: "{{ _attempt }}"}
          code: "raise ValueError(f'attempt {attempt}')"
          retry: {max_attempts: 4, retry_on: [timeout, connection], delay: 0}
        next: [{step: end, when: "{{ output.status == 'error' }}"}]
      - {step: end, tool: {kind: noop, result: ["{{ start.attempt }}", "{{ other.error.message }}"]}}
    """,
)


def test_11_a_tool_level_retry_tries_errors_of_the_listed_kinds_again(world: World) -> None:
    assert world.completed(RETRY) == [3, "attempt 1"]


ARGS = case(
    "11_args",
    """
    workflow:
      - {step: start, tool: {kind: python, code: "result = {'n': 2}"},
         next: [{step: b, args: {x: "{{ start.n * 10 }}", y: [1]}}]}
      - step: b
        tool: {kind: noop, args: {k: "{{ args.x + 1 }}"}, result: ["{{ args.x }}", "{{ ctx.x }}", "{{ y }}",
                                                                   "{{ input.k }}"]}
        args: {k: 0, j: 1}
        next: end
      - {step: end, tool: {kind: noop, result: ["{{ b }}", "{{ args.x is defined }}", "{{ ctx.x }}"]}}
    """,
)


def test_11_args_of_an_arc_are_args_of_its_target_and_writes(world: World) -> None:
    first, second = world.completed(ARGS)[0], world.completed(ARGS)[1:]
    assert first == [20, 20, [1], 21]
    assert second == [False, 20]


SPEC = case(
    "11_spec",
    """
    spec: {city: Bern, days: 3}
    workflow:
      - step: start
        tool: {kind: noop, result: "{{ spec.city }} {{ spec.days }}"}
        next: [{step: end, when: "{{ spec.days == 3 and spec.city }}", set: {ctx.seen: "{{ spec }}"}}]
      - {step: end, tool: {kind: noop, result: ["{{ start }}", "{{ ctx.seen }}", "{{ city is defined }}"]}}
    """,
)


def test_11_root_spec_is_a_name_and_nothing_else(world: World) -> None:
    assert world.completed(SPEC) == ["Bern 3", {"city": "Bern", "days": 3}, False]


HOISTED = case(
    "11_hoisted",
    """
    workflow:
      - step: start
        tool:
          kind: http
          spec: {url: "{{ workload.api }}/anything", method: PUT, json: {a: 1}, input: {b: 2}}
        next: rows
      - step: rows
        tool: {kind: postgres, credential: pg_work, spec: {command: SELECT 1 AS one}}
        next: last
      - step: last
        tool: {kind: python, libs: [nothing_of_the_kind], iterator: {items: "{{ rows.rows }}", item: x},
               code: "result = 7"}
        next: end
      - {step: end, tool: {kind: noop, result: ["{{ start.data.method }}", "{{ start.data.json }}", "{{ rows.rows }}",
                                                "{{ last }}"]}}
    """,
)


def test_11_fields_below_spec_and_other_slips_run_as_they_are_meant(world: World) -> None:
    assert world.completed(HOISTED) == ["PUT", {"a": 1}, [{"one": 1}], 7]


GUARDED = case(
    "11_when",
    """
    workload: {go: true}
    workflow:
      - {step: start, tool: {kind: noop}, next: maybe}
      - step: maybe
        when: "{{ workload.go }}"
        tool: {kind: noop, result: 1}
        set: {ctx.wrote: true}
        next: [{step: wrong, when: "{{ false }}"}, {step: end}]
      - {step: wrong, tool: {kind: noop}}
      - {step: end, tool: {kind: noop, result: ["{{ maybe is defined }}", "{{ ctx.wrote }}"]}}
    """,
)


@pytest.mark.parametrize("go", [True, False])
def test_11_a_step_whose_when_is_false_is_skipped_and_routing_goes_on(world: World, go: bool) -> None:
    what = GUARDED.given(go=go)
    assert world.completed(what) == [go, go or None]
    assert ("maybe" in runs(world.play(what))) is go
