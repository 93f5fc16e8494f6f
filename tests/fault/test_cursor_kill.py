"""SIGKILL of a worker at every point between the claim of a cursor and the end of its frame, with real processes and a
real work table: every row is worked off, none stands in two committed frames, and the table agrees (shape S7)."""

from __future__ import annotations

import asyncio
import signal
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import descendants, kill_all, wait_until
from tests.support.mortal_worker import POINTS
from tests.support.prometheus import parse
from tests.support.server import Place, Process, running_server
from tests.support.work import CLAIM, CREDENTIAL, Work, claim_references, committed_rows, work_database

ROOT = Path(__file__).parents[2]
LEASE_SECONDS = "1.5"
ROWS, MAX_ROWS, SLOTS = 24, 4, 3
# A row is noted when it begins to count: rows that run twice are told by the journal.
ROW = """
    tool:
      - {name: wait, kind: python, code: "import time; time.sleep(0.12)"}
      - name: note
        kind: postgres
        auth: pg_work
        command: |
          INSERT INTO journal (id) VALUES ({{ iter.row.id }});
          UPDATE queue SET status = 'done' WHERE id = {{ iter.row.id }};"""
FRAME = """
    tool:
      - {name: wait, kind: python, code: "import time; time.sleep(0.2)"}
      - name: note
        kind: postgres
        auth: pg_work
        command: |
          INSERT INTO journal (id) SELECT (x->>'id')::int FROM json_array_elements('{{ iter.row | tojson }}') x;
          UPDATE queue SET status = 'done' WHERE id IN (SELECT id FROM journal);"""
TOOLS = {"row": ROW, "frame": FRAME}


def playbook(process: str, *, slots: int = SLOTS, frame: str = ", max_attempts: 10", tool: str | None = None) -> str:
    claim = CLAIM.replace("\n", "\n          ")
    return f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: drained}}
workflow:
  - step: drain
    loop:
      cursor:
        auth: {CREDENTIAL}
        claim: |
          {claim}
      iterator: row
      spec: {{max_in_flight: {slots}, frame: {{max_rows: {MAX_ROWS}, process: {process}{frame}}}}}
{tool or TOOLS[process]}
"""


@contextmanager
def serving(work: Work, *, workers: int = 1, lease: str = LEASE_SECONDS) -> Iterator[Place]:
    key = b64encode(bytes(range(32))).decode()
    extra = {"NOETL_CREDENTIAL_KEY": key, "NOETL_SESSION_LEASE_SECONDS": lease, "NOETL_WORKER_SLOTS": "4"}
    with running_server(workers=workers, **extra) as server:
        body = {"type": "postgres", "data": work.login}
        answer = server.request("PUT", f"/api/credentials/{CREDENTIAL}", body)
        assert answer.status == 200, answer.content
        yield server


def start_mortal(server: Place, point: str, *, name: str = "SIGKILL", times: int = 2) -> Process:
    before = server.sessions()
    words = (point, name, str(times), "worker", "--server", server.url)
    process = server.start(*words, program="tests.support.mortal_worker", PYTHONPATH=str(ROOT))
    wait_until(lambda: server.sessions() > before, seconds=60, what="the mortal worker is registered")
    return process


def is_hit(process: Process, name: str) -> bool:
    if name == "SIGKILL":
        return process.popen.poll() == -signal.SIGKILL
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def check(server: Place, work: Work, execution_id: str, *, rows: int = ROWS) -> list[dict[str, Any]]:
    """What must hold whatever happened; returns the events."""
    final = server.finish(execution_id, seconds=90)
    events = server.events(execution_id)
    assert final["status"] == "COMPLETED", (final, server.logs())
    assert final["result"]["stats"] == {"total": rows, "success": rows, "failed": 0}
    assert final["result"]["status"] == "ok"
    keys = [event["transition_key"] for event in events]
    assert len(keys) == len(set(keys))
    assert committed(server, events) == Counter(range(1, rows + 1))
    journal = asyncio.run(work.journal())
    assert set(journal) == set(range(1, rows + 1)), "rows were lost"
    assert asyncio.run(work.statuses()) == {"done": rows}
    tries = {row["tries"] for row in asyncio.run(work.query("SELECT tries FROM queue"))}
    assert tries == {1}, "a row was claimed twice"
    return events


def committed(server: Place, events: list[dict[str, Any]]) -> Counter[int]:
    rows = {}
    for reference in claim_references(events):
        answer = server.request("GET", f"/api/payloads/{reference['sha256']}", token="worker_token")
        assert answer.status == 200, answer.content
        rows[reference["sha256"]] = answer.json["rows"]
    return committed_rows(events, rows)


def story(point: str, process: str, *, name: str = "SIGKILL", times: int = 2) -> list[dict[str, Any]]:
    """A worker that is hit at a point, and another one that comes and takes over."""
    work = work_database()
    asyncio.run(work.fill(ROWS))
    with serving(work, workers=0) as server:
        victim = start_mortal(server, point, name=name, times=times)
        execution_id = server.submit(playbook(process))
        wait_until(lambda: is_hit(victim, name), seconds=60, what=f"the worker is hit at {point!r}")
        server.start("worker", "--server", server.url)
        events = check(server, work, execution_id)
        if name == "SIGSTOP":
            # What it says when it comes back is refused, and nothing it still holds counts.
            victim.signal(signal.SIGCONT)
            time.sleep(1.0)
            assert server.events(execution_id) == events
            assert asyncio.run(work.statuses()) == {"done": ROWS}
    return events


def of(events: list[dict[str, Any]], event_type: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event_type"] == event_type]


def test_a_worker_killed_between_the_record_and_the_commit_loses_nothing_and_repeats_nothing() -> None:
    events = story("recorded", "row")
    assert of(events, "frame.abandoned")
    # The recorded rows were rolled back with the connection, and were claimed anew.
    assert [event for event in of(events, "cursor.claimed") if event["meta"]["n"] == 2]


def test_a_worker_killed_after_the_commit_leaves_its_rows_in_the_ledger() -> None:
    events = story("committed", "frame")
    assert of(events, "frame.abandoned")


@pytest.mark.long
@pytest.mark.parametrize(
    ("point", "process"),
    # A pipeline that runs once per frame has nothing to persist on the way.
    [(point, process) for point in POINTS for process in TOOLS if (point, process) != ("heartbeat", "frame")],
)
def test_a_worker_killed_at_any_point_loses_nothing(point: str, process: str) -> None:
    events = story(point, process)
    assert of(events, "frame.abandoned") or point == "ended"


# The last row waits for a file, and with it the loop.
GATED = """
    tool:
      - name: wait
        kind: python
        input: {id: "{{ iter.row.id }}"}
        code: |
          import pathlib, time
          time.sleep(0.05)
          while id == LAST and not pathlib.Path("GATE").exists():
              time.sleep(0.02)
