"""Loops over many rows with several workers: nothing is lost wherever one of them dies, an empty answer of a table
whose rows are locked ends nothing, and no more runs at a time than was allowed, whoever runs it."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from tests.fault.test_cursor_kill import MAX_ROWS, ROOT, check, is_hit, of, playbook, serving, start_mortal
from tests.support.cli import descendants, kill_all, wait_until
from tests.support.mortal_worker import POINTS
from tests.support.server import Place, Process, running_server
from tests.support.standin import standin_process
from tests.support.work import CREDENTIAL, work_database

RESUME_SECONDS_MAX = 5.0
MANY = {
    "row": """
    tool:
      name: note
      kind: postgres
      auth: pg_work
      command: |
        SELECT pg_sleep(0.01);
        INSERT INTO journal (id) VALUES ({{ iter.row.id }});
        UPDATE queue SET status = 'done' WHERE id = {{ iter.row.id }};""",
    "frame": """
    tool:
      name: note
      kind: postgres
      auth: pg_work
      command: |
        SELECT pg_sleep(0.5);
        INSERT INTO journal (id) SELECT (x->>'id')::int FROM json_array_elements('{{ iter.row | tojson }}') x;
        UPDATE queue SET status = 'done' WHERE id IN (SELECT id FROM journal);""",
}


def seconds_of(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["event_time"]).timestamp()


def sessions_of(worker: Process) -> list[str]:
    """The sessions that a worker has had, by its log."""
    lines = [json.loads(line) for line in worker.text().splitlines() if line.startswith("{")]
    found = [line["reason"] for line in lines if line.get("event") == "session.registered"]
    assert found, "a worker without a session has no frames"
    return found


def resumed_after(events: list[dict[str, Any]], deaths: dict[str, float]) -> list[float]:
    """How long after the death of the session that held it each frame was taken by another one."""
    lost = {(one["frame_id"], one["meta"]["attempt"]) for one in of(events, "frame.abandoned")}
    started = {(one["frame_id"], one["meta"]["attempt"]): one for one in of(events, "frame.started")}
    found = []
    for (frame_id, attempt), taken in started.items():
        before = (frame_id, attempt - 1)
        if before in lost:
            session = started[before]["meta"]["session"]
            assert session in deaths, f"{frame_id} was taken from a worker that lived"
            found.append(seconds_of(taken) - deaths[session])
    return found


def another(server: Place) -> Process:
    """A worker, without waiting for it: while one registers, the session of a dead one ends."""
    return server.start("worker", "--server", server.url)


# --- many rows -------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("process", MANY)
def test_ten_thousand_rows_survive_a_kill_at_every_point(process: str, capsys: pytest.CaptureFixture[str]) -> None:
    work, rows = work_database(), 10_000
    asyncio.run(work.fill(rows))
    text = playbook(process, slots=6, frame=", max_attempts: 10", tool=MANY[process])
    text = text.replace(f"max_rows: {MAX_ROWS}", "max_rows: 50")
    points = [point for point in POINTS if (point, process) != ("heartbeat", "frame")]
    deaths: dict[str, float] = {}
    with serving(work, workers=1) as server:
        execution_id = server.submit(text)
        for point in points:
            words = (point, "SIGKILL", "3", "worker", "--server", server.url)
            extra = {"PYTHONPATH": str(ROOT), "NOETL_LOG_LEVEL": "INFO"}
            victim = server.start(*words, program="tests.support.mortal_worker", **extra)
            wait_until(lambda: is_hit(victim, "SIGKILL"), seconds=60, what=f"the worker is hit at {point!r}")  # noqa: B023
            deaths |= dict.fromkeys(sessions_of(victim), time.time())
            assert asyncio.run(work.statuses()).get("pending", 0) > 0, "the loop was at its end before"
        events = check(server, work, execution_id, rows=rows)
    waits = resumed_after(events, deaths)
    with capsys.disabled():
        told = ", ".join(f"{wait:.2f}" for wait in sorted(waits))
        print(f"\n{process}: {len(points)} kills, {len(waits)} frames taken over after {told} s")
    assert waits
    assert max(waits) <= RESUME_SECONDS_MAX


# --- rows that are locked, rows that come late -----------------------------------------------------------


def test_rows_that_a_silent_worker_has_locked_are_waited_for() -> None:
    """One worker stands still with all rows locked: the claims of three others find nothing, and the loop goes on."""
    work, rows = work_database(), MAX_ROWS
    asyncio.run(work.fill(rows))
    with serving(work, workers=0) as server:
        silent = start_mortal(server, "claimed", name="SIGSTOP", times=1)
        adding = (
            "INSERT INTO queue (id) SELECT {{ iter.row.id }} + 4 WHERE {{ iter.row.id }} <= 8 ON CONFLICT DO NOTHING;"
        )
        tool = MANY["row"].replace("SELECT pg_sleep(0.01);", adding)
        execution_id = server.submit(playbook("row", slots=8, tool=tool))
        wait_until(lambda: is_hit(silent, "SIGSTOP"), seconds=60, what="one worker holds the rows and says nothing")
        for _ in range(3):
            another(server)
        events = check(server, work, execution_id, rows=12)
        assert of(events, "frame.abandoned")
        silent.signal(signal.SIGKILL)


def test_slow_claims_of_four_workers_end_only_when_no_row_is_left() -> None:
    """Each claim keeps its rows locked for a while, so that most of the others find nothing; rows add rows."""
    work, rows = work_database(), 24
    asyncio.run(work.fill(8))
    more = "INSERT INTO queue (id) SELECT {{ iter.row.id }} + 8 WHERE {{ iter.row.id }} <= 16 ON CONFLICT DO NOTHING;"
    tool = MANY["row"].replace("SELECT pg_sleep(0.01);", more)
    slow = "SELECT claimed.* FROM claimed, (SELECT pg_sleep(0.25)) AS pause ORDER BY id"
    text = playbook("row", slots=8, tool=tool).replace("SELECT * FROM claimed ORDER BY id", slow)
    assert slow in text
    with serving(work, workers=4) as server:
        execution_id = server.submit(text)
        events = check(server, work, execution_id, rows=rows)
    (done,) = of(events, "loop.done")
    assert done["position"] > max(event["position"] for event in of(events, "frame.committed"))
    sessions = {event["meta"]["session"] for event in of(events, "frame.started")}
    assert len(sessions) == 4, "all workers took part"


def test_a_frame_that_kills_its_worker_fails_and_the_rest_completes() -> None:
    work, rows = work_database(), 12
    asyncio.run(work.fill(rows))
    deadly = """
    tool:
      - name: die
        kind: python
        input: {id: "{{ iter.row.id }}"}
        code: |
          import os, pathlib, signal
          if id == 6:
              # The worker itself, which is above the parent of the child that runs this.
              for line in pathlib.Path(f"/proc/{os.getppid()}/status").read_text().splitlines():
                  if line.startswith("PPid:"):
                      os.kill(int(line.split()[1]), signal.SIGKILL)
      - name: note
        kind: postgres
        auth: pg_work
        command: UPDATE queue SET status = 'done' WHERE id = {{ iter.row.id }}"""
    text = playbook("row", slots=2, tool=deadly, frame=", max_attempts: 2")
    with serving(work, workers=1) as server:
        execution_id = server.submit(text)
        deaths = 0
        while (answer := server.request("GET", f"/api/executions/{execution_id}")).json["status"] == "RUNNING":
            if server.processes[-1].popen.poll() is not None:
                deaths += 1
                assert deaths <= 2, "a worker more than there are attempts"
                another(server)
            time.sleep(0.02)
        events = server.events(execution_id)
    assert answer.json["status"] == "COMPLETED", answer.json
    assert answer.json["result"]["status"] == "partial"
    (failed,) = of(events, "frame.failed")
    assert failed["result"]["context"]["error"]["code"] == "attempts_exhausted"
    # A row of the deadly frame may have run and not been durable yet: it counts as failed, as the others of that frame.
    processed = answer.json["result"]["processed"]
    assert rows - MAX_ROWS <= processed <= asyncio.run(work.statuses())["done"] < rows
    assert processed + answer.json["result"]["failed"] == rows
    assert deaths == 2


# --- how many at a time ----------------------------------------------------------------------------------

IN_FLIGHT = 5


def collection_text(api: str) -> str:
    return f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: probed}}
workflow:
  - step: rows
    loop:
      in: "{{{{ range(200) | list }}}}"
      iterator: x
      spec: {{mode: parallel, max_in_flight: {IN_FLIGHT}}}
    tool: {{kind: http, method: GET, url: "{api}/api/v1/concurrency/probe?delay_seconds=0.05"}}
"""


