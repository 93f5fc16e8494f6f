"""Sentences of the language about documents, steps and routing (dsl §1 to §3): what the checklist and the shapes do not
say already."""

from __future__ import annotations

from noetl.core import kinds
from tests.language.test_checklist import runs
from tests.support.language import World, case

# --- §1.3 workload -----------------------------------------------------------------------------------------

WORKLOAD = case(
    "1_3",
    """
    workload:
      base: {host: local, port: 1, tags: [a, b]}
      url: "http://{{ base.host }}:{{ base.port }}"
      copy: "{{ base.tags }}"
      user: "{{ user }}"
      missing: "{{ missing }}"
      given: "{{ payload.extra }} {{ input.extra }} {{ extra }}"
      identity: "{{ execution_id }}{{ job.uuid == execution_id }}"
      later: "{{ behind }}"
      behind: 1
    workflow:
      - {step: start, tool: {kind: noop, result: "{{ workload }}"}}
    """,
)


def test_1_3_the_payload_is_merged_into_the_workload_and_templates_are_rendered_once(world: World) -> None:
    payload = {"base": {"port": 2, "tags": ["c"]}, "user": "ada", "workload": {"extra": 7}, "ctx": {"more": [1]}}
    result = world.completed(WORKLOAD.given(**payload))
    identity = world.play(WORKLOAD.given(**payload)).state.execution_id
    assert result == {
        "base": {"host": "local", "port": 2, "tags": ["c"]},
        "url": "http://local:2",
        "copy": ["c"],
        "user": "ada",
        "missing": None,
        "given": "7 7 7",
        "identity": f"{identity}True",
        "later": None,
        "behind": 1,
        "extra": 7,
        "more": [1],
    }


def test_1_3_without_a_payload_a_self_reference_is_null(world: World) -> None:
    result = world.completed(WORKLOAD)
    assert (result["user"], result["url"], result["given"]) == (None, "http://local:1", "  ")


# --- §1.4 executor -----------------------------------------------------------------------------------------

EXECUTOR = case(
    "1_4",
    """
    executor: {profile: local, version: "1", spec: {entry_step: second, final_step: last,
                                                    policy: {defaults: {timeout_s: 0.3}}}}
    workflow:
      - {step: start, tool: {kind: noop}}
      - {step: second, tool: {kind: python, code: "import time; time.sleep(20)"},
         next: [{step: third, when: "{{ output.error.kind == 'timeout' and output.error.retryable }}"}]}
      - {step: third, tool: {kind: noop, result: 3}}
      - {step: last, tool: {kind: noop, result: ["{{ start is defined }}", "{{ third }}"]}}
    """,
)


def test_1_4_entry_final_step_and_the_default_timeout(world: World) -> None:
    assert world.completed(EXECUTOR) == [False, 3]
    assert list(runs(world.play(EXECUTOR))) == ["second", "third", "last"]


STRICT = case(
    "1_4_strict",
    """
    executor: {spec: {strict_templates: true}}
    workflow:
      - step: start
        tool: {kind: noop, result: "text {{ nothing.here }}"}
        next: [{step: end, when: "{{ output.error.kind == 'template' }}", set: {ctx.why: "{{ error.message }}"}}]
      - {step: end, tool: {kind: noop, result: "{{ ctx.why }}"}}
    """,
)
LENIENT = case(
    "1_4_lenient",
    """
    workflow:
      - {step: start, tool: {kind: noop, result: "text {{ nothing.here }}"}}
    """,
)


def test_1_4_strict_templates_make_printing_an_undefined_value_an_error(world: World) -> None:
    assert "nothing.here" in world.completed(STRICT)
    assert world.completed(LENIENT) == "text "
    (ended,) = world.play(LENIENT).of_type(kinds.COMMAND_COMPLETED)
    assert "nothing.here" in str(ended.meta["warnings"])


# --- §2 steps ----------------------------------------------------------------------------------------------

