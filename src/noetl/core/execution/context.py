"""What a command carries to a worker: the step, the attempt, and exactly the names its templates read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from noetl.core.execution.looping.loops import fanin
from noetl.core.execution.pins import scripts_of, with_scripts
from noetl.core.execution.state import (
    ADMIT,
    SKIP,
    Command,
    ExecutionState,
    Frame,
    FrameOutput,
    Part,
    Stage,
    part_document,
)
from noetl.core.execution.values import was_skipped
from noetl.core.execution.writes import write
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.playbook.needs import COMPLETING, Needs


def command_body(state: ExecutionState, playbook: CompiledPlaybook, command: Command) -> dict[str, object]:
    """The body of a command, a pure function of the state: a lost queue can be rebuilt from events."""
    stage = state.loop_state.get(command.step)
    step = playbook.steps[command.step]
    needs = _needs(playbook, command)
    scripts: Mapping[str, object] = {}
    if step.scripts and command.kind in ("step", "frame"):
        needs, scripts = with_scripts(state, step, needs), scripts_of(state, step)
    body: dict[str, object] = {
        "playbook": state.playbook,
        "path": state.path,
        "step": command.step,
        "run": command.run,
        "kind": command.kind,
        **_names(state, needs, command),
    }
    if scripts:
        body["scripts"] = scripts
    if command.expression is not None:
        body["expression"] = command.expression
    if command.kind == "gather":
        # The result may be written while this is under way: then there is nothing left to write down.
        outputs = [] if stage is None or stage.run != command.run else _outputs(stage.gathering)
        body["stage"] = {"stage_id": f"{command.step}#{command.run}", "outputs": outputs}
    elif command.frame is not None or command.kind == "seal":
        assert stage is not None
        body["stage"] = _frame_body(stage, command.frame) if command.frame else _seal_body(stage)
    if command.resume is not None:
        body["resume"] = command.resume
    if command.child is not None and command.child.outcome is not None:
        body["child"] = command.child.to_json()
    if command.parents:
        body["parents"] = list(command.parents)
    if command.asked_at is not None:
        body["now"] = command.asked_at
    about = _about(state, command)
    if about is not None:
        body["about"] = about
    return {**body, **_surroundings(state, needs, command.step)}


def _about(state: ExecutionState, command: Command) -> dict[str, object] | None:
    """The step whose outcome `output`, `result` and `event` are: the one that has just ended, or, for a step that has
    yet to give something, the last one that requested it."""
    step, pending = command.step, state.pending_next_actions.get(command.step)
    if command.kind == "evaluate" and not _is_beginning(state, step):
        is_skipped = pending is not None and pending.phase == SKIP
    elif command.parents:
        step = command.parents[-1]
        is_skipped = was_skipped(state, step)
    else:
        return None
    return {"step": step, "skipped": True} if is_skipped else {"step": step}


def _is_beginning(state: ExecutionState, step: str) -> bool:
    pending, stage = state.pending_next_actions.get(step), state.loop_state.get(step)
    return (pending is not None and pending.phase == ADMIT) or (stage is not None and not stage.is_open)


def _surroundings(state: ExecutionState, needs: Needs, step: str) -> dict[str, object]:
    """The facts about the execution and what arcs gave to the step, as far as templates read them."""
    found: dict[str, object] = {}
    if state.parent_execution_id is not None:
        found["parent_execution_id"] = str(state.parent_execution_id)
    if state.catalog_id is not None:
        found["catalog"] = {"id": state.catalog_id, "version": state.catalog_version}
    if state.env and (needs.everything or "env" in needs.names):
        found["env"] = state.env
    if state.caller is not None and (needs.everything or "iter" in needs.names):
        found["iter"] = state.caller
    if step in state.args and (needs.everything or "args" in needs.names):
        found["args"] = {name: entry.to_json() for name, entry in state.args[step].items()}
    return found


def _needs(playbook: CompiledPlaybook, command: Command) -> Needs:
    step = playbook.steps[command.step]
    if command.expression is not None:
        return playbook.expression(command.expression).needs
    if command.kind == "collect":
        assert step.loop is not None
        return step.loop.needs
    if command.frame is not None and step.loop is not None and step.loop.cursor is not None:
        return step.needs | step.loop.cursor.needs
    return _NOTHING if command.kind in ("seal", "gather") else step.needs


_NOTHING = Needs(names=frozenset(), everything=False)
# What reads the result of the step before: in tasks, where `output` is that of a task, and before a step begins.
_REQUESTER = frozenset(("result", "response"))
_REQUESTER_EVENT = COMPLETING | {"event"}


def _frame_body(stage: Stage, frame: Frame) -> dict[str, object]:
    """The rows of a frame by reference, or where to claim them, and what is already known of them."""
    policy = stage.policy
    body: dict[str, object] = {
        "stage_id": stage.stage_id,
        "total": stage.total,
        "done": stage.done,
        "number": frame.number,
        "first": frame.first,
        "rows": frame.rows,
        "concurrency": frame.concurrency,
        "sequential": policy.is_sequential,
        "best_effort": policy.is_best_effort,
        "heartbeats": frame.heartbeats,
        "parts": [part_document(part) for part in _kept(stage, frame)],
    }
    if stage.collection is not None:
        body["collection"] = stage.collection.to_json()
    if stage.claimed is not None:
        body["claimed"] = True
    if stage.cursor is not None:
        body["cursor"] = {**stage.cursor, "max_rows": policy.frame_rows, "tries": policy.max_attempts}
        body["claim"] = None if frame.claim is None else frame.claim.to_json()
        body["claims"] = frame.claims
    for name in ("process", "max_seconds", "max_bytes"):
        if getattr(policy, name) is not None:
            body[name] = getattr(policy, name)
    return body


def _kept(stage: Stage, frame: Frame) -> tuple[Part, ...]:
    return () if stage.policy.retry_mode == "whole_frame" else frame.parts


def _outputs(given: Sequence[FrameOutput]) -> list[dict[str, object]]:
    outputs = []
    for output in sorted(given, key=lambda one: one.first):
        document = output.to_json()
        if output.failed:
            document |= {"failed": output.failed, "frame": output.number, "attempt": output.attempt}
            if output.claim is not None:
                document["claim"] = output.claim
        outputs.append(document)
    return outputs


def _seal_body(stage: Stage) -> dict[str, object]:
    return {
        "stage_id": stage.stage_id,
        "total": stage.total,
        "done": stage.done,
        "failed": stage.failed,
        "failure": stage.failure,
        "outputs": _outputs((*stage.gathering, *stage.outputs)),
        **({"gathered": list(stage.gathered)} if stage.gathered else {}),
        **_seal_kind(stage),
        **_seal_input(stage),
    }


def _seal_input(stage: Stage) -> dict[str, object]:
    """Where the rows are that a dead letter names."""
    if stage.claimed is not None:
        return (
            {"claimed": True, "collection": {"ref": stage.collection.reference, "path": []}} if stage.collection else {}
        )
    if stage.collection is None or stage.collection.reference is None:
        return {}
    return {"collection": {"ref": stage.collection.reference, "path": list(stage.collection.path)}}


def _seal_kind(stage: Stage) -> dict[str, object]:
    """What the result of a cursor, of shards, or of a loop that ran once per frame is made of besides."""
    found: dict[str, object] = {}
    if stage.cursor is not None:
        found["cursor"] = {"frames": stage.row_frames, "breaks": stage.breaks, "capped": stage.capped}
    elif stage.claimed is not None:
        found["cursor"] = {**stage.claimed, "frames": stage.claimed["frames"] + stage.frames}
    if stage.policy.shard_retries is not None:
        found["fanin"] = fanin(stage, has_failed=stage.failure is not None)
    if stage.policy.is_framewise:
        found["framewise"] = True
    return found


def _names(state: ExecutionState, needs: Needs, command: Command) -> dict[str, Mapping[str, object]]:
    context = write(state.variables, command.pending_writes)
    if needs.everything:
        workload, variables, steps = state.workload, context, state.step_results
    else:
        names = set(needs.names)
        if names & (_REQUESTER if command.kind in ("step", "frame") else _REQUESTER_EVENT):
            names.update(command.parents)
        workload = {name: state.workload[name] for name in names if name in state.workload}
        variables = {name: context[name] for name in names if name in context}
        steps = {name: state.step_results[name] for name in names if name in state.step_results}
    return {
        "workload": {name: entry.to_json() for name, entry in workload.items()},
        "ctx": {name: entry.to_json() for name, entry in variables.items()},
        "steps": {name: result.to_json() for name, result in steps.items()},
    }
