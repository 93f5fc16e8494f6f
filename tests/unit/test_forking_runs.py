"""Which runs of a loop a fork opens again: not two of one step, also those that only wait for their result, and no row
that went well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.event import Draft
from noetl.core.execution.forking.ledger import Refold, Survey
from noetl.core.execution.lifecycle import REQUEST, cancel_requested, failed_draft
from noetl.core.execution.looping import gathering
from noetl.core.execution.state import Status
from tests.support.cursors import NO_CONNECTION, Draining, cursor_step
from tests.support.loops import Looping, give_up, loop_step, parallel
from tests.support.playbooks import BOOM, graph, step
from tests.unit.test_forking import forked, refolded, started

PAIRS = parallel(4, max_rows=2)


def cancel(run: Looping) -> None:
    draft = cancel_requested(run.state, now=run.events[-1].event_time, reason="enough", cause=REQUEST)
    run._follow(run.append(draft))


def frames_of(run: Looping, name: str) -> list[tuple[int, int]]:
    """The windows of a loop that were given out."""
    given: list[Any] = [one.meta for one in run.of(kinds.FRAME_DISPATCHED) if one.meta["step"] == name]
    return [(meta["first"], meta["rows"]) for meta in given]


# --- two runs of one loop --------------------------------------------------------------------------------


def circle(*beside: str) -> Looping:
    """`each` runs for `start`, and once more for `other`, which is not behind it."""
    return Looping(
        graph(
            step("start", "each", "other", mode="inclusive"),
            loop_step("each", [10, 11, 12, 13], {"step": "other", "when": "{{ false }}"}, best_effort=True, spec=PAIRS),
            step("other", "each", *beside, mode="inclusive"),
            *(step(name) for name in beside),
        )
    )


def by_run(run: Looping, failing: dict[int, int]) -> Callable[[int], object]:
    """Which row fails in which run; the others say in which one they ran."""

    def outcome(index: int) -> object:
        number = run.state.runs["each"]
        return BOOM if failing.get(number) == index else [number, index]

    return outcome


@pytest.mark.parametrize("failing", [{1: 1}, {1: 1, 2: 2}], ids=["the first", "both"])
def test_of_two_runs_of_a_loop_one_is_open_again_and_the_other_happens_behind_it(failing: dict[int, int]) -> None:
    run = circle()
    run.finish({"each": by_run(run, failing)})
    assert run.state.runs["each"] == 2
    _, refold = refolded(run.events)
    assert [stage.stage_id for stage, _ in refold.stages] == ["each#1"]
    assert refold.state is not None
    assert dict(refold.state.requested_steps) == {"each": ("other",)}
    found = forked(run)
    assert found is not None
    new = started(run, found[0])
    assert dict(new.state.requested_steps) == {"each": ("other",)}
    assert frames_of(new, "each") == [(1, 1)]
    new.finish({"each": by_run(new, {})})
    assert new.state.status is Status.COMPLETED
    assert new.state.runs["each"] == 2
    assert frames_of(new, "each") == [(1, 1), (0, 2), (2, 2)]
    assert new.result()["results"] == [[2, 0], [2, 1], [2, 2], [2, 3]]


def test_a_run_that_was_only_requested_when_all_ended_is_still_requested() -> None:
    run = circle("bad")
    run.finish({"each": by_run(run, {1: 1}), "bad": BOOM})
    assert run.state.status is Status.FAILED
    found = forked(run)
    assert found is not None
    new = started(run, found[0]).finish()
    assert new.state.status is Status.COMPLETED
    assert new.state.runs == {"start": 1, "other": 1, "each": 2, "bad": 1}


def test_requests_for_a_loop_that_does_not_hold_and_for_its_next_run_are_one() -> None:
    """A retry whose reopened loop is not reopened once more, because only another one is wanted."""
    run = Looping(
        graph(
            step("start", "each", "other", "beside", mode="inclusive"),
            loop_step("each", [1, 2], {"step": "other", "when": "{{ false }}"}, best_effort=True, spec=PAIRS),
            step("other", "each"),
            loop_step("beside", [1, 2], best_effort=True, spec=PAIRS),
        )
    )
    run.finish({"each": by_run(run, {1: 1}), "beside": {1: BOOM}})
    found = forked(run)
    assert found is not None
    new = started(run, found[0])
    new.commit("beside#1/1", {1: BOOM})
    new.seal("beside#1/seal")
    cancel(new)
    _, refold = refolded(new.events, step_name="beside")
    assert [stage.step for stage, _ in refold.stages] == ["beside"]
    assert refold.state is not None
    assert dict(refold.state.requested_steps) == {"each": ("start", "other")}


# --- loops that only wait for their result ---------------------------------------------------------------


def two() -> Looping:
    run = Looping(
        graph(
            step("fork", "left", "right", mode="inclusive"),
            loop_step("left", [0, 1, 2, 3], "after", spec=PAIRS),
            loop_step("right", [0, 1, 2, 3], spec=PAIRS),
            step("after"),
        )
    )
    run.complete("fork#1")
    for name in ("left#1/1", "left#1/2"):
        run.commit(name)
    return run


def refuse_seal(run: Looping) -> None:
    error = {"kind": "storage", "code": "unavailable", "retryable": True, "message": "no store"}
    run._follow(run.append(failed_draft(run.state.commands["left#1/seal"], error)))
    run.finish({"right": {1: BOOM}})


@pytest.mark.parametrize("end", [cancel, refuse_seal], ids=["cancelled", "seal failed"])
@pytest.mark.parametrize("step_name", [None, "right"])
def test_rows_of_a_loop_that_was_being_sealed_do_not_run_again(
    end: Callable[[Looping], None], step_name: str | None
) -> None:
    run = two()
    end(run)
    assert run.state.status in (Status.CANCELLED, Status.FAILED)
    found = forked(run, step_name=step_name)
    assert found is not None
    new = started(run, found[0])
    assert "left#1/seal" in new.open
    new.finish()
    assert new.state.status is Status.COMPLETED
    assert frames_of(new, "left") == []
    assert new.result("left")["results"] == [0, 1, 2, 3]
    assert new.state.runs["after"] == 1


def test_rows_of_a_loop_that_led_nowhere_do_not_run_again() -> None:
    """All went well and is sealed; where it leads was being found out when all ended."""
    where = {"step": "after", "when": "{{ each.results | length == ctx.text | length }}"}
    run = Looping(
        graph(
            step("start", {"step": "each", "set": {"ctx.text": "{{ start.text }}"}}),
            loop_step("each", [0, 1], where, spec=PAIRS),
            step("after"),
        )
    )
    run.complete("start#1", {"text": "x" * 5_000})
    run.commit("each#1/1")
    run.seal("each#1/seal")
    assert run.open == ["each#1/eval/1"]
    cancel(run)
    found = forked(run)
    assert found is not None
    new = started(run, found[0]).finish()
    assert new.state.status is Status.COMPLETED
    assert frames_of(new, "each") == []


def test_rows_that_were_all_persisted_when_their_loop_was_stopped_do_not_run_again() -> None:
    run = Looping(graph(loop_step("each", [0, 1], spec=PAIRS)))
    run.take("each#1/1")
    cancel(run)
    run.commit("each#1/1")
    assert run.state.status is Status.CANCELLED
    (done,) = run.of(kinds.LOOP_DONE)
    assert (done.meta["status"], done.meta["done"]) == ("stopped", 2)
    found = forked(run)
    assert found is not None
    new = started(run, found[0]).finish()
    assert frames_of(new, "each") == []
    assert new.result()["results"] == [0, 1]


def drain() -> Draining:
    return Draining(graph(cursor_step("drain", slots=1), step("after")))


def test_a_cursor_that_was_stopped_or_could_not_claim_claims_again() -> None:
    """Rows may be left that no claim has recorded."""
    stopped, unclaimed, drained = drain(), drain(), drain()
    for run in (stopped, unclaimed, drained):
        run.turn("drain#1/1", 2)
    cancel(stopped)
    unclaimed.unclaimed("drain#1/2", NO_CONNECTION)
    unclaimed.seal("drain#1/seal")
    drained.empty("drain#1/2")
    cancel(drained)
    assert [[str(one.meta["status"]) for one in run.of(kinds.LOOP_DONE)] for run in (stopped, unclaimed, drained)] == [
        ["stopped"],
        ["failed"],
        ["ok"],
    ]
    assert refolded(stopped.events)[0].unfinished == refolded(unclaimed.events)[0].unfinished == []
    assert refolded(drained.events)[0].unfinished == [("drain", 1)]


# --- loops that hold -------------------------------------------------------------------------------------


def test_outputs_of_a_loop_that_holds_are_gathered_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "STAGE_OUTPUTS_GATHERED", 4)
    run = Looping(
        graph(
            loop_step("big", list(range(40)), "small", spec=parallel(2, max_rows=1), best_effort=True),
            loop_step("small", [1, 2, 3], best_effort=True),
        )
    )
    run.finish({"small": {1: BOOM}})
    survey = Survey()
    for event in run.events:
        survey.see(event)
    refold, most = Refold(survey, survey.unfinished), 0
    for event in run.events:
        refold.see(event)
        stage = refold.state.loop_state.get("big") if refold.state is not None else None
        most = max(most, len(stage.outputs) + len(stage.gathering) if stage is not None else 0)
    assert 0 < most < 10
    assert [stage.step for stage, _ in refold.stages] == ["small"]


def test_a_reopened_loop_keeps_rows_whose_outputs_were_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "STAGE_OUTPUTS_GATHERED", 4)
    each = loop_step("each", list(range(20)), "after", spec=parallel(2, max_rows=1), best_effort=True)
    run = Looping(graph(each, step("after"))).finish({"each": {7: BOOM}})
    assert any("/gather/" in (event.command_id or "") for event in run.events)
    found = forked(run)
    assert found is not None
    new = started(run, found[0]).finish()
    assert frames_of(new, "each") == [(7, 1)]
    assert new.result()["results"] == list(range(20))


# --- what rows wrote -------------------------------------------------------------------------------------


def last(value: object) -> list[dict[str, Any]]:
    return [{"path": ["last"], "v": value}]


def context_of(run: Looping) -> object:
    found = forked(run)
    assert found is not None
    new = started(run, found[0])
    return new._entry(new.state.variables["last"].to_json())


def pairs() -> Looping:
    return Looping(graph(loop_step("each", [0, 1, 2, 3], best_effort=True, spec=PAIRS)))


def test_what_a_frame_wrote_that_was_given_up_gives_way_to_what_the_ledger_says_later() -> None:
    run = pairs()
    run.beat("each#1/1", {0: "early"}, writes=last("first"))
    give_up(run, "each#1/1")
    run.commit("each#1/2", writes=last("second"))
    run.finish()
    assert context_of(run) == "second"


def test_what_a_frame_wrote_that_was_given_up_replaces_what_the_ledger_said_before() -> None:
    run = pairs()
    run.beat("each#1/1", {0: "early"}, writes=last("first"))
    run.commit("each#1/2", writes=last("second"))
    give_up(run, "each#1/1")
    run.finish()
    assert context_of(run) == "first"


def test_what_a_frame_wrote_that_never_ended_comes_with_the_end_of_its_loop() -> None:
    run = pairs()
    run.beat("each#1/1", {0: "early"}, writes=last("first"))
    run.commit("each#1/2", writes=last("second"))
    cancel(run)
    run._follow(run.append(Draft("timer.fired", kinds.timer_key("cancel"), {"name": "cancel"})))
    assert run.state.status is Status.CANCELLED
    assert context_of(run) == "first"


def test_only_of_frames_that_were_given_up_what_they_persisted_is_read() -> None:
    """Frames of a cursor are moved to their places in a collection: that alone is no reason to read them."""
    run = Draining(graph(cursor_step("drain", slots=2, frame={"max_rows": 2})))
    run.turn("drain#1/1", 2)
    run.turn("drain#1/2", 2, {1: BOOM})
    run.claim("drain#1/3", 2)
    run.beat("drain#1/3", {run.frame("drain#1/3").first: "early"})
    run.commit("drain#1/3")
    run.claim("drain#1/4", 2)
    lost = run.beat("drain#1/4", {run.frame("drain#1/4").first: "early"})
    give_up(run, "drain#1/4")
    for name in list(run.frames):
        run.empty(name)
    survey, _ = refolded(run.events)
    refold, read = Refold(survey, survey.unfinished), list[Any]()
    for event in run.events:
        read += refold.unsaid(event)
        refold.see(event)
    assert read == [lost.payload_ref]
