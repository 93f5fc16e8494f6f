"""Which steps of an execution have a result, and what to say about those that have none."""

from __future__ import annotations

from noetl.core.errors import ResultUnfinished, ResultUnknown
from noetl.core.execution.state import ExecutionState, StepResult

_NAMES_SHOWN_MAX = 20


def result_of(state: ExecutionState, step: str) -> StepResult:
    """The result of a step's last run.  Raises ResultUnknown and ResultUnfinished."""
    found = state.step_results.get(step)
    if found is not None:
        return found
    where = f"step {step[:100]!r} of execution {state.execution_id}"
    if state.skipped_steps.get(step) is not None and state.skipped_steps.get(step) == state.runs.get(step):
        raise ResultUnknown(f"{where} was skipped: it has no result")
    if not state.is_terminal and _has_begun(state, step):
        raise ResultUnfinished(
            f"{where} has not ended: ask again later, or wait with GET /api/executions/{state.execution_id}"
            "?wait=terminal"
        )
    if _has_begun(state, step):
        raise ResultUnknown(f"{where} did not end: the execution is {state.status}")
    names = [repr(name) for name in state.step_results][:_NAMES_SHOWN_MAX]
    known = f"there are those of {', '.join(names)}" if names else "no step has one"
    later = "" if state.is_terminal else "; the execution still runs, and it may come"
    raise ResultUnknown(f"there is no result of {where}: {known}{later}")


def _has_begun(state: ExecutionState, step: str) -> bool:
    return step in state.runs or step in state.issued_steps or step in state.loop_state
