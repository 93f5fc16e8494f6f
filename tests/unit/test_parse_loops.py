"""`loop`: every rule and every rejection of dsl §4.1.  `»` marks the place at which a finding must point."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from noetl.core.limits import FRAME_ROWS_MAX, LOOP_IN_FLIGHT_DEFAULT
from noetl.core.playbook.frame_fields import is_template
from noetl.core.playbook.model import Cursor, Loop, LoopMode
from tests.support.playbooks import FILE, compiled, document, problems, workflow


def looping(loop: str, *, rest: str = "") -> str:
    """A playbook whose step `load` has this loop."""
    return workflow(f"- step: load\n  tool: {{kind: noop}}\n  loop: {loop}\n{textwrap.indent(rest, '  ')}")


def read(loop: str, *, rest: str = "") -> Loop:
    found = compiled(looping(loop, rest=rest)).playbook.steps[0].loop
    assert found is not None
    return found


def warnings(loop: str, *, rest: str = "") -> dict[str, str]:
    return {problem.code: problem.message for problem in compiled(looping(loop, rest=rest)).warnings}


# --- what is accepted ------------------------------------------------------------------------------------


def test_a_step_without_a_loop_has_none() -> None:
    assert compiled(workflow("- {step: load, tool: {kind: noop}}")).playbook.steps[0].loop is None


def test_the_smallest_loop_is_sequential_and_ends_at_the_first_failure() -> None:
    loop = read('{in: "{{ rows }}", iterator: row}')
    assert (loop.collection, loop.iterator) == ("{{ rows }}", "row")
    assert (loop.is_sequential, loop.max_in_flight, loop.is_best_effort) == (True, 1, None)
    assert (loop.frame, loop.fanout, loop.cursor) == ({}, {}, None)
    assert warnings('{in: "{{ workload.rows }}", iterator: row}') == {}


@pytest.mark.parametrize("collection", ["[1, two, {three: 3}]", "[]", "{a: 1}", "text", '"[1, 2]"', "null", "7"])
def test_any_value_may_be_a_collection_and_is_judged_when_it_is_known(collection: str) -> None:
    assert read(f"{{in: {collection}, iterator: row}}").iterator == "row"


@pytest.mark.parametrize(
    ("spec", "in_flight"),
    [
        ("{mode: parallel}", LOOP_IN_FLIGHT_DEFAULT),
        ("{mode: parallel, max_in_flight: 1}", 1),
        ("{mode: parallel, max_in_flight: 64}", 64),
        ('{mode: parallel, max_in_flight: "{{ workload.n }}"}', "{{ workload.n }}"),
        ("{mode: parallel, policy: {exec: distributed}, engine: auto}", LOOP_IN_FLIGHT_DEFAULT),
        ("{mode: parallel, engine: local}", LOOP_IN_FLIGHT_DEFAULT),
        ("{mode: sequential}", 1),
        ("{mode: sequential, max_in_flight: 1}", 1),
    ],
)
def test_modes_and_items_in_flight(spec: str, in_flight: object) -> None:
    loop = read(f"{{in: [1], iterator: row, spec: {spec}}}")
    assert loop.max_in_flight == in_flight
    assert loop.is_sequential == ("sequential" in spec)
    assert warnings(f"{{in: [1], iterator: row, spec: {spec}}}") == {}


def test_parallel_loops_have_four_items_in_flight_by_default() -> None:
    assert LOOP_IN_FLIGHT_DEFAULT == 4


@pytest.mark.parametrize("key", ["frame", "frame_policy"])
def test_a_frame_policy_has_two_names(key: str) -> None:
    frame = "{max_rows: 50, process: row, max_attempts: 2, retry_mode: whole_frame, verify_ipc: false}"
    loop = read(f"{{in: [1], iterator: row, spec: {{mode: parallel, {key}: {frame}}}}}")
    assert loop.frame == {
        "max_rows": 50,
        "process": "row",
        "max_attempts": 2,
        "retry_mode": "whole_frame",
        "verify_ipc": False,
    }


@pytest.mark.parametrize("distance", ["node", "cluster", "zone", "region", "any", '"{{ workload.how_far }}"'])
def test_a_loop_may_say_how_far_from_its_data_it_runs(distance: str) -> None:
    loop = read(f"{{in: [1], iterator: row, spec: {{locality: {{max_distance: {distance}}}}}}}")
    assert loop.locality == {"max_distance": distance.strip('"')}


def test_a_distance_that_does_not_exist_is_refused_with_those_that_do() -> None:
    (found,) = problems(looping("{in: [1], iterator: row, spec: {locality: {max_distance: zon}}}"))
    assert found.code == "locality"
    assert (
        "loop.spec.locality.max_distance must be node or cluster or zone or region or any, not 'zon'" in found.message
    )
    assert "zone" in found.message.partition("not 'zon'")[2]


def test_a_frame_policy_may_be_empty() -> None:
    for frame in ("{}", "null", "{max_rows: null, max_attempts: null, retry_mode: null}"):
        assert read(f"{{in: [1], iterator: row, spec: {{frame: {frame}}}}}").frame == {}


@pytest.mark.parametrize(
    "frame",
    [
        '{max_rows: "{{ n }}", process: "{{ how }}", row_concurrency: "{{ 2 }}"}',
        '{max_seconds: "{{ s }}", max_bytes: "{{ b }}", max_attempts: "{% if x %}1{% endif %}"}',
        '{lease_seconds: "{{ s }}", heartbeat_seconds: "{{ s }}", retry_mode: "{{ r }}", verify_ipc: "{{ v }}"}',
    ],
)
def test_every_field_of_a_frame_may_be_a_template(frame: str) -> None:
    for source in ("in: [1]", "cursor: {auth: pg, claim: SELECT 1}"):
        loop = read(f"{{{source}, iterator: row, spec: {{frame: {frame}}}}}")
        assert all(is_template(value) for value in loop.frame.values())


# --- cursors ---------------------------------------------------------------------------------------------

CLAIM = "cursor: {kind: postgres, auth: pg, claim: SELECT 1, options: {pool_size: 3, max_iterations: 9}}"


def test_a_cursor_has_one_slot_and_is_its_own_mode() -> None:
    for mode in ("", ", spec: {mode: cursor}"):
        loop = read(f"{{{CLAIM}, iterator: row{mode}}}")
        assert (loop.mode, loop.max_in_flight, loop.is_best_effort) == (LoopMode.CURSOR, 1, None)
        assert loop.cursor == Cursor(
            kind="postgres", auth="pg", claim="SELECT 1", options={"pool_size": 3, "max_iterations": 9}
        )
        assert loop.collection is None
    assert warnings(f"{{{CLAIM}, iterator: row, spec: {{max_in_flight: 4}}}}") == {}


def test_the_kind_of_a_cursor_is_postgres_unless_it_is_said() -> None:
    cursor = read('{cursor: {auth: {credential: pg}, claim: "{{ sql }}"}, iterator: row}').cursor
    assert cursor is not None
    assert (cursor.kind, cursor.auth, cursor.claim) == ("postgres", {"credential": "pg"}, "{{ sql }}")


@pytest.mark.parametrize(
    ("spec", "is_warned"),
    [
        ("{}", False),
        ("{max_in_flight: 2}", True),
        ("{frame: {row_concurrency: 2}}", True),
        ('{max_in_flight: "{{ n }}"}', True),
    ],
)
def test_rows_of_a_cursor_that_write_to_ctx_at_the_same_time_are_warned_about(spec: str, is_warned: bool) -> None:
    text = workflow(f"- step: load\n  loop: {{{CLAIM}, iterator: row, spec: {spec}}}\n  {TASK_SET}\n")
    assert ("ctx_write_in_parallel_loop" in {p.code for p in compiled(text).warnings}) is is_warned


# --- fan-outs --------------------------------------------------------------------------------------------


def test_a_fan_out_is_a_mode_of_the_loop_the_step_or_the_executor() -> None:
    assert read(spec("{mode: fanout, fanout: {shard_size: 2, allow_partial: true}}")).fanout == {
        "shard_size": 2,
        "allow_partial": True,
    }
    assert read(spec("{mode: fanout}")).max_in_flight == LOOP_IN_FLIGHT_DEFAULT
    of_step = read(spec("{mode: parallel}"), rest="spec: {loop_mode: fanout}\n")
    assert of_step.mode is LoopMode.FANOUT
    assert read(spec("{mode: sequential}"), rest="spec: {loop_mode: fanout}\n").mode is LoopMode.SEQUENTIAL
    root = "executor: {spec: {loop_mode: fanout}}"
    steps = compiled(document(root + LOOPS % "parallel")).playbook.steps
    assert [step.loop.mode for step in steps if step.loop] == [LoopMode.SEQUENTIAL, LoopMode.FANOUT]


def test_the_rows_of_a_shard_are_not_the_rows_of_a_frame() -> None:
    found = warnings(spec("{mode: fanout, frame: {max_rows: 9}}"))
    assert found["not_applied"].endswith("use loop.spec.fanout.shard_size")


@pytest.mark.parametrize(("mode", "is_best_effort"), [("best_effort", True), ("fail_fast", False), ("null", None)])
def test_the_failure_mode_belongs_to_the_step(mode: str, is_best_effort: bool | None) -> None:
    rest = f"spec: {{policy: {{failure: {{mode: {mode}}}}}}}\n"
    assert read("{in: [1], iterator: row}", rest=rest).is_best_effort is is_best_effort


# --- warnings --------------------------------------------------------------------------------------------


def test_the_old_places_of_mode_and_concurrency_are_read_with_a_warning() -> None:
    loop = "{in: [1], iterator: row, mode: parallel, concurrency: 7}"
    assert (read(loop).is_sequential, read(loop).max_in_flight) == (False, 7)
    messages = [problem.message for problem in compiled(looping(loop)).warnings]
    assert messages == [
        "step 'load': write loop.mode as loop.spec.mode",
        "step 'load': write loop.concurrency as loop.spec.max_in_flight",
    ]


def test_the_new_place_wins_over_the_old_one() -> None:
    loop = "{in: [1], iterator: row, mode: sequential, concurrency: 2, spec: {mode: parallel, max_in_flight: 9}}"
    assert (read(loop).is_sequential, read(loop).max_in_flight) == (False, 9)


def test_a_sequential_loop_that_wants_more_items_is_told_so() -> None:
    found = warnings("{in: [1], iterator: row, spec: {max_in_flight: 9}}")
    assert found == {"loop_in_flight": "step 'load': a sequential loop runs one item at a time"}
    assert read("{in: [1], iterator: row, spec: {max_in_flight: 9}}").max_in_flight == 1


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ("{in: [1], iterator: row, item: x}", "unknown key 'loop.item' is ignored"),
        ("{in: [1], iterator: row, spec: {modes: parallel}}", "'loop.spec.modes' is ignored (did you mean 'mode'?)"),
        (
            "{in: [1], iterator: row, spec: {frame: {max_row: 5}}}",
            "'loop.spec.frame.max_row' is ignored (did you mean 'max_rows'?)",
        ),
    ],
)
def test_unknown_keys_are_ignored_aloud(loop: str, message: str) -> None:
    assert message in warnings(loop)["unknown_loop_key"]
    assert warnings(loop)["unknown_loop_key"].startswith("step 'load': ")


@pytest.mark.parametrize("key", ["lease_seconds: 9", "heartbeat_seconds: 3"])
def test_frame_fields_that_only_a_cursor_has_are_not_applied_aloud(key: str) -> None:
    name = key.partition(":")[0]
    found = warnings(f"{{in: [1], iterator: row, spec: {{frame: {{{key}}}}}}}")
    assert found == {"not_applied": f"step 'load': loop.spec.frame.{name} is not applied to a collection"}


TASK_SET = "tool: {kind: noop, set: {ctx.total: 1, iter.a: 2, local: 3}}"
RULE_SET = (
    "tool: {kind: noop, spec: {policy: {rules: [{when: true, then: {do: continue, set: {total: 1, iter.a: 2}}}]}}}"
)


@pytest.mark.parametrize("tool", [TASK_SET, RULE_SET])
@pytest.mark.parametrize(("mode", "is_warned"), [("parallel", True), ("sequential", False)])
def test_rows_that_write_to_ctx_at_the_same_time_are_warned_about(tool: str, mode: str, is_warned: bool) -> None:
    text = workflow(f"- step: load\n  loop: {{in: [1], iterator: row, spec: {{mode: {mode}}}}}\n  {tool}\n")
    found = [p.message for p in compiled(text).warnings if p.code == "ctx_write_in_parallel_loop"]
    key = "ctx.total" if tool is TASK_SET else "total"
    assert found == ([f"step 'load': rows at the same time write '{key}': the last one wins"] if is_warned else [])


# --- rejections ------------------------------------------------------------------------------------------


def spec(text: str) -> str:
    return f"{{in: [1], iterator: row, spec: {text}}}"


ITERATOR = "loop.iterator is required and must be an identifier"
IN_FLIGHT = "loop.spec.max_in_flight must be a whole number from 1 or a template, not "
REJECTED = [
    ("loop_shape", "loop must be a mapping with `in` and `iterator`", "»[1, 2]"),
    ("loop_shape", "loop must be a mapping", "»null"),
    ("loop_shape", "loop.spec must be a mapping", "{in: [1], iterator: row, spec: »parallel}"),
    ("loop_iterator", ITERATOR, "»{in: [1]}"),
    ("loop_iterator", ITERATOR, "{in: [1], iterator: »two words}"),
    ("loop_iterator", ITERATOR, "{in: [1], iterator: »for}"),
    ("loop_iterator", ITERATOR, "{in: [1], iterator: »7}"),
    ("loop_iterator", ITERATOR, '{in: [1], iterator: »""}'),
    ("loop_source", "loop needs exactly one of `in` and `cursor`", "»{iterator: row}"),
    ("loop_source", "exactly one of `in` and `cursor`", "»{in: [1], cursor: {claim: x}, iterator: row}"),
    ("loop_source", "loop.spec.mode: cursor and loop.in do not go together", spec("{mode: »cursor}")),
    (
        "loop_source",
        "loop.spec.mode: parallel and loop.cursor do not go together",
        "{cursor: {auth: pg, claim: x}, iterator: row, spec: {mode: »parallel}}",
    ),
    ("cursor_shape", "loop.cursor must be a mapping", "{cursor: »SELECT, iterator: row}"),
    ("cursor_claim", "loop.cursor.claim is required", "{cursor: »{auth: pg}, iterator: row}"),
    ("cursor_claim", "loop.cursor.claim is required", "{cursor: {auth: pg, claim: »7}, iterator: row}"),
    ("cursor_claim", "loop.cursor.claim is required", '{cursor: {auth: pg, claim: »" "}, iterator: row}'),
    ("cursor_auth", "loop.cursor.auth is required", "{cursor: »{claim: x}, iterator: row}"),
    ("cursor_auth", "loop.cursor.auth is required", '{cursor: {auth: »"", claim: x}, iterator: row}'),
    (
        "unsupported",
        "loop.cursor.kind 'mysql' has no driver",
        "{cursor: {kind: »mysql, auth: a, claim: x}, iterator: r}",
    ),
    (
        "cursor_options",
        "loop.cursor.options.max_iterations must be a whole number from 1",
        "{cursor: {auth: pg, claim: x, options: {max_iterations: »0}}, iterator: row}",
    ),
    ("cursor_options", "options must be a mapping", "{cursor: {auth: pg, claim: x, options: »3}, iterator: row}"),
    ("fanout", "loop.spec.fanout.shard_size must be a whole number", spec("{fanout: {shard_size: »0}}")),
    ("fanout", "max_shard_retries must be a whole number from 0", spec("{fanout: {max_shard_retries: »-1}}")),
    ("fanout", "loop.spec.fanout.fail_fast must be true or false", spec("{fanout: {fail_fast: »maybe}}")),
    ("frame_policy", "process must be row or frame, not 'rows'", spec("{frame: {process: »rows}}")),
    ("frame_policy", "max_seconds must be a number of seconds above 0", spec("{frame: {max_seconds: »0}}")),
    (
        "frame_policy",
        "max_seconds must be a number of seconds above 0",
        spec(f"{{frame: {{max_seconds: »1{'0' * 400}}}}}"),
    ),
    ("frame_policy", "max_rows must be a whole number from 1", spec(f"{{frame: {{max_rows: »'1{'0' * 5000}'}}}}")),
    ("frame_policy", "max_bytes must be a whole number from 1", spec("{frame: {max_bytes: »lots}}")),
    ("unsupported", "loop.spec.engine: spark is not supported yet", spec("{engine: »spark}")),
    ("loop_mode", "unknown loop.spec.mode 'paralel' (did you mean 'parallel'?)", spec("{mode: »paralel}")),
    ("loop_mode", "unknown loop.spec.mode 7", spec("{mode: »7}")),
    ("loop_engine", "unknown loop.spec.engine 'flink'", spec("{engine: »flink}")),
    ("loop_in_flight", f"{IN_FLIGHT}0", spec("{mode: parallel, max_in_flight: »0}")),
    ("loop_in_flight", f"{IN_FLIGHT}-3", spec("{mode: parallel, max_in_flight: »-3}")),
    ("loop_in_flight", f"{IN_FLIGHT}True", spec("{mode: parallel, max_in_flight: »true}")),
    ("loop_in_flight", f"{IN_FLIGHT}2.5", spec("{mode: parallel, max_in_flight: »2.5}")),
    ("loop_in_flight", f"{IN_FLIGHT}[1]", spec("{mode: parallel, max_in_flight: »[1]}")),
    ("frame_policy", "loop.spec.frame must be a mapping", spec("{frame: »[50]}")),
    ("frame_policy", "loop.spec.frame_policy must be a mapping", spec("{frame_policy: »50}")),
    ("frame_policy", "loop.spec.frame.max_rows must be a whole number from 1", spec("{frame: {max_rows: »0}}")),
    ("frame_policy", f"to {FRAME_ROWS_MAX}, not", spec(f"{{frame: {{max_rows: »{FRAME_ROWS_MAX + 1}}}}}")),
    ("frame_policy", "max_rows must be a whole number", spec("{frame: {max_rows: »true}}")),
    ("frame_policy", "loop.spec.frame_policy.max_attempts must be", spec("{frame_policy: {max_attempts: »0}}")),
    ("frame_policy", "from 1 to 100, not 101", spec("{frame: {max_attempts: »101}}")),
    ("frame_policy", "loop.spec.frame.retry_mode must be whole_frame", spec("{frame: {retry_mode: »rows}}")),
    ("server_random", "'in': the filter random is not allowed", '{in: »"{{ [1, 2] | random }}", iterator: row}'),
]


@pytest.mark.parametrize(("code", "says", "loop"), REJECTED, ids=[f"{c} {n}" for n, (c, _, _) in enumerate(REJECTED)])
def test_a_loop_that_breaks_a_rule_is_refused_with_step_and_place(code: str, says: str, loop: str) -> None:
    marked = looping(loop)
    text, before = marked.replace("»", ""), marked.partition("»")[0]
    found = [problem for problem in problems(text) if problem.code == code and says in problem.message]
    assert found, [str(problem) for problem in problems(text)]
    (problem,) = found
    assert problem.message.startswith("step 'load'")
    assert (problem.file, problem.step) == (FILE, "load")
    assert (problem.line, problem.column) == (before.count("\n") + 1, len(before) - before.rfind("\n"))


def test_an_unknown_failure_mode_is_refused_where_it_stands() -> None:
    text = looping("{in: [1], iterator: row}", rest="spec: {policy: {failure: {mode: best_efort}}}\n")
    (problem,) = problems(text)
    says = "step 'load': unknown spec.policy.failure.mode 'best_efort' (did you mean 'best_effort'?)"
    assert (problem.code, problem.message) == ("failure_mode", says)
    assert problem.line == text.count("\n")


LOOPS = """
workflow:
  - {step: one, tool: {kind: noop}, loop: {in: [1], iterator: x}, next: two}
  - {step: two, tool: {kind: noop}, loop: {in: [1], iterator: x, spec: {mode: %s}}}
