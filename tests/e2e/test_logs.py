"""Logs as users see them: real servers, workers and command lines, a tail that is followed while a task prints."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli, cli, descendants, kill_all, wait_until
from tests.support.server import Place, running_server
from tests.support.yaml import playbook, write

GATED = playbook("""
workload: {gate: none}
workflow:
  - step: start
    tool:
      kind: python
      input: {gate: "{{ workload.gate }}"}
      code: |
        import os, time
        print("first")
        while not os.path.exists(gate): time.sleep(0.01)
        print("second")
        result = "done"
    next: more
  - step: more
    tool: {kind: python, code: "import sys\\nprint('third', file=sys.stderr)"}
""")
ROWS = 2_000
PRINTING_LOOP = playbook(f"""
workflow:
  - step: items
    loop: {{in: "{{{{ range({ROWS}) | list }}}}", iterator: n, spec: {{mode: parallel, max_in_flight: 20}}}}
    tool: {{kind: python, input: {{n: "{{{{ n }}}}"}}, code: "print('row', n)"}}
""")


@pytest.fixture(scope="module")
def server() -> Iterator[Place]:
    with running_server() as found:
        yield found


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def logs_of(server: Place, execution_id: str, **query: object) -> Any:
    answer = server.request("GET", f"/api/executions/{execution_id}/logs", **query)
    assert answer.status == 200, answer.content
    return answer.json


def texts_of(server: Place, execution_id: str) -> list[tuple[int, str]]:
    return [(line["attempt"], line["text"]) for line in logs_of(server, execution_id)["lines"]]


# --- following ---------------------------------------------------------------------------------------------------


def test_a_tail_shows_lines_as_they_come_and_ends_with_the_execution(server: Place, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    execution_id = server.submit(GATED, {"gate": str(gate)})
    tail = server.cli().spawn("logs", execution_id, "-f")
    assert read_line(tail).endswith(" start | first\n")
    assert server.request("GET", f"/api/executions/{execution_id}").json["status"] == "RUNNING"
    gate.touch()
    code, rest, err = ended(tail)
    assert (code, err) == (0, "")
    assert [line.split(" ", 1)[1] for line in rest.splitlines()] == ["start | second", "more ! third"]
    again = server.cli()("logs", execution_id, "--step", "more", "--json")
    assert [json.loads(line)["text"] for line in again.stdout.splitlines()] == ["third"]


def test_a_tail_that_is_interrupted_ends_quietly(server: Place, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    execution_id = server.submit(GATED, {"gate": str(gate)})
    tail = server.cli().spawn("logs", execution_id, "-f")
    read_line(tail)
    tail.send_signal(signal.SIGINT)
    assert ended(tail) == (130, "", "")
    gate.touch()
    assert server.finish(execution_id)["status"] == "COMPLETED"


def test_plain_text_is_followed_with_any_client(server: Place, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    execution_id = server.submit(GATED, {"gate": str(gate)})
    request = urllib.request.Request(
        f"{server.url}/api/executions/{execution_id}/logs?follow=true",
        headers={"Accept": "text/plain", "Authorization": f"Bearer {server.tokens['token']}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert answer.readline().endswith(b" start | first\n")
        gate.touch()
        assert [line.split(b" ", 1)[1] for line in answer.read().splitlines()] == [b"start | second", b"more ! third"]


def test_a_server_that_is_restarted_in_the_middle_of_a_tail_is_found_again(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with running_server() as server:
        execution_id = server.submit(GATED, {"gate": str(gate)})
        tail = server.cli().spawn("logs", execution_id, "-f", "--json")
        assert json.loads(read_line(tail))["text"] == "first"
        server.processes[0].signal(signal.SIGKILL)
        server.processes[0].wait()
        server.start_server()
        gate.touch()
        code, rest, err = ended(tail)
        lines = [json.loads(line) for line in rest.splitlines()]
        assert code == 0, err
        assert [line["text"] for line in lines][-2:] == ["second", "third"]
        everything = logs_of(server, execution_id)
    assert [line["text"] for line in everything["lines"]] == ["first", *(line["text"] for line in lines)]
    assert everything["is_complete"]


def test_what_a_killed_worker_had_said_stays_and_the_next_attempt_is_told_apart(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with running_server(NOETL_SESSION_LEASE_SECONDS="1") as server:
        execution_id = server.submit(GATED, {"gate": str(gate)})
        wait_until(lambda: bool(texts_of(server, execution_id)), seconds=60, what="the first line is durable")
        kill_all(descendants(server.processes[1].pid))
        assert texts_of(server, execution_id) == [(1, "first")]
        wait_until(lambda: server.sessions() == 0, seconds=60, what="its session is over")
        server.start_worker()
        wait_until(lambda: len(texts_of(server, execution_id)) == 2, seconds=60, what="the second attempt speaks")
        gate.touch()
        assert server.finish(execution_id)["status"] == "COMPLETED"
        assert texts_of(server, execution_id) == [(1, "first"), (2, "first"), (2, "second"), (1, "third")]


def test_rows_that_print_are_gathered(server: Place) -> None:
    execution_id = server.submit(PRINTING_LOOP)
    assert server.finish(execution_id)["status"] == "COMPLETED"
    page = logs_of(server, execution_id, limit=5_000)
    assert sorted(line["row"] for line in page["lines"]) == list(range(ROWS))
    assert all(line["text"] == f"row {line['row']}" for line in page["lines"])
    frames = [event for event in server.events(execution_id) if event["event_type"] == "frame.committed"]
    assert sum(frame["meta"]["logs"]["lines"] for frame in frames) == ROWS
    assert len(frames) < ROWS / 10, "so are their frames, and a frame has few chunks"


# --- the API -----------------------------------------------------------------------------------------------------


def test_pages_go_on_where_the_last_one_ended(server: Place, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    execution_id = server.submit(GATED, {"gate": str(tmp_path / "gate")})
    server.finish(execution_id)
    after, seen = None, []
    while True:
        page = logs_of(server, execution_id, limit=1, **({} if after is None else {"after": after}))
        seen += [line["text"] for line in page["lines"]]
        if page["is_complete"]:
            break
        after = page["next_after"]
    assert seen == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("path", "query", "headers", "status", "code"),
    [
        ("1", {}, {}, 404, "execution_unknown"),
        ("x", {}, {}, 404, "execution_unknown"),
        ("{id}", {}, {"Noetl-Tenant": "other"}, 404, "execution_unknown"),
        ("{id}", {"after": "nonsense"}, {}, 422, "request_invalid"),
        ("{id}", {"limit": 0}, {}, 422, "request_invalid"),
        ("{id}", {"step": "a\x00b"}, {}, 422, "request_invalid"),
        ("{id}", {"follow": "perhaps"}, {"Accept": "text/plain"}, 422, "request_invalid"),
    ],
)
def test_what_cannot_be_read_is_a_problem_with_a_code(
    server: Place, path: str, query: dict[str, object], headers: dict[str, str], status: int, code: str
) -> None:
    execution_id = server.submit(playbook("workflow: [{step: start, tool: {kind: noop}}]"))
    asked = f"/api/executions/{path.format(id=execution_id)}/logs"
    answer = server.request("GET", asked, headers=headers, **query)
    assert (answer.status, answer.json["code"]) == (status, code), answer.content
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_session_writes_no_logs_of_what_it_does_not_hold(server: Place) -> None:
    registered = server.request(
        "POST", "/api/worker/sessions", {"worker_id": "odd", "slots": 1, "pool": "nowhere"}, token="worker_token"
    )
    session_id = registered.json["session_id"]
    execution_id = server.submit(playbook("workflow: [{step: start, tool: {kind: noop}}]"))
    chunk = {"execution_id": execution_id, "command_id": "start#1", "attempt": 1, "seq": 0}
    chunk |= {"first_at_ms": 1, "last_at_ms": 1, "lines": 1, "bytes": 1, "content": "e30="}
    body = {"session_id": session_id, "chunks": [chunk]}
    answer = server.request("POST", "/api/worker/logs", body, token="worker_token")
    assert (answer.status, answer.json) == (200, {"kept": 0, "refused": 1})
    assert logs_of(server, execution_id)["lines"] == []
    lost = server.request("POST", "/api/worker/logs", {**body, "session_id": "1"}, token="worker_token")
    assert lost.json["code"] == "lease_lost"


# --- on one machine ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def noetl() -> Iterator[Cli]:
    with cli() as command:
        yield command


def test_the_logs_of_an_embedded_run_are_read_without_a_host(noetl: Cli, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    done = noetl("run", write(tmp_path, GATED), "--set", f"gate={tmp_path / 'gate'}", "--json")
    execution_id = done.json["execution_id"]
    for words in (("logs", execution_id), ("logs", execution_id, "-f")):
        shown = noetl(*words)
        assert (shown.code, shown.stderr) == (0, "")
        assert [line.split(" ", 1)[1] for line in shown.stdout.splitlines()] == [
            "start | first",
            "start | second",
            "more ! third",
        ]
    unknown = noetl("logs", "1")
    assert (unknown.code, unknown.stdout) == (2, "")
    assert "there is no execution 1" in unknown.stderr


def test_an_embedded_run_is_followed_from_another_terminal(noetl: Cli, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = noetl.spawn("run", write(tmp_path, GATED), "--set", f"gate={gate}")
    assert run.stderr is not None
    execution_id = run.stderr.readline().split()[1]
    tail = noetl.spawn("logs", execution_id, "-f")
    assert read_line(tail).endswith(" start | first\n")
    assert run.poll() is None
    gate.touch()
    code, rest, err = ended(tail)
    assert (code, err) == (0, ""), err
    assert rest.endswith("more ! third\n")
    assert ended(run)[0] == 0
