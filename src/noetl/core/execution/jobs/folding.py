"""The fold of jobs.  A command that is held knows its last job and how far that has come; with its end, or the next
claim, it knows nothing of it any more: what a job left is in the event that ended the command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from noetl.core import kinds
from noetl.core.event import Event
from noetl.core.execution.state import Command, ExecutionState, Job
from noetl.core.execution.writes import integer

Changes = dict[str, Any]
# What of an intent is looked at while the job runs; its settings are in the event.
SHOWN = ("task", "row", "job_group", "application", "ui", "event_log", "started")
COUNTED = ("jobs", "stages", "stages_done", "tasks", "tasks_done", "tasks_failed", "stage")


def _intended(state: ExecutionState, event: Event) -> Changes | None:
    command = _held(state, event)
    if command is None:
        return None
    number, known = integer(event.meta["n"]), command.job or Job()
    if number <= known.number:
        return None
    where = {name: event.meta[name] for name in SHOWN if event.meta.get(name) is not None}
    return _with(state, command, Job(number=number, where=where, since=event.event_time, reports=known.reports))


def _progressed(state: ExecutionState, event: Event) -> Changes | None:
    command = _held(state, event)
    if command is None or command.job is None:
        return None
    number, known = integer(event.meta["n"]), command.job
    if number <= known.reports:
        return None
    told = known._replace(reports=number)
    if event.meta["job"] == known.number:
        # Of several jobs at a time the one that began last is shown.
        told = told._replace(progress={name: event.meta[name] for name in COUNTED if name in event.meta})
    return _with(state, command, told)


def _held(state: ExecutionState, event: Event) -> Command | None:
    command = state.commands.get(event.command_id or "")
    return command if command is not None and command.attempt == event.meta["attempt"] else None


def _with(state: ExecutionState, command: Command, job: Job) -> Changes:
    return {"commands": {**state.commands, command.command_id: command._replace(job=job)}}


FOLDS: Mapping[str, Callable[[ExecutionState, Event], Changes | None]] = {
    kinds.JOB_INTENDED: _intended,
    kinds.JOB_PROGRESSED: _progressed,
}