"""


def refused_facts(server: Place) -> tuple[float, dict[str, float]]:
    """How many facts came too late, and how many inputs were refused by code."""
    found = parse(server.request("GET", "/metrics").content.decode())
    refused = found.get("noetl_inputs_refused_total")
    codes = {} if refused is None else {dict(had)["code"]: value for (_, had), value in refused.samples.items()}
    return found["noetl_facts_late_total"].value(), codes


def test_the_late_commit_of_a_worker_that_stood_still_for_three_leases_is_refused(tmp_path: Path) -> None:
    """All rows of its frame have run when it stops, and the loop is open when it goes on: what refuses its word is that
    another attempt has the frame, not that the execution has ended."""
    gate, work = tmp_path / "gate", work_database()
    asyncio.run(work.fill(ROWS))
    waiting = GATED.replace("LAST", str(ROWS)).replace("GATE", str(gate)).rstrip()
    tool = waiting + "\n" + ROW[ROW.index("      - name: note") :]
    with serving(work, workers=0) as server:
        victim = start_mortal(server, "sending", name="SIGSTOP", times=1)
        execution_id = server.submit(playbook("row", tool=tool))
        wait_until(lambda: is_hit(victim, "SIGSTOP"), seconds=60, what="the worker stands still before its commit")
        stopped = time.monotonic()
        server.start("worker", "--server", server.url)
        wait_until(lambda: len(asyncio.run(work.journal())) == ROWS - 1, seconds=60, what="one row is left")
        time.sleep(max(0.0, stopped + 3 * float(LEASE_SECONDS) - time.monotonic()))
        assert time.monotonic() - stopped >= 3 * float(LEASE_SECONDS)
        late, codes = refused_facts(server)
        victim.signal(signal.SIGCONT)
        wait_until(lambda: refused_facts(server)[0] > late, seconds=60, what="the late commit is refused")
        assert refused_facts(server)[1]["lease_lost"] > codes.get("lease_lost", 0.0)
        assert "execution_closed" not in refused_facts(server)[1]
        assert server.request("GET", f"/api/executions/{execution_id}").json["status"] == "RUNNING"
        gate.touch()
        events = check(server, work, execution_id)
    lost = of(events, "frame.abandoned")
    assert lost
    for one in lost:
        ends = [event for event in events if event["transition_key"] == f"frame.terminal/{one['frame_id']}"]
        assert [end["event_type"] for end in ends] == ["frame.committed"]
        assert ends[0]["meta"]["attempt"] > one["meta"]["attempt"]


@pytest.mark.long
@pytest.mark.parametrize("point", ["claimed", "persisted", "recorded", "committed"])
def test_a_worker_that_stands_still_holds_up_nobody(point: str) -> None:
    """Its connection stays open: the transaction is in progress until somebody ends it."""
    story(point, "row", name="SIGSTOP", times=1)


@pytest.mark.long
def test_rows_are_added_while_workers_die_again_and_again() -> None:
    work = work_database()
    asyncio.run(work.fill(8))
    more = "INSERT INTO queue (id) SELECT {{ row.id }} + 8 WHERE {{ row.id }} <= 32 ON CONFLICT DO NOTHING;"
    adding = ROW.replace("command: |\n", f"command: |\n          {more}\n")
    with serving(work, workers=1) as server:
        for point in ("claimed", "recorded", "committed", "worked"):
            start_mortal(server, point, times=2)
        execution_id = server.submit(playbook("row", tool=adding, frame=", max_attempts: 20"))
        check(server, work, execution_id, rows=40)


def test_the_lease_of_a_frame_is_renewed_while_a_task_blocks() -> None:
    """A row takes several leases; the session's heartbeat is its lease, and it beats in a thread of its own."""
    work = work_database()
    asyncio.run(work.fill(2))
    tool = ROW.replace("time.sleep(0.12)", "time.sleep(3)")
    with serving(work, workers=2, lease="1.0") as server:
        execution_id = server.submit(playbook("row", slots=1, tool=tool, frame=", heartbeat_seconds: 1"))
        events = check(server, work, execution_id, rows=2)
    assert of(events, "frame.abandoned") == []
    assert asyncio.run(work.journal()) == Counter((1, 2))


def test_a_killed_worker_of_two_is_no_reason_to_stop() -> None:
    work = work_database()
    asyncio.run(work.fill(ROWS))
    with serving(work, workers=2) as server:
        execution_id = server.submit(playbook("row"))
        wait_until(lambda: len(asyncio.run(work.journal())) >= 5, seconds=60, what="the first rows")
        victim = server.processes[-1]
        kill_all(descendants(victim.pid))
        victim.popen.wait()
        check(server, work, execution_id)
