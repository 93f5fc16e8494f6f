"""Shared limits with real servers, workers and signals: permits belong to whoever is alive."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.cli import descendants, kill_all, wait_until
from tests.support.server import Place, running_server
from tests.support.standin import standin_process
from tests.support.yaml import playbook

CONCURRENCY = 2
LONG = playbook("""
limits: {gate: {concurrency: 2}}
workload: {folder: none, rows: 0, seconds: 0}
workflow:
  - step: each
    loop: {in: "{{ range(workload.rows) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 4}}
    tool:
      kind: python
      limit: gate
      input: {n: "{{ n }}", folder: "{{ workload.folder }}", seconds: "{{ workload.seconds }}"}
      code: |
        import os, time
        with open(os.path.join(folder, f"{n}.{time.time_ns()}"), "w") as file:
            file.write("x")
        time.sleep(seconds)
        result = n
""")
PROBES = playbook("""
limits: {api: {concurrency: 3, rate: 200/s}}
workload: {address: none, rows: 0}
workflow:
  - step: each
    loop: {in: "{{ range(workload.rows) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 8}}
    tool:
      kind: http
      limit: api
      url: "{{ workload.address }}/api/v1/concurrency/probe"
      params: {delay_seconds: 0.02, label: "{{ execution_id }}"}
""")


def limits_of(server: Place) -> dict[str, Any]:
    return {one["name"]: one for one in server.request("GET", "/api/limits").json["limits"]}


def stats(standin: str) -> Any:
    with urllib.request.urlopen(f"{standin}/api/v1/concurrency/stats") as answer:
        return json.load(answer)


def begun(folder: Path) -> int:
    return len(list(folder.iterdir()))


def test_two_executions_on_four_workers_stay_below_the_limit_and_are_told_how_they_waited() -> None:
    with standin_process() as address, running_server(workers=4) as server:
        payload = {"address": address, "rows": 60}
        executions = [server.submit(PROBES, payload) for _ in range(2)]
        wait_until(lambda: limits_of(server).get("api", {}).get("in_use"), seconds=60, what="the limit is shown")
        assert "api  rate 200/s, concurrency 3: " in server.cli()("limits").stdout
        for execution_id in executions:
            final = server.finish(execution_id)
            assert final["status"] == "COMPLETED", final
        found = stats(address)
        assert found["completed"] == 120
        assert 1 < found["max_active"] <= 3
        assert set(found["labels"]) == set(executions)
        cost = server.request("GET", f"/api/executions/{executions[0]}").json
        assert cost["steps"]["each"]["loop"]["profile"]["tasks"]["each_task"]["limit_ms"] > 0
        shown = server.cli()("status", executions[0]).stdout
        assert "ms waiting for the limit" in shown
        metrics = server.request("GET", "/metrics").content.decode()
        assert 'noetl_limit_granted_total{limit="api"} 120' in metrics
        wait_until(lambda: not limits_of(server).get("api", {}).get("in_use"), seconds=60, what="all are given back")


def test_permits_of_a_killed_worker_go_to_the_others_when_its_lease_is_over(tmp_path: Path) -> None:
    """The victim holds every permit, with calls that never end; the others wait for nothing else."""
    held, free = tmp_path / "held", tmp_path / "free"
    held.mkdir()
    free.mkdir()
    with running_server(workers=1, NOETL_WORKER_SLOTS="4") as server:
        victim = server.processes[1]
        first = server.submit(LONG, {"folder": str(held), "rows": 2, "seconds": 3600})
        wait_until(lambda: begun(held) == CONCURRENCY, seconds=60, what="the victim holds all permits")
        for _ in range(3):
            server.start_worker()
        second = server.submit(LONG, {"folder": str(free), "rows": 4, "seconds": 0})
        wait_until(lambda: waiting(server, second), seconds=60, what="the others wait")
        assert limits_of(server)["gate"]["in_use"] == CONCURRENCY
        assert begun(free) == 0
        server.request("POST", f"/api/executions/{first}/cancel", {})
        kill_all(descendants(victim.pid))
        wait_until(lambda: begun(free) > 0, seconds=60, what="the others go on")
        assert server.finish(second)["status"] == "COMPLETED"
        assert begun(free) == 4


def waiting(server: Place, execution_id: str) -> int:
    users = limits_of(server).get("gate", {}).get("executions", [])
    return sum(one["waiting"] for one in users if one["execution_id"] == execution_id)


def test_a_worker_that_is_paused_beyond_its_lease_counts_no_more(tmp_path: Path) -> None:
    held, free = tmp_path / "held", tmp_path / "free"
    held.mkdir()
    free.mkdir()
    with running_server(workers=1, NOETL_SESSION_LEASE_SECONDS="1", NOETL_WORKER_SLOTS="4") as server:
        victim = server.processes[1]
        first = server.submit(LONG, {"folder": str(held), "rows": 2, "seconds": 3600})
        wait_until(lambda: begun(held) == CONCURRENCY, seconds=60, what="the victim holds all permits")
        server.start_worker()
        server.request("POST", f"/api/executions/{first}/cancel", {})
        victim.signal(signal.SIGSTOP)
        second = server.submit(LONG, {"folder": str(free), "rows": 4, "seconds": 0})
        assert server.finish(second)["status"] == "COMPLETED"
        victim.signal(signal.SIGCONT)
        third = server.submit(LONG, {"folder": str(free), "rows": 4, "seconds": 0})
        assert server.finish(third)["status"] == "COMPLETED"
        wait_until(lambda: not limits_of(server).get("gate", {}).get("in_use"), seconds=60, what="nothing is held")


def test_a_limit_is_one_over_two_servers_and_survives_the_death_of_one() -> None:
    with standin_process() as address, running_server(workers=1) as server:
        other = server.start("server", NOETL_PORT="0")
        wait_until(lambda: "listening on" in other.text(), seconds=60, what="the second server is up")
        url = next(line.split()[-1] for line in other.text().splitlines() if line.startswith("listening on "))
        server.start("worker", "--server", f"{url},{server.url}")
        wait_until(lambda: both_have_sessions(server, url), seconds=60, what="each server has a worker")
        payload = {"address": address, "rows": 150}
        executions = [server.submit(PROBES, payload) for _ in range(2)]
        wait_until(lambda: stats(address)["started"] > 30, seconds=60, what="calls are under way")
        kill_all(descendants(other.pid))
        for execution_id in executions:
            final = server.finish(execution_id, seconds=90)
            assert final["status"] == "COMPLETED", final
            assert final["result"]["stats"]["success"] == 150
        # What the worker of the dead server had under way may still run while others have its permits.
        assert stats(address)["max_active"] <= 2 * 3


def both_have_sessions(server: Place, url: str) -> bool:
    here = server.sessions()
    kept, server.url = server.url, url
    try:
        return here >= 1 and server.sessions() >= 1
    finally:
        server.url = kept
