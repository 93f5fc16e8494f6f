"""Which steps have a result, and what is said about those that have none."""

from __future__ import annotations

import pytest

from noetl.core.errors import ResultUnfinished, ResultUnknown
from noetl.core.execution.state import ExecutionState, Status, StepResult
from noetl.engine.reading.steps import result_of

DONE = StepResult(run=1, status="ok", reference=None, atoms={})
RUNNING = ExecutionState(
    execution_id=7, step_results={"a": DONE, "b": DONE}, runs={"a": 1, "slow": 1, "left": 2}, skipped_steps={"left": 2}
)


def ended(status: Status = Status.FAILED) -> ExecutionState:
    return RUNNING.changed({"status": status})


def test_a_step_that_ended_has_a_result() -> None:
    assert result_of(RUNNING, "a") is DONE
    # A step that runs again has its last result until there is another one.
    assert result_of(RUNNING.changed({"runs": {"a": 2}}), "a") is DONE


def test_a_step_that_runs_is_to_be_waited_for() -> None:
    with pytest.raises(ResultUnfinished, match=r"step 'slow' of execution 7 has not ended: .*wait=terminal"):
        result_of(RUNNING, "slow")


@pytest.mark.parametrize(
    ("state", "step", "says"),
    [
        (RUNNING, "x", "there is no result of step 'x' of execution 7: there are those of 'a', 'b'; .* it may come"),
        (ended(), "x", "there are those of 'a', 'b'$"),
        (ended().changed({"step_results": {}}), "x", "no step has one$"),
        (RUNNING, "left", "was skipped: it has no result"),
        (ended(Status.CANCELLED), "slow", "did not end: the execution is CANCELLED"),
    ],
)
def test_what_has_no_result_says_why(state: ExecutionState, step: str, says: str) -> None:
    with pytest.raises(ResultUnknown, match=says):
        result_of(state, step)
