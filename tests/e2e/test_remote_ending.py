"""Cancelling and child playbooks with a server and a worker that are processes of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.cli import wait_until
from tests.support.server import Place, running_server
from tests.support.yaml import playbook

CHILD = playbook("""
workload: {n: 1}
workflow:
  - {step: start, tool: {kind: python, input: {n: "{{ n }}"}, code: "result = {'double': n * 2}"}}
""").replace("name: test", "name: child, path: lib/child")
PARENT = playbook("""
workflow:
  - step: start
    loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel}}
    tool: {kind: playbook, path: lib/child, input: {n: "{{ n }}"}}
    next: [{step: end}]
  - step: end
    tool:
      kind: python
      input: {rows: "{{ start.results }}"}
      code: "result = [row['double'] for row in rows]"
""")
SLEEPER = playbook("""
workflow:
  - step: start
    tool:
      kind: python
      input: {file: "{{ workload.file }}"}
      code: |
        import os, time
        with open(file, "w") as out: out.write(str(os.getpid()))
        time.sleep(60)
""")


@pytest.fixture(scope="module")
def server() -> Iterator[Place]:
    with running_server(workers=1) as found:
        yield found


def test_a_remote_worker_starts_and_awaits_children(server: Place) -> None:
    registered = server.request("POST", "/api/catalog", {"playbook": CHILD})
    assert registered.status in (200, 201), registered.content
    final = server.finish(server.submit(PARENT))
    assert (final["status"], final["result"]) == ("COMPLETED", [2, 4, 6]), server.logs()


def test_a_remote_worker_ends_the_process_of_a_cancelled_step(server: Place) -> None:
    file = server.home / "pid"
    execution_id = server.submit(SLEEPER, {"file": str(file)})
    wait_until(lambda: file.exists() and bool(file.read_text()), seconds=60, what="the step runs")
    pid = int(file.read_text())
    answer = server.request("POST", f"/api/executions/{execution_id}/cancel", {"reason": "enough"})
    assert answer.status == 202
    final = server.finish(execution_id)
    assert final["status"] == "CANCELLED"
    assert "unconfirmed" not in server.events(execution_id)[-1]["meta"]
    wait_until(lambda: not _is_alive(pid), seconds=20, what="the process is gone")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
