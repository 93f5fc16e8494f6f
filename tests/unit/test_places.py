"""Where results were made is folded from claims, and from there comes where something would best run."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from noetl.core.codec import canonical_json
from noetl.core.errors import Failure
from noetl.core.event import Event
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.placing.places import NO_PLACES, Known, Places, most_rows, place_of, placed, text_of
from noetl.core.execution.placing.sources import source_of
from noetl.core.limits import PLACES_COUNTED_MAX
from noetl.core.locator.locality import Distance
from noetl.core.snapshot.snapshot import restore, state_checksum, take
from noetl.engine.control.facts import claim_draft
from noetl.engine.placing.wishes import wish_of
from tests.support.loops import Looping, loop_step, parallel
from tests.support.playbooks import graph, step

A, B = {"zone": "a", "node": "n1"}, {"zone": "b", "node": "n2"}
LARGE = {"rows": [{"id": n, "text": "x" * 50} for n in range(40)]}


def at(place: object) -> str:
    return canonical_json(place)


def claim(run: Looping, command_id: str, place: dict[str, str] | None) -> None:
    command = run.state.commands[command_id]
    where = {} if place is None else {"locality": place, "worker_locator": "noetl://tenant/t/org/o/worker/w"}
    run.append(claim_draft(command, command.attempt + 1, 9, where))


def source(run: Looping, command_id: str) -> str | None:
    return source_of(run.state, run.state.commands[command_id], run.body(command_id))


def made_at(place: dict[str, str] | None, *, spec: Any = None) -> Looping:
    """A step has made a large result, and a loop over it is about to collect."""
    loop = loop_step("each", "{{ make.rows }}", "sum", spec=spec or parallel(4, max_rows=10))
    run = Looping(graph(step("make", "each"), loop, step("sum", tool={"kind": "noop", "input": {"r": "{{ each }}"}})))
    claim(run, "make#1", place)
    run.complete("make#1", LARGE)
    return run


def test_a_frame_is_best_run_where_its_collection_was_made() -> None:
    run = made_at(A)
    (collect,) = run.open
    assert source(run, collect) == at(A), "it reads what was made there"
    claim(run, collect, B)
    run.collect(collect)
    assert {source(run, frame) for frame in run.frames} == {at(B)}, "and what it makes is where it ran"
    assert run.state.places.made == {"make": at(A)}


def test_a_collection_that_was_found_in_a_result_is_where_that_result_is() -> None:
    run = made_at(A)
    (collect,) = run.open
    claim(run, collect, B)
    result = run.state.step_results["make"].reference
    assert result is not None
    run._fact(
        run.state.commands[collect],
        "command.completed",
        {"status": "ok", "reference": result, "parent_ref": None, "context": {"total": 40, "at": ["rows"]}},
        None,
    )
    assert {source(run, frame) for frame in run.frames} == {at(A)}


def test_what_reads_the_frames_of_a_loop_does_so_where_most_of_the_rows_were_run() -> None:
    run = made_at(A)
    claim(run, run.open[0], A)
    run.collect(run.open[0])
    for number, frame in enumerate(list(run.frames)):
        claim(run, frame, A if number == 0 else B)
        run.commit(frame)
    (seal,) = run.open
    assert source(run, seal) == at(B)
    claim(run, seal, A)
    run.seal(seal)
    assert run.state.places == Places(made={"make": at(A), "each": at(B)}), "nothing is left of the loop but this"
    assert source(run, "sum#1") == at(B)


def test_the_largest_of_several_results_says_where() -> None:
    both = {"kind": "noop", "input": {"a": "{{ small }}", "b": "{{ large }}"}}
    run = Looping(graph(step("small", "large"), step("large", "last"), step("last", tool=both)))
    claim(run, "small#1", A)
    run.complete("small#1", {"a": 1})
    claim(run, "large#1", B)
    run.complete("large#1", LARGE)
    assert source(run, "last#1") == at(B)


def test_what_reads_nothing_may_run_anywhere() -> None:
    run = Looping(graph(step("one", "two"), step("two")))
    claim(run, "one#1", A)
    run.complete("one#1", {"a": 1})
    assert source(run, "two#1") is None


def test_a_result_of_a_worker_that_is_nowhere_takes_the_place_of_the_one_before() -> None:
    run = made_at(None)
    assert run.state.places is NO_PLACES
    assert source(run, run.open[0]) is None
    again = Looping(graph(step("one", {"step": "one", "when": "{{ one.n < 2 }}"})))
    claim(again, "one#1", A)
    again.complete("one#1", {"n": 1})
    assert again.state.places.made == {"one": at(A)}
    claim(again, "one#2", None)
    again.complete("one#2", {"n": 1})
    assert again.state.places.made == {}


def test_a_result_that_names_no_payload_is_nowhere() -> None:
    run = Looping(graph(step("one", {"step": "two", "when": "{{ event.name == 'call.error' }}"}), step("two")))
    claim(run, "one#1", A)
    run.fail("one#1", Failure(kind="unknown", message="no"))
    assert run.state.places.held == {}
    assert run.state.places.made == {}


def test_the_distance_of_a_loop_is_part_of_its_policy_and_may_be_a_template() -> None:
    for written in ("zone", "{{ workload.how_far }}"):
        spec = {**parallel(4, max_rows=10), "locality": {"max_distance": written}}
        loop = loop_step("each", "{{ make.rows }}", spec=spec)
        run = Looping(graph(step("make", "each"), loop, workload={"how_far": "zone"}))
        claim(run, "make#1", A)
        run.complete("make#1", LARGE)
        while not run.frames:
            command = run.open[0]
            run.answer(command, {})
        assert run.stage().policy.max_distance == "zone"
        frame = run.frames[0]
        claim(run, frame, A)
        run.state = run.state.changed({"places": run.state.places._replace(collections={"each": at(A)})})
        wish = wish_of(run.state, run.state.commands[frame], run.body(frame))
        assert wish is not None
        assert wish.max_distance is Distance.ZONE


def test_a_distance_that_a_template_gives_wrongly_fails_the_step_with_words() -> None:
    spec = {**parallel(4), "locality": {"max_distance": "{{ workload.how_far }}"}}
    run = Looping(graph(loop_step("each", [1, 2], spec=spec), workload={"how_far": "planet"}))
    error = run.state.failure and run.state.failure["error"]
    assert isinstance(error, dict)
    assert error["code"] == "locality"
    assert "loop.spec.locality.max_distance must be node or cluster or zone or region or any" in error["message"]


# --- no content --------------------------------------------------------------------------------------------


def whole(places: tuple[dict[str, str] | None, dict[str, str] | None]) -> Looping:
    run = made_at(places[0])
    while not run.state.is_terminal:
        command_id = run.open[0]
        claim(run, command_id, places[1])
        run.answer(command_id, {})
    return run


def relocated(event: Event, place: dict[str, str]) -> Event:
    return event._replace(meta={**event.meta, "locality": place}) if "locality" in event.meta else event


def test_states_that_differ_only_in_places_have_the_same_checksum_at_every_event() -> None:
    run = whole((A, B))
    elsewhere = [relocated(event, {"node": "somewhere"}) for event in run.events]
    without = [event._replace(meta={k: v for k, v in event.meta.items() if k != "locality"}) for event in run.events]
    for count in range(1, len(run.events) + 1):
        found = {state_checksum(fold_all(events[:count])) for events in (run.events, elsewhere, without)}  # type: ignore[arg-type]
        assert len(found) == 1
    assert run.state.places is NO_PLACES, "of an execution that has ended nothing is kept"


def test_places_are_in_a_snapshot() -> None:
    run = made_at(A)
    restored = restore(take(run.state, shard_id=1, position=2))
    assert restored == run.state
    assert restored is not None
    assert restored.places == Places(made={"make": at(A)})
    taken = take(run.state, shard_id=1, position=2)
    damaged = dataclasses.replace(taken, state=taken.state.replace(b"n1", b"n7"))
    assert damaged != taken
    assert restore(damaged) is None, "what is not as it was written is not there"


def test_the_content_of_a_claim_is_the_same_wherever_it_was_made() -> None:
    run = made_at(None)
    command = run.state.commands[run.open[0]]
    one, other = claim_draft(command, 1, 9, {"locality": A}), claim_draft(command, 1, 9, {"locality": B})
    assert one._replace(meta={}) == other._replace(meta={})


# --- bounds and strangers ----------------------------------------------------------------------------------


def test_the_places_of_a_loop_are_counted_within_a_bound_and_the_one_with_the_most_rows_stays() -> None:
    run = made_at(A, spec=parallel(4, max_rows=1))
    run.collect(run.open[0])
    frames = 0
    while run.frames:
        frame = run.frames[0]
        frames += 1
        claim(run, frame, A if frames % 2 else {"node": f"other{frames}"})
        run.commit(frame)
        assert len(run.state.places.rows["each"]) <= PLACES_COUNTED_MAX
    assert frames == 40
    assert most_rows(run.state.places.rows["each"]) == at(A)
    assert len(run.state.places.held) == 0


def test_of_places_with_equally_many_rows_the_first_by_name_counts() -> None:
    assert most_rows({"b": 2, "a": 2, "c": 1}) == "a"
    assert most_rows({}) is None


@pytest.mark.parametrize("locality", [None, {}, [], "eu", {"planet": "x"}, {"node": 7}, {"node": ""}])
def test_what_is_no_place_is_none(locality: object) -> None:
    assert text_of(locality) is None


def test_a_place_comes_back_from_its_text() -> None:
    text = text_of({"node": 'ä"', "region": "eu"})
    assert text is not None
    assert place_of(text).to_json() == {"region": "eu", "node": 'ä"'}


def test_events_about_what_is_not_open_change_no_place() -> None:
    run = made_at(A)
    known = Known(run.state.places, {}, dict)
    for event in run.events:
        assert placed(known, event) in (run.state.places, NO_PLACES)
