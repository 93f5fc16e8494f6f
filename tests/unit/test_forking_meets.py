"""Where forks meet time limits, other loops and shards."""

from __future__ import annotations

from typing import Any

from noetl.core.execution.lifecycle import limited_loop
from noetl.core.execution.state import Status
from tests.support.loops import Looping, loop_step, parallel
from tests.support.playbooks import BOOM, graph, step
from tests.unit.test_forking import forked, refolded, started

NOW = "2026-01-01T00:00:00.000000+00:00"


def limited(run: Looping, made: Any) -> Any:
    return made._replace(drafts=tuple(limited_loop(draft, run.playbook, NOW) for draft in made.drafts))


def test_a_loop_that_is_retried_has_the_limit_of_time_of_its_step() -> None:
    spec = {"timeout": "30s", "policy": {"failure": {"mode": "best_effort"}}}
    run = Looping(graph(step("each", loop={"in": [1, 2, 3], "iterator": "item", "spec": parallel(3)}, spec=spec)))
    assert "step/each#1" in run.state.timers
    run.finish({"each": {1: BOOM}})
    found = forked(run)
    assert found is not None
    new = started(run, limited(run, found[0]))
    assert "step/each#1" in new.state.timers


def beside() -> Looping:
    return Looping(
        graph(
            step("fork", "left", "right", mode="inclusive"),
            loop_step("left", list(range(4)), "join", spec=parallel(2, max_rows=2)),
            loop_step("right", list(range(4)), "join", spec=parallel(2, max_rows=2)),
            step("join", "last"),
            step("last"),
        )
    )


def test_one_loop_of_a_retry_of_two_is_retried_and_the_other_is_requested_again() -> None:
    run = beside()
    run.finish({"left": {1: BOOM}, "right": {2: BOOM}})
    assert run.state.status is Status.FAILED
    found = forked(run)
    assert found is not None
    new = started(run, found[0])
    assert set(new.state.loop_state) == {"left", "right"}
    new.finish({"left": {1: BOOM}, "right": {2: BOOM}})
    _, refold = refolded(new.events, step_name="left")
    assert refold.state is not None
    assert [stage.step for stage, _ in refold.stages] == ["left"]
    assert dict(refold.state.requested_steps) == {"right": ("fork",)}
    found = forked(new, step_name="left")
    assert found is not None
    newest = started(new, found[0]).finish()
    assert newest.state.status is Status.COMPLETED
    assert newest.result("left")["results"] == newest.result("right")["results"] == [0, 1, 2, 3]