STEPS = case(
    "2",
    """
    workload: {path: get}
    workflow:
      - step: start
        desc: "{{ this is never rendered"
        input: {a: step, b: "{{ workload.path }}"}
        tool:
          - {name: one, kind: Python, input: {a: task}, code: "result = [a, b]", set: {where: get}}
          - kind: HTTP
            url: "{{ workload.api }}/{{ where }}?b={{ b }}"  # rendered when its turn has come
            input: {params: {q: "{{ one[0] }}"}}             # fills a field that is not given
          - {label: {kind: noop, input: {c: 3}, result: ["{{ a }}", "{{ c }}", "{{ input }}", "{{ _task }}",
                                                         "{{ _attempt }}"]}}
        next: end
      - {step: end, tool: {kind: noop, result: ["{{ start.one }}", "{{ start.task_1.data.args }}",
                                                "{{ start.label }}"]}}
    """,
)


def test_2_shapes_of_tools_step_input_and_the_moment_of_rendering(world: World) -> None:
    one, query, label = world.completed(STEPS)
    assert one == ["task", "get"]
    assert query == {"q": "task", "b": "get"}
    assert label == ["step", 3, {"a": "step", "b": "get", "c": 3}, "label", 1]


# --- §3 routing --------------------------------------------------------------------------------------------

ORDER = case(
    "3_3",
    """
    workflow:
      - step: start
        tool: {kind: noop, result: 1, spec: {policy: {rules: [{else: {then: {do: continue, set: {ctx.a: 1}}}}]}}}
        set: {ctx.a: 2, ctx.b: "{{ ctx.a }}"}                  # all values against the same state
        next:
          spec: {mode: inclusive}
          arcs:
            - {step: x, when: "{{ ctx.a == 2 and ctx.b == 1 }}", set: {ctx.a: 3}}
            - {step: y, when: "{{ ctx.a == 3 }}", set: {ctx.a: "{{ ctx.a + 1 }}", ctx.c: "{{ ctx.a }}"}}
            - {step: z, when: "{{ ctx.a == 3 }}"}
      - {step: x, tool: {kind: noop}, next: end}
      - {step: y, tool: {kind: noop}, next: end}
      - {step: z, tool: {kind: noop}, next: end}
      - {step: end, tool: {kind: noop, result: ["{{ ctx.a }}", "{{ ctx.b }}", "{{ ctx.c }}"]}}
    """,
)


def test_3_3_writes_and_arcs_in_their_order(world: World) -> None:
    assert world.completed(ORDER) == [4, 1, 3]
    told = world.play(ORDER)
    assert runs(told) == {"start": 1, "x": 1, "y": 1, "end": 1}
    decided = next(e for e in told.of_type(kinds.STEP_DECIDED) if e.meta["step"] == "start")
    issued = next(e for e in told.of_type(kinds.COMMAND_ISSUED) if e.meta["step"] == "x")
    assert [(write["path"], write["v"]) for write in decided.writes or ()] == [
        (["a"], 2),
        (["b"], 1),
        (["a"], 3),
        (["a"], 4),
        (["c"], 3),
    ]
    assert decided.position < issued.position, "the writes are recorded before the target is asked for"


AGAIN = case(
    "3_4",
    """
    workflow:
      - {step: start, tool: {kind: noop}, next: work}
      - step: work
        tool: {kind: python, input: {before: "{{ work.n }}"},
               code: "result = {'n': (before or 0) + 1, 'before': before}"}
        next: [{step: look, when: "{{ work.n < 3 }}"}, {step: end}]
      - {step: look, tool: {kind: noop, result: "{{ work.n }}"}, next: work}
      - {step: end, tool: {kind: noop, result: ["{{ work }}", "{{ look }}"]}}
    """,
)


def test_3_4_the_result_of_an_earlier_run_stays_readable_until_the_new_one(world: World) -> None:
    assert world.completed(AGAIN) == [{"n": 3, "before": 2}, 2]


NO_MATCH = case(
    "3_5",
    """
    workflow:
      - {step: start, tool: {kind: noop, result: {n: 1}}, next: [{step: a}, {step: b}]}
      - {step: a, tool: {kind: noop, result: a}, next: {spec: {on_no_match: quiet},
                                                        arcs: [{step: b, when: "{{ false }}"}]}}
      - {step: b, tool: {kind: noop}}
    """,
)
NO_MATCH_ERROR = case(
    "3_5_error",
    """
    executor: {spec: {no_next_is_error: true}}
    workflow:
      - {step: start, tool: {kind: noop}, next: [{step: a, when: "{{ false }}"}]}
      - {step: a, tool: {kind: noop}}
    """,
)
GUARD_ERROR = case(
    "3_5_guard",
    """
    workload: {otherwise: true}
    workflow:
      - {step: start, tool: {kind: noop}, next: [{step: a, when: "{{ missing.n > 3 }}"},
                                                 {step: b, when: "{{ workload.otherwise }}"}]}
      - {step: a, tool: {kind: noop, result: a}}
      - {step: b, tool: {kind: noop, result: b}}
    """,
)


