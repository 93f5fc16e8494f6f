"""What a worker may say about jobs, checked and bounded before it is recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from noetl.core import kinds, limits
from noetl.core.codec import canonical_bytes
from noetl.core.errors import EnvelopeInvalid
from noetl.core.event import Draft
from noetl.core.execution.state import Command

# They would write over the screen of whoever looks at them, or turn its lines around.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
EVENTS = frozenset((kinds.JOB_INTENDED, kinds.JOB_PROGRESSED))
_TEXTS = ("task", "job_group", "application", "ui", "event_log", "started")
_NUMBER_MAX = 2**31
_COUNT_MAX = 2**63 - 1
_COUNTS = ("stages", "stages_done", "tasks", "tasks_done", "tasks_failed")
# Of a job that has ended: what is added up and shown as numbers, and what is shown as it is.
_FIGURES = frozenset(
    (
        *("row", "try", "stages", "tasks", "tasks_failed", "rows_read", "bytes_read", "rows_written", "bytes_written"),
        *("shuffle_read_bytes", "shuffle_write_bytes", "spilled_bytes", "executor_ms", "gc_ms", "wall_ms"),
    )
)
_SHOWN = frozenset(("task", "job", "application", "ui", "event_log"))
_VERDICT_TEXTS = ("name", "of", "message")


def shown(text: str) -> str:
    """A text in one line, without control characters."""
    return _CONTROL.sub(" ", text)


def is_told_again(command: Command, event_type: str, meta: Mapping[str, object]) -> bool:
    """Whether it is recorded already.  A worker numbers what it says, and says one after the other."""
    number, job = meta.get("n"), command.job
    if type(number) is not int or number < 1 or job is None:
        return False
    return number <= (job.number if event_type == kinds.JOB_INTENDED else job.reports)


def job_draft(command: Command, event_type: str, meta: Mapping[str, object]) -> Draft:
    """The event that a worker's word about a job becomes.  Raises EnvelopeInvalid for what it cannot be."""
    number, known = meta.get("n"), command.job
    is_intent = event_type == kinds.JOB_INTENDED
    last = 0 if known is None else known.number if is_intent else known.reports
    # A number may be left out: it was used for a word that nobody waited for in the end.
    if type(number) is not int or not last < number <= _NUMBER_MAX:
        raise EnvelopeInvalid(f"n of the next {event_type} of {command.command_id} is above {last}, not {number!r}")
    if not is_intent and known is None:
        raise EnvelopeInvalid(f"{command.command_id} has no job that could progress: say job.intended first")
    told = _intent(meta) if is_intent else _progress(meta, known.number if known is not None else 0)
    is_frame = command.frame is not None
    return Draft(
        event_type=event_type,
        transition_key=kinds.job_key(event_type, command.command_id, command.attempt, number),
        command_id=command.command_id,
        meta={"step": command.step, "attempt": command.attempt, "n": number, **told},
        stage_id=f"{command.step}#{command.run}" if is_frame else None,
        frame_id=command.command_id if is_frame else None,
    )


def _intent(meta: Mapping[str, object]) -> dict[str, object]:
    told: dict[str, object] = {**_place(meta), **_texts(meta, _TEXTS)}
    if not told.get("task"):
        raise EnvelopeInvalid("task must be the name of the task that has the job")
    conf = meta.get("conf")
    if conf is not None:
        if not isinstance(conf, Mapping) or not all(isinstance(value, str) for value in conf.values()):
            raise EnvelopeInvalid("conf of a job must be an object of texts")
        if len(canonical_bytes(conf)) > limits.JOB_CONF_BYTES_MAX:
            raise EnvelopeInvalid(f"conf of a job has more than {limits.JOB_CONF_BYTES_MAX:,} bytes: give a reference")
        told["conf"] = conf
    return told