def cursor_text(api: str, *, side_by_side: int = 1) -> str:
    """Every slot runs so many of its rows at a time."""
    tool = f"""
    tool:
      - {{name: probe, kind: http, method: GET, url: "{api}/api/v1/concurrency/probe?delay_seconds=0.05"}}
      - name: done
        kind: postgres
        auth: {CREDENTIAL}
        command: "UPDATE queue SET status = 'done' WHERE id = {{{{ iter.row.id }}}}\""""
    frame = f", max_attempts: 10, row_concurrency: {side_by_side}"
    return playbook("row", slots=IN_FLIGHT, tool=tool, frame=frame)


SHARD_ROWS = 4


def fanout_text(api: str, rows: int) -> str:
    """One row of every shard fails the first time, and with it the whole shard runs again."""
    page = f"{{{{ x // {SHARD_ROWS} + 1 }}}}"
    return f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: probed}}
workflow:
  - step: rows
    loop:
      in: "{{{{ range({rows}) | list }}}}"
      iterator: x
      spec: {{mode: fanout, max_in_flight: {IN_FLIGHT}, fanout: {{shard_size: {SHARD_ROWS}, max_shard_retries: 3}}}}
    tool:
      - {{name: probe, kind: http, method: GET, url: "{api}/api/v1/concurrency/probe?delay_seconds=0.05"}}
      - {{name: flaky, kind: http, method: GET, url: "{api}/api/v1/flaky?page={page}&fail_on={page}"}}
