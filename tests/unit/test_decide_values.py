"""What the router's expressions see, and how it does without the data (architecture §6, dsl §7.3)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.codec import canonical_bytes
from noetl.core.event import Draft
from noetl.core.execution.decide import decide
from noetl.core.execution.state import Entry, Status
from noetl.core.expression import parse_count
from noetl.core.limits import ATOM_BYTES_MAX, CONTEXT_INLINE_BYTES_MAX
from noetl.core.reference import Result
from tests.support.playbooks import BOOM, Simulated, address_of, graph, step, workflow

ROWS = [{"n": number, "text": "x" * 40} for number in range(100)]
BIG = {"rows": ROWS, "count": 100, "deep": {"list": [ROWS, 5]}}
LOOP = "{% for row in load.rows if row.n > 97 %}{{ row.n }} {% endfor %}"


def loaded(value: object = None, *, then: str = "", root: str = "", **keys: str) -> Simulated:
    """`load` completed with a value; step `then`, with these keys, may follow."""
    lines = ["- step: load", "  tool: {kind: noop}", *(f"  {key}: {text}" for key, text in keys.items())]
    lines += ["- step: then", "  tool: {kind: noop}", f"  {then}"]
    run = Simulated(workflow("\n".join(lines), root))
    run.complete("load#1", BIG if value is None else value)
    return run


def entry(run: Simulated, name: str) -> Entry:
    return run.state.variables[name]


# --- names -----------------------------------------------------------------------------------------------


def evaluated(expression: str, *, root: str = "", before: str = "{}", workload: Any = None) -> object:
    """The value of an expression in a step `here`, after a step `first`, as the router sees it."""
    text = workflow(
        f"""
        - {{step: first, tool: {{kind: noop}}, set: {before}, next: here}}
        - {{step: here, tool: {{kind: noop}}, set: {{answer: "{expression}"}}}}
        """,
        root,
    )
    run = Simulated(text, workload=workload).run({"first": {"n": 1, "who": "first"}, "here": {"n": 2}})
    assert run.state.status is Status.COMPLETED
    return run.context["answer"]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        # Reserved names come first.
        ("{{ execution_id }}", "77"),
        ("{{ job.uuid }}/{{ job.id }}/{{ job.execution_id }}", "77/77/77"),
        ("{{ path }}", "demo"),
        ("{{ parent_execution_id }}", None),
        ("{{ event.step }}", "here"),
        ("{{ env.HOME is defined }}", False),
        ("{{ iter.x is defined }}", False),
        # Then ctx, then steps, then the workload.
        ("{{ x }}", "ctx"),
        ("{{ ctx.x }}", "ctx"),
        ("{{ workload.x }}", "workload"),
        ("{{ only_workload }}", "w"),
        ("{{ ctx.only_workload }}", "w"),
        ("{{ ctx['only_workload'] }}", "w"),
        ("{{ first.n }}", 1),
        ("{{ steps.first.n + here.n }}", 3),
        ("{{ ctx.first.n }}", 1),
        ("{{ nothing }}", None),
        ("{{ ctx.nothing }}", None),
        ("{{ nothing is defined }}", False),
        ("{{ never_ran.n if never_ran else 5 }}", 5),
        ("{{ output.n }}-{{ result.n }}-{{ response.n }}-{{ outcome.data.n }}", "2-2-2-2"),
        ("{{ error }}", None),
        ("{{ ctx.x ~ workload.x ~ first.who }}", "ctxworkloadfirst"),
        ("{{ (workload | length) }}", 2),
    ],
)
def test_a_name_means_what_the_table_of_names_says(expression: str, value: object) -> None:
    assert evaluated(expression, root="workload: {x: workload, only_workload: w}", before="{x: ctx}") == value


def test_a_context_value_hides_a_step_and_a_workload_value_of_the_same_name() -> None:
    assert evaluated("{{ first }}", before="{first: hidden}") == "hidden"
    assert evaluated("{{ first }}", root="workload: {first: 3}") == {"n": 1, "who": "first"}
    assert evaluated("{{ here2 }}", root="workload: {here2: 3}", before="{here2: 4}") == 4


def test_a_payload_key_named_like_a_step_is_seen_until_the_step_has_run() -> None:
    text = workflow(
        """
        - {step: here, tool: {kind: noop}, set: {early: "{{ late }}"}, next: late}
        - {step: late, tool: {kind: noop}, set: {then: "{{ late.n }}"}}
        """
    )
    run = Simulated(text, workload={"late": "from the payload"}).run({"late": {"n": 5}})
    assert run.context == {"early": "from the payload", "then": 5}


def test_the_root_spec_is_a_name_only_when_it_is_there() -> None:
    assert evaluated("{{ spec.city }}", root="spec: {city: Bern}") == "Bern"
    assert evaluated("{{ spec }}", root="workload: {spec: own}") == "own"


def test_a_strict_playbook_does_not_print_what_is_undefined() -> None:
    strict = "executor: {spec: {strict_templates: true}}"
    text = "- {step: a, tool: {kind: noop}, set: {x: 'a{{ nothing }}b', y: '{{ nothing }}'}}"
    assert Simulated(workflow(text)).run().context == {"x": "ab", "y": None}
    run = Simulated(workflow(text, strict)).run()
    assert run.context == {"y": None}
    assert "nothing" in str(run.decided("a").meta["warnings"])


def test_now_is_the_recorded_time_of_the_causing_event() -> None:
    run = Simulated(graph(step("a", set={"at": "{{ now() }}"}))).run()
    assert run.context == {"at": run.of(kinds.COMMAND_COMPLETED)[0].event_time}


def test_the_router_never_parses_a_template() -> None:
    run = Simulated(
        workflow('- {step: a, set: {n: "{{ a.unusual_7 + 1 }}"}, next: [{step: end, when: "{{ n > 1 }}"}]}')
    )
    before = parse_count()
    run.complete("a#1", {"unusual_7": 1})
    assert run.context == {"n": 2}
    assert parse_count() == before


# --- atoms -----------------------------------------------------------------------------------------------


def test_small_facts_travel_with_the_result_and_no_worker_is_asked() -> None:
    run = loaded(next="[{step: then, when: '{{ load.rows | length == load.count and load.rows[99].n == 99 }}'}]")
    assert run.open == ["then#1"]
    result: Any = run.of(kinds.COMMAND_COMPLETED)[0].result
    assert len(canonical_bytes(result)) < 1_000
    assert "xxxx" not in json.dumps(result)


def test_an_atom_that_failed_fails_its_expression() -> None:
    run = loaded(
        next="[{step: then, when: '{{ load.count + load.rows > 1 and ctx.x }}'}, {step: then}]", root="workload: {x: 1}"
    )
    (warning,) = run.decided("load").meta["warnings"]  # type: ignore[misc]
    assert warning.startswith("arc 0 to 'then': ")
    assert run.open == ["then#1"]


def test_an_atom_that_is_undefined_stays_undefined() -> None:
    run = loaded(set="{a: '{{ load.nothing }}', b: '{{ load.nothing is defined }}', c: '{{ load.nothing + ctx.x }}'}")
    assert run.context == {"a": None, "b": False}


def test_a_result_without_atoms_is_evaluated_by_a_worker() -> None:
    """As when a command was given up: nobody had the data in hands."""
    text = graph(
        step("a", {"step": "b", "when": "{{ output.status == 'error' and error.kind == 'python' }}"}), step("b")
    )
    run = Simulated(text)
    run.fail("a#1", BOOM, has_atoms=False)
    assert run.open == ["a#1/eval/1"]
    run.evaluate("a#1/eval/1")
    assert run.open == ["b#1"]
    assert run.decided("a").meta["outcome"] == "handled"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("{{ then.n }}", None),
        ("{{ then.n if then else 5 }}", 5),
        ("{{ then.n if then else load.count }}", 100),
        ("{{ then.rows | default([]) | length }}", 0),
        ("{{ then.n | default(5) }}", 5),
        ("{{ then is defined }}", False),
        ("{{ then is not defined }}", True),
        ("{{ steps.then.n is not defined and not then }}", True),
        ("{{ then.n == 1 or then.n != 1 }}", True),
        ("a{{ then.n }}b", "ab"),
    ],
)
def test_a_declared_step_that_never_ran_is_undefined(expression: str, value: object) -> None:
    run = loaded(set=f"{{x: '{expression}'}}")
    assert run.context == {"x": value}
    assert len(run.of(kinds.COMMAND_ISSUED)) == 1


def test_arithmetic_with_a_step_that_never_ran_fails_as_with_anything_undefined() -> None:
    run = loaded(
        set="{x: '{{ then.n + 1 }}', y: '{{ then.n > ctx.z }}'}", next="[{step: then, when: '{{ then.n > 1 }}'}]"
    )
    assert run.context == {}
    assert run.state.status is Status.FAILED


def test_a_context_key_falls_back_to_a_step_whose_name_is_written_elsewhere() -> None:
    text = workflow(
        """
        - {step: load, tool: {kind: noop}, set: {n: "{{ ctx.load.count }}"}, next: [{step: then, when: false}]}
        - {step: then, tool: {kind: noop}, set: {load: hidden}}
        """
    )
    run = Simulated(text)
    run.complete("load#1", {"count": 7})
    assert run.open == ["load#1/eval/1"]
    assert run.run().context == {"n": 7}


# --- large values ----------------------------------------------------------------------------------------


def test_a_large_value_becomes_a_place_in_the_payload_and_nothing_is_copied() -> None:
    run = loaded(set="{rows: '{{ load.rows }}', deep: '{{ load.deep.list[0] }}', n: '{{ load.count }}'}")
    reference = address_of(BIG).reference.to_json()
    assert entry(run, "rows") == Entry(None, reference, ("rows",))
    assert entry(run, "deep") == Entry(None, reference, ("deep", "list", 0))
    assert entry(run, "n") == Entry(100)
    assert run.of(kinds.COMMAND_ISSUED)[1:] == []
    assert run.decided("load").writes == [
        {"path": ["rows"], "ref": reference, "at": ["rows"]},
        {"path": ["deep"], "ref": reference, "at": ["deep", "list", 0]},
        {"path": ["n"], "v": 100},
    ]
    assert len(canonical_bytes(run.decided("load").writes)) < 2_000


def test_what_is_computed_from_the_data_is_asked_of_a_worker_and_decided_from_its_answer() -> None:
    run = loaded(set=f"{{last: '{LOOP}'}}", next="[{step: then, when: '{{ last == \"98 99 \" }}'}]")
    (asked,) = [e for e in run.of(kinds.COMMAND_ISSUED) if e.meta["kind"] == "evaluate"]
    assert (asked.command_id, asked.transition_key) == ("load#1/eval/1", "command.issued/load#1/eval/1")
    assert asked.meta == {"step": "load", "run": 1, "kind": "evaluate", "expression": "0/set/0/0"}
    assert run.state.issued_steps == {"load": 1}
    assert run.of(kinds.STEP_DECIDED) == []
    run.evaluate("load#1/eval/1")
    assert run.context == {"last": "98 99 "}
    assert run.open == ["then#1"]


def test_a_large_answer_is_a_reference() -> None:
    run = loaded(set="{all: '{% for row in load.rows %}{{ row.text }}{% endfor %}'}")
    run.evaluate("load#1/eval/1")
    text = "".join(str(row["text"]) for row in ROWS)
    assert entry(run, "all") == Entry(None, address_of(text).reference.to_json(), ())
    assert run.decided("load").writes == [{"path": ["all"], "ref": address_of(text).reference.to_json(), "at": []}]


@pytest.mark.parametrize(
    "path", ["output.data.rows", "output.rows", "load.data.rows", "result.rows", "load.result.rows"]
)
def test_every_way_to_name_a_large_value_is_the_same_place_in_the_payload(path: str) -> None:
    run = loaded(set=f"{{rows: '{{{{ {path} }}}}'}}")
    assert entry(run, "rows") == Entry(None, address_of(BIG).reference.to_json(), ("rows",))


def test_a_reference_in_ctx_is_opened_by_a_worker_when_a_guard_looks_inside() -> None:
    run = loaded(set="{rows: '{{ load.rows }}'}", next="then", then="next: [{step: load, when: '{{ rows[3].n > 5 }}'}]")
    run.complete("then#1")
    assert run.open == ["then#1/eval/1"]
    run.evaluate("then#1/eval/1")
    assert run.state.status is Status.COMPLETED
    assert run.decided("then").meta["arcs"] == []


def test_a_place_in_a_payload_cannot_be_part_of_a_larger_expression() -> None:
    run = loaded(
        set="{n: '{{ load.rows[k].n }}', m: '{{ (load.rows + extra) | length }}'}", root="workload: {k: 7, extra: [1]}"
    )
    run.run()
    assert run.context == {"n": 7, "m": 101}


def test_a_place_without_a_payload_is_asked_of_a_worker() -> None:
    run = Simulated(graph(step("a", set={"rows": "{{ a.rows }}"})))
    (atom,) = run.playbook.steps["a"].atoms
    event = run.append(
        Draft(
            event_type=kinds.COMMAND_COMPLETED,
            transition_key=kinds.terminal_key("a#1"),
            command_id="a#1",
            meta={"step": "a", "attempt": 1},
            result=Result(status="ok", context={"atoms": {atom.key: {"a": ["rows"]}}}).to_json(),
        )
    )
    (asked,) = decide(run.state, event, run.playbook).drafts
    assert asked.command_id == "a#1/eval/1"


def test_a_reference_in_the_workload_is_opened_by_a_worker_too() -> None:
    place = Entry(None, address_of({"rows": ROWS}).reference.to_json(), ("rows",))
    for expression in ("{{ rows[3].n }}", "{{ workload.rows[3].n }}", "{{ ctx.rows[3].n }}", "{{ ctx['rows'][3].n }}"):
        run = Simulated(graph(step("a", set={"n": expression})), workload={"rows": place})
        run.payloads[address_of({"rows": ROWS}).reference.sha256] = {"rows": ROWS}
        run.run()
        assert run.context == {"n": 3}
        assert len(run.of(kinds.COMMAND_ISSUED)) == 2


def test_a_scope_read_as_a_whole_is_evaluated_here_while_it_is_inline() -> None:
    run = Simulated(graph(step("a", set={"all": "{{ workload }}", "n": "{{ ctx.x }}"}), workload={"x": 1})).run()
    assert run.context == {"all": {"x": 1}, "n": 1}
    assert len(run.of(kinds.COMMAND_ISSUED)) == 1


def test_several_questions_are_asked_one_after_the_other() -> None:
    run = loaded(
        set=f"{{a: '{LOOP}', b: '{LOOP}x'}}",
        next="[{step: then, when: '{% if a != b %}{% for r in load.rows[:1] %}yes{% endfor %}{% endif %}'}]",
    )
    for number in (1, 2, 3):
        assert run.open == [f"load#1/eval/{number}"]
        run.evaluate(f"load#1/eval/{number}")
    assert run.context == {"a": "98 99 ", "b": "98 99 x"}
    assert run.open == ["then#1"]
    pending = [e.meta.get("pending_writes") for e in run.of(kinds.COMMAND_ISSUED) if e.meta["kind"] == "evaluate"]
    # Values of one block do not see each other; the guard sees the whole block.
    assert pending == [None, None, [{"path": ["a"], "v": "98 99 "}, {"path": ["b"], "v": "98 99 x"}]]


def test_a_guard_on_a_worker_sees_a_large_value_that_was_just_written() -> None:
    run = loaded(
        set="{rows: '{{ load.rows }}', k: 3}",
        next="[{step: then, when: '{{ rows[k].n == 3 }}'}]",
    )
    assert run.open == ["load#1/eval/1"]
    run.evaluate("load#1/eval/1")
    assert run.open == ["then#1"]


def test_a_worker_that_cannot_evaluate_gives_a_warning_or_a_routing_error() -> None:
    bad = "{% for r in load.rows %}{{ r.n + r.text }}{% endfor %}"
    run = loaded(set=f"{{a: '{bad}', b: 1}}")
    run.evaluate("load#1/eval/1")
    assert run.context == {"b": 1}
    assert "set a: cannot compute" in str(run.decided("load").meta["warnings"])
    run = loaded(next=f"[{{step: then, when: '{bad}'}}]")
    run.evaluate("load#1/eval/1")
    assert run.state.failure is not None
    assert run.state.failure["error"]["code"] == "routing_error"  # type: ignore[index]


def test_an_evaluation_that_failed_as_a_command_counts_as_a_failed_evaluation() -> None:
    run = loaded(next=f"[{{step: load, when: '{LOOP}'}}, {{step: then}}]")
    error = {"kind": "unknown", "code": "attempts_exhausted", "retryable": False, "message": "claimed 10 times"}
    event = run.append(
        Draft(
            event_type=kinds.COMMAND_FAILED,
            transition_key=kinds.terminal_key("load#1/eval/1"),
            command_id="load#1/eval/1",
            meta={"step": "load", "attempt": 10},
            result=Result(status="error", context={"error": error}).to_json(),
        )
    )
    drafts = decide(run.state, event, run.playbook).drafts
    assert drafts[0].meta["targets"] == ["then"]
    assert drafts[0].meta["warnings"] == ["arc 0 to 'load': claimed 10 times"]


def test_an_answer_that_says_nothing_is_a_failed_evaluation() -> None:
    run = loaded(next=f"[{{step: load, when: '{LOOP}'}}, {{step: then}}]")
    event = run.append(
        Draft(
            event_type=kinds.COMMAND_COMPLETED,
            transition_key=kinds.terminal_key("load#1/eval/1"),
            command_id="load#1/eval/1",
            meta={"step": "load", "attempt": 1},
            result=Result(status="ok").to_json(),
        )
    )
    (decided, _) = decide(run.state, event, run.playbook).drafts
    assert "no value was computed" in str(decided.meta["warnings"])


def test_a_guard_whose_answer_is_large_is_true() -> None:
    run = loaded(next="[{step: then, when: '{% for row in load.rows %}{{ row.text }}{% endfor %}'}]")
    run.evaluate("load#1/eval/1")
    assert run.open == ["then#1"]


# --- large values inside other values --------------------------------------------------------------------


@pytest.mark.parametrize(
    "block", ["{a: {rows: '{{ load.rows }}', n: 1}}", "{a: ['{{ load.rows }}']}", "{a.rows: '{{ load.rows }}'}"]
)
def test_a_large_value_that_is_part_of_another_makes_it_one_payload_of_a_worker(block: str) -> None:
    run = loaded(set=block, next="then")
    while "load#1/eval/1" in run.open:
        run.evaluate("load#1/eval/1")
    assert run.open == ["then#1"]
    assert list(run.state.variables) == ["a"]
    assert not run.state.variables["a"].is_inline
    assert "warnings" not in run.decided("load").meta


def test_a_value_that_only_did_not_fit_beside_the_other_atoms_is_asked_for_and_written_inside() -> None:
    texts = {f"t{n}": "x" * 900 for n in range(6)}
    block = ", ".join(f"t{n}: '{{{{ load.t{n} }}}}'" for n in range(6))
    run = loaded(texts, set=f"{{all: {{{block}}}, deep.t5: '{{{{ load.t5 }}}}'}}").run()
    assert run.context == {"all": texts, "deep": {"t5": "x" * 900}}
    assert len([e for e in run.of(kinds.COMMAND_ISSUED) if e.meta["kind"] == "evaluate"]) >= 1


def test_part_of_a_value_that_is_held_by_reference_can_be_overwritten() -> None:
    run = loaded(set="{doc: '{{ load.deep }}'}", next="then", then="set: {doc.n: 1}")
    held = entry(run, "doc")
    assert not held.is_inline
    run.complete("then#1")
    assert entry(run, "doc") == replace(held, patches=((("n",), Entry(1)),))
    assert "warnings" not in run.decided("then").meta


def test_a_value_held_by_reference_can_be_replaced_whole() -> None:
    run = loaded(set="{doc: '{{ load.deep }}'}", next="then", then="set: {doc: {n: 1}}")
    run.complete("then#1")
    assert entry(run, "doc") == Entry({"n": 1})


# --- the bound of the context ----------------------------------------------------------------------------


def kilobytes(count: int) -> str:
    return "x" * (1_000 * count)


def test_what_has_no_room_in_the_context_goes_by_reference() -> None:
    block = ", ".join(f"k{n}: {kilobytes(10)}" for n in range(8))
    run = loaded({}, set=f"{{{block}, small: 1}}").run()
    assert set(run.context) == {"k0", "k1", "k2", "k3", "k4", "k5", "small"}
    for name in ("k6", "k7"):
        assert entry(run, name) == Entry(None, address_of(kilobytes(10)).reference.to_json(), ())
    assert "warnings" not in run.decided("load").meta
    asked = [str(event.meta["expression"]) for event in run.of(kinds.COMMAND_ISSUED) if "expression" in event.meta]
    assert asked == ["0/set/6/whole/kept", "0/set/7/whole/kept"]


def test_many_small_values_are_bounded_like_a_few_large_ones() -> None:
    block = ", ".join(f"k{n:03}: {kilobytes(1)}" for n in range(70))
    run = loaded({}, set=f"{{{block}}}").run()
    assert len(run.context) == CONTEXT_INLINE_BYTES_MAX // 1_002
    assert len(run.state.variables) == 70


def test_a_large_value_can_be_overwritten_and_counters_go_on_in_a_full_context() -> None:
    run = Simulated(
        graph(
            step("a", "b", set={"big": kilobytes(62), "n": 1}),
            step(
                "b",
                set={
                    "big": "{{ big | replace('x', 'y') }}",
                    "n": "{{ n + 1 }}",
                    "more": kilobytes(5),
                    "deep.x": kilobytes(6),
                },
            ),
        )
    ).run()
    assert run.context["n"] == 2
    assert str(run.context["big"]).startswith("yyy")
    assert not entry(run, "more").is_inline
    assert entry(run, "deep") == Entry(
        {}, patches=((("x",), Entry(None, address_of(kilobytes(6)).reference.to_json())),)
    )


def test_what_is_already_too_large_may_shrink() -> None:
    """Tasks write without asking the router; it must still be able to make the context smaller."""
    run = Simulated(graph(step("a", set={"big": "x", "n": 1})))
    run.complete("a#1", writes=[{"path": ["big"], "v": kilobytes(70)}])
    assert run.context == {"big": "x", "n": 1}


def test_an_atom_is_bounded_by_bytes() -> None:
    fits, large = "x" * (ATOM_BYTES_MAX - 2), "x" * (ATOM_BYTES_MAX - 1)
    run = loaded({"fits": fits, "large": large}, set="{a: '{{ load.fits }}', b: '{{ load.large }}'}")
    assert entry(run, "a") == Entry(fits)
    assert entry(run, "b").path == ("large",)
