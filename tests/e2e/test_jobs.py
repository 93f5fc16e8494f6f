"""Jobs as people see them: what waits for a worker, where a job runs, what it cost.  Real processes; only what the job
itself does is a stand-in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import wait_until
from tests.support.jobs import UI, job_step
from tests.support.server import Place, Process, running_server
from tests.support.yaml import HEAD, write

WAITS = "no worker of pool 'spark' is connected: start one with `noetl worker --pool spark`"


@pytest.fixture
def server() -> Iterator[Place]:
    """A server with one worker of the default pool."""
    with running_server(workers=1) as found:
        yield found


def spark_worker(server: Place, *words: str, **extra: str) -> Process:
    before = server.sessions()
    process = server.start("worker", "--server", server.url, *words, program="tests.support.jobs", **extra)
    wait_until(lambda: server.sessions() > before, seconds=60, what="the worker is registered")
    return process


def test_a_run_says_that_it_waits_for_a_pool_and_then_where_its_job_is(server: Place, tmp_path: Path) -> None:
    noetl = server.cli()
    running = noetl.spawn("run", write(tmp_path, HEAD + job_step(seconds=2.5)))
    assert running.stderr is not None
    execution_id = running.stderr.readline().split()[1]
    line = running.stderr.readline()
    assert line.split() == ["!", "start", "waits", *WAITS.split()]
    view = server.request("GET", f"/api/executions/{execution_id}").json
    assert (view["status"], view["steps"]["start"]["status"]) == ("RUNNING", "issued")
    assert [(one["step"], one["pool"], one["message"]) for one in view["unserved"]] == [("start", "spark", WAITS)]
    assert f"waiting    step 'start': {WAITS}" in noetl("status", execution_id).stdout

    spark_worker(server, "--pool", "spark")
    line = running.stderr.readline()
    assert line.split() == ["·", "start", "job", "1:", "local-1,", UI]
    # The run follows the ledger; what a view shows is a moment behind it unless it is asked for a position.
    position = server.events(execution_id)[-1]["position"]
    seen = server.request("GET", f"/api/executions/{execution_id}", min_position=position).json
    assert seen["unserved"] == []
    (job,) = seen["steps"]["start"]["running_jobs"]
    assert (job["ui"], job["application"], job["attempt"]) == (UI, "local-1", 1)
    wait_until(
        lambda: any(event["event_type"] == "job.progressed" for event in server.events(execution_id)),
        seconds=60,
        what="progress is recorded",
    )
    shown = noetl("status", execution_id).stdout
    assert "claimed    start" in shown
    assert "job of task" in shown
    assert f"Spark UI {UI}" in shown
    assert re.search(r"stages [0-3]/3", shown), shown

    stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 0, stderr
    assert '"attempt": 1' in stdout
    cost = "read 1,000,000 rows (12.3 MB), written 10 rows (512 bytes), shuffle 2.0 MB, 3 stages, 40 tasks, 1.5 s"
    assert cost in stderr
    assert "✗ few, 3 broken" in stderr
    after = noetl("status", execution_id).stdout
    assert cost in after
    assert "✓ id is not null" in after
    assert "Spark UI" not in after, "it is over"
    events = noetl("events", execution_id).stdout
    assert f"attempt 1, job 1: local-1, {UI}" in events
    assert "2 jobs, stages" in events
    assert cost in events
    assert "job of start runs" in noetl("logs", execution_id).stdout


def test_json_says_it_too_and_the_pool_may_come_from_the_environment(server: Place, tmp_path: Path) -> None:
    noetl = server.cli()
    running = noetl.spawn("run", write(tmp_path, HEAD + job_step()), "--json")
    assert running.stderr is not None
    assert WAITS in running.stderr.readline()
    spark_worker(server, NOETL_WORKER_POOL="spark")
    stdout, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    assert '"status": "COMPLETED"' in stdout
