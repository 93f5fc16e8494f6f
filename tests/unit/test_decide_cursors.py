"""What the router decides about cursor loops: opening them, the turns of their slots, what ends them."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.core import kinds
from noetl.core.errors import EnvelopeInvalid, Failure, RequestInvalid
from noetl.core.execution.state import CommandStatus, Slot, Status
from noetl.core.limits import CONTEXT_ENTRY_BYTES_MAX, CURSOR_ROWS_PER_SLOT_DEFAULT
from noetl.engine.control.batch import Batch
from noetl.engine.control.facts import attempts_max, is_told_again
from noetl.engine.control.inputs import Turn
from noetl.engine.control.pull import FrameClaimInput
from noetl.engine.control.sessions import Sessions, demand_of
from noetl.ports.session import Fact
from tests.support.cursors import NO_CONNECTION, Draining, cursor_step, draining
from tests.support.loops import give_up, tell
from tests.support.playbooks import BOOM, JsonObject, graph, step

ERROR = {"step": "rescue", "when": "{{ output.status == 'error' }}"}


def started(run: Draining) -> JsonObject:
    (event,) = run.of(kinds.LOOP_STARTED)
    return dict(event.meta)


def drained(run: Draining) -> Draining:
    """Every slot finds nothing more."""
    while run.frames:
        run.empty(run.frames[0])
    return run


# --- opening ---------------------------------------------------------------------------------------------


def test_a_cursor_opens_with_a_rendered_claim_and_a_frame_for_each_slot() -> None:
    run = draining("after", slots=3, frame={"max_rows": 7})
    meta = started(run)
    assert meta["cursor"] == {
        "kind": "postgres",
        "claim": {"v": "UPDATE work SET taken = true RETURNING * -- 7"},
    }
    assert (meta["total"], "collection" in meta) == (0, False)
    assert meta["policy"] == {
        "is_sequential": False,
        "max_in_flight": 3,
        "is_best_effort": True,
        "frame_rows": 7,
        "max_attempts": 3,
        "one_row_frames": False,
        "row_concurrency": 1,
        "max_seconds": 30.0,
        "max_bytes": 64 * 1024 * 1024,
        "slot_rows_max": CURSOR_ROWS_PER_SLOT_DEFAULT,
    }
    assert run.frames == ["drain#1/1", "drain#1/2", "drain#1/3"]
    assert [run.frame(name).slot for name in run.frames] == [1, 2, 3]
    assert run.stage("drain").slots == {n: Slot(is_open=True) for n in (1, 2, 3)}


def test_a_frame_of_a_cursor_carries_what_to_claim_and_no_rows() -> None:
    run = draining("after", frame={"process": "frame", "max_attempts": 5})
    body = run.body("drain#1/1")["stage"]
    assert body["cursor"] == {**started(run)["cursor"], "max_rows": 1, "tries": 5}
    assert (body["claim"], body["claims"], body["rows"], body["process"]) == (None, 0, 0, "frame")
    assert "collection" not in body


def test_a_claim_without_templates_is_not_repeated_in_the_ledger() -> None:
    run = draining("after", claim="SELECT 1")
    assert started(run)["cursor"] == {"kind": "postgres"}


def test_one_slot_with_one_row_at_a_time_is_sequential() -> None:
    for keys, is_sequential in (
        ({}, True),
        ({"slots": 2}, False),
        ({"frame": {"row_concurrency": 2}}, False),
        ({"frame": {"row_concurrency": 2, "process": "frame"}}, True),
    ):
        policy: Any = started(draining("after", **keys))["policy"]
        assert policy["is_sequential"] is is_sequential, keys


def test_the_claim_sees_the_frame_policy_and_is_rendered_once() -> None:
    claim = "SELECT {{ workload.table }} {{ __frame_policy.max_rows + __frame_max_rows }} {{ __frame_policy.process }}"
    run = Draining(
        graph(
            cursor_step("drain", claim=claim, frame={"max_rows": "{{ workload.n }}"}),
            workload={"n": 4, "table": "queue"},
        )
    )
    assert started(run)["cursor"]["claim"] == {"v": "SELECT queue 8 row"}
    run.turn("drain#1/1", 2)
    assert run.body("drain#1/2")["stage"]["cursor"]["claim"] == {"v": "SELECT queue 8 row"}
    # The names belong to the claim: nobody has written them to ctx.
    assert run.context == {}


def test_a_claim_that_needs_data_is_rendered_by_a_worker_with_the_same_names() -> None:
    claim = "SELECT {{ steps[ctx.which | default('start')].table }} {{ __frame_max_rows }}"
    run = Draining(graph(step("start", "drain"), cursor_step("drain", claim=claim, frame={"max_rows": 3})))
    run.complete("start#1", {"table": "queue"})
    assert run.open == ["drain#1/eval/1"]
    run.evaluate("drain#1/eval/1")
    assert started(run)["cursor"]["claim"] == {"v": "SELECT queue 3"}


def test_a_long_claim_is_kept_by_reference() -> None:
    long = "SELECT '" + "x" * CONTEXT_ENTRY_BYTES_MAX + "' {{ __frame_max_rows }}"
    run = draining("after", claim=long)
    assert run.open == ["drain#1/eval/1"]
    run.evaluate("drain#1/eval/1")
    assert set(started(run)["cursor"]["claim"]) == {"ref", "path"}
    assert run.frames == ["drain#1/1"]


def test_auth_may_be_a_template() -> None:
    run = Draining(graph(cursor_step("drain", auth="{{ workload.pg }}"), workload={"pg": "pg_work"}))
    assert started(run)["cursor"]["auth"] == {"v": "pg_work"}


@pytest.mark.parametrize(
    ("keys", "kind", "says"),
    [
        ({"frame": {"max_rows": "{{ 'many' }}"}}, "config", "loop.spec.frame.max_rows must be a whole number"),
        ({"frame": {"process": "{{ 'rows' }}"}}, "config", "process must be row or frame, not 'rows'"),
        ({"frame": {"max_seconds": "{{ -1 }}"}}, "config", "max_seconds must be a number of seconds above 0"),
        ({"frame": {"max_rows": "{{ nothing > 3 }}"}}, "config", "loop.spec.frame"),
        ({"slots": "{{ 0 }}"}, "config", "max_in_flight must be a whole number from 1"),
        ({"options": {"max_iterations": "{{ 0 }}"}}, "config", "loop.cursor.options.max_iterations"),
        ({"claim": "{{ workload.nothing }}"}, "config", "loop.cursor.claim gave None, which is no SQL"),
        ({"claim": "{{ 1 / 0 }}"}, "template", "loop.cursor.claim"),
        ({"auth": "{{ workload.nothing }}"}, "config", "loop.cursor.auth gave nothing"),
    ],
)
def test_what_cannot_be_opened_fails_its_step(keys: JsonObject, kind: str, says: str) -> None:
    run = draining(**keys)
    assert run.state.status is Status.FAILED
    assert run.state.failure is not None
    error: Any = run.state.failure["error"]
    assert (error["kind"], says in error["message"]) == (kind, True), error


def test_templates_in_frame_numbers_work_for_collections_too() -> None:
    each = {"in": list(range(9)), "iterator": "x", "spec": {"mode": "parallel", "frame": {"max_rows": "{{ n }}"}}}
    run = Draining(graph(step("drain", loop=each), workload={"n": "3"}))
    assert started(run)["policy"]["frame_rows"] == 3
    assert {run.frame(name).rows for name in run.frames} == {3}


# --- turns -----------------------------------------------------------------------------------------------


def test_a_slot_claims_again_until_it_finds_nothing() -> None:
    run = draining("after")
    run.turn("drain#1/1", 1)
    run.turn("drain#1/2", 3)
    assert run.frame("drain#1/3").first == 4
    assert run.stage("drain").slots[1] == Slot(rows=4, is_open=True)
    run.turn("drain#1/3", 0)
    assert run.open == ["drain#1/seal"]
    run.finish()
    assert run.result("drain") == {
        "status": "ok",
        "processed": 4,
        "failed": 0,
        "breaks": 0,
        "frames": 2,
        "row_count": 4,
        "stats": {"total": 4, "success": 4, "failed": 0},
    }
    assert run.state.status is Status.COMPLETED


def test_a_cursor_with_nothing_to_do_is_done_at_once() -> None:
    arcs = [{"step": "none", "when": "{{ event.name == 'loop.done' and drain.row_count == 0 }}"}, "some"]
    run = drained(draining(*arcs, slots=2)).finish()
    assert run.decided("drain").meta["targets"] == ["none"]
    assert run.of(kinds.LOOP_DONE)[0].meta["total"] == 0


def test_the_loop_is_done_when_all_slots_are() -> None:
    run = draining("after", slots=2)
    run.turn("drain#1/1", 0)
    assert run.frames == ["drain#1/2"]
    run.turn("drain#1/2", 1)
    assert run.frames == ["drain#1/3"]
    assert run.of(kinds.LOOP_DONE) == []
    run.turn("drain#1/3", 0)
    assert run.of(kinds.LOOP_DONE)[0].meta["status"] == "ok"


def test_a_failed_row_is_counted_and_the_loop_goes_on() -> None:
    run = draining("after", frame={"max_rows": 3})
    run.turn("drain#1/1", 3, {1: BOOM})
    run.turn("drain#1/2", 0)
    run.finish()
    assert run.state.status is Status.COMPLETED
    assert run.result("drain") | {"stats": None} == {
        "status": "partial",
        "processed": 2,
        "failed": 1,
        "breaks": 0,
        "frames": 1,
        "row_count": 3,
        "stats": None,
    }


def test_a_cursor_may_fail_fast() -> None:
    run = draining("after", ERROR, slots=2, frame={"max_rows": 3}, mode="fail_fast")
    run.take("drain#1/2")
    run.turn("drain#1/1", 3, {1: BOOM})
    assert run.stage("drain").failure is not None
    assert run.frames == ["drain#1/2"]
    run.turn("drain#1/2", 1)
    assert run.of(kinds.LOOP_DONE)[0].meta["status"] == "failed"
    assert run.finish().decided("drain").meta["targets"] == ["rescue"]


def test_break_ends_the_slot_after_its_frame_and_no_other() -> None:
    run = draining("after", slots=2)
    run.turn("drain#1/1", 2, breaks=1)
    assert run.frames == ["drain#1/2"]
    run.turn("drain#1/2", 1)
    run.turn("drain#1/3", 0)
    run.finish()
    assert (run.result("drain")["breaks"], run.result("drain")["status"]) == (1, "ok")


def test_a_slot_ends_at_its_limit_with_a_warning() -> None:
    run = draining("after", options={"max_iterations": 3})
    run.turn("drain#1/1", 2)
    run.turn("drain#1/2", 2)
    (done,) = run.of(kinds.LOOP_DONE)
    assert done.meta["warnings"] == ["1 slots ended at their limit of 3 rows: rows may be left"]
    run.finish()
    assert run.result("drain")["status"] == "partial"


def test_only_counters_are_kept_of_the_frames_of_a_cursor() -> None:
    run = draining("after")
    for number in range(1, 30):
        run.turn(f"drain#1/{number}", 1)
    assert run.stage("drain").outputs == ()
    assert len(run.state.commands) == 1


# --- claims that are lost --------------------------------------------------------------------------------


def test_whoever_takes_a_frame_over_finds_the_recorded_claim() -> None:
    run = draining("after", frame={"max_rows": 5})
    claimed = run.claim("drain#1/1", 4, xid="812")
    assert run.stage("drain").total == 4
    run.beat("drain#1/1", {0: "a", 1: BOOM})
    run.take("drain#1/1")
    body = run.body("drain#1/1")["stage"]
    assert body["claim"] == {"xid": "812", "ref": claimed.payload_ref, "place": "here"}
    assert (body["rows"], body["claims"], len(body["parts"])) == (4, 1, 1)
    assert run.of(kinds.FRAME_ABANDONED)[0].meta["skipped"] == 2
    run.commit("drain#1/1")
    assert run.stage("drain").done == 4


def test_the_claim_of_an_earlier_attempt_is_replaced_when_it_was_rolled_back() -> None:
    run = draining("after", frame={"max_rows": 5})
    run.claim("drain#1/1", 4)
    run.take("drain#1/1")
    run.claim("drain#1/1", 2, xid="900")
    frame = run.frame("drain#1/1")
    assert frame.claim is not None
    assert (frame.claim.transaction_id, frame.rows, frame.claims) == ("900", 2, 2)
    assert run.stage("drain").total == 2
    assert [e.transition_key for e in run.of(kinds.CURSOR_CLAIMED)] == [
        "cursor.claimed/drain#1/1/1/1",
        "cursor.claimed/drain#1/1/2/2",
    ]
    run.commit("drain#1/1")
    assert (run.stage("drain").done, run.stage("drain").total) == (2, 2)


def test_a_frame_whose_claim_was_rolled_back_may_end_empty() -> None:
    run = draining("after")
    run.claim("drain#1/1", 1)
    run.take("drain#1/1")
    run.empty("drain#1/1")
    (done,) = run.of(kinds.LOOP_DONE)
    assert (done.meta["total"], done.meta["done"]) == (0, 0)
    run.finish()
    assert (run.result("drain")["row_count"], run.result("drain")["frames"]) == (0, 0)


def test_a_claim_that_is_told_again_is_no_news() -> None:
    run = draining("after")
    run.claim("drain#1/1", 1)
    command = run.state.commands["drain#1/1"]
    reference = run.frame("drain#1/1").claim
    assert reference is not None

    def fact(number: int) -> Fact:
        meta = {"n": number, "rows": 1, "xid": "1", "place": "here"}
        return Fact(77, "drain#1/1", 1, kinds.CURSOR_CLAIMED, meta=meta, payload_ref=reference.reference)

    assert is_told_again(command, fact(1))
    assert not is_told_again(command, fact(2))


def test_a_claim_that_leaves_something_out_is_refused() -> None:
    run = draining("after")
    command = run.take("drain#1/1")
    reference = run._keep({"total": 1, "rows": [1]})
    good: JsonObject = {"n": 1, "rows": 1, "xid": "700", "place": "here"}
    for wrong in ({"rows": 0}, {"rows": True}, {"rows": 10**9}, {"xid": "-1"}, {"xid": 700}, {"n": 2}, {"n": None}):
        with pytest.raises(EnvelopeInvalid):
            tell(run, command, kinds.CURSOR_CLAIMED, meta=good | wrong, payload_ref=reference)
    with pytest.raises(EnvelopeInvalid):
        tell(run, command, kinds.CURSOR_CLAIMED, meta=good)


def test_only_a_frame_of_a_cursor_can_claim() -> None:
    run = Draining(graph(step("drain", loop={"in": [1, 2], "iterator": "x"})))
    command = run.take("drain#1/1")
    with pytest.raises(RequestInvalid, match=r"cursor\.claimed is no fact about"):
        tell(run, command, kinds.CURSOR_CLAIMED, meta={"n": 1, "rows": 1, "xid": "1"}, payload_ref={"sha256": "x"})


def test_rows_that_were_claimed_need_outcomes() -> None:
    run = draining("after")
    run.claim("drain#1/1", 2)
    command = run.state.commands["drain#1/1"]
    result = {"status": "ok", "reference": None, "parent_ref": None, "context": {}}
    outcomes = {"success": 0, "failed": 0, "skipped": 0}
    with pytest.raises(EnvelopeInvalid, match="needs a reference"):
        tell(run, command, kinds.FRAME_COMMITTED, meta={"outcomes": outcomes}, result=result)


def test_a_frame_of_a_cursor_has_three_attempts() -> None:
    run = draining("after", frame={"max_rows": 5})
    run.claim("drain#1/1", 4)
    run.beat("drain#1/1", {0: "a"})
    assert attempts_max(run.state, run.state.commands["drain#1/1"]) == 3


def test_exhausted_attempts_fail_the_rows_and_the_rest_goes_on() -> None:
    run = draining("after", frame={"max_rows": 5})
    run.claim("drain#1/1", 4)
    run.beat("drain#1/1", {0: "a"})
    give_up(run, "drain#1/1")
    assert run.frames == ["drain#1/2"]
    run.turn("drain#1/2", 0)
    run.finish()
    assert run.state.status is Status.COMPLETED
    assert run.result("drain")["stats"] == {"total": 4, "success": 1, "failed": 3}


def test_a_frame_that_could_not_claim_ends_its_slot_and_the_step_fails_when_the_others_are_done() -> None:
    run = draining("after", ERROR, slots=2)
    run.unclaimed("drain#1/1")
    assert run.frames == ["drain#1/2"]
    run.turn("drain#1/2", 3)
    run.turn("drain#1/3", 0)
    (done,) = run.of(kinds.LOOP_DONE)
    error: Any = done.meta["error"]
    assert (done.meta["status"], error["kind"], done.meta["done"]) == ("failed", "db_connection", 3)
    run.finish()
    assert run.decided("drain").meta["targets"] == ["rescue"]
    assert run.result("drain")["processed"] == 3


@pytest.mark.parametrize("is_claimed", [False, True])
def test_a_frame_that_was_never_claimed_and_is_given_up_is_no_empty_queue(is_claimed: bool) -> None:
    run = draining("after")
    run.take("drain#1/1")
    if is_claimed:
        run.claim("drain#1/1", 1)
    give_up(run, "drain#1/1")
    (status,) = [e.meta["status"] for e in run.of(kinds.LOOP_DONE)] or [None]
    assert status == (None if is_claimed else "failed")


def test_rows_whose_fate_nobody_can_tell_fail_and_the_slot_goes_on() -> None:
    run = draining("after")
    run.claim("drain#1/1", 2)
    run.take("drain#1/1")
    run.unclaimed("drain#1/1", Failure(kind="unknown", message="forgotten"), is_recorded=True)
    assert run.frames == ["drain#1/2"]
    assert (run.stage("drain").failed, run.stage("drain").total) == (2, 2)


def test_claims_that_fail_fast_end_the_loop_at_once() -> None:
    run = draining("after", slots=3, mode="fail_fast")
    run.unclaimed("drain#1/1", NO_CONNECTION)
    assert run.of(kinds.LOOP_DONE)[0].meta["status"] == "failed"
    assert run.frames == []


def test_process_frame_always_begins_anew() -> None:
    run = draining("after", frame={"max_rows": 5, "process": "frame"})
    run.claim("drain#1/1", 4)
    run.take("drain#1/1")
    assert run.of(kinds.FRAME_ABANDONED)[0].meta["retry_mode"] == "whole_frame"
    assert run.frame("drain#1/1").claim is not None
    again = run.of(kinds.FRAME_DISPATCHED)[-1]
    assert (again.meta["slot"], again.meta["rows"]) == (1, 4)


def test_a_withdrawn_slot_does_not_come_back() -> None:
    run = draining("after", slots=3, mode="fail_fast")
    run.turn("drain#1/1", 1, {0: BOOM})
    assert [c.status for c in run.state.commands.values() if c.frame] == []
    assert run.of(kinds.LOOP_DONE)[0].meta["status"] == "failed"
    assert CommandStatus.ISSUED not in {c.status for c in run.state.commands.values() if c.kind == "frame"}


def test_frames_by_request_are_never_those_of_a_cursor() -> None:
    """A request says nothing about the driver that claims."""
    run = draining("after", slots=2)
    asked = FrameClaimInput(
        execution_id=77, stage_id="drain#1", session_id=1, count=2, tenant_id="acme", organization_id="sales"
    )
    batch = Batch(ids=VirtualIds(VirtualClock(), node=1), producer="test", heads={})
    turn = Turn(batch=batch, playbook=run.playbook, sessions=Sessions(), now="2026-01-01T00:00:00Z")
    assert asked._waiting(turn, run.state) == []


def test_a_session_needs_the_driver_of_a_cursor() -> None:
    run = draining("after")
    demand = demand_of(run.state.commands["drain#1/1"], run.playbook)
    assert demand == ("default", {"noop", "frame", "cursor", "postgres"})
