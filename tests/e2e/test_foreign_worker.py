"""A worker that knows only the document of the protocol runs playbooks of a real server."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cli import wait_until
from tests.support.server import Place, place
from tests.support.yaml import playbook

WORKER = Path(__file__).parents[1] / "support" / "foreign_worker.py"
NOOPS = playbook("""
workflow:
  - step: start
    tool: {kind: noop}
    next: middle
  - step: middle
    tool: [{one: {kind: noop}}, {two: {kind: noop}}]
    next: end
  - {step: end, tool: {kind: noop}}
""")


@pytest.fixture(scope="module")
def server() -> Iterator[Place]:
    with place() as found:
        found.start_server()
        yield found


@contextmanager
def foreign_worker(server: Place) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-I", str(WORKER), server.url, server.tokens["worker_token"]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: server.sessions() == 1, seconds=60, what="the foreign worker is registered")
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_foreign_worker_is_small_and_knows_nothing_of_us() -> None:
    text = WORKER.read_text()
    assert len(text.splitlines()) <= 100
    modules = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
    }
    assert modules <= sys.stdlib_module_names | {"__future__"}


def test_it_runs_a_playbook_and_what_it_cannot_run_waits_for_another(server: Place) -> None:
    with foreign_worker(server) as process:
        execution_id = server.submit(NOOPS)
        final = server.finish(execution_id, seconds=60)
        assert final["status"] == "COMPLETED", final
        assert final["result"] == {"hello": "end", "attempt": 1}
        ended = [e["command_id"] for e in server.events(execution_id) if e["event_type"] == "command.completed"]
        assert ended == ["start#1", "middle#1", "end#1"]
        mixed = server.submit(
            playbook("""
            workflow:
              - {step: start, tool: {kind: noop}, next: user}
              - {step: user, tool: {kind: python, code: "result = 7"}}
            """)
        )
        wait_until(
            lambda: any(e["event_type"] == "step.decided" for e in server.events(mixed)), seconds=60, what="a step"
        )
        assert server.finish(server.submit(NOOPS), seconds=60)["status"] == "COMPLETED"
        assert server.request("GET", f"/api/executions/{mixed}").json["status"] == "RUNNING"
        command = server.request("GET", f"/api/commands/{mixed}/user%231", token="worker_token").json
        assert (command["tool_kind"], command["attempt"], command["session_id"]) == ("python", 0, None)
        assert command["body"]["step"] == "user"
        server.start_worker()
        assert server.finish(mixed)["result"] == 7
        assert process.poll() is None
