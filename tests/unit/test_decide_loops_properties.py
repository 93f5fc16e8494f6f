"""Whatever the size of a loop, the speed of its rows and the order in which they end: every row is given out once,
never more of them at a time than allowed, and the loop ends once."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.core import kinds
from noetl.core.codec import canonical_json
from noetl.core.event import Event
from noetl.core.execution.decide import decide
from noetl.core.execution.evolve import evolve, fold_all
from noetl.core.execution.state import ExecutionState, Status
from tests.support.loops import Looping, loop_step, parallel
from tests.support.playbooks import BOOM, graph, step


class Case(NamedTuple):
    """One loop and its luck."""

    total: int
    in_flight: int
    max_rows: int | None
    retry_mode: str | None
    is_sequential: bool
    is_best_effort: bool
    failing: frozenset[int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    total = draw(st.integers(0, 60))
    return Case(
        total=total,
        in_flight=draw(st.sampled_from([1, 2, 3, 4, 5, 8, 17, 50, 200])),
        max_rows=draw(st.sampled_from([None, None, 1, 3, 10, 100])),
        retry_mode=draw(st.sampled_from([None, "whole_frame"])),
        is_sequential=draw(st.booleans()),
        is_best_effort=draw(st.booleans()),
        failing=draw(st.frozensets(st.integers(0, 59), max_size=3)),
    )


def begin(case: Case) -> Looping:
    spec = {"mode": "sequential"} if case.is_sequential else parallel(case.in_flight)
    frame = {"max_rows": case.max_rows, "retry_mode": case.retry_mode}
    spec["frame"] = {name: value for name, value in frame.items() if value is not None}
    rows = list(range(case.total))
    error = {"step": "after", "when": "{{ output.status == 'error' }}"}
    each = loop_step("each", rows, error, "after", spec=spec, best_effort=case.is_best_effort)
    return Looping(graph(each, step("after")))


def play(run: Looping, case: Case, data: st.DataObject) -> None:
    """Let the loop end: frames are taken, persist some rows, are lost, and end, in any order."""
    limit = 1 if case.is_sequential else case.in_flight
    while not run.state.is_terminal:
        command_id = data.draw(st.sampled_from(run.open))
        command = run.state.commands[command_id]
        if command.frame is None:
            run.answer(command_id, {})
        else:
            what = data.draw(st.sampled_from(["end", "end", "take", "beat"]))
            window = range(command.frame.first, command.frame.first + command.frame.rows)
            failures = {index: BOOM for index in window if index in case.failing}
            persisted = {i for part in command.frame.parts for first, end in part.ranges for i in range(first, end)}
            free = [index for index in window if index not in persisted and index not in failures]
            if what == "take" and command.attempt < 4:
                run.take(command_id)
            elif what == "beat" and free:
                run.beat(command_id, dict.fromkeys(data.draw(st.lists(st.sampled_from(free), min_size=1)), "early"))
            else:
                run.commit(command_id, failures, ms=data.draw(st.sampled_from([0.01, 1.0, 40.0, 1_000.0])))
        stage = run.state.loop_state.get("each")
        if stage is not None:
            assert 0 <= stage.in_use <= limit
            open_frames = [run.frame(name) for name in run.frames]
            assert stage.in_use == sum(frame.concurrency for frame in open_frames)
            assert stage.open_frames == len(open_frames)


def windows(run: Looping) -> dict[str, range]:
    """The rows of every frame."""
    found = {}
    for event in run.of(kinds.FRAME_DISPATCHED):
        first, rows = event.meta["first"], event.meta["rows"]
        assert isinstance(first, int)
        assert isinstance(rows, int)
        found[str(event.frame_id)] = range(first, first + rows)
    return found


def must_be_equal(one: ExecutionState | None, other: ExecutionState) -> None:
    assert one == other


@settings(max_examples=120)
@given(cases(), st.data())
def test_every_row_is_given_out_once_and_the_loop_ends_once(case: Case, data: st.DataObject) -> None:
    run = begin(case)
    play(run, case, data)
    assert run.state.status is Status.COMPLETED
    given_out = [index for window in windows(run).values() for index in window]
    assert given_out == list(range(len(given_out)))
    (done,) = run.of(kinds.LOOP_DONE)
    seals = [e for e in run.of(kinds.COMMAND_ISSUED) if e.meta["kind"] == "seal"]
    assert len(seals) == 1
    is_torn = any(index < case.total for index in case.failing) and not case.is_best_effort
    assert done.meta["status"] == ("failed" if is_torn else "ok")
    result = run.result()
    assert len(result["results"]) == case.total
    if not is_torn:
        assert len(given_out) == case.total == done.meta["done"]
        failed = sorted(index for index in case.failing if index < case.total)
        assert result["stats"] == {"total": case.total, "success": case.total - len(failed), "failed": len(failed)}
        assert [index for index, row in enumerate(result["results"]) if isinstance(row, dict)] == failed
    check_ends(run)


def check_ends(run: Looping) -> None:
    """Every frame has at most one end, and one that has none was never taken."""
    ended = [str(e.frame_id) for e in (*run.of(kinds.FRAME_COMMITTED), *run.of(kinds.FRAME_FAILED))]
    assert len(ended) == len(set(ended))
    taken = {str(event.frame_id) for event in run.of(kinds.FRAME_STARTED)}
    assert taken == set(ended)
    keys = [event.transition_key for event in run.events]
    assert len(keys) == len(set(keys))


@settings(max_examples=40)
@given(cases(), st.data())
def test_the_fold_is_the_same_from_any_point_and_events_told_again_change_nothing(
    case: Case, data: st.DataObject
) -> None:
    run = begin(case)
    play(run, case, data)
    point = data.draw(st.integers(1, len(run.events)))
    before = fold_all(run.events[:point])
    assert before is not None
    must_be_equal(fold_all(run.events[point:], before), run.state)
    must_be_equal(fold_all(run.events[data.draw(st.integers(0, point)) : point], before), before)


@settings(max_examples=40)
@given(cases(), st.data())
def test_the_same_decision_is_made_again_to_the_last_byte(case: Case, data: st.DataObject) -> None:
    run = begin(case)
    play(run, case, data)
    point = data.draw(st.integers(1, len(run.events)))
    state = fold_all(run.events[:point])
    assert state is not None
    event = run.events[point - 1]
    one, other = (decide(state, event, run.playbook) for _ in range(2))
    assert canonical_json(one.drafts) == canonical_json(other.drafts)
    must_be_equal(one.state, other.state)
    # What was decided is what the ledger got, and deciding about it again gives nothing.
    following = run.events[point : point + len(one.drafts)]
    assert [e.transition_key for e in following] == [draft.transition_key for draft in one.drafts]
    assert decide(one.state, event, run.playbook).drafts == ()


@settings(max_examples=40)
@given(cases(), st.data())
def test_a_fact_that_was_folded_before_changes_nothing_under_a_new_number(case: Case, data: st.DataObject) -> None:
    """Should the ledger ever hold the same fact twice, the state is that of one."""
    run = begin(case)
    play(run, case, data)
    point = data.draw(st.integers(2, len(run.events)))
    state = fold_all(run.events[:point])
    assert state is not None
    old = [e for e in run.events[1:point] if e.event_type in _FRAME_FACTS]
    if old:
        again = _again(data.draw(st.sampled_from(old)), state.version + 1)
        after = evolve(state, again)
        must_be_equal(after.changed({"version": state.version, "last_event_id": state.last_event_id}), state)


_FRAME_FACTS = frozenset(
    (
        kinds.LOOP_STARTED,
        kinds.FRAME_DISPATCHED,
        kinds.FRAME_STARTED,
        kinds.FRAME_HEARTBEAT,
        kinds.FRAME_ABANDONED,
        kinds.FRAME_COMMITTED,
        kinds.FRAME_FAILED,
        kinds.LOOP_DONE,
    )
)


def _again(event: Event, version: int) -> Event:
    return event._replace(stream_version=version)
