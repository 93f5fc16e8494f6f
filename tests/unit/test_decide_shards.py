"""What the router decides about fan-outs, whose frames are shards, and about pipelines that run once per frame."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.errors import Failure
from noetl.core.execution.state import Status
from tests.support.loops import Looping, drain, give_up, loop_step, looping, windows
from tests.support.playbooks import BOOM, JsonObject, graph, step

ERROR = {"step": "rescue", "when": "{{ output.status == 'error' }}"}


def fanout(rows: int, *targets: str | JsonObject, in_flight: int = 10, mode: str | None = None, **fan: Any) -> Looping:
    spec: JsonObject = {"mode": "fanout", "max_in_flight": in_flight, "fanout": fan}
    keys: JsonObject = {} if mode is None else {"best_effort": mode == "best_effort"}
    return looping(list(range(rows)), *targets, spec=spec, **keys)


def fanin(run: Looping) -> Any:
    (done,) = run.of(kinds.LOOP_DONE)
    return done.meta["fanin"]


def status(run: Looping) -> object:
    (done,) = run.of(kinds.LOOP_DONE)
    return done.meta["status"]


# --- shards ----------------------------------------------------------------------------------------------


def test_a_shard_is_a_frame_of_its_own_size() -> None:
    assert windows(fanout(4)) == [(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 1)]
    assert [(first, rows) for first, rows, _ in windows(fanout(5, shard_size=2))] == [(0, 2), (2, 2), (4, 1)]


def test_no_more_items_than_allowed_are_in_flight() -> None:
    run = fanout(10, in_flight=3)
    assert len(run.frames) == 3
    run.commit("each#1/1")
    assert len(run.frames) == 3


def test_all_shards_well_is_complete() -> None:
    run = fanout(5, "after", shard_size=2)
    for frame_id in list(run.frames):
        run.commit(frame_id)
    assert fanin(run) == {"status": "complete", "total": 3, "succeeded": 3, "failed": 0}
    run.finish()
    assert run.result()["results"] == [0, 1, 2, 3, 4]


def test_a_shard_whose_rows_fail_runs_again() -> None:
    run = fanout(4, "after", shard_size=2)
    run.commit("each#1/1", {0: BOOM})
    assert run.stage().shards.again == ()
    again = run.of(kinds.FRAME_DISPATCHED)[-1]
    assert (again.frame_id, again.meta["first"], again.meta["rows"], again.meta["tries"]) == ("each#1/3", 0, 2, 1)
    assert (run.stage().done, run.stage().failed, run.stage().failure) == (0, 0, None)
    run.commit("each#1/2")
    run.commit("each#1/3")
    assert fanin(run) == {"status": "complete", "total": 2, "succeeded": 2, "failed": 0}
    run.finish()
    assert run.result()["stats"] == {"total": 4, "success": 4, "failed": 0}


def test_a_shard_that_waits_for_its_place_is_not_forgotten() -> None:
    run = fanout(2, "after", in_flight=1)
    run.commit("each#1/1", {0: BOOM})
    # The one place went to the shard that failed, before the one that never ran.
    assert [(run.frame(name).first, run.frame(name).tries) for name in run.frames] == [(0, 1)]
    run.finish()
    assert run.state.status is Status.COMPLETED


def test_after_its_tries_a_shard_fails_the_loop_and_no_further_one_begins() -> None:
    run = fanout(6, "after", ERROR, in_flight=2, max_shard_retries=1)
    for frame_id in ("each#1/1", "each#1/3"):
        run.commit(frame_id, {0: BOOM})
    assert run.stage().failure is not None
    assert run.frames == []
    assert (status(run), fanin(run)["status"], fanin(run)["failed"]) == ("failed", "failed", 1)
    assert run.finish().decided("each").meta["targets"] == ["rescue"]


def test_a_shard_that_somebody_runs_may_end_when_the_loop_fails() -> None:
    run = fanout(2, "after", max_shard_retries=0)
    run.take("each#1/2")
    run.commit("each#1/1", {0: BOOM})
    assert run.frames == ["each#1/2"]
    run.commit("each#1/2")
    assert fanin(run) == {"status": "failed", "total": 2, "succeeded": 1, "failed": 1}


def test_without_fail_fast_all_shards_run_and_the_step_fails_afterwards() -> None:
    run = fanout(3, "after", fail_fast=False, max_shard_retries=0)
    run.commit("each#1/1", {0: BOOM})
    assert len(run.frames) == 2
    for frame_id in list(run.frames):
        run.commit(frame_id)
    assert (status(run), fanin(run)) == (
        "failed",
        {"status": "failed", "total": 3, "succeeded": 2, "failed": 1},
    )


@pytest.mark.parametrize("keys", [{"allow_partial": True}, {"mode": "best_effort"}])
def test_a_partial_result_may_be_allowed(keys: JsonObject) -> None:
    arcs = [{"step": "some", "when": "{{ fanin.status == 'partial' and fanin.failed == 1 }}"}, "all"]
    run = fanout(3, *arcs, max_shard_retries=0, **keys)
    run.commit("each#1/1", {0: BOOM})
    for frame_id in list(run.frames):
        run.commit(frame_id)
    assert (status(run), fanin(run)["status"]) == ("ok", "partial")
    run.finish()
    assert run.state.status is Status.COMPLETED


def test_best_effort_may_still_refuse_a_partial_result() -> None:
    run = fanout(1, "after", mode="best_effort", allow_partial=False, max_shard_retries=0)
    run.commit("each#1/1", {0: BOOM})
    assert status(run) == "failed"


def test_a_shard_that_was_lost_too_often_does_not_run_again() -> None:
    run = fanout(2, "after", allow_partial=True)
    run.take("each#1/1")
    give_up(run, "each#1/1")
    assert run.frames == ["each#1/2"]
    run.commit("each#1/2")
    assert fanin(run) == {"status": "partial", "total": 2, "succeeded": 1, "failed": 1}


def test_a_shard_that_was_drained_does_not_run_again() -> None:
    run = fanout(2, "after", max_shard_retries=0)
    run.take("each#1/2")
    run.commit("each#1/1", {0: BOOM})
    drain(run, "each#1/2")
    assert status(run) == "failed"
    assert run.frames == []


def test_templates_decide_how_shards_are_cut() -> None:
    each = loop_step(
        "each",
        list(range(6)),
        spec={
            "mode": "fanout",
            "max_in_flight": 9,
            "fanout": {"shard_size": "{{ n }}", "max_shard_retries": "{{ 0 }}"},
        },
    )
    run = Looping(graph(each, workload={"n": 4}))
    assert [rows for _, rows, _ in windows(run)] == [4, 2]
    assert run.stage().policy.shard_retries == 0


def test_a_size_that_is_none_fails_the_step() -> None:
    run = looping([1], spec={"mode": "fanout", "fanout": {"shard_size": "{{ 'x' }}"}})
    assert run.state.failure is not None
    error: Any = run.state.failure["error"]
    assert (error["kind"], error["code"]) == ("config", "frame_policy")
    assert "loop.spec.fanout.shard_size must be a whole number" in error["message"]


# --- once per frame --------------------------------------------------------------------------------------


def framewise(rows: int, in_flight: int = 4, **frame: Any) -> Looping:
    spec = {"mode": "parallel", "max_in_flight": in_flight, "frame": {"process": "frame", **frame}}
    return looping(list(range(rows)), "after", spec=spec)


def test_a_pipeline_per_frame_takes_one_place_whatever_the_frame_holds() -> None:
    assert windows(framewise(10, 2, max_rows=3)) == [(0, 3, 1), (3, 3, 1)]
    assert windows(framewise(3, 2)) == [(0, 1, 1), (1, 1, 1)]


def test_its_frames_do_not_depend_on_how_fast_they_are() -> None:
    run = framewise(100, 1, max_rows=10)
    for number in range(1, 10):
        run.commit(f"each#1/{number}", ms=0.001 * number)
        assert windows(run) == [(10 * number, 10, 1)]


def test_a_lost_frame_begins_anew() -> None:
    run = framewise(4, max_rows=4)
    run.take("each#1/1")
    run.take("each#1/1")
    (lost,) = run.of(kinds.FRAME_ABANDONED)
    assert (lost.meta["retry_mode"], lost.meta["skipped"]) == ("whole_frame", 0)
    assert run.body("each#1/1")["stage"]["process"] == "frame"


def test_the_rows_of_a_frame_fail_together() -> None:
    run = framewise(4, max_rows=2)
    run.commit("each#1/1", {0: Failure(kind="python", message="boom")})
    assert run.stage().failure is not None


def test_an_ordinary_step_has_no_fan_in() -> None:
    run = Looping(graph(step("start", {"step": "next", "when": "{{ fanin.status == 'complete' }}"}), step("next")))
    run.complete("start#1", {"fanin": {"status": "complete"}})
    assert run.decided("start").meta["targets"] == []
