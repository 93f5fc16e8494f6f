"""Jobs in words: one line that changes while one runs, and what it cost when it is over."""

from __future__ import annotations

import datetime
import sys
from typing import Any

import pytest

from noetl.cli.data.jobs import (
    duration_text,
    facts_text,
    finished_lines,
    intent_text,
    progress_text,
    running_lines,
    size_text,
    verdict_text,
)
from noetl.cli.progress import Progress

NOON = "2026-01-01T12:00:00.000000Z"
COUNTS = {"jobs": [0, 1], "stages": 5, "stages_done": 3, "tasks": 1_200, "tasks_done": 40, "tasks_failed": 2}


def event(event_type: str, meta: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"event_type": event_type, "meta": meta, "command_id": "load#1", "event_time": NOON, **members}


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (None, "no stage yet"),
        (COUNTS, "2 jobs, stages 3/5, tasks 40/1,200, 2 failed"),
        ({"jobs": [7], "stages": 1}, "1 job, stages 0/1, tasks 0/0"),
        ({"stages": 1, "tasks": 2, "tasks_done": 2}, "stages 0/1, tasks 2/2"),
    ],
)
def test_how_far_a_job_is(progress: dict[str, Any] | None, text: str) -> None:
    assert progress_text(progress) == text


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        ({"n": 1, "application": "app-1", "ui": "http://ui"}, "job 1: app-1, http://ui"),
        ({"n": 2, "row": 3, "job_group": "g", "event_log": "/logs/x"}, "job 2 of row 3: g, event log /logs/x"),
        ({"n": 1, "job_group": "g"}, "job 1: g"),
    ],
)
def test_where_a_job_is(meta: dict[str, Any], text: str) -> None:
    assert intent_text(meta) == text


def test_a_running_job_in_a_list_of_steps() -> None:
    job = {"task": "t", "attempt": 2, "since": NOON, "application": "app-1", "ui": "http://ui", "progress": None}
    now = datetime.datetime(2026, 1, 1, 12, 1, 5, tzinfo=datetime.UTC)
    assert list(running_lines(job, now)) == [
        "job of task 't', attempt 2, since 12:00:00Z (1 min 5 s)",
        "  no stage yet",
        "  application app-1",
        "  Spark UI http://ui",
    ]
    assert list(running_lines({**job, "progress": {**COUNTS, "stage": "count"}}, now))[1].endswith("2 failed (count)")


def test_what_a_job_cost() -> None:
    facts = {"rows_read": 3, "bytes_written": 2_000, "spilled_bytes": 5_000_000, "tasks_failed": 1, "wall_ms": 61_000}
    assert facts_text(facts) == "read 3 rows, written 0 rows (2.0 KB), spilled 5.0 MB, 1 tasks failed, 1 min 1 s"
    assert facts_text({}) == "nothing to tell"
    verdicts = [{"name": "a", "met": True}, {"name": "b", "of": "good", "met": False, "broken": 1_000, "message": "no"}]
    assert list(finished_lines({"task": "t", "row": 4, "wall_ms": 500, "expect": verdicts})) == [
        "job of task 't', row 4: 0.5 s",
        "  ✓ a",
        "  ✗ b of good, 1,000 broken: no",
    ]
    assert verdict_text({"name": "a"}) == "✗ a, 0 broken"


def test_a_message_does_not_repeat_the_name_of_its_rule() -> None:
    verdict = {"name": "row_count", "met": False, "broken": 1, "message": "row_count: there are 3 rows"}
    assert verdict_text(verdict) == "✗ row_count, 1 broken: there are 3 rows"


ODD = [None, 1, "x", [], ["x"], {}, {"x": "y"}, 10**4000, -1, float("nan"), float("inf"), True, "\x1b[2J\n\u202e"]
MEMBERS = ("task", "row", "n", "attempt", "since", "ui", "application", "event_log", "job_group", "stage", "progress")
FIGURES = ("rows_read", "bytes_read", "shuffle_write_bytes", "spilled_bytes", "stages", "tasks", "jobs", "wall_ms")


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_whatever_a_worker_said_of_a_job_is_shown_and_changes_no_screen(odd: Any) -> None:
    now = datetime.datetime(2026, 1, 1, 12, 1, 5, tzinfo=datetime.UTC)
    jobs: list[Any] = [odd, *({name: odd} for name in (*MEMBERS, *FIGURES, "tasks_failed", "expect"))]
    jobs += [{"expect": [{name: odd}]} for name in ("name", "of", "met", "broken", "message")]
    for job in jobs:
        lines = [*running_lines(job, now), *finished_lines(job), facts_text(job), progress_text(job), intent_text(job)]
        assert all(line.isprintable() for line in lines)


def test_what_ends_a_whole_execution_is_of_no_step(capsys: pytest.CaptureFixture[str]) -> None:
    final = {"status": "CANCELLED", "execution_id": "1", "error": {"kind": "cancelled", "message": "by a user"}}
    Progress("1", file="f.yaml", is_quiet=False).result(final)
    assert "  cancelled: by a user" in capsys.readouterr().err.splitlines()


def test_sizes_and_times_for_people() -> None:
    assert [size_text(n) for n in (0, 999, 1_000, 12_345_678, 5e15)] == [
        "0 bytes",
        "999 bytes",
        "1.0 KB",
        "12.3 MB",
        "5,000.0 TB",
    ]
    assert [duration_text(n) for n in (0.04, 59.94, 60, 3_600, 7_265)] == [
        "0.0 s",
        "59.9 s",
        "1 min 0 s",
        "1 h 0 min",
        "2 h 1 min",
    ]


def test_on_a_terminal_a_job_is_one_line_that_changes_and_one_that_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = Progress("1", file="f.yaml", is_quiet=False)
    progress.show(event("command.claimed", {"attempt": 1}))
    intent = {"step": "load", "n": 1, "attempt": 1, "application": "app-1", "ui": "http://ui"}
    progress.show(event("job.intended", intent))
    progress.show(event("job.intended", {**intent, "n": 2}))
    progress.show(event("job.progressed", {"step": "load", "job": 1, **COUNTS}))
    said = capsys.readouterr().err
    assert said.count("http://ui") == 1, "the link stays, once"
    assert said.endswith("\r\x1b[2K  … load#1 (2 jobs, stages 3/5, tasks 40/1,200, 2 failed)")
    done = {"step": "load", "duration_ms": 5.0, "jobs": [{"rows_read": 7, "expect": [{"name": "few", "met": False}]}]}
    progress.show(event("command.completed", done, result={"context": {}}))
    assert capsys.readouterr().err.splitlines()[-2:] == ["      read 7 rows", "      ✗ few, 0 broken"]


def test_what_nobody_takes_is_said_once_also_by_a_quiet_one(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("1", file="f.yaml", is_quiet=True)
    assert not progress.waits_for_worker
    progress.show(event("command.issued", {"step": "load"}))
    assert progress.waits_for_worker
    view = {"unserved": [{"step": "load", "message": "no worker of pool 'spark' is connected"}]}
    progress.unserved(view)
    progress.unserved(view)
    assert capsys.readouterr().err.count("no worker") == 1
    progress.show(event("command.claimed", {"attempt": 1}))
    assert not progress.waits_for_worker
    progress.show(event("frame.dispatched", {}, command_id=None, frame_id="load#1/1"))
    assert progress.waits_for_worker
    progress.show(event("frame.started", {}, command_id=None, frame_id="load#1/1"))
    assert not progress.waits_for_worker
