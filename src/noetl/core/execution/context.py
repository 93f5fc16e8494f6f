"""What a command carries to a worker: the step, the attempt, and exactly the names its templates read."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.execution.evolve import write
from noetl.core.execution.state import Command, ExecutionState
from noetl.core.playbook.compile import CompiledPlaybook
from noetl.core.playbook.needs import Needs


def command_body(state: ExecutionState, playbook: CompiledPlaybook, command: Command) -> dict[str, object]:
    """The body of a command, a pure function of the state: a lost queue can be rebuilt from events."""
    if command.expression is None:
        needs = playbook.steps[command.step].needs
    else:
        needs = playbook.expressions[command.expression].needs
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
    if command.resume is not None:
        body["resume"] = command.resume
    if command.parents:
        body["parents"] = list(command.parents)
    if state.parent_execution_id is not None:
        body["parent_execution_id"] = str(state.parent_execution_id)
    return body


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
