"""The state of a loop does not grow with the number of its frames: a worker writes their outputs down on the way."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.codec import canonical_bytes
from noetl.core.errors import Failure
from noetl.core.execution.lifecycle import failed_draft
from noetl.core.execution.state import Status
from noetl.core.limits import STAGE_OUTPUTS_GATHERED as ENOUGH
from noetl.core.limits import STAGE_OUTPUTS_UNGATHERED_MAX as MOST
from noetl.core.snapshot.snapshot import state_document
from tests.support.loops import Looping, gather, looping, parallel
from tests.support.playbooks import BOOM

FRAMES_IN_FLIGHT = 4


def frames(rows: int, *targets: Any, **keys: Any) -> Looping:
    """A loop whose frames have one row each."""
    run = looping(list(range(rows)), *targets, spec=parallel(FRAMES_IN_FLIGHT, max_rows=1), **keys)
    if not run.frames:
        run.collect(run.open[0])
    return run


def gathers(run: Looping) -> list[str]:
    return [name for name in run.open if "/gather/" in name]


def commit(run: Looping, count: int, outcome: Any = None) -> None:
    for _ in range(count):
        frame_id = run.frames[0]
        run.commit(frame_id, None if outcome is None else {run.frame(frame_id).first: outcome})


def test_enough_outputs_are_written_down_while_the_loop_goes_on() -> None:
    run = frames(3 * ENOUGH)
    commit(run, ENOUGH - 1)
    assert gathers(run) == []
    commit(run, 1)
    assert gathers(run) == ["each#1/gather/1"]
    assert len(run.frames) == FRAMES_IN_FLIGHT, "nothing waits for it"
    commit(run, 10)
    assert gathers(run) == ["each#1/gather/1"], "one at a time"
    assert len(run.body("each#1/gather/1")["stage"]["outputs"]) == ENOUGH
    gather(run, "each#1/gather/1")
    stage = run.stage()
    assert (len(stage.outputs), len(stage.gathering), len(stage.gathered)) == (10, 0, 1)


def test_frames_wait_for_a_worker_that_writes_outputs_down_too_slowly() -> None:
    run = frames(3 * MOST)
    while run.frames:
        commit(run, 1)
    stage = run.stage()
    assert gathers(run) == ["each#1/gather/1"]
    assert len(stage.gathering) + len(stage.outputs) <= ENOUGH + MOST + FRAMES_IN_FLIGHT
    gather(run, "each#1/gather/1")
    assert len(run.frames) == FRAMES_IN_FLIGHT, "and go on when it is done"
    assert run.finish(steps_max=5_000).result()["results"] == list(range(3 * MOST))


def test_the_state_of_a_loop_does_not_grow_with_its_frames() -> None:
    run = frames(20 * ENOUGH)
    sizes = []
    for _ in range(18):
        commit(run, ENOUGH)
        for name in gathers(run):
            gather(run, name)
        sizes.append(len(canonical_bytes(state_document(run.state))))
    # A list that is written down is one reference: about the size of one output for all that it holds.
    assert (sizes[-1] - sizes[0]) / (17 * ENOUGH) < 3
    assert len(run.stage().outputs) < ENOUGH


def test_the_result_has_every_row_wherever_its_output_was_written_down() -> None:
    rows = 2 * ENOUGH + 7
    run = frames(rows, "after").finish(steps_max=5_000)
    assert run.state.status is Status.COMPLETED
    assert len([e for e in run.of(kinds.COMMAND_ISSUED) if e.meta["kind"] == "gather"]) == 2
    assert run.result()["results"] == list(range(rows))


def test_a_result_is_written_also_while_outputs_are_on_their_way() -> None:
    run = frames(ENOUGH + 2, "after")
    commit(run, ENOUGH + 2)
    assert sorted(run.open) == ["each#1/gather/1", "each#1/seal"]
    run.seal("each#1/seal")
    assert run.result()["results"] == list(range(ENOUGH + 2))
    assert "after#1" not in run.open, "nobody is asked for a step that still has work under way"
    gather(run, "each#1/gather/1")
    assert "after#1" in run.open
    assert run.finish().state.status is Status.COMPLETED


def test_rows_that_failed_stay_in_the_state() -> None:
    run = frames(3 * ENOUGH, best_effort=True)
    commit(run, 3, BOOM)
    commit(run, ENOUGH)
    gather(run, gathers(run)[0])
    assert [output.failed for output in run.stage().outputs] == [1, 1, 1]
    results = run.finish(steps_max=5_000).result()["results"]
    assert [row["status"] for row in results[:3]] == ["error"] * 3
    assert results[3:] == list(range(3, 3 * ENOUGH))


@pytest.mark.parametrize("is_lost", [False, True])
def test_outputs_that_could_not_be_written_down_stay_where_they_were(is_lost: bool) -> None:
    run = frames(2 * ENOUGH + 5, "after")
    commit(run, ENOUGH)
    (name,) = gathers(run)
    if is_lost:
        error = {"kind": "unknown", "code": "attempts_exhausted", "retryable": False, "message": "lost"}
        run._follow(run.append(failed_draft(run.state.commands[name], error)))
    else:
        run.fail(name, Failure(kind="storage_access", message="no store"), has_atoms=False)
    assert (len(run.stage().outputs), run.stage().gathering) == (ENOUGH, ())
    commit(run, ENOUGH)
    assert gathers(run) == [], "it is not tried again and again"
    assert run.finish(steps_max=5_000).result()["results"] == list(range(2 * ENOUGH + 5))