def _progress(meta: Mapping[str, object], last: int) -> dict[str, object]:
    told: dict[str, object] = {**_place(meta), **_texts(meta, ("task", "stage"))}
    job, jobs = meta.get("job"), meta.get("jobs", ())
    if type(job) is not int or not 1 <= job <= last:
        raise EnvelopeInvalid(f"job must be the n of an intent, 1 to {last}, not {job!r}")
    if not isinstance(jobs, list | tuple) or not all(_is_count(one) for one in jobs):
        raise EnvelopeInvalid("jobs must be the numbers of the engine's own jobs")
    told |= {"job": job, "jobs": list(jobs[-limits.JOB_IDS_MAX :])}
    for name in _COUNTS:
        count = meta.get(name, 0)
        if not _is_count(count):
            raise EnvelopeInvalid(f"{name} of a job must be a number from 0 to {_COUNT_MAX:,}")
        told[name] = count
    return told


def _place(meta: Mapping[str, object]) -> dict[str, object]:
    """Of a row of a loop, which one."""
    row = meta.get("row")
    if row is None:
        return {}
    if not _is_count(row):
        raise EnvelopeInvalid("row must be the index of a row")
    return {"row": row}


def _texts(meta: Mapping[str, object], names: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        value = meta.get(name)
        if value is None:
            continue
        if not isinstance(value, str) or len(value) > limits.JOB_TEXT_CHARS_MAX:
            raise EnvelopeInvalid(f"{name} of a job must be a text of at most {limits.JOB_TEXT_CHARS_MAX:,} characters")
        if value != shown(value):
            raise EnvelopeInvalid(f"{name} of a job must be a text without control characters")
        found[name] = value
    return found


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _COUNT_MAX


def check_recorded(jobs: object) -> None:
    """Refuse more about finished jobs than an event takes: it stays in the state of its execution."""
    if not isinstance(jobs, Sequence) or isinstance(jobs, str) or not all(isinstance(one, Mapping) for one in jobs):
        raise EnvelopeInvalid("jobs must be a list of objects")
    if len(jobs) > limits.JOBS_RECORDED_MAX or len(canonical_bytes(jobs)) > limits.JOBS_RECORDED_BYTES_MAX:
        raise EnvelopeInvalid(
            f"jobs has more than {limits.JOBS_RECORDED_MAX} entries or {limits.JOBS_RECORDED_BYTES_MAX:,} bytes"
        )
    wrong = [name for one in jobs for name, value in one.items() if not _is_figure(name, value)]
    if wrong:
        raise EnvelopeInvalid(
            f"{wrong[0][: limits.JOB_TEXT_CHARS_MAX]} of a finished job is of another type than it has"
        )


def _is_figure(name: str, value: object) -> bool:
    """Whether a member of a finished job is what everybody takes it for.  Others may be anything."""
    if name in _FIGURES:
        return type(value) in (int, float) and 0 <= value <= _COUNT_MAX  # type: ignore[operator]
    if name in _SHOWN:
        return isinstance(value, str)
    return name != "expect" or (isinstance(value, list | tuple) and all(_is_verdict(one) for one in value))


def _is_verdict(value: object) -> bool:
    if not isinstance(value, Mapping) or not _is_count(value.get("broken", 0)):
        return False
    return all(isinstance(value.get(name, ""), str) for name in _VERDICT_TEXTS)


def recordable(jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The last jobs, as far as there is room for them."""
    kept: list[dict[str, Any]] = []
    room = limits.JOBS_RECORDED_BYTES_MAX - 2
    for said in reversed(jobs[-limits.JOBS_RECORDED_MAX :]):
        # A member that would be refused must not take the result of the command with it.
        one = {name: value for name, value in said.items() if _is_figure(name, value)}
        entry = one if len(canonical_bytes(one)) <= limits.JOB_RECORDED_BYTES_MAX else _cut(one)
        room -= len(canonical_bytes(entry)) + 1
        if room < 0:
            break
        kept.append(dict(entry))
    return kept[::-1]


def _cut(job: Mapping[str, Any]) -> dict[str, Any]:
    """What of a job that says too much fits: its members from the smallest on."""
    kept: dict[str, Any] = {"is_cut": True}
    for name in sorted(job, key=lambda name: len(canonical_bytes(job[name]))):
        if len(canonical_bytes({**kept, name: job[name]})) <= limits.JOB_RECORDED_BYTES_MAX:
            kept[name] = job[name]
    return kept
