"""The life of a stage and of its shards, as the ledger tells it: opened, started, done, closed."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.event import Draft, Event
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.lifecycle import REQUEST, cancel_requested
from noetl.core.execution.state import Status
from tests.support.loops import Looping, loop_step, looping, parallel
from tests.support.playbooks import BOOM, graph, step

TOLD = frozenset((*(name for name in kinds.KINDS if name.startswith(("stage.", "loop.", "frame."))), "step.decided"))
NEW = frozenset(name for name in kinds.KINDS if name.startswith(("stage.", "loop.fan", "loop.shard.")))


def told(run: Looping) -> list[str]:
    return [event.event_type for event in run.events if event.event_type in TOLD]


def fanout(rows: int, *targets: Any, **fan: Any) -> Looping:
    spec = {"mode": "fanout", "max_in_flight": 10, "fanout": fan}
    return looping(list(range(rows)), *targets, spec=spec)


def closed(run: Looping) -> dict[str, Any]:
    (event,) = run.of(kinds.STAGE_CLOSED)
    return dict(event.meta)


def cancel(run: Looping) -> None:
    draft = cancel_requested(run.state, now="2026-01-01T00:00:00Z", reason="enough", cause=REQUEST)
    run._follow(run.append(draft))


def test_a_loop_is_opened_begun_done_and_closed_once_each() -> None:
    run = looping([1, 2], spec=parallel(1, max_rows=2)).finish()
    assert told(run) == [
        *("stage.opened", "loop.started", "frame.dispatched", "frame.started", "frame.committed"),
        *("loop.done", "stage.closed", "step.decided"),
    ]
    (opened,) = run.of(kinds.STAGE_OPENED)
    assert (opened.transition_key, opened.stage_id) == ("stage.opened/each#1", "each#1")
    assert opened.meta == {"step": "each", "run": 1, "parents": [], "stage_kind": "loop", "source": "collection"}
    assert closed(run) == {
        "step": "each", "run": 1, "status": "ok", "total": 2, "done": 2, "failed": 0, "frames": 1,
    }  # fmt: skip


def test_a_stage_is_open_before_its_collection_is_known_and_closed_when_its_result_is_written() -> None:
    each = loop_step("each", "{{ start.rows }}", spec=parallel(2))
    run = Looping(graph(step("start", "each"), each))
    run.complete("start#1", {"rows": [{"text": "x" * 2_000}]})
    assert run.state.loop_state["each"].is_told
    assert [event.event_type for event in run.of(kinds.STAGE_OPENED)] == ["stage.opened"]
    assert run.of(kinds.LOOP_STARTED) == []
    (asked,) = run.open
    run.collect(asked)
    run.commit("each#1/1")
    assert len(run.of(kinds.LOOP_DONE)) == 1
    assert run.of(kinds.STAGE_CLOSED) == []
    run.seal("each#1/seal")
    assert closed(run)["status"] == "ok"
    assert len(run.of(kinds.STAGE_OPENED)) == 1


def test_every_epoch_of_a_loop_has_its_own_opening_and_end() -> None:
    again = {"step": "each", "when": "{{ ctx.turns < 2 }}"}
    count = {"ctx.turns": "{{ (ctx.turns | default(0)) + 1 }}"}
    run = Looping(graph(loop_step("each", [1], "turn"), step("turn", again, "end", set=count))).finish()
    for kind in (kinds.STAGE_OPENED, kinds.STAGE_CLOSED):
        assert [event.stage_id for event in run.of(kind)] == ["each#1", "each#2"]


def test_a_loop_that_cannot_begin_is_closed_without_a_result() -> None:
    run = looping(5).finish()
    assert told(run) == ["stage.opened", "loop.done", "stage.closed", "step.decided"]
    assert closed(run)["status"] == "refused"


def test_a_loop_whose_rows_failed_is_closed_as_failed() -> None:
    run = looping([1, 2], spec=parallel(1))
    run.commit("each#1/1", {0: BOOM})
    run.finish()
    assert closed(run)["status"] == "failed"


@pytest.mark.parametrize("when", ["opening", "running", "sealing"])
def test_cancelling_closes_every_stage(when: str) -> None:
    each = loop_step("each", "{{ start.rows }}", spec=parallel(1))
    run = Looping(graph(step("start", "each"), each))
    rows = [{"text": "x" * 2_000}] if when == "opening" else [1]
    run.complete("start#1", {"rows": rows})
    if when == "sealing":
        run.commit("each#1/1")
    cancel(run)
    assert run.state.status is Status.CANCELLED
    assert closed(run)["status"] == "stopped"
    assert run.events[-1].event_type == kinds.EXECUTION_CANCELLED


# --- fan-outs --------------------------------------------------------------------------------------------


def test_a_fan_out_says_how_many_shards_there_are_and_what_became_of_each() -> None:
    run = fanout(5, "after", shard_size=2)
    (begun,) = run.of(kinds.FANOUT_STARTED)
    assert begun.meta == {"step": "each", "run": 1, "total": 5, "total_shards": 3, "shard_size": 2}
    run.finish()
    assert [(one.transition_key, one.frame_id) for one in run.of(kinds.SHARD_DONE)] == [
        ("loop.shard.terminal/each#1/0", "each#1/1"),
        ("loop.shard.terminal/each#1/1", "each#1/2"),
        ("loop.shard.terminal/each#1/2", "each#1/3"),
    ]
    (done,) = run.of(kinds.FANIN_COMPLETED)
    assert done.meta["fanin"] == {"status": "complete", "total": 3, "succeeded": 3, "failed": 0}
    assert run.of(kinds.STAGE_OPENED)[0].meta["stage_kind"] == "fanout"


def test_a_shard_ends_once_however_often_it_runs() -> None:
    run = fanout(2, "after", max_shard_retries=1, allow_partial=True)
    run.commit("each#1/1", {0: BOOM})
    assert run.of(kinds.SHARD_FAILED) == run.of(kinds.SHARD_DONE) == []
    run.commit("each#1/2")
    run.commit("each#1/3", {0: BOOM})
    (failed,) = run.of(kinds.SHARD_FAILED)
    assert (failed.frame_id, failed.meta["shard_index"], failed.meta["tries"]) == ("each#1/3", 0, 1)
    assert [one.meta["shard_index"] for one in run.of(kinds.SHARD_DONE)] == [1]
    (done,) = run.of(kinds.FANIN_COMPLETED)
    assert done.meta["fanin"] == {"status": "partial", "total": 2, "succeeded": 1, "failed": 1}


def test_the_fan_in_of_a_stopped_fan_out_is_never_completed() -> None:
    run = fanout(2, "after")
    run.take("each#1/1")
    cancel(run)
    run.commit("each#1/1")
    assert run.state.status is Status.CANCELLED
    assert len(run.of(kinds.SHARD_DONE)) == 1
    assert run.of(kinds.FANIN_COMPLETED) == []
    assert closed(run)["status"] == "stopped"


def timed_out(run: Looping) -> None:
    run._follow(run.append(Draft("timer.fired", kinds.timer_key("step/each#1"), {"name": "step/each#1"})))


@pytest.mark.parametrize("allow_partial", [False, True])
def test_shards_whose_step_takes_too_long_have_failed_and_do_not_run_again(allow_partial: bool) -> None:
    """Of a fan-out that fails fast the shards that nobody has begun are taken back, as for any other failure."""
    fan = {"shard_size": 2, "max_shard_retries": 2, "allow_partial": allow_partial}
    loop = {"in": list(range(8)), "iterator": "item", "spec": {"mode": "fanout", "max_in_flight": 8, "fanout": fan}}
    run = Looping(graph(step("each", "after", loop=loop, spec={"timeout": "30s"}), step("after")))
    run.commit("each#1/1")
    for frame_id in ("each#1/2", "each#1/3"):
        run.take(frame_id)
    timed_out(run)
    failed = [1, 2, 3] if allow_partial else [1, 2]
    assert [one.meta["shard_index"] for one in run.of(kinds.SHARD_DONE)] == [0]
    assert [one.meta["shard_index"] for one in run.of(kinds.SHARD_FAILED)] == failed
    (done,) = run.of(kinds.LOOP_DONE)
    rows = 2 * len(failed)
    assert (done.meta["status"], done.meta["done"], done.meta["failed"]) == ("failed", 2 + rows, rows)
    fanin = {"status": "failed", "total": 4, "succeeded": 1, "failed": len(failed)}
    (completed,) = run.of(kinds.FANIN_COMPLETED)
    assert done.meta["fanin"] == completed.meta["fanin"] == fanin
    assert run.stage().shards.again == ()
    run.finish()
    assert run.state.status is Status.FAILED
    assert closed(run)["status"] == "failed"


def test_loops_without_shards_say_nothing_about_shards() -> None:
    run = looping([1, 2], spec=parallel(2)).finish()
    assert not {event.event_type for event in run.events} & (NEW - {"stage.opened", "stage.closed"})


# --- ledgers from before there were these events ---------------------------------------------------------


def older(events: list[Event]) -> list[Event]:
    """The same ledger as it was written before."""
    kept = [event for event in events if event.event_type not in NEW]
    return [event._replace(stream_version=number) for number, event in enumerate(kept, 1)]


def test_an_older_ledger_goes_on_and_no_second_story_begins() -> None:
    run = fanout(3, "after")
    run.commit("each#1/1")
    state = fold_all(older(run.events))
    assert state is not None
    assert not state.loop_state["each"].is_told
    before = len(run.events)
    run.state = state
    run.finish()
    assert run.state.status is Status.COMPLETED
    assert not {event.event_type for event in run.events[before:]} & NEW
    assert run.result()["results"] == [0, 1, 2]
