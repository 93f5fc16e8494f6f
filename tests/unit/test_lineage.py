"""Which result led to which: in the fold, in the events of the router, and in what workers say they have read."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.errors import EnvelopeInvalid, Failure
from noetl.core.event import Event
from noetl.core.execution.evolve import evolve, fold_all
from noetl.core.execution.lineage import with_known_inputs
from noetl.core.execution.state import Entry, ExecutionState, StepResult
from noetl.core.reference import Result, address, reference_from_json
from noetl.core.results.references import ResultRef, Role, physical_address, result_ref, role_of, stage_of
from noetl.engine.stored.used import Used
from noetl.processes.server.views import event_view
from tests.support.loops import Looping, loop_step, parallel
from tests.support.playbooks import BOOM, Simulated, address_of, graph, step

EMPTY = Failure(kind="python", message="nothing came of it")


def ref_of(run: Simulated, command_id: str) -> int:
    """The id of the result that a command gave."""
    (event,) = [one for one in run.events if one.transition_key == kinds.terminal_key(command_id)]
    return event.event_id


def parent_of(event: Event) -> Any:
    result: Any = event.result
    return result["parent_ref"]


def led_to(run: Simulated, command_id: str) -> Any:
    (event,) = [one for one in run.events if one.transition_key == kinds.terminal_key(command_id)]
    return parent_of(event)


# --- steps -----------------------------------------------------------------------------------------------


def test_each_result_points_to_the_one_before_it_and_the_first_to_none() -> None:
    run = Simulated(graph(step("a", "b"), step("b", "c"), step("c"))).run({"a": 1, "b": 2, "c": 3})
    assert led_to(run, "a#1") is None
    assert led_to(run, "b#1") == {"ref_id": ref_of(run, "a#1")}
    assert led_to(run, "c#1") == {"ref_id": ref_of(run, "b#1")}
    assert parent_of(run.events[-1]) == {"ref_id": ref_of(run, "c#1")}
    assert run.state.step_results["b"].ref_id == ref_of(run, "b#1")


def test_where_branches_meet_the_one_that_came_last_led_there() -> None:
    run = Simulated(graph(step("a", "b", "c", mode="inclusive"), step("b", "d"), step("c", "d"), step("d")))
    run.complete("a#1", 1)
    run.complete("c#1", 3)
    run.complete("b#1", 2)
    run.complete("d#1", 4)
    assert led_to(run, "b#1") == led_to(run, "c#1") == {"ref_id": ref_of(run, "a#1")}
    assert led_to(run, "d#1") == {"ref_id": ref_of(run, "b#1")}


def test_a_step_that_runs_again_points_to_the_turn_before() -> None:
    text = graph(step("a", "b"), step("b", {"step": "a", "when": "{{ output.data.n < 2 }}"}))
    run = Simulated(text).run({"a": lambda n: {"n": n}, "b": lambda n: {"n": n}})
    assert led_to(run, "a#2") == {"ref_id": ref_of(run, "b#1")}
    assert led_to(run, "b#2") == {"ref_id": ref_of(run, "a#2")}


def test_a_failure_with_data_is_a_result_and_one_without_is_passed_over() -> None:
    handled = {"step": "b", "when": "{{ event.name == 'call.error' }}"}
    text = graph(step("start", "a"), step("a", handled), step("b"))
    told = Simulated(text)
    told.complete("start#1", 0)
    told.fail("a#1", BOOM, value={"partial": 1})
    told.complete("b#1", 1)
    assert led_to(told, "b#1") == {"ref_id": ref_of(told, "a#1")}
    silent = Simulated(text)
    silent.complete("start#1", 0)
    silent.fail("a#1", EMPTY)
    silent.complete("b#1", 1)
    assert led_to(silent, "a#1") == led_to(silent, "b#1") == {"ref_id": ref_of(silent, "start#1")}
    assert silent.state.step_results["a"].ref_id is None


def test_a_skipped_step_is_passed_over() -> None:
    text = graph(step("a", "b"), step("b", "c", when="{{ false }}"), step("c"))
    run = Simulated(text).run({"a": 1, "c": 3})
    assert run.state.skipped_steps == {"b": 1}
    assert led_to(run, "c#1") == {"ref_id": ref_of(run, "a#1")}
    assert run.state.leads == {"b": ref_of(run, "a#1")}


def test_a_failed_execution_points_to_what_led_to_the_failure() -> None:
    run = Simulated(graph(step("a", "b"), step("b")))
    run.complete("a#1", 1)
    run.fail("b#1", EMPTY)
    assert run.events[-1].event_type == kinds.PLAYBOOK_FAILED
    assert parent_of(run.events[-1]) == {"ref_id": ref_of(run, "a#1")}


def test_the_fold_of_the_events_knows_the_same_as_the_run() -> None:
    run = Simulated(graph(step("a", "b"), step("b"))).run({"a": 1, "b": 2})
    assert fold_all(run.events) == run.state


def test_the_first_step_of_a_child_points_to_what_led_to_the_task_that_started_it() -> None:
    run = Simulated(graph(step("a")))
    link = {"command_id": "x#1", "n": 1, "waits": True, "ref_id": 41}
    first = run.events[0]._replace(meta={**run.events[0].meta, "parent": link}, parent_execution_id=5)
    state = evolve(None, first)
    state = evolve(state, run.events[1])
    assert state.commands["a#1"].parent_ref == 41


# --- loops -----------------------------------------------------------------------------------------------


def test_frames_come_from_what_led_to_the_loop_and_its_result_from_the_last_frame() -> None:
    text = graph(step("a", "each"), loop_step("each", [1, 2, 3], "after", spec=parallel(3)), step("after"))
    run = Looping(text)
    run.complete("a#1", 1)
    for frame in (run.frames[2], run.frames[0], run.frames[1]):
        run.commit(frame)
    run.finish({"after": 5})
    frames = {str(event.frame_id): event for event in run.of(kinds.FRAME_COMMITTED)}
    assert [parent_of(event) for event in frames.values()] == [{"ref_id": ref_of(run, "a#1")}] * 3
    assert led_to(run, "each#1/seal") == {"ref_id": frames["each#1/2"].event_id}
    assert led_to(run, "after#1") == {"ref_id": ref_of(run, "each#1/seal")}
    assert frames["each#1/2"].meta["first"] == 1


def test_frames_come_from_the_collection_that_was_made_for_them() -> None:
    stored = Entry(None, {"sha256": "0"}, ())
    run = Looping(graph(loop_step("each", "{{ rows }}", spec=parallel(2))), workload={"rows": stored})
    collected = run.state.commands["each#1/eval/1"]
    result = Result(status="ok", reference=address_of([1, 2]).reference, context={"total": 2}).to_json()
    run._fact(collected, kinds.COMMAND_COMPLETED, result, None)
    assert {run.state.commands[frame].parent_ref for frame in run.frames} == {ref_of(run, "each#1/eval/1")}


def test_a_loop_without_rows_comes_from_what_led_to_it() -> None:
    run = Looping(graph(step("a", "each"), loop_step("each", [])))
    run.complete("a#1", 1)
    run.finish({})
    assert led_to(run, "each#1/seal") == {"ref_id": ref_of(run, "a#1")}


def test_a_loop_that_cannot_begin_is_passed_over() -> None:
    run = Looping(graph(step("a", "each"), loop_step("each", 7)))
    run.complete("a#1", 1)
    assert run.state.leads == {"each": ref_of(run, "a#1")}
    assert run.events[-1].event_type == kinds.PLAYBOOK_FAILED
    assert parent_of(run.events[-1]) == {"ref_id": ref_of(run, "a#1")}


# --- what a worker has read ------------------------------------------------------------------------------


def known(sha256: str, ref_id: int) -> ExecutionState:
    state = Simulated(graph(step("a"))).state
    result = StepResult(run=1, status="ok", reference={"sha256": sha256}, atoms={}, ref_id=ref_id)
    return state.changed({"step_results": {"a": result}})


def test_inputs_are_recorded_as_numbers_and_a_digest_of_a_result_becomes_one() -> None:
    own, other = "a" * 64, "b" * 64
    meta = {"inputs": [{"ref_id": "12"}, {"sha256": own}, {"sha256": other}, {"ref_id": 12}], "credentials": ["db"]}
    found = with_known_inputs(known(own, 9), meta)
    assert found == {"inputs": [{"ref_id": 12}, {"ref_id": 9}, {"sha256": other}], "credentials": ["db"]}
    plain = {"duration_ms": 1}
    assert with_known_inputs(known(own, 9), plain) is plain


@pytest.mark.parametrize(
    "meta",
    [
        {"inputs": "x"},
        {"inputs": [{}]},
        {"inputs": [7]},
        {"inputs": [{"ref_id": 1, "sha256": "a" * 64}]},
        {"inputs": [{"ref_id": True}]},
        {"inputs": [{"ref_id": "-1"}]},
        {"inputs": [{"ref_id": 0}]},
        {"inputs": [{"ref_id": 2**63}]},
        {"inputs": [{"ref_id": "\u0661"}]},
        {"inputs": [{"sha256": "A" * 64}]},
        {"inputs": [{"sha256": "a" * 63}]},
        {"inputs": [{"other": 1}]},
        {"inputs": [{"ref_id": n} for n in range(1, 34)]},
        {"credentials": "x"},
        {"credentials": [1]},
        {"credentials": [""]},
        {"credentials": ["x"] * 33},
    ],
)
def test_other_inputs_are_refused(meta: dict[str, object]) -> None:
    with pytest.raises(EnvelopeInvalid):
        with_known_inputs(known("a" * 64, 9), meta)


def test_what_a_command_used_is_noted_once_and_bounded_and_survives_a_resume_point() -> None:
    used = Used()
    used.named({"sha256": "a"}, "1")
    used.named({"sha256": "a"}, "2")
    used.named(None, "3")
    used.named({"sha256": "b"}, None)
    for digest in ("b", "a", "a", "c"):
        used.opened(digest)
    used.credential("crm")
    used.credential("crm")
    said = used.to_json()
    assert said == {
        "inputs": [{"sha256": "b"}, {"ref_id": "1"}, {"ref_id": "2"}, {"sha256": "c"}],
        "credentials": ["crm"],
    }
    again = Used()
    again.restore(said)
    again.opened("c")
    assert again.to_json() == said
    for number in range(100):
        again.opened(str(number))
        again.credential(str(number))
    inputs: Any = again.to_json()
    assert (len(inputs["inputs"]), len(inputs["credentials"])) == (32, 32)
    silent = Used(is_noting=False)
    silent.named({"sha256": "a"}, "1")
    silent.opened("a")
    assert silent.to_json() == {}


# --- rows of the table -----------------------------------------------------------------------------------


def completed(run: Simulated) -> Event:
    return run.of(kinds.COMMAND_COMPLETED)[-1]


def test_a_row_is_what_the_event_says() -> None:
    run = Simulated(graph(step("a", "b"), step("b"))).run({"a": 1, "b": {"n": 2}})
    event = completed(run)
    meta = {**event.meta, "credentials": ["db"], "task": "t"}
    row = result_ref(event._replace(meta=meta))
    reference = address_of({"n": 2}).reference
    assert row == ResultRef(
        ref_id=event.event_id,
        execution_id=77,
        position=event.position,
        tenant_id="acme",
        organization_id="sales",
        event_type=kinds.COMMAND_COMPLETED,
        status="ok",
        uri=reference.uri,
        sha256=reference.sha256,
        created_at=event.event_time,
        step="b",
        task="t",
        command_id="b#1",
        kind="payload",
        media_type="application/json",
        bytes=7,
        store_tier=reference.store,
        physical_address=physical_address(reference.store, reference.uri, reference.sha256),
        auth_reference=("db",),
        parent_ref_id=ref_of(run, "a#1"),
    )


@pytest.mark.parametrize("reference", [None, {}, {"a": 1}, {"uri": "", "sha256": "x"}, {"uri": "x", "sha256": 7}])
def test_what_refers_to_nothing_has_no_row(reference: object) -> None:
    run = Simulated(graph(step("a"))).run({"a": 1})
    event = completed(run)
    result: Any = event.result
    assert result_ref(event._replace(result={**result, "reference": reference})) is None
    assert result_ref(run.events[0]) is None


def test_numbers_that_are_none_are_left_out() -> None:
    run = Simulated(graph(step("a"))).run({"a": 1})
    event = completed(run)
    result: Any = event.result
    odd = {**result["reference"], "bytes": True, "row_count": -1}
    row = result_ref(event._replace(result={**result, "reference": odd, "parent_ref": {"ref_id": 1.5}}))
    assert row is not None
    assert (row.bytes, row.row_count, row.parent_ref_id) == (None, None, None)


def test_an_address_is_a_row_of_the_small_ones_or_the_key_of_an_object() -> None:
    payload = address(b"x", media_type="text/plain", store="file", tenant_id="a.b/c", organization_id="o")
    digest, uri = payload.reference.sha256, payload.reference.uri
    assert physical_address("db", uri, digest) == f"noetl.payload/{digest}"
    assert physical_address("file", uri, digest) == f"a%2Eb%2Fc/o/{digest[:2]}/{digest}"
    assert physical_address("s3", uri, digest) == f"a%2Eb%2Fc/o/{digest}"
    assert physical_address(None, uri, digest) is None
    assert physical_address("file", "elsewhere", digest) is None


@pytest.mark.parametrize(
    ("event_type", "command_id", "media_type", "role"),
    [
        ("command.completed", "a#1", "application/json", Role.STEP),
        ("command.failed", "a#1", "application/json", Role.STEP),
        ("command.completed", "a#1/seal", "application/vnd.noetl.loop+json", Role.LOOP),
        ("command.completed", "a#1/eval/2", "application/json", Role.ANSWER),
        ("command.completed", "a#1/eval/2", "application/vnd.noetl.collection+json", Role.COLLECTION),
        ("command.completed", "x/eval/y#1", "application/json", Role.STEP),
        ("frame.committed", None, "application/json", Role.FRAME),
        ("child.terminal", "a#1", "application/json", Role.CHILD),
        ("playbook.completed", None, "application/json", Role.EXECUTION),
    ],
)
def test_a_row_tells_whose_result_it_is(event_type: str, command_id: str | None, media_type: str, role: Role) -> None:
    run = Simulated(graph(step("a"))).run({"a": 1})
    row = result_ref(completed(run))
    assert row is not None
    found = row._replace(event_type=event_type, command_id=command_id, media_type=media_type)
    assert role_of(found) is role
    assert stage_of(found) == ("a#1" if role is Role.LOOP else None)


def test_ids_of_results_are_text_in_the_api() -> None:
    run = Simulated(graph(step("a", "b"), step("b"))).run({"a": 1, "b": 2})
    event = completed(run)._replace(meta={"step": "b", "inputs": [{"ref_id": 2**60}, {"sha256": "a" * 64}]})
    view: Any = event_view(event)
    assert view["result"]["parent_ref"] == {"ref_id": str(ref_of(run, "a#1"))}
    assert view["meta"]["inputs"] == [{"ref_id": str(2**60)}, {"sha256": "a" * 64}]
    assert reference_from_json(view["result"]["reference"]).sha256 == address_of(2).reference.sha256
    assert parent_of(event) == {"ref_id": ref_of(run, "a#1")}
