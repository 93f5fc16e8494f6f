"""What a command carries to a worker: the step, the attempt, and exactly the names its templates read."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.execution.state import Command, ExecutionState, Frame, Part, Stage
from noetl.core.execution.writes import write
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.playbook.needs import Needs


def command_body(state: ExecutionState, playbook: CompiledPlaybook, command: Command) -> dict[str, object]:
    """The body of a command, a pure function of the state: a lost queue can be rebuilt from events."""
    stage = state.loop_state.get(command.step)
    needs = _needs(playbook, command)
    body: dict[str, object] = {
        "playbook": state.playbook,
        "path": state.path,
        "step": command.step,
        "run": command.run,
        "kind": command.kind,
        **_names(state, needs, command),
    }
    if command.expression is not None:
        body["expression"] = command.expression
    if command.frame is not None or command.kind == "seal":
        assert stage is not None
        body["stage"] = _frame_body(stage, command.frame) if command.frame else _seal_body(stage)
    if command.resume is not None:
        body["resume"] = command.resume
    if command.child is not None and command.child.outcome is not None:
        body["child"] = command.child.to_json()
    if command.parents:
        body["parents"] = list(command.parents)
    if state.parent_execution_id is not None:
        body["parent_execution_id"] = str(state.parent_execution_id)
    return body


def _needs(playbook: CompiledPlaybook, command: Command) -> Needs:
    step = playbook.steps[command.step]
    if command.expression is not None:
        return playbook.expressions[command.expression].needs
    if command.kind == "collect":
        assert step.loop is not None
        return step.loop.needs
    return _NOTHING if command.kind == "seal" else step.needs


_NOTHING = Needs(names=frozenset(), everything=False)


def _frame_body(stage: Stage, frame: Frame) -> dict[str, object]:
    """The rows of a frame by reference, and what is already known of them."""
    assert stage.collection is not None
    return {
        "stage_id": stage.stage_id,
        "total": stage.total,
        "done": stage.done,
        "collection": stage.collection.to_json(),
        "number": frame.number,
        "first": frame.first,
        "rows": frame.rows,
        "concurrency": frame.concurrency,
        "sequential": stage.policy.is_sequential,
        "best_effort": stage.policy.is_best_effort,
        "heartbeats": frame.heartbeats,
        "parts": [_part(part) for part in _kept(stage, frame)],
    }


def _kept(stage: Stage, frame: Frame) -> tuple[Part, ...]:
    return () if stage.policy.retry_mode == "whole_frame" else frame.parts


def _part(part: Part) -> dict[str, object]:
    return {"ref": part.reference, "ranges": [list(one) for one in part.ranges]}


def _seal_body(stage: Stage) -> dict[str, object]:
    outputs = []
    for output in sorted(stage.outputs, key=lambda one: one.first):
        document: dict[str, object] = {"first": output.first, "rows": output.rows, "ref": output.reference}
        if output.parts:
            document["parts"] = [_part(part) for part in output.parts]
        if output.error is not None:
            document["error"] = output.error
        outputs.append(document)
    return {
        "stage_id": stage.stage_id,
        "total": stage.total,
        "done": stage.done,
        "failed": stage.failed,
        "failure": stage.failure,
        "outputs": outputs,
    }


def _names(state: ExecutionState, needs: Needs, command: Command) -> dict[str, Mapping[str, object]]:
    context = write(state.variables, command.pending_writes)
    if needs.everything:
        workload, variables, steps = state.workload, context, state.step_results
    else:
        names = set(needs.names)
        if names & {"result", "response"}:
            names.update(command.parents)
        workload = {name: state.workload[name] for name in names if name in state.workload}
        variables = {name: context[name] for name in names if name in context}
        steps = {name: state.step_results[name] for name in names if name in state.step_results}
    return {
        "workload": {name: entry.to_json() for name, entry in workload.items()},
        "ctx": {name: entry.to_json() for name, entry in variables.items()},
        "steps": {name: result.to_json() for name, result in steps.items()},
    }