def test_3_5_a_branch_without_a_match_ends_unless_that_is_an_error(world: World) -> None:
    assert world.completed(NO_MATCH) == "a"
    failure = world.failed(NO_MATCH_ERROR)
    assert (failure["step"], failure["error"]["code"]) == ("start", "routing_no_match")


def test_3_5_a_guard_that_raises_does_not_match_and_is_an_error_when_nothing_else_does(world: World) -> None:
    assert world.completed(GUARD_ERROR) == "b"
    (decided, _) = world.play(GUARD_ERROR).of_type(kinds.STEP_DECIDED)
    assert "missing.n" in str(decided.meta["warnings"]) or "undefined" in str(decided.meta["warnings"])
    failure = world.failed(GUARD_ERROR.given(otherwise=False))
    assert (failure["step"], failure["error"]["code"]) == ("start", "routing_error")


ENDS = case(
    "3_6",
    """
    executor: {spec: {final_step: last}}
    workload: {leaf: true, broken: false}
    workflow:
      - step: start
        tool: {kind: python, input: {broken: "{{ broken }}"}, code: "result = 1 / (not broken)"}
        next: [{step: leaf, when: "{{ workload.leaf }}"}, {step: nowhere, when: "{{ false }}"}]
      - {step: leaf, tool: {kind: noop}}
      - {step: nowhere, tool: {kind: noop}}
      - {step: end, tool: {kind: noop, result: end}}
      - {step: last, tool: {kind: noop, result: "{{ end | default('no end') }}"}}
    """,
)


def test_3_6_the_implicit_end_runs_behind_a_leaf_and_the_final_step_always(world: World) -> None:
    assert world.completed(ENDS) == "end"
    assert runs(world.play(ENDS)) == {"start": 1, "leaf": 1, "end": 1, "last": 1}
    without = ENDS.given(leaf=False)
    assert world.completed(without) == "no end"
    assert runs(world.play(without)) == {"start": 1, "last": 1}
    broken = ENDS.given(broken=True)
    assert world.failed(broken)["step"] == "start"
    assert runs(world.play(broken)) == {"start": 1, "last": 1}


NOT_DECLARED = case(
    "3_6_end",
    """
    workflow:
      - {step: start, tool: {kind: noop, result: 1}, next: {arcs: [{step: end}]}}
    """,
)


def test_3_6_an_arc_to_an_end_that_is_not_declared_just_ends(world: World) -> None:
    assert world.completed(NOT_DECLARED) == 1


FAILURES = case(
    "3_7",
    """
    workflow:
      - {step: user, tool: {kind: python, code: "result = {'status': 'error', 'error': 'mine'}"},
         next: [{step: broken, when: "{{ output.status == 'ok' and user.status == 'error' }}"}]}
      - step: broken
        tool:
          - {name: good, kind: noop, result: {kept: 1}}
          - {name: bad, kind: python, code: "raise ValueError('no')"}
        set: {ctx.after: 1}
        next:
          spec: {mode: inclusive}
          arcs:
            - {step: never}
            - {step: never, when: "{{ 1 == 1 }}"}
            - {step: never, when: "{{ broken.kept == 1 }}"}
            - {step: handled, when: "{{ broken.status == 'error' }}"}
      - {step: never, tool: {kind: noop}}
      - step: handled
        tool: {kind: noop, result: ["{{ broken.good.kept }}", "{{ broken.kept }}", "{{ broken.status }}",
                                    "{{ broken.error.kind }}", "{{ broken.error.message }}",
                                    "{{ ctx.after is defined }}"]}
    """,
)


def test_3_7_only_arcs_that_mention_a_failure_handle_it(world: World) -> None:
    assert world.completed(FAILURES) == [1, 1, "error", "python", "no", False]
    assert runs(world.play(FAILURES)) == {"user": 1, "broken": 1, "handled": 1}
