"""Real signals to real servers and workers: what was held runs again soon, and every transition is there once."""

from __future__ import annotations

import datetime
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fault.test_kill import check_ledger
from tests.support.cli import descendants, kill_all, wait_until
from tests.support.server import Place, Process, place, running_server
from tests.support.yaml import playbook, slow_chain

STEPS = 12
RESTART_SECONDS_MAX = 4.0


def claimed(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["event_type"] == "command.claimed"]


def seconds_of(event: dict[str, Any]) -> float:
    return datetime.datetime.fromisoformat(event["event_time"]).timestamp()


def is_busy(server: Place, executions: list[str], steps: int) -> bool:
    """Whether every execution is somewhere in its middle."""
    return all(
        0 < sum(e["event_type"] == "command.completed" for e in server.events(one)) < steps for one in executions
    )


def finish_all(server: Place, executions: list[str], steps: int) -> None:
    for execution_id in executions:
        final = server.finish(execution_id)
        assert final["status"] == "COMPLETED", (final, server.logs())
        assert final["result"] == {"n": steps}
        check_ledger(server.events(execution_id), steps)


def second_attempts(server: Place, executions: list[str]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Commands that were claimed more than once, with their claims."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for execution_id in executions:
        for event in claimed(server.events(execution_id)):
            found.setdefault((execution_id, event["command_id"]), []).append(event)
    return {key: claims for key, claims in found.items() if len(claims) > 1}


def test_what_a_killed_worker_held_runs_again_within_seconds() -> None:
    with running_server(workers=2, NOETL_WORKER_SLOTS="4") as server:
        executions = [server.submit(slow_chain(STEPS, seconds=0.3)) for _ in range(6)]
        wait_until(lambda: is_busy(server, executions, STEPS), seconds=60, what="all executions are under way")
        victim = server.processes[1]
        at = time.time()
        kill_all(descendants(victim.pid))
        finish_all(server, executions, STEPS)
        again = second_attempts(server, executions)
        assert again, "the victim held nothing"
        waits = [seconds_of(claims[1]) - at for claims in again.values()]
        # A bound for a hanging run; how soon it is on a quiet machine is printed.
        assert max(waits) <= 5 * RESTART_SECONDS_MAX
        print(f"what the killed worker held was claimed again after {max(waits):.1f} s")
        assert len({claims[0]["meta"]["session"] for claims in again.values()}) == 1


def test_a_worker_that_was_paused_beyond_its_lease_writes_nothing_afterwards() -> None:
    with running_server(workers=2, NOETL_WORKER_SLOTS="4", NOETL_SESSION_LEASE_SECONDS="1") as server:
        executions = [server.submit(slow_chain(STEPS, seconds=0.3)) for _ in range(6)]
        wait_until(lambda: is_busy(server, executions, STEPS), seconds=60, what="all executions are under way")
        victim = server.processes[1]
        victim.signal(signal.SIGSTOP)
        time.sleep(3.5)
        victim.signal(signal.SIGCONT)
        finish_all(server, executions, STEPS)
        again = second_attempts(server, executions)
        assert again, "the victim held nothing"
        wait_until(lambda: "session.lost" in victim.text(), seconds=60, what="the paused worker knows")
        # Whatever the worker itself let go: in the name of its old session nothing can be said any more.
        for (execution_id, command_id), claims in again.items():
            late = {"execution_id": execution_id, "command_id": command_id, "attempt": 1, "event_type": "x.y"}
            body = {"session_id": claims[0]["meta"]["session"], "facts": [late]}
            refused = server.request("POST", "/api/events/batch", body, token="worker_token")
            assert (refused.status, refused.json["code"]) == (409, "lease_lost")
        wait_until(lambda: server.sessions() == 2, seconds=60, what="it is back with a new session")
        assert server.finish(server.submit(slow_chain(2, seconds=0.01)))["status"] == "COMPLETED"
        assert victim.popen.poll() is None


def test_workers_come_back_to_a_server_that_was_killed_and_started_again() -> None:
    with running_server(workers=2, NOETL_WORKER_SLOTS="4") as server:
        executions = [server.submit(slow_chain(STEPS, seconds=0.3)) for _ in range(6)]
        wait_until(lambda: is_busy(server, executions, STEPS), seconds=60, what="all executions are under way")
        kill_all(descendants(server.processes[0].pid))
        server.processes[0].wait()
        time.sleep(1)
        server.start_server()
        finish_all(server, executions, STEPS)
        assert server.sessions() == 2
        assert all(worker.popen.poll() is None for worker in server.processes[1:3])


SLEEPER = playbook("""
workflow:
  - step: start
    tool: {kind: python, code: "import time; time.sleep(1.5); result = 1"}
    next: end
  - {step: end, tool: {kind: noop}}
""")


# Its first attempt takes far longer than any worker may take to end.
LONG_SLEEPER = playbook("""
workflow:
  - step: start
    tool:
      kind: python
      input: {path: "{{ workload.path }}"}
      code: |
        import pathlib, time
        mark = pathlib.Path(path)
        is_first = not mark.exists()
        mark.touch()
        time.sleep(600 if is_first else 0)
        result = 1
    next: end
  - {step: end, tool: {kind: noop}}
""")


def begun(server: Place) -> tuple[str, Process]:
    """An execution whose first step runs in the only worker."""
    worker = server.start_worker()
    execution_id = server.submit(SLEEPER)
    wait_until(lambda: bool(claimed(server.events(execution_id))), seconds=60, what="the step is claimed")
    time.sleep(0.3)
    return execution_id, worker


def test_a_worker_that_is_told_to_end_ends_what_it_holds_and_takes_nothing_more() -> None:
    with place() as server:
        server.start_server()
        execution_id, worker = begun(server)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        events = server.events(execution_id)
        assert [e["command_id"] for e in events if e["event_type"] == "command.completed"] == ["start#1"]
        assert [e["command_id"] for e in claimed(events)] == ["start#1"]
        assert server.sessions() == 0
        server.start_worker()
        assert server.finish(execution_id)["status"] == "COMPLETED"
        assert not second_attempts(server, [execution_id])


@pytest.mark.parametrize("how", ["grace", "twice"])
def test_a_worker_that_must_not_wait_hands_back_what_it_holds_at_once(how: str, tmp_path: Path) -> None:
    extra = {"NOETL_WORKER_GRACE_SECONDS": "0.2"} if how == "grace" else {}
    mark = tmp_path / "mark"
    with place(**extra) as server:
        server.start_server()
        worker = server.start_worker()
        execution_id = server.submit(LONG_SLEEPER, {"path": str(mark)})
        wait_until(mark.exists, seconds=60, what="the step runs")
        worker.signal(signal.SIGTERM)
        if how == "twice":
            time.sleep(0.2)
            worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        # Whoever counts sessions to see that the next worker has come must not count this one.
        wait_until(lambda: server.sessions() == 0, seconds=60, what="the session has ended")
        server.start_worker()
        assert server.finish(execution_id)["status"] == "COMPLETED"
        assert [key[1] for key in second_attempts(server, [execution_id])] == ["start#1"]
        check = server.events(execution_id)
        assert len({event["transition_key"] for event in check}) == len(check)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_workers_and_servers_killed_again_and_again_finish_every_execution(seed: int) -> None:
    chance = random.Random(seed)
    with running_server(workers=3, NOETL_WORKER_SLOTS="4", NOETL_SESSION_LEASE_SECONDS="1") as server:
        executions = [server.submit(slow_chain(10, seconds=0.1)) for _ in range(8)]
        alive = {"server": server.processes[0], "workers": server.processes[1:4]}
        for _ in range(6):
            time.sleep(chance.uniform(0.2, 1.0))
            if chance.random() < 0.3:
                kill_all(descendants(alive["server"].pid))
                alive["server"].wait()
                alive["server"] = server.start_server()
            else:
                victim = alive["workers"].pop(0)
                kill_all(descendants(victim.pid))
                victim.wait()
                alive["workers"].append(server.start("worker", "--server", server.url))
        finish_all(server, executions, 10)
