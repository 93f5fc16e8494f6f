"""A long run's state does not grow: ten times the events leave less than twice the bytes, in every shape where nothing
of the past can be needed again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from noetl.core import kinds
from noetl.core.snapshot.snapshot import take
from tests.support.cursors import draining
from tests.support.endings import Ending, child_state
from tests.support.loops import Looping, loop_step, parallel, tell
from tests.support.playbooks import Simulated, graph, step

FEW = 30


def size(run: Simulated) -> int:
    return len(take(run.state, shard_id=0, position=1).state)


def turning() -> list[dict[str, object]]:
    """Two steps that request each other, and count."""
    count = {"step": "b", "set": {"ctx.n": "{{ (ctx.n | default(0)) + 1 }}"}}
    return [step("a", count), step("b", {"step": "a", "when": "{{ ctx.n < 1000000 }}"})]


def cycle(turns: int) -> Simulated:
    run = Simulated(graph(*turning()))
    for _ in range(2 * turns):
        run.complete(run.open[0], {"x": 1})
    return run


def failing_cycle(turns: int) -> Simulated:
    """A step that fails again and again, and an arc that handles it."""
    run = Simulated(graph(step("a", {"step": "b"}), step("b", {"step": "a", "when": "{{ output.status == 'error' }}"})))
    for _ in range(turns):
        run.complete(run.open[0])
        run.fail(run.open[0])
    return run


def cycle_of_loops(turns: int) -> Simulated:
    """A loop of three rows in every turn: what its frames left is in its result."""
    run = Looping(graph(loop_step("a", [1, 2, 3], "b", spec=parallel(2, max_rows=1)), step("b", "a")))
    for _ in range(turns):
        while run.open != [f"b#{run.state.runs.get('b', 0)}"] or not run.state.commands:
            run.answer(run.open[0], {})
        run.complete(run.open[0])
    return run


def cursor(turns: int) -> Simulated:
    run = draining(slots=4)
    for _ in range(turns):
        run.turn(run.frames[0], 3)
    return run


def waits(turns: int) -> Simulated:
    """One task that waits for its next attempt over and over."""
    run = Ending(graph(step("a")))
    for number in range(1, turns + 1):
        run.claim("a#1")
        run.wait("a#1")
        run.fire(f"retry/a#1/{number}")
    return run


def children(turns: int) -> Simulated:
    """One task that starts one playbook after the other."""
    run, child = Ending(graph(step("a"))), Simulated(graph(step("x"))).run()
    for number in range(1, turns + 1):
        run.claim("a#1")
        run.start_child("a#1", 900 + number)
        run.end_child(child_state(run, child, 900 + number))
    return run


def jobs(turns: int) -> Simulated:
    """A job that tells its way."""
    run = Ending(graph(step("a")))
    run.claim("a#1")
    place = {"step": "a", "n": 1, "task": "t", "job_group": "g", "started": "2026-01-01T00:00:00.000000Z"}
    tell(run, run.state.commands["a#1"], kinds.JOB_INTENDED, meta=place)  # type: ignore[arg-type]
    for number in range(1, turns + 1):
        meta = {"step": "a", "n": number, "job": 1, "task": "t", "tasks": 9, "tasks_done": number}
        tell(run, run.state.commands["a#1"], kinds.JOB_PROGRESSED, meta=meta)  # type: ignore[arg-type]
    return run


SHAPES: list[Callable[[int], Simulated]] = [*(cycle, failing_cycle, cycle_of_loops, cursor, waits, children, jobs)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_ten_times_the_events_leave_less_than_twice_the_state(shape: Callable[[int], Simulated]) -> None:
    few, many = shape(FEW), shape(10 * FEW)
    assert len(many.events) > 8 * len(few.events) / 1.2
    assert size(many) < 1.2 * size(few), (size(few), size(many))


# --- where it cannot be so -------------------------------------------------------------------------------


def open_loop(frames: int) -> Looping:
    text = graph(loop_step("each", "{{ workload.rows }}", spec=parallel(4, max_rows=1)))
    run = Looping(text, workload={"rows": list(range(10 * FEW + 10))})
    while not run.frames:
        run.answer(run.open[0], {})
    for _ in range(frames):
        run.commit(run.frames[0])
    return run


def test_an_open_loop_keeps_one_reference_for_each_frame_and_nothing_else() -> None:
    """Its result will name every frame: until that is written, nobody else knows where the rows are."""
    few, many = open_loop(FEW), open_loop(10 * FEW)
    assert (size(many) - size(few)) / (9 * FEW) < 400


def test_a_loop_that_is_closed_keeps_none() -> None:
    run = open_loop(10 * FEW)
    before = size(run)
    run.finish()
    assert run.state.is_terminal
    assert size(run) < before / 10


def test_an_execution_that_ends_with_an_open_loop_keeps_none() -> None:
    run = open_loop(10 * FEW)
    stage = run.state.loop_state["each"]
    assert len(stage.gathering) + len(stage.outputs) == 10 * FEW
    story = Ending(run.text, run.workload, run.payloads)
    story.events, story.state = run.events, run.state
    story.cancel()
    for name in list(story.state.timers):
        story.fire(name)
    assert story.state.is_terminal
    assert all(stage.outputs == () for stage in story.state.loop_state.values())
    assert size(story) < 3_000


def test_a_frame_keeps_what_it_has_persisted_until_it_ends() -> None:
    run = Looping(
        graph(loop_step("each", "{{ workload.rows }}", spec=parallel(1, max_rows=400))),
        workload={"rows": list(range(400))},
    )
    while not run.frames:
        run.answer(run.open[0], {})
    (frame,) = run.frames
    empty = size(run)
    for row in range(FEW):
        run.beat(frame, {row: row})
    assert (size(run) - empty) / FEW < 400
    run.commit(frame)
    assert size(run) < empty + 2_000
