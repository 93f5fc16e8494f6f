"""Forks are pure: what of a ledger holds, which rows run again, and a seed that gives the state by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.core import kinds, limits
from noetl.core.codec import canonical_bytes, parse_json
from noetl.core.event import Draft, Event
from noetl.core.execution.evolve import evolve, fold_all
from noetl.core.execution.forking.folding import MAPPINGS, SINGLE, ranges_of
from noetl.core.execution.forking.ledger import Refold, StepRun, Survey, run_of
from noetl.core.execution.forking.outputs import writes_in
from noetl.core.execution.forking.seeding import Reopened, Seed, kept_outputs, must_be_opened, seed
from noetl.core.execution.lifecycle import cancel_requested
from noetl.core.execution.looping.windows import common, merged, next_open, rows_in
from noetl.core.execution.state import RETRY, ExecutionState, Fork, FrameOutput, Stage, Status
from noetl.engine.control.facts import abandoned
from tests.support.loops import Looping, loop_step, parallel
from tests.support.playbooks import BOOM, graph, step
from tests.unit.test_decide_loops_properties import Case, begin, cases, play, windows

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)).map(lambda one: (one[0], one[0] + one[1])))


def indexes(ranges: Any) -> list[int]:
    return [index for first, end in ranges for index in range(first, end)]


@given(RANGES, RANGES, st.integers(0, 50), st.integers(0, 50))
def test_ranges_are_sets_of_rows(some: Any, others: Any, index: int, total: int) -> None:
    one, other = merged(some), merged(others)
    assert indexes(one) == sorted(set(indexes(some)))
    assert set(indexes(common(one, other))) == set(indexes(one)) & set(indexes(other))
    assert rows_in(one) == len(set(indexes(some)))
    found, walked = [], index
    while (window := next_open(one, walked, total)) is not None:
        found += indexes([window])
        walked = window[1]
    assert found == [row for row in range(index, total) if row not in set(indexes(some))]


def succeeded(run: Looping, output: FrameOutput) -> list[tuple[int, int]]:
    """The good rows of an output, as whoever opens its payload finds them."""
    good: set[int] = set()
    if output.reference is not None:
        document: Any = run.payloads[str(output.reference["sha256"])]
        records = dict(enumerate(document["records"], start=document["first"]))
    else:
        records = {}
        for part in output.parts:
            document = run.payloads[str(part.reference["sha256"])]
            rows = document.get("rows") or list(enumerate(document["records"], start=document["first"]))
            records |= {i: kept for i, kept in rows if any(first <= i < end for first, end in part.ranges)}
    good = {index for index, kept in records.items() if kept is not None and "e" not in kept}
    return list(merged((index, index + 1) for index in good))


def refolded(
    events: list[Event], *, step_name: str | None = None, payloads: Mapping[str, Any] | None = None
) -> tuple[Survey, Refold]:
    survey = Survey()
    for event in events:
        survey.see(event)
    refold = Refold(survey, survey.chosen(step_name))
    for event in events:
        read = [(place, (payloads or {}).get(place["sha256"], {})) for place in refold.unsaid(event)]
        refold.see(event, [one for place, document in read for one in writes_in(place, document)])
    return survey, refold


def forked(run: Looping, *, step_name: str | None = None) -> tuple[Seed, ExecutionState, list[Reopened]] | None:
    survey, refold = refolded(run.events, step_name=step_name, payloads=run.payloads)
    assert refold.state is not None
    if not refold.stages:
        return None
    reopened = []
    for stage, _ in refold.stages:
        opened = {
            place: succeeded(run, output) for place, output in enumerate(stage.outputs) if must_be_opened(stage, output)
        }
        reopened.append(Reopened(stage, kept_outputs(stage, opened, origin=run.state.execution_id)))
    assert survey.first is not None
    made = seed(survey.first, refold.state, reopened, position=survey.position, kind=RETRY)
    return made, refold.state, reopened


def started(run: Looping, made: Seed) -> Looping:
    """The new execution, whose events are its own and whose payloads are those of the old one."""
    new = object.__new__(Looping)
    new.text, new.workload, new.playbook = run.text, run.workload, run.playbook
    new.payloads, new.events = dict(run.payloads), []
    event = new._sealed(made.initialized, version=1)
    new.state = evolve(None, event)
    new._follow(event)
    assert len(new.events) == 1, "nothing is decided before the whole state is there"
    for draft in made.drafts:
        new._follow(new.append(draft))
    return new


def good_rows(events: list[Event], payloads: dict[str, Any]) -> Counter[int]:
    """How often each row was run by frames that ended."""
    found: Counter[int] = Counter()
    for event in events:
        if event.event_type in (kinds.FRAME_COMMITTED, kinds.FRAME_FAILED) and event.result is not None:
            reference: Any = event.result["reference"]
            document = payloads[reference["sha256"]]
            for index, kept in enumerate(document["records"], start=document["first"]):
                found[index] += kept is not None and "e" not in kept
    return found


@settings(max_examples=80, deadline=None)
@given(cases(), st.data())
def test_kept_and_open_rows_are_all_rows_and_the_seed_alone_gives_the_state(case: Case, data: st.DataObject) -> None:
    run = begin(case)
    play(run, case, data)
    found = forked(run)
    if found is None:
        return
    made, state, (loop,) = found
    new = started(run, made)
    stage = new.state.loop_state["each"]
    # Kept and open are disjoint, and together everything.
    kept = [index for output in loop.outputs for index in indexes(ranges_of(output))]
    assert len(kept) == len(set(kept))
    assert merged(one for output in loop.outputs for one in ranges_of(output)) == stage.kept
    good = good_rows(run.events, run.payloads)
    assert set(kept) == {index for index, count in good.items() if count}
    assert stage.done == len(kept) == case.total - loop.open_rows
    # What was seeded is what the old execution had, as far as it holds.
    for name in (*MAPPINGS, *SINGLE):
        seeded = getattr(new.state, name)
        expected = getattr(state, name)
        assert seeded == expected, name
    assert new.state.fork == Fork(
        run.state.execution_id, run.events[-1].position, RETRY, stage_seeds(made), stage_seeds(made)
    )
    # And its own events alone give it, as they are read back.
    stored = [event._replace(meta=parse_json(canonical_bytes(event.meta))) for event in new.events]
    assert fold_all(stored) == new.state
    # Now nothing fails: every row ran well once, and the result has all of them in order.
    play(new, case._replace(failing=frozenset()), data)
    assert new.state.status is Status.COMPLETED
    assert fold_all(new.events) == new.state
    again = [index for window in windows(new).values() for index in window]
    assert sorted([*kept, *again]) == list(range(case.total))
    assert good_rows([*run.events, *new.events], new.payloads) == Counter(range(case.total))
    result = new.result()
    assert result["stats"] == {"total": case.total, "success": case.total, "failed": 0}
    assert [row for row in result["results"] if row != "early"] == [
        index for index, row in enumerate(result["results"]) if row != "early"
    ]


def stage_seeds(made: Seed) -> int:
    return sum(draft.event_type == kinds.EXECUTION_SEEDED for draft in made.drafts)


def beside() -> Looping:
    """Two loops beside each other, a join, and a step behind it."""
    best = {"spec": parallel(2, max_rows=2), "best_effort": True}
    return Looping(
        graph(
            step("fork", "left", "right", mode="inclusive"),
            loop_step("left", list(range(4)), "join", **best),
            loop_step("right", list(range(4)), "join", **best),
            step("join", "last"),
            step("last"),
        )
    )


def test_only_what_follows_from_the_reopened_loop_is_done_again() -> None:
    run = beside()
    run.finish({"left": {1: BOOM}})
    _, refold = refolded(run.events)
    state = refold.state
    assert state is not None
    assert [stage.step for stage, _ in refold.stages] == ["left"]
    assert set(state.completed_steps) == {"fork", "right"}
    assert dict(state.requested_steps) == {"join": ("right",)}
    assert set(state.issued_steps) == {"left"}


def test_of_loops_that_lead_to_each_other_the_first_is_reopened_and_one_can_be_chosen() -> None:
    run = beside()
    run.finish({"left": {1: BOOM}, "right": {2: BOOM}})
    assert {stage.step for stage, _ in refolded(run.events)[1].stages} == {"left", "right"}
    _, chosen = refolded(run.events, step_name="right")
    assert [stage.step for stage, _ in chosen.stages] == ["right"]
    assert chosen.state is not None
    assert set(chosen.state.completed_steps) == {"fork", "left"}


def test_a_large_state_is_cut_into_events_that_fit() -> None:
    run = beside()
    run.finish({"left": {1: BOOM}})
    survey, refold = refolded(run.events)
    ((stage, _),) = refold.stages
    reference = {
        "kind": "payload",
        "uri": "noetl://x/" + "u" * 200,
        "sha256": "0" * 64,
        "media_type": "a/b",
        "bytes": 9,
    }
    outputs = tuple(FrameOutput(number, 1, reference, number=number + 1, origin=5) for number in range(4_000))
    large = Stage(**{**stage._asdict(), "total": 4_001})
    assert survey.first is not None
    assert refold.state is not None
    made = seed(survey.first, refold.state, [Reopened(large, outputs)], position=9, kind=RETRY)
    sizes = [len(canonical_bytes(draft.meta)) for draft in made.drafts]
    assert max(sizes) <= limits.EVENT_BODY_BYTES_MAX
    assert len(sizes) > 5
    state = started(run, made).state
    assert state.loop_state["left"].outputs == outputs
    assert state.loop_state["left"].kept == ((0, 4_000),)
    assert list(state.commands) == ["left#1/1"]


def test_an_event_is_about_the_step_run_that_its_names_say() -> None:
    def about(**members: Any) -> StepRun | None:
        return run_of(run_event._replace(**members))

    run_event = beside().events[0]
    assert about(event_type="command.issued", command_id="a#b/c#12/eval/3") == ("a#b/c", 12)
    assert about(event_type="command.issued", command_id="a#1/2#3/seal") == ("a#1/2", 3)
    assert about(event_type="command.completed", command_id="a#1/gather/2") == ("a", 1)
    assert about(event_type="timer.fired", meta={"name": "retry/a#1/gather/2/1"}) == ("a", 1)
    assert about(event_type="frame.started", stage_id="a#2", frame_id="a#2/7") == ("a", 2)
    assert about(event_type="timer.fired", meta={"name": "retry/a#2/7/1"}) == ("a", 2)
    assert about(event_type="timer.fired", meta={"name": "step/a#2"}) == ("a", 2)
    assert about(event_type="timer.fired", meta={"name": "execution"}) is None


def test_rows_that_were_persisted_are_kept_also_of_frames_that_never_ended() -> None:
    """A frame whose session was lost is taken back when its loop fails; another one does not confirm in time."""
    run = Looping(graph(loop_step("each", list(range(12)), spec=parallel(12, max_rows=4))))
    lost, bad, silent = run.frames
    run.beat(lost, {0: "early", 1: BOOM})
    run.beat(silent, {9: "early"})
    for draft in tuple(abandoned(run.state, run.state.commands[lost])):
        run.append(draft)
    run.commit(bad, {5: BOOM})
    assert run.open == [silent]
    run.append(cancel_requested(run.state, now=run.events[-1].event_time, reason="enough", cause="request"))
    run._follow(run.append(Draft("timer.fired", kinds.timer_key("cancel"), {"name": "cancel"})))
    assert run.state.status is Status.CANCELLED
    found = forked(run)
    assert found is not None
    made, _, (loop,) = found
    assert merged(one for output in loop.outputs for one in ranges_of(output)) == ((0, 1), (4, 5), (9, 10))
    new = started(run, made)
    new.finish()
    assert new.result()["results"] == ["early", 1, 2, 3, 4, 5, 6, 7, 8, "early", 10, 11]
    assert {index for window in windows(new).values() for index in window} == {1, 2, 3, 5, 6, 7, 8, 10, 11}