"""


@contextmanager
def probed() -> Iterator[tuple[str, Any]]:
    """The stand-in, and what it has seen."""
    with standin_process(rate_limit=0) as api:

        def stats() -> Any:
            with urllib.request.urlopen(f"{api}/api/v1/concurrency/stats", timeout=60) as answer:
                return json.loads(answer.read())

        yield api, stats


def disturb(server: Place, victims: list[Process], progress: Any) -> None:
    """Kill workers while rows run, and put another in the place of each."""
    for number, victim in enumerate(victims, 1):
        wait_until(lambda: progress() >= 30 * number, seconds=60, what="some rows")  # noqa: B023
        kill_all(descendants(victim.pid))
        victim.popen.wait()
        another(server)


@pytest.mark.parametrize("source", ["collection", "cursor"])
@pytest.mark.parametrize("kills", [0, 2])
def test_no_more_run_at_a_time_than_were_allowed(source: str, kills: int) -> None:
    """Items of a collection, slots of a cursor; over four workers, also when some of them die and are replaced."""
    work, rows = work_database(), 200
    asyncio.run(work.fill(rows))
    with probed() as (api, stats), serving(work, workers=4) as server:
        execution_id = server.submit(collection_text(api) if source == "collection" else cursor_text(api))
        disturb(server, server.processes[1 : 1 + kills], lambda: stats()["started"])
        final = server.finish(execution_id, seconds=90)
        assert final["status"] == "COMPLETED", (final, server.logs())
        assert final["result"]["stats"]["success"] == rows
        seen = stats()
    assert IN_FLIGHT - 2 <= seen["max_active"] <= IN_FLIGHT
    assert seen["started"] >= rows
    assert seen["started"] == rows or kills


def test_no_more_run_at_a_time_than_slots_times_the_rows_that_each_runs_side_by_side() -> None:
    work, rows, side_by_side = work_database(), 100, 3
    asyncio.run(work.fill(rows))
    with probed() as (api, stats), serving(work, workers=4) as server:
        final = server.finish(server.submit(cursor_text(api, side_by_side=side_by_side)), seconds=90)
        assert final["status"] == "COMPLETED", (final, server.logs())
        assert final["result"]["stats"]["success"] == rows
        seen = stats()
    # More than the slots alone could, and never more than all of them together may.
    assert IN_FLIGHT < seen["max_active"] <= IN_FLIGHT * side_by_side
    assert seen["started"] == rows


def test_shards_that_run_again_count_among_those_that_run_at_a_time() -> None:
    rows = 60
    with probed() as (api, stats), running_server(workers=4, NOETL_WORKER_SLOTS="4") as server:
        execution_id = server.submit(fanout_text(api, rows))
        final = server.finish(execution_id, seconds=90)
        assert final["status"] == "COMPLETED", (final, server.logs())
        events = server.events(execution_id)
        seen = stats()
    again = {event["meta"]["first"] for event in of(events, "frame.dispatched") if event["meta"].get("tries")}
    assert again == set(range(0, rows, SHARD_ROWS)), "every shard ran again"
    assert len(of(events, "loop.shard.done")) == rows // SHARD_ROWS
    assert IN_FLIGHT - 2 <= seen["max_active"] <= IN_FLIGHT
    assert seen["started"] > rows
