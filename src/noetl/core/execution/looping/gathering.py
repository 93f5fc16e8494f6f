"""The outputs of a loop's frames, written down by a worker now and then, so that the state of a loop does not grow with
the number of its frames.  First what the router decides, then the folds.

Frames of which rows failed are left out: whoever runs rows again finds them in the state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from noetl.core import kinds
from noetl.core.event import Draft, Event
from noetl.core.execution.state import Command, ExecutionState, FrameOutput, Stage
from noetl.core.execution.writes import integer
from noetl.core.limits import STAGE_OUTPUTS_GATHERED, STAGE_OUTPUTS_UNGATHERED_MAX

Changes = dict[str, Any]


def wanted(stage: Stage) -> Iterator[Draft]:
    """The command to write outputs down, when there are enough of them and nobody is doing it."""
    if not stage.gathering and not stage.is_gathered_in_vain and stage.ungathered >= STAGE_OUTPUTS_GATHERED:
        command_id = f"{stage.stage_id}/gather/{stage.gathers + 1}"
        meta: dict[str, object] = {"step": stage.step, "run": stage.run, "kind": "gather"}
        yield Draft(
            event_type=kinds.COMMAND_ISSUED,
            transition_key=kinds.issued_key(command_id),
            command_id=command_id,
            stage_id=stage.stage_id,
            meta=meta,
        )


def is_behind(stage: Stage) -> bool:
    """Whether further frames must wait: whoever writes outputs down is slower than those that make them."""
    return bool(stage.gathering) and stage.ungathered >= STAGE_OUTPUTS_UNGATHERED_MAX


def with_output(stage: Stage, output: FrameOutput) -> Stage:
    """With what one more of its frames has left."""
    return stage._replace(outputs=(*stage.outputs, output), ungathered=stage.ungathered + _is_well(output))


def gathering(state: ExecutionState, step: str, meta: Mapping[str, object]) -> Changes:
    stage = state.loop_state.get(step)
    if stage is None or stage.run != integer(meta["run"]) or stage.gathering:
        return {}
    taken = stage._replace(
        gathering=tuple(output for output in stage.outputs if _is_well(output)),
        outputs=tuple(output for output in stage.outputs if not _is_well(output)),
        ungathered=0,
        gathers=stage.gathers + 1,
    )
    return {"loop_state": {**state.loop_state, step: taken}}


def gathered(state: ExecutionState, event: Event, command: Command) -> Changes:
    """They are written down, or stay where they are and are not tried again: the loop goes on either way."""
    stage, result = state.loop_state.get(command.step), event.result
    assert result is not None
    if stage is None or stage.run != command.run:
        return {}
    reference: Any = result["reference"]
    if event.event_type == kinds.COMMAND_COMPLETED and reference is not None:
        done = stage._replace(gathering=(), gathered=(*stage.gathered, reference))
    else:
        done = stage._replace(gathering=(), outputs=(*stage.gathering, *stage.outputs), is_gathered_in_vain=True)
    return {"loop_state": {**state.loop_state, command.step: done}}


def ungathered(stage: Stage) -> Stage:
    """Where its frames left their rows nobody can ask any more."""
    return stage._replace(outputs=(), gathering=(), gathered=(), ungathered=0)


def _is_well(output: FrameOutput) -> bool:
    # What another execution has run must be found in the state by whoever retries this one.
    is_own = output.origin is None
    return is_own and output.reference is not None and output.error is None and not output.failed
