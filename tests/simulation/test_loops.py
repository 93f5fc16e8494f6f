"""Single stories of loops: a process that dies between two rows, a store that is away, a word that comes twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from noetl.adapters.memory.faults import Mishap, Outcome
from noetl.core import kinds
from noetl.core.event import Event
from noetl.core.execution.looping import gathering
from noetl.core.execution.state import CommandStatus, Status
from noetl.engine.results import read_result
from tests.simulation.checks import check_end, events_of
from tests.simulation.frames import LoopChecker, Violation
from tests.simulation.test_recovery import OWNER, Scene, ended, start
from tests.support.loops import looping, parallel

AWAY = Mishap(outcome=Outcome.NOT_DONE)


def loop(rows: int, how: dict[str, Any] | None = None, *, seconds: float = 0.1, **keys: Any) -> dict[str, Any]:
    """A step `each` whose rows take some time and write what they saw."""
    given = {"index": "{{ loop.index }}", "item": "{{ item }}", "seconds": seconds, "before": "{{ ctx.seen }}"}
    tool: dict[str, Any] = {"kind": "python", "code": "work", "input": {**given, **keys.pop("given", {})}}
    if keys.pop("writes", False):
        tool["set"] = {"ctx.seen": "{{ (ctx.seen | default([])) + [item] }}"}
    return {
        "step": "each",
        "tool": tool,
        "loop": {"in": list(range(rows)), "iterator": "item", "spec": how or {}},
        **keys,
    }


def of_type(events: list[Event], event_type: str) -> list[Event]:
    return [event for event in events if event.event_type == event_type]


async def result_of(scene: Scene, life: Any, execution_id: int) -> Any:
    reference = scene.state(execution_id).step_results["each"].reference
    assert reference is not None
    return await read_result(life.payloads, reference, **OWNER)


def played(mode: str, *, dies_after: float | None) -> tuple[Any, list[Event]]:
    """A loop of one frame whose process dies, or does not: its result and its events."""
    scene, found = Scene(slots=2), []
    how = {"mode": mode, "max_in_flight": 1, "frame": {"max_rows": 20}}

    async def story() -> None:
        async with scene.process() as life:
            execution = await start(life, loop(20, how, writes=mode == "sequential"))
            if dies_after is None:
                await ended(life, execution, within=60)
            else:
                await asyncio.sleep(dies_after)
        async with scene.process() as life:
            state = await ended(life, execution, within=60)
            assert state.status is Status.COMPLETED
            if mode == "sequential":
                assert state.variables["seen"].value == list(range(20))
            found.extend((await result_of(scene, life, execution), events_of(scene.database, execution)))
        check_end(scene.database)

    scene.play(story())
    result, events = found
    return result, events


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
@pytest.mark.parametrize("after", [0.15, 0.6, 1.15, 1.95])
def test_a_process_that_dies_between_two_rows_changes_no_result(mode: str, after: float) -> None:
    result, events = played(mode, dies_after=after)
    assert result == played(mode, dies_after=None)[0]
    assert result["stats"] == {"total": 20, "success": 20, "failed": 0}
    (lost,) = of_type(events, kinds.FRAME_ABANDONED)
    before = [e for e in of_type(events, kinds.FRAME_HEARTBEAT) if e.position < lost.position]
    assert lost.meta["skipped"] == sum(end - first for e in before for first, end in ranges(e))
    assert bool(before) == (after > 0.3)


@pytest.mark.parametrize("after", [None, 0.12, 0.23, 0.34, 0.45, 0.56, 0.67, 0.78, 0.89, 1.01])
def test_outputs_that_are_written_down_on_the_way_are_not_lost_with_a_process(
    monkeypatch: pytest.MonkeyPatch, after: float | None
) -> None:
    """With lists of two outputs, so that one is under way at almost any moment."""
    monkeypatch.setattr(gathering, "STAGE_OUTPUTS_GATHERED", 2)
    monkeypatch.setattr(gathering, "STAGE_OUTPUTS_UNGATHERED_MAX", 4)
    scene, found = Scene(slots=2), []
    how = {"mode": "parallel", "max_in_flight": 2, "frame": {"max_rows": 1}}

    async def story() -> None:
        async with scene.process() as life:
            execution = await start(life, loop(20, how))
            if after is None:
                await ended(life, execution, within=60)
            else:
                await asyncio.sleep(after)
        async with scene.process() as life:
            assert (await ended(life, execution, within=60)).status is Status.COMPLETED
            found.extend((await result_of(scene, life, execution), events_of(scene.database, execution)))
        check_end(scene.database)

    scene.play(story())
    result, events = found
    assert len([e for e in of_type(events, kinds.COMMAND_ISSUED) if e.meta["kind"] == "gather"]) >= 4
    assert result["stats"] == {"total": 20, "success": 20, "failed": 0}
    assert result["results"] == EXPECTED.setdefault("results", result["results"])


EXPECTED: dict[str, Any] = {}


def ranges(event: Event) -> list[tuple[int, int]]:
    found: Any = event.meta["ranges"]
    return [(first, end) for first, end in found]


def test_a_write_of_a_row_that_was_persisted_is_not_lost_with_its_process() -> None:
    scene = Scene(slots=1)
    rule = {"when": "{{ loop.index == 1 }}", "then": {"do": "continue", "set": {"ctx.once": "{{ loop.index }}"}}}

    async def story() -> None:
        step = loop(10, {"frame": {"max_rows": 10}})
        step["tool"]["spec"] = {"policy": {"rules": [rule]}}
        async with scene.process() as life:
            execution = await start(life, step)
            await asyncio.sleep(0.75)
        async with scene.process() as life:
            state = await ended(life, execution, within=60)
        assert of_type(events_of(scene.database, execution), kinds.FRAME_ABANDONED)[0].meta["skipped"] != 0
        assert state.variables["once"].value == 1

    scene.play(story())


def test_a_failed_row_that_was_persisted_ends_the_loop_after_its_process_died() -> None:
    """Two rows at a time: one fails while the other one takes long."""
    scene = Scene(slots=1)

    async def story() -> None:
        spec = {"mode": "parallel", "max_in_flight": 2, "frame": {"max_rows": 50}}
        given = {"fails": "{{ 9 if item == 1 else 0 }}", "seconds": "{{ 9 if item == 0 else 0.1 }}"}
        async with scene.process() as life:
            execution = await start(life, loop(50, spec, given=given))
            await asyncio.sleep(2)
        async with scene.process() as life:
            state = await ended(life, execution, within=60)
        assert state.status is Status.FAILED
        assert "item 1: " in str(state.failure)
        (failed,) = of_type(events_of(scene.database, execution), kinds.FRAME_FAILED)
        # Row 0 was lost with the process, and no row begins any more.
        assert failed.meta["outcomes"] == {"success": 0, "failed": 1, "skipped": 49}

    scene.play(story())


def test_a_frame_that_is_lost_after_its_loop_has_failed_is_not_taken_over() -> None:
    scene = Scene(slots=2)

    async def story() -> None:
        spec = {"mode": "parallel", "max_in_flight": 2, "frame": {"max_rows": 5}}
        given = {"fails": "{{ 9 if item == 0 else 0 }}", "seconds": "{{ 0.1 if item == 0 else 50 }}"}
        async with scene.process() as life:
            execution = await start(life, loop(10, spec, given=given))
            await asyncio.sleep(1)
            state = scene.state(execution)
            assert state.loop_state["each"].failure is not None
            assert [c.status for c in state.commands.values()] == [CommandStatus.CLAIMED]
        async with scene.process() as life:
            state = await ended(life, execution, within=10)
        assert state.status is Status.FAILED
        events = events_of(scene.database, execution)
        assert not of_type(events, kinds.FRAME_ABANDONED)
        drained = of_type(events, kinds.FRAME_FAILED)[1]
        assert drained.meta["outcomes"] == {"success": 0, "failed": 0, "skipped": 5}
        assert drained.result is not None
        assert "drained" in str(drained.result["context"])
        check_end(scene.database)

    scene.play(story())


def test_rows_of_other_frames_end_and_no_further_one_begins_when_a_loop_fails() -> None:
    scene = Scene(slots=2)

    async def story() -> None:
        spec = {"mode": "parallel", "max_in_flight": 2, "frame": {"max_rows": 50}}
        given = {"fails": "{{ 9 if item == 3 else 0 }}"}
        async with scene.process() as life:
            execution = await start(life, loop(100, spec, given=given))
            state = await ended(life, execution, within=60)
        assert state.status is Status.FAILED
        events = events_of(scene.database, execution)
        outcomes: list[Any] = [e.meta["outcomes"] for e in of_type(events, kinds.FRAME_FAILED)]
        assert outcomes[0] == {"success": 3, "failed": 1, "skipped": 46}
        assert outcomes[1]["skipped"] > 40
        assert outcomes[1]["failed"] == 0

    scene.play(story())


def test_a_heartbeat_that_is_told_again_is_recorded_once() -> None:
    scene = Scene(slots=1)

    async def story() -> None:
        async with scene.process() as life:
            execution = await start(life, loop(10, {"frame": {"max_rows": 10}}))
            await asyncio.sleep(0.8)
            session = life.session
            assert session is not None
            (told,) = [fact for fact in session.reported if fact.event_type == kinds.FRAME_HEARTBEAT][:1]
            before = len(of_type(events_of(scene.database, execution), kinds.FRAME_HEARTBEAT))
            await life.decider.report(session.session_id, told)
            assert len(of_type(events_of(scene.database, execution), kinds.FRAME_HEARTBEAT)) == before
            assert (await ended(life, execution, within=60)).status is Status.COMPLETED

    scene.play(story())


def test_a_heartbeat_whose_reply_is_lost_is_recorded_once() -> None:
    scene = Scene(slots=1)

    async def story() -> None:
        async with scene.process() as life:
            execution = await start(life, loop(10, {"frame": {"max_rows": 10}}))
            await asyncio.sleep(0.2)
            scene.faults.script("advance", Mishap(outcome=Outcome.REPLY_LOST))
            assert (await ended(life, execution, within=60)).status is Status.COMPLETED
        # The checker refuses rows that are persisted twice.
        assert of_type(events_of(scene.database, execution), kinds.FRAME_HEARTBEAT)

    scene.play(story())


@pytest.mark.parametrize("operation", ["get", "put"])
def test_a_store_that_is_away_for_a_while_fails_no_row_and_no_loop(operation: str) -> None:
    scene = Scene(slots=2)
    wide = [{"id": n, "text": "x" * 4_000} for n in range(30)]

    async def story() -> None:
        step = loop(0, {"mode": "parallel", "max_in_flight": 4})
        step["loop"]["in"] = wide
        async with scene.process() as life:
            execution = await start(life, step)
        # Every payload is read anew by a process that knows nothing yet.
        async with scene.process() as life:
            scene.faults.script(operation, *[AWAY, Mishap()] * 12)
            state = await ended(life, execution, within=120)
            assert state.status is Status.COMPLETED, state.failure
            assert (await result_of(scene, life, execution))["count"] == 30
        check_end(scene.database)

    scene.play(story())


def test_a_frame_that_kills_its_process_again_and_again_fails_and_the_others_do_not() -> None:
    scene = Scene(slots=1)

    async def story() -> None:
        spec = {"mode": "parallel", "max_in_flight": 1, "frame": {"max_rows": 2, "max_attempts": 3}}
        best = {"policy": {"failure": {"mode": "best_effort"}}}
        given = {"seconds": "{{ 1000 if item == 1 else 0 }}"}
        async with scene.process() as life:
            execution = await start(life, loop(6, spec, given=given, spec=best))
        for _ in range(4):
            async with scene.process():
                await asyncio.sleep(1)
        async with scene.process() as life:
            state = await ended(life, execution, within=60)
            result = await result_of(scene, life, execution)
        assert state.status is Status.COMPLETED
        assert result["stats"] == {"total": 6, "success": 5, "failed": 1}
        # Row 0 of the lost frame was persisted before its neighbour took the process down.
        assert "value" in result["results"][0]
        assert result["results"][1]["error"]["code"] == "attempts_exhausted"
        attempts = [e.meta["attempt"] for e in of_type(events_of(scene.database, execution), kinds.FRAME_STARTED)]
        assert attempts[:3] == [1, 2, 3]
        check_end(scene.database)

    scene.play(story())


# --- the test of the test --------------------------------------------------------------------------------


def told(
    *, tamper: dict[int, dict[str, Any]] | None = None, leave_out: int | None = None, twice: int | None = None
) -> None:
    """Show the checker a loop that is fine, with one event changed, missing or told twice."""
    run = looping(list(range(6)), spec=parallel(2, max_rows=3))
    first, second = run.frames
    run.beat(first, {0: "zero"})
    run.take(first)
    run.commit(second)
    run.commit(first)
    run.seal("each#1/seal")
    checker = LoopChecker()
    about = [event for event in run.events if event.event_type in STORY]
    assert [event.event_type for event in about] == STORY
    for number, event in enumerate(about):
        if number == leave_out:
            continue
        changed = (tamper or {}).get(number)
        shown = event if changed is None else event._replace(meta={**event.meta, **changed})
        for _ in range(2 if number == twice else 1):
            checker.observe(shown)
    checker.check_end()


STORY = [
    kinds.PLAYBOOK_INITIALIZED,
    kinds.STAGE_OPENED,
    kinds.LOOP_STARTED,
    *[kinds.FRAME_DISPATCHED] * 2,
    kinds.FRAME_STARTED,
    kinds.FRAME_HEARTBEAT,
    kinds.FRAME_ABANDONED,
    kinds.FRAME_DISPATCHED,
    kinds.FRAME_STARTED,
    kinds.FRAME_STARTED,
    kinds.FRAME_COMMITTED,
    kinds.FRAME_COMMITTED,
    kinds.LOOP_DONE,
    kinds.STAGE_CLOSED,
]


def test_the_checker_has_nothing_against_a_loop_that_is_fine() -> None:
    told()


@pytest.mark.parametrize("number", range(1, len(STORY)))
def test_the_checker_notices_an_event_that_is_told_twice(number: int) -> None:
    with pytest.raises(Violation):
        told(twice=number)


@pytest.mark.parametrize("number", range(1, len(STORY)))
def test_the_checker_notices_an_event_that_is_missing(number: int) -> None:
    with pytest.raises(Violation):
        told(leave_out=number)


@pytest.mark.parametrize(
    ("number", "changed"),
    [
        (2, {"policy": {"max_in_flight": 1}}),
        (2, {"total": 7}),
        (3, {"rows": 4}),
        (4, {"first": 2}),
        (5, {"attempt": 2}),
        (6, {"ranges": [[0, 4]]}),
        (6, {"attempt": 2}),
        (7, {"skipped": 0}),
        (8, {"first": 3}),
        (9, {"attempt": 3}),
        (11, {"outcomes": {"success": 2, "failed": 0, "skipped": 0}}),
        (11, {"outcomes": {"success": 2, "failed": 1, "skipped": 0}}),
        (11, {"outcomes": {"success": 2, "failed": 0, "skipped": 1}}),
        (12, {"attempt": 1}),
        (13, {"done": 5}),
        (13, {"failed": 1}),
        (14, {"done": 5}),
    ],
)
def test_the_checker_notices_what_must_not_be(number: int, changed: dict[str, Any]) -> None:
    with pytest.raises(Violation):
        told(tamper={number: changed})