"""


@pytest.mark.parametrize("loop", ["{in: [1], iterator: row, spec: {mode: x, engine: y}}", "{spec: 3}"])
def test_every_mistake_of_a_loop_is_told_at_once(loop: str) -> None:
    assert len(problems(looping(loop))) > 1


# --- what is compiled ------------------------------------------------------------------------------------


def test_what_the_router_evaluates_and_what_a_worker_needs() -> None:
    loop = compiled(
        workflow(
            """
            - {step: start, tool: {kind: noop}, next: load}
            - step: load
              tool: {kind: noop}
              loop: {in: "{{ start.rows }}", iterator: row, spec: {mode: parallel, max_in_flight: "{{ n + 1 }}"}}
            """
        )
    )
    step: Any = loop.steps["load"].loop
    assert step.needs.names == {"start"}
    assert [expression.key for _, expression in step.server.leaves] == ["1/loop/in/0"]
    assert [expression.key for _, expression in step.max_in_flight.leaves] == ["1/loop/max/0"]
    assert [atom.expression for atom in loop.steps["start"].atoms] == ["start.rows"]


def test_what_the_router_evaluates_of_a_cursor_and_what_is_left_to_a_worker() -> None:
    def cursor(auth: str) -> Any:
        loop = (
            compiled(
                workflow(
                    f"""
                - {{step: start, tool: {{kind: noop}}, next: load}}
                - step: load
                  tool: {{kind: noop}}
                  loop:
                    cursor: {{auth: {auth}, claim: "SELECT {{{{ start.n }}}} LIMIT {{{{ __frame_max_rows }}}}"}}
                    iterator: row
                    spec: {{frame: {{max_rows: "{{{{ start.rows }}}}"}}}}
                """
                )
            )
            .steps["load"]
            .loop
        )
        assert loop is not None
        assert loop.frame.leaves
        return loop.cursor

    named, chosen = cursor("pg"), cursor('"{{ workload.pg }}"')
    assert [expression.key for _, expression in named.claim.leaves] == ["1/loop/cursor/claim/0"]
    assert named.server_auth is None
    assert chosen.server_auth is not None
    assert (named.needs.names, chosen.needs.names) == (frozenset(), frozenset())
