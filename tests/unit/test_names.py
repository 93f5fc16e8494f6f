"""The table of names (dsl §7.3) on both sides: as the router sees it, and as a worker builds it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.core import kinds
from noetl.core.codec import canonical_bytes
from noetl.core.execution.context import command_body
from noetl.core.execution.evolve import evolve
from noetl.core.execution.state import Entry, Status
from noetl.core.expression import compile_template, render
from noetl.core.limits import CALLER_BYTES_MAX, CONTEXT_ENTRY_BYTES_MAX
from noetl.core.playbook.needs import RESERVED
from noetl.engine.payloads import Payloads
from noetl.engine.stored.sources import settled
from noetl.engine.work.children import caller_of
from noetl.engine.work.names import LOOP_NAMES, NameBuilder, bound_names
from noetl.engine.work.pipeline.outcome import TaskOutcome
from noetl.engine.work.pipeline.run import Run
from noetl.engine.work.pipeline.scope import PipelineScope
from noetl.ports.session import CommandMessage
from tests.support.playbooks import BOOM, JsonObject, Simulated, address_of, compiled, graph, step

# Only a worker can evaluate what this is added to.
ASKED = "steps[ctx.absent | default('start')] is defined"
BIG = ["x" * 100] * 30
# When the first step of an execution completes.
TIME = "2026-01-01T00:00:03Z"


def begun(text: str, **meta: Any) -> Simulated:
    """An execution whose first event says these things about the world."""
    run = Simulated(text)
    first = run.events[0]
    event = first._replace(meta=json.loads(canonical_bytes({**first.meta, **meta})))
    run.events[0] = event
    state = evolve(None, event)
    run.state = run.state.changed({name: getattr(state, name) for name in ("catalog_id", "catalog_version")})
    run.state = run.state.changed({name: getattr(state, name) for name in ("env", "caller")})
    return run


WORLD = {"catalog": {"id": "123", "version": 4}, "env": {"REGION": "eu"}, "iter": {"row": 7, "index": 2}}


# --- the facts of an execution ---------------------------------------------------------------------------

FACTS = [
    ("{{ execution_id }}", "77"),
    ("{{ job.uuid }}{{ job.id }}{{ job.execution_id }}", "777777"),
    ("{{ path }}", "demo"),
    ("{{ catalog_id }}", "123"),
    ("{{ version }}", 4),
    ("{{ parent_execution_id }}", None),
    ("{{ env.REGION }}", "eu"),
    ("{{ env.HOME is defined }}", False),
    ("{{ env }}", {"REGION": "eu"}),
    ("{{ spec.city }}", "Bern"),
    ("{{ iter.parent.row }}{{ iter.parent.index }}", "72"),
    ("{{ iter.parent.parent is defined }}", False),
    ("{{ iter.row is defined }}", False),
]


@pytest.mark.parametrize(("expression", "value"), FACTS)
def test_the_facts_of_an_execution_are_the_same_for_the_router_and_a_worker(expression: str, value: object) -> None:
    inner = expression.replace("{{ ", "{{ (").replace(" }}", f") if {ASKED} else none }}}}")
    tool = {"kind": "noop", "result": expression}
    text = graph(step("start", tool=tool, set={"here": expression, "asked": inner}), spec={"city": "Bern"})
    run = begun(text, **WORLD)
    assert seen(run, "start#1", expression) == value
    run.complete("start#1")
    run.evaluate("start#1/eval/1")
    assert run.context == {"here": value, "asked": value}


def test_what_was_run_from_a_text_has_no_facts_of_the_catalog() -> None:
    run = Simulated(graph(step("start", set={"c": "{{ catalog_id }}", "v": "{{ version }}", "e": "{{ env }}"}))).run()
    assert run.context == {"c": None, "v": None, "e": {}}
    found = body(Simulated(graph(step("start", tool={"kind": "noop", "result": "{{ version }}{{ env }}"}))), "start#1")
    assert not {"catalog", "env", "iter", "args", "about"} & set(found)


def test_a_command_carries_the_world_only_as_far_as_it_reads_it() -> None:
    run = begun(graph(step("start", tool={"kind": "noop", "result": "{{ path }}"})), **WORLD)
    assert not {"env", "iter"} & set(body(run, "start#1"))
    assert body(run, "start#1")["catalog"] == {"id": "123", "version": 4}
    run = begun(graph(step("start", tool={"kind": "noop", "result": "{{ env.X }}{{ iter.parent }}"})), **WORLD)
    found = body(run, "start#1")
    assert (found["env"], found["iter"]) == ({"REGION": "eu"}, {"row": 7, "index": 2})


def test_the_recorded_variables_are_folded_and_nothing_else_is_read() -> None:
    text = graph(step("start", set={"x": "{{ env.PATH | default('none') }}"}))
    assert begun(text, **WORLD).run().context == {"x": "none"}


# --- building and reading --------------------------------------------------------------------------------


def body(run: Simulated, command_id: str) -> JsonObject:
    return json.loads(canonical_bytes(command_body(run.state, run.playbook, run.state.commands[command_id])))  # type: ignore[no-any-return]


def message(run: Simulated, command_id: str) -> CommandMessage:
    return CommandMessage(77, "acme", "sales", command_id, 1, body(run, command_id))


def built(run: Simulated, command_id: str) -> dict[str, object]:
    """The names of a command, as a worker builds them."""
    contents = {("acme", "sales", digest): canonical_bytes(value) for digest, value in run.payloads.items()}
    payloads = Payloads(small=MemoryPayloads(contents), large=MemoryPayloads({}))
    spec = run.playbook.playbook.spec
    return asyncio.run(NameBuilder(payloads).build(message(run, command_id), spec=spec))


def seen(run: Simulated, command_id: str, expression: str) -> object:
    names, template = built(run, command_id), compile_template(expression)
    return asyncio.run(settled(lambda: render(template, names)))


# --- event.payload ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("{{ event.payload.n }}", 1),
        ("{{ event['payload'].n }}", 1),
        ("{{ event.payload.data.n + event.payload.result.n }}", 2),
        ("{{ event.payload.status }}", "ok"),
        ("got {{ event.payload.n }} of {{ event.step }}", "got 1 of start"),
        ("{{ event.payload.n > 0 and event.name == 'call.done' }}", True),
        ("{{ event.payload.missing is defined }}", False),
        ("{{ (event.payload.n == result.n) and event.payload.rows | length == 30 }}", True),
    ],
)
def test_the_payload_of_an_event_is_the_result_of_the_step_and_no_worker_is_asked(
    expression: str, value: object
) -> None:
    run = Simulated(graph(step("start", set={"x": expression})))
    run.complete("start#1", {"n": 1, "rows": BIG})
    assert run.context == {"x": value}
    assert run.state.status is Status.COMPLETED


def test_a_large_payload_of_an_event_becomes_a_place_in_the_result() -> None:
    run = Simulated(graph(step("start", set={"rows": "{{ event.payload.rows }}"})))
    run.complete("start#1", {"rows": BIG})
    assert run.state.variables["rows"] == Entry(None, address_of({"rows": BIG}).reference.to_json(), ("rows",))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("{{ event }}", {"name": "call.done", "step": "start", "timestamp": TIME, "payload": {"n": 1}}),
        ("{{ event[ctx.key].n }}", 1),
        ("{% for x in [1] %}{{ event.payload.n }}{{ event.name == 'step.exit' }}{% endfor %}", "1True"),
        ("{% if event.payload.n == 1 %}one{% endif %}", "one"),
        ("{{ event.name == 'command.completed' and " + ASKED + " }}", True),
        ("{{ event.timestamp if " + ASKED + " else 0 }}", TIME),
        ("{{ now() if " + ASKED + " else 0 }}", TIME),
    ],
)  # fmt: skip
def test_the_event_is_the_same_when_a_worker_evaluates(expression: str, value: object) -> None:
    run = Simulated(graph(step("start", set={"x": expression}), workload={"key": "payload"}))
    run.complete("start#1", {"n": 1})
    run.evaluate("start#1/eval/1")
    assert run.context == {"x": value}


def test_the_payload_of_a_failure_has_its_error_and_an_arc_that_reads_it_is_an_error_arc() -> None:
    arc = {
        "step": "fix",
        "when": "{{ event.payload.error.kind == 'python' }}",
        "set": {"why": "{{ event.payload.error.message }}"},
    }
    run = Simulated(graph(step("start", arc), step("fix"))).run({"start": BOOM})
    assert run.issued == ["start#1", "fix#1"]
    assert run.context == {"why": "boom"}


@pytest.mark.parametrize("name", ["call.error", "step.failed", "command.failed"])
def test_a_failure_has_its_names_for_a_worker_too(name: str) -> None:
    arc = {"step": "fix", "when": f"{{{{ event.name == '{name}' and {ASKED} }}}}"}
    run = Simulated(graph(step("start", arc), step("fix"))).run({"start": BOOM})
    assert run.issued == ["start#1", "fix#1"]


# --- args ------------------------------------------------------------------------------------------------


def given(*arcs: JsonObject, **keys: Any) -> Simulated:
    return Simulated(graph(step("start", *arcs), step("here", **keys), step("other")))


ARGS = {"n": "{{ output.data.n + 1 }}", "deep": {"list": ["{{ output.data.n }}", "x"]}}


def test_args_of_an_arc_are_written_and_known_to_the_run_of_its_target() -> None:
    arc = {"step": "here", "args": ARGS, "set": {"n": 9, "other": "{{ n }}"}}
    tool = {"kind": "noop", "result": "{{ args.n }}{{ args.deep }}{{ n }}"}
    run = given(arc, tool=tool, set={"seen": "{{ args.n }}", "asked": "{{ args.deep if " + ASKED + " else 0 }}"})
    run.complete("start#1", {"n": 1})
    decided = run.decided("start")
    assert decided.meta["args"] == {"here": {"n": {"v": 2}, "deep": {"v": {"list": [1, "x"]}}}}
    # The args are a block of their own, written before the set of the arc.
    assert run.context == {"n": 9, "deep": {"list": [1, "x"]}, "other": 2}
    assert body(run, "here#1")["args"] == {"n": {"v": 2}, "deep": {"v": {"list": [1, "x"]}}}
    assert seen(run, "here#1", "{{ args.n }}/{{ n }}/{{ args.deep.list[1] }}") == "2/9/x"
    run.complete("here#1")
    run.run()
    assert run.context["seen"] == 2
    assert run.context["asked"] == {"list": [1, "x"]}


def test_args_belong_to_one_run_of_one_step() -> None:
    text = graph(
        step("start", {"step": "here", "args": {"n": 1}}),
        step("here", {"step": "here", "when": "{{ args.n is defined }}", "set": {"had": "{{ args.n }}"}},
             {"step": "other", "set": {"then": "{{ args.n | default('none') }}"}}),
        step("other", set={"other": "{{ args is defined }}"}),
    )  # fmt: skip
    run = Simulated(text).run()
    assert run.issued == ["start#1", "here#1", "here#2", "other#1"]
    assert run.context == {"n": 1, "had": 1, "then": "none", "other": False}
    assert run.state.args == {}


def test_args_of_requests_that_meet_are_merged() -> None:
    text = graph(
        step("split", "left", "right", mode="inclusive"),
        step("left", {"step": "join", "args": {"a": 1, "b": 1}}),
        step("right", {"step": "join", "args": {"b": 2, "c": 2}}),
        step("join", tool={"kind": "noop", "result": "{{ args }}"}),
    )
    run = Simulated(text)
    for command_id in ("split#1", "left#1", "right#1"):
        run.complete(command_id)
    assert seen(run, "join#1", "{{ args }}") == {"a": 1, "b": 2, "c": 2}


def test_large_args_travel_by_reference() -> None:
    run = given(
        {"step": "here", "args": {"rows": "{{ start.rows }}"}}, tool={"kind": "noop", "result": "{{ args.rows }}"}
    )
    run.complete("start#1", {"rows": BIG})
    assert run.state.args["here"]["rows"].path == ("rows",)
    assert seen(run, "here#1", "{{ args.rows | length }}") == 30
    # The router does not hold them: a worker is asked.
    run = given({"step": "here", "args": {"rows": "{{ start.rows }}"}}, set={"first": "{{ args.rows[0] | length }}"})
    run.complete("start#1", {"rows": BIG})
    run.complete("here#1")
    run.evaluate("here#1/eval/1")
    assert run.context["first"] == 100


def test_admission_and_the_opening_of_a_loop_see_the_args_of_their_step() -> None:
    rules = [{"when": "{{ args.n == 1 }}", "then": {"allow": False}}]
    run = given({"step": "here", "args": {"n": 1}}, spec={"policy": {"admit": {"rules": rules}}})
    run.complete("start#1")
    assert run.decided("here").meta["outcome"] == "skipped"
    each = {"step": "each", "loop": {"in": "{{ args.rows }}", "iterator": "row"}, "tool": {"kind": "noop"}}
    run = Simulated(graph(step("start", {"step": "each", "args": {"rows": [1, 2]}}), each))
    run.complete("start#1")
    assert run.of(kinds.LOOP_STARTED)[0].meta["total"] == 2


# --- result and response ---------------------------------------------------------------------------------


def test_a_task_sees_the_result_of_the_step_that_requested_it() -> None:
    text = graph(step("start", "here"), step("here", tool={"kind": "noop", "result": "{{ result.n }}{{ response.n }}"}))
    run = Simulated(text)
    run.complete("start#1", {"n": 1})
    assert body(run, "here#1")["about"] == {"step": "start"}
    assert seen(run, "here#1", "{{ result.n }}{{ response.data.n }}") == "11"


def test_a_step_that_was_skipped_gives_nothing_to_the_one_it_requests() -> None:
    text = graph(
        step("start", {"step": "start", "when": "{{ n < 1 }}", "set": {"n": 1}}, "here", when="{{ n < 1 }}"),
        step("here", tool={"kind": "noop", "result": "{{ result }}{{ start }}"}),
        workload={"n": 0},
    )
    run = Simulated(text)
    run.complete("start#1", {"m": 5})
    assert run.open == ["here#1"]
    assert body(run, "here#1")["about"] == {"step": "start", "skipped": True}
    assert seen(run, "here#1", "{{ result is defined }}{{ response is defined }}{{ start.m }}") == "FalseFalse5"


# --- precedence ------------------------------------------------------------------------------------------

RESERVED_EVERYWHERE = ["execution_id", "job", "path", "catalog_id", "version", "parent_execution_id", "env", "iter"]


@pytest.mark.parametrize("name", [*RESERVED_EVERYWHERE, "workload", "ctx", "steps"])
def test_a_reserved_name_is_hidden_by_nothing(name: str) -> None:
    text = graph(
        step("start", name, set={f"ctx.{name}": "mine"}),
        step(name, {"step": "last", "set": {"server": f"{{{{ {name} is mapping or {name} != 'mine' }}}}"}}),
        step("last", tool={"kind": "noop", "result": f"{{{{ {name} }}}}{{{{ ctx['{name}'] }}}}"}),
        workload={name: "mine"},
    )
    run = Simulated(text)
    run.complete("start#1")
    run.complete(f"{name}#1", {"mine": 1})
    if run.open != ["last#1"]:
        run.evaluate(run.open[0])
    assert run.context["server"] is True
    names = built(run, "last#1")
    assert names[name] != "mine"
    assert render(compile_template(f"{{{{ ctx['{name}'] }}}}"), names) == "mine"


@pytest.mark.parametrize("name", ["output", "outcome", "result", "response", "error", "event"])
def test_the_completing_step_is_hidden_by_nothing_where_arcs_are_evaluated(name: str) -> None:
    values = {"x": f"{{{{ {name} == 'mine' }}}}", "y": f"{{{{ {name} == 'mine' or not {ASKED} }}}}"}
    text = graph(
        step("start", set={f"ctx.{name}": "mine"}),
        step("here", {"step": "end", "set": values}),
        executor={"spec": {"final_step": "here"}},
        workload={name: "mine"},
    )
    run = Simulated(text).run({"here": {"n": 1}})
    assert (run.context["x"], run.context["y"]) == (False, False)


def test_a_step_with_a_reserved_name_is_read_through_steps() -> None:
    text = graph(
        step("path", "here", set={"a": "{{ path }}", "b": "{{ steps.path.n }}"}),
        step("here", {"step": "end", "when": "{{ steps['path'].n == 5 }}", "set": {"c": "{{ steps['path'].n }}"}}),
    )
    run = Simulated(text).run({"path": {"n": 5}})
    assert run.context == {"a": "demo", "b": 5, "c": 5}


def test_ctx_stands_above_steps_and_steps_above_the_workload() -> None:
    text = graph(
        step("a", "b", set={"x": "{{ b }}"}),
        step("b", "c", set={"y": "{{ b.n }}"}),
        step("c", "d", set={"b": "from ctx"}),
        step("d", tool={"kind": "noop", "result": "{{ b }}{{ a }}"}, set={"z": "{{ b }}"}),
        workload={"a": "from workload", "b": "from workload"},
    )
    run = Simulated(text)
    run.complete("a#1", {"n": 1})
    assert run.context == {"x": "from workload"}
    run.complete("b#1", {"n": 2})
    for _ in range(10):
        if "c#1" in run.open:
            break
        run.evaluate(run.open[0])
    assert run.context["y"] == 2
    run.complete("c#1")
    names = built(run, "d#1")
    assert (names["b"], seen(run, "d#1", "{{ a.n }}")) == ("from ctx", 1)
    run.complete("d#1")
    assert run.context["z"] == "from ctx"


def scope(names: JsonObject | None = None, *, iterator: str | None = None, **given: Any) -> PipelineScope:
    everything = {"workload": {}, "ctx": {}, "steps": {}, "execution_id": "77", "path": "demo", **(names or {})}
    playbook = compiled(graph(step("a"), **({"spec": {"x": 1}} if given.get("spec") else {})))
    found = {"steps": {"before": {}}, **({"about": {"step": "before"}} if given.get("about") else {})}
    if given.get("args"):
        found["args"] = {}
    above = bound_names(found, playbook)
    made = PipelineScope(everything, above if iterator is None else above | LOOP_NAMES | {iterator})
    made.restore(Run())
    return made


def outcome(value: object) -> TaskOutcome:
    return TaskOutcome(value=value, failure=None, attempt=1, duration_ms=0.0, started_at="")


def test_labels_and_task_names_stand_above_ctx_and_below_the_iterator_and_reserved_names() -> None:
    run = Run()
    made = scope({"city": "ctx", "row": "the row"}, iterator="row")
    made.outcome(run, "city", outcome("label"))
    made.context("city", {"city": "written later"})
    assert str(made.names["city"]._plain()) == "label"  # type: ignore[attr-defined]
    assert made.names["ctx"]["city"] == "written later"  # type: ignore[index]
    for name in ("row", "execution_id", "path", "input", "iter", "results", "_prev", "output", "loop", "_index"):
        made.outcome(run, name, outcome("label"))
        made.own(name, "local")
        made.context(name, {name: "ctx"})
    assert (made.names["row"], made.names["execution_id"], made.names["path"]) == ("the row", "77", "demo")
    assert not {"input", "loop", "_index"} & set(made.names)
    assert render(compile_template("{{ results.path }}"), made.names) == "label"
    made.own("local", 1)
    made.context("local", {"local": 2})
    made.context("fresh", {"fresh": 3})
    assert (made.names["local"], made.names["fresh"]) == (1, 3)


def test_a_reserved_name_that_does_not_exist_here_may_be_a_label() -> None:
    made = scope()
    for name in ("frame", "loop", "spec", "args", "result", "response", "event", "_index"):
        made.own(name, "mine")
        assert made.names[name] == "mine"
    bound = scope(spec=True, args=True, about=True)
    for name in ("spec", "args", "result", "response"):
        bound.own(name, "mine")
        assert name not in bound.names


def test_the_input_of_a_task_stands_above_everything_but_reserved_names_and_the_iterator() -> None:
    made = scope({"city": "ctx", "row": "the row"}, iterator="row")
    made.own("label", "label")
    names = made.with_input({"city": "input", "label": "input", "row": "input", "path": "input"})
    assert [names[name] for name in ("city", "label", "row", "path")] == ["input", "input", "the row", "demo"]
    assert made.with_input({"path": "input"}) is made.names
    assert made.names["city"] == "ctx"


def test_every_reserved_name_of_a_pipeline_is_one_of_the_language() -> None:
    playbook = compiled(graph(step("a"), spec={"x": 1}))
    bound = bound_names({"about": {"step": "b"}, "steps": {"b": 1}, "args": {}}, playbook)
    assert bound < RESERVED


# --- a pipeline that goes on -----------------------------------------------------------------------------


def test_names_are_the_same_behind_a_resume_point() -> None:
    run, before = Run(), scope()
    before.outcome(run, "first", outcome({"n": 1}))
    run.order, run.results = ["first"], {"first": {"n": 1}}
    run.scopes["iter"]["page"] = 3
    run.scopes["local"]["mine"] = "local"
    after = scope()
    after.restore(Run(**json.loads(json.dumps(run.to_json()))))
    for expression in (
        "{{ first.n }}{{ results.first.data.n }}{{ _prev.n }}",
        "{{ output.status }}{{ output.n }}{{ output.data.n }}",
        "{{ error }}",
    ):
        template = compile_template(expression)
        assert render(template, after.names) == render(template, before.names)
    assert (after.names["iter"], after.names["mine"]) == ({"page": 3}, "local")


def test_the_failure_before_a_resume_point_stays_known() -> None:
    run, before = Run(), scope()
    failed = TaskOutcome(value={"partial": 1}, failure=BOOM, attempt=1, duration_ms=0.0, started_at="")
    before.outcome(run, "first", failed)
    run.order, run.results = ["first"], {"first": {"partial": 1, "status": "error", "error": {"kind": "python"}}}
    after = scope()
    after.restore(Run(**json.loads(json.dumps(run.to_json()))))
    template = compile_template("{{ output.status }} {{ error.message }} {{ output.error.kind }} {{ output.partial }}")
    assert render(template, before.names) == render(template, after.names) == "error boom python 1"
    before.outcome(run, "first", outcome({"n": 1}))
    assert (before.names["error"], run.failures) == (None, {})


# --- iter.parent -----------------------------------------------------------------------------------------


def test_a_child_knows_the_small_values_of_the_row_that_started_it() -> None:
    row = {"item": {"id": 1}, "index": 3, "_index": 3, "seen": "x", "big": "x" * CONTEXT_ENTRY_BYTES_MAX}
    assert caller_of(row) == {"item": {"id": 1}, "index": 3, "_index": 3, "seen": "x"}


def test_what_a_child_knows_of_a_row_is_bounded_and_the_smallest_come_first() -> None:
    row = {f"value{n:02}": "x" * (100 * n) for n in range(10)} | {"item": "y" * 1_000, "index": 7, "bad": "\ud800"}
    found = caller_of(row)
    assert len(canonical_bytes(found)) <= CALLER_BYTES_MAX
    assert found["index"] == 7
    assert "item" not in found
    assert "bad" not in found
    assert {"value00", "value05"} <= set(found)
