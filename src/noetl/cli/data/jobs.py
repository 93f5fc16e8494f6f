"""Jobs as text: where one runs, how far it is, what it cost."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

from noetl.core.execution.jobs.reports import shown

_UNITS = ("bytes", "KB", "MB", "GB", "TB")
_KILO = 1000
_COUNT_MAX = 2**63


def progress_text(progress: object) -> str:
    """How far a job is, in a few words."""
    told = _members(progress)
    if not told:
        return "no stage yet"
    parts = []
    jobs = told.get("jobs")
    if isinstance(jobs, list) and jobs:
        parts.append(f"{len(jobs)} {'job' if len(jobs) == 1 else 'jobs'}")
    parts.append(f"stages {_count(told, 'stages_done')}/{_count(told, 'stages')}")
    parts.append(f"tasks {_count(told, 'tasks_done'):,}/{_count(told, 'tasks'):,}")
    if failed := _count(told, "tasks_failed"):
        parts.append(f"{failed:,} failed")
    return ", ".join(parts)


def intent_text(meta: object) -> str:
    """Where a job runs."""
    told = _members(meta)
    row = f" of row {text_of(told, 'row')}" if "row" in told else ""
    log = text_of(told, "event_log")
    where = text_of(told, "ui") or (f"event log {log}" if log else "")
    parts = [text_of(told, "application") or text_of(told, "job_group"), where]
    return f"job {text_of(told, 'n')}{row}: " + ", ".join(part for part in parts if part)


def stage_text(progress: object) -> str:
    """Which stage a job is in, in brackets; nothing if nobody knows."""
    stage = text_of(_members(progress), "stage")
    return f" ({stage})" if stage else ""


def running_lines(job: object, now: datetime.datetime) -> Iterable[str]:
    """A job that runs, for a list of steps."""
    told = _members(job)
    since, progress = text_of(told, "since"), told.get("progress")
    place = f"job of task {text_of(told, 'task')!r}, attempt {text_of(told, 'attempt')}"
    yield f"{place}, since {since[11:19]}Z ({duration_text(_seconds_since(since, now))})"
    yield f"  {progress_text(progress)}{stage_text(progress)}"
    for name, label in (("application", "application"), ("ui", "Spark UI"), ("event_log", "event log")):
        if text := text_of(told, name):
            yield f"  {label} {text}"


def facts_text(job: object) -> str:
    """What a job cost, in one line."""
    told = _members(job)
    parts = []
    for verb in ("read", "written"):
        rows, size = _count(told, f"rows_{verb}"), _count(told, f"bytes_{verb}")
        if rows or size:
            parts.append(f"{verb} {rows:,} rows" + (f" ({size_text(size)})" if size else ""))
    if shuffled := max(_count(told, "shuffle_write_bytes"), _count(told, "shuffle_read_bytes")):
        parts.append(f"shuffle {size_text(shuffled)}")
    if spilled := _count(told, "spilled_bytes"):
        parts.append(f"spilled {size_text(spilled)}")
    if stages := _count(told, "stages"):
        parts.append(f"{stages:,} stages, {_count(told, 'tasks'):,} tasks")
    if failed := _count(told, "tasks_failed"):
        parts.append(f"{failed:,} tasks failed")
    if milliseconds := _count(told, "wall_ms"):
        parts.append(duration_text(milliseconds / 1000))
    return ", ".join(parts) or "nothing to tell"


def finished_lines(job: object) -> Iterable[str]:
    """A job that has ended, for a list of steps."""
    told = _members(job)
    place = f"job of task {text_of(told, 'task')!r}" + (f", row {text_of(told, 'row')}" if "row" in told else "")
    yield f"{place}: {facts_text(told)}"
    for verdict in verdicts_of(told):
        yield f"  {verdict_text(verdict)}"


def verdicts_of(job: object) -> list[dict[str, Any]]:
    """What was expected of a job's outputs, and what came of it."""
    found = _members(job).get("expect")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def verdict_text(verdict: object) -> str:
    told = _members(verdict)
    name, of = text_of(told, "name"), text_of(told, "of")
    about = f"{name} of {of}" if of else name
    if told.get("met") is True:
        return f"✓ {about}"
    # Spark's own errors name the rule again.
    message = text_of(told, "message").removeprefix(f"{name}: ")
    return f"✗ {about}, {_count(told, 'broken'):,} broken" + (f": {message}" if message else "")


def _members(value: object) -> dict[str, Any]:
    """Workers say these things, and a host of another release may have taken them: nothing here may fail."""
    return value if isinstance(value, dict) else {}


def _count(told: dict[str, Any], name: str) -> int:
    value = told.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value <= _COUNT_MAX else 0


def text_of(told: dict[str, Any], name: str) -> str:
    """In one line, and without what would change the screen."""
    value = told.get(name)
    if type(value) is int:
        return str(_count(told, name))
    return shown(value) if isinstance(value, str) else ""


def _seconds_since(moment: str, now: datetime.datetime) -> float:
    try:
        return max((now - datetime.datetime.fromisoformat(moment)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return 0.0


def size_text(size: float) -> str:
    for unit in _UNITS:
        if size < _KILO or unit == _UNITS[-1]:
            return f"{size:,.0f} {unit}" if unit == _UNITS[0] else f"{size:,.1f} {unit}"
        size /= _KILO
    raise AssertionError("unreachable")


def duration_text(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
