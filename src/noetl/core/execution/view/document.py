"""What people are shown of an execution: a bounded document made of its state and of nothing else.

It is stored with the projection's row, whose columns hold what lists show; it repeats none of them.  However large a
state is, its document stays small: what does not fit is counted in `left_out`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from noetl.core.execution.looping.ends import shard_count
from noetl.core.execution.looping.profile import profile_document
from noetl.core.execution.state import Command, CommandStatus, Entry, ExecutionState, Frame, Looped, Stage, Status
from noetl.core.limits import (
    VIEW_COMMANDS_MAX,
    VIEW_JOBS_PER_STEP_MAX,
    VIEW_JOBS_WITH_DETAILS_MAX,
    VIEW_LOOPS_MAX,
    VIEW_STEPS_MAX,
)

Document = dict[str, Any]


def execution_view(state: ExecutionState) -> Document:
    # A step of which it is not known yet whether it may run is live, but has no run.
    turns = {**state.runs, **state.issued_steps}
    shown = _shown_steps(state, turns)
    commands = _shown_commands(state)
    progress = _progress(state)
    document: Document = {
        "steps": _steps(state, turns, shown),
        "progress": progress,
        "commands": commands,
        "catalog": _catalog(state),
        "playbook": dict(state.playbook),
        "warnings": [dict(warning) for warning in state.warnings],
        "error": _error(state),
        "cancelling": None if state.cancelling is None else dict(state.cancelling),
        "outcome": _outcome(state),
    }
    left_out = {
        "steps": len(turns) - len(shown),
        "commands": len(state.commands) - len(commands),
        "progress": len({*state.loop_state, *state.ended_loops}) - len(progress),
    }
    document["left_out"] = {name: count for name, count in left_out.items() if count > 0}
    return document


def _error(state: ExecutionState) -> Document | None:
    if state.failure is not None:
        return {"step": state.failure.get("step"), **_mapping(state.failure.get("error"))}
    if state.status is Status.CANCELLED and state.result is not None:
        return {"step": None, **_mapping(_mapping(state.result["context"]).get("error"))}
    return None


def _outcome(state: ExecutionState) -> Document | None:
    """Where the result of an execution that has ended is."""
    if state.result is None:
        return None
    return {"status": state.result.get("status"), "reference": state.result.get("reference")}


def _catalog(state: ExecutionState) -> Document | None:
    if state.catalog_id is None:
        return None
    return {"id": state.catalog_id, "version": state.catalog_version}


# --- steps -----------------------------------------------------------------------------------------------------


def _shown_steps(state: ExecutionState, turns: Mapping[str, int]) -> list[str]:
    """All of them, in the order of their first turn; of too many those that are live, and then the last ones."""
    if len(turns) <= VIEW_STEPS_MAX:
        return list(turns)
    live = [name for name in turns if name in state.issued_steps][-VIEW_STEPS_MAX:]
    rest = [name for name in turns if name not in state.issued_steps]
    kept = {*live, *rest[len(rest) - (VIEW_STEPS_MAX - len(live)) :]}
    return [name for name in turns if name in kept]


def _steps(state: ExecutionState, turns: Mapping[str, int], shown: list[str]) -> dict[str, Document]:
    running: dict[str, list[Document]] = {}
    for job in _running_jobs(state):
        running.setdefault(job.pop("step"), []).append(job)
    found, detailed = {}, 0
    for name in shown:
        view = _step(state, name, turns[name])
        if name in running:
            view["running_jobs"] = running[name][:VIEW_JOBS_PER_STEP_MAX]
        result = state.step_results.get(name)
        if result is not None and result.run == turns[name] and result.jobs and detailed < VIEW_JOBS_WITH_DETAILS_MAX:
            view["jobs"] = [dict(job) for job in result.jobs[:VIEW_JOBS_PER_STEP_MAX]]
            detailed += len(view["jobs"])
        found[name] = view
    return found


def _step(state: ExecutionState, name: str, run: int) -> Document:
    view: Document = {"runs": run, "status": _step_status(state, name, run)}
    stage = state.loop_state.get(name)
    ended = state.ended_loops.get(name)
    if stage is not None:
        view["loop"] = {
            "total": stage.total,
            "done": stage.done,
            "failed": stage.failed,
            "frames": {"given_out": stage.frames, "open": stage.open_frames},
            "profile": profile_document(stage.profile),
        }
    elif ended is not None and ended.run == run:
        view["loop"] = {
            "total": ended.total,
            "done": ended.done,
            "failed": ended.failed,
            "frames": {"given_out": ended.frames, "open": 0},
            "profile": profile_document(ended.profile),
        }
        if ended.dead_letter is not None:
            view["loop"]["dead_letter"] = dict(ended.dead_letter)
    return view


def _running_jobs(state: ExecutionState) -> Iterator[Document]:
    """Where the jobs of a step run and how far they are; `progress` is null until something is known."""
    for command in state.commands.values():
        if command.job is not None:
            where = {"command_id": command.command_id, "attempt": command.attempt, **command.job.where}
            since = {"since": command.job.since, "progress": command.job.progress}
            yield {"step": command.step, **where, **since}


def _step_status(state: ExecutionState, name: str, run: int) -> str:
    """Of the last run of a step, or of the turn in which it did not run."""
    if state.skipped_steps.get(name) == run:
        return "skipped"
    command = state.commands.get(f"{name}#{run}")
    if command is not None:
        return str(command.status)
    if name in state.loop_state:
        return "running"
    result = state.step_results.get(name)
    if result is not None and result.run == run and result.status == "error":
        return "failed"
    return "completed" if state.completed_steps.get(name) == run else "deciding"


# --- loops -----------------------------------------------------------------------------------------------------


def _progress(state: ExecutionState) -> dict[str, Document]:
    """`loop.<step>` and `fanout.<step>`: those that run first, then the last of those that have ended."""
    found: dict[str, Document] = {}
    for name, stage in list(state.loop_state.items())[:VIEW_LOOPS_MAX]:
        is_fanout = stage.policy.shard_retries is not None
        found[_key(name, is_fanout=is_fanout)] = _fanout(stage) if is_fanout else _loop(stage)
    ended = [item for item in state.ended_loops.items() if item[0] not in state.loop_state]
    room = VIEW_LOOPS_MAX - len(found)
    for name, looped in ended[len(ended) - room :] if room < len(ended) else ended:
        found[_key(name, is_fanout=looped.is_fanout)] = _ended_fanout(looped) if looped.is_fanout else _ended(looped)
    return found


def _key(name: str, *, is_fanout: bool) -> str:
    return f"fanout.{name}" if is_fanout else f"loop.{name}"


def _loop(stage: Stage) -> Document:
    return {
        "loop_id": stage.stage_id,
        "total": stage.total,
        "done": stage.done,
        "failed": stage.failed,
        "collection_ref": _reference(stage.collection),
        "completed": False,
    }


def _ended(looped: Looped) -> Document:
    return {
        "loop_id": looped.stage_id,
        "total": looped.total,
        "done": looped.done,
        "failed": looped.failed,
        "collection_ref": looped.collection_ref,
        "completed": True,
    }


def _fanout(stage: Stage) -> Document:
    shards = stage.shards
    return {
        "loop_id": stage.stage_id,
        "total_shards": shard_count(stage),
        "done": shards.succeeded + shards.failed,
        "failed": shards.failed,
        "status": "sealing" if stage.is_sealing else "running" if stage.is_open else "opening",
    }


def _ended_fanout(looped: Looped) -> Document:
    return {
        "loop_id": looped.stage_id,
        "total_shards": looped.shards,
        "done": looped.shards_done,
        "failed": looped.shards_failed,
        "status": "completed" if looped.is_ok else "failed",
    }


def _reference(collection: Entry | None) -> str | None:
    """The address of what a loop goes over; None for one that is in the ledger itself."""
    uri = collection.reference.get("uri") if collection is not None and collection.reference is not None else None
    return uri if isinstance(uri, str) else None


# --- commands --------------------------------------------------------------------------------------------------


def _shown_commands(state: ExecutionState) -> list[Document]:
    """What is open: first what nobody has taken, since somebody may wonder why."""
    order = {CommandStatus.ISSUED: 0, CommandStatus.CLAIMED: 1, CommandStatus.WAITING: 2}
    commands = list(state.commands.values())
    if len(commands) > VIEW_COMMANDS_MAX:
        commands.sort(key=lambda command: order[command.status])
    return [_command(command) for command in commands[:VIEW_COMMANDS_MAX]]


def _command(command: Command) -> Document:
    view: Document = {
        "command_id": command.command_id,
        "step": command.step,
        "kind": command.kind,
        "status": str(command.status),
        "attempt": command.attempt,
    }
    if command.due_at is not None:
        view["due_at"] = command.due_at
    if command.frame is not None:
        view["rows"] = command.frame.rows
    return view


def commands_of(document: Mapping[str, Any]) -> list[Command]:
    """The commands that a document shows, as far as it shows them."""
    return [
        Command(
            command_id=one["command_id"],
            step=one["step"],
            run=0,
            kind=one["kind"],
            status=CommandStatus(one["status"]),
            attempt=one["attempt"],
            frame=Frame(number=0, first=0, rows=one["rows"], concurrency=1) if "rows" in one else None,
        )
        for one in document["commands"]
    ]


def _mapping(value: object) -> Document:
    return dict(value) if isinstance(value, Mapping) else {}
