"""Metrics of real processes, asked for over HTTP."""

from __future__ import annotations

import http.client
import json
import signal
import socket
from collections.abc import Callable

import pytest

from noetl.processes.metrics.catalogue import METRICS, PROJECTOR, SERVER, WORKER
from tests.support.cli import cli, wait_until
from tests.support.prometheus import Family, parse
from tests.support.server import Place, place, running_server

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: metrics}
workflow:
  - step: rows
    tool: {kind: duckdb, query: "select range as n, md5(range::text) as word from range(20000)"}
    next: {arcs: [{step: sum}]}
  - step: sum
    tool: {kind: duckdb, input: {rows: "{{ rows.rows }}"}, query: "select sum(n)::bigint as total from rows"}
"""
TABLE_METRICS = {
    "noetl_storage_ipc_admission_attempts_total",
    "noetl_storage_ipc_admission_success_total",
    "noetl_storage_ipc_admission_failures_total",
    "noetl_storage_ipc_read_attempts_total",
    "noetl_storage_ipc_read_hits_total",
    "noetl_storage_ipc_read_misses_total",
    "noetl_storage_ipc_durable_fallback_reads_total",
    "noetl_storage_ipc_read_hit_ratio",
    "tier15_budget_exhaustion_total",
}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def asked(port: int, path: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.getheader("content-type") or "", response.read().decode()
    finally:
        connection.close()


def server_metrics(server: Place) -> dict[str, Family]:
    answer = server.request("GET", "/metrics")
    assert answer.status == 200, answer.content
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parse(answer.content.decode())


def test_a_server_and_a_worker_show_what_they_counted() -> None:
    port = free_port()
    with running_server(workers=0) as server:
        worker = server.start_worker(NOETL_WORKER_METRICS_PORT=str(port), NOETL_WORKER_POOL="default")
        quiet = server_metrics(server)
        assert quiet["noetl_event_result_bytes"].value("noetl_event_result_bytes_count") == 0
        told = server.finish(server.submit(PLAYBOOK))
        assert told["status"] == "COMPLETED", (told["error"], server.logs())
        after = server_metrics(server)
        assert after.keys() >= TABLE_METRICS
        assert after["noetl_event_result_bytes"].value("noetl_event_result_bytes_count") > 0
        assert after["noetl_event_result_bytes"].value("noetl_event_result_bytes_sum") > 100
        assert after["noetl_process_info"].value(role="server") == 1

        status, kind, text = asked(port, "/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        families = parse(text)
        assert families.keys() >= TABLE_METRICS
        for family in families.values():
            for _, labels in family.samples:
                assert {"worker_id", "worker_pool", "runtime"} <= {name for name, _ in labels}
        assert families["noetl_storage_ipc_admission_attempts_total"].value() >= 1
        assert families["noetl_storage_ipc_budget_bytes"].value() > families["noetl_storage_ipc_bytes_in_use"].value()
        resolved = families["noetl_reference_resolve_ms"]
        counts = [v for (name, _), v in resolved.samples.items() if name == "noetl_reference_resolve_ms_count"]
        assert sum(counts) >= 1
        status, _, text = asked(port, "/health")
        health = json.loads(text)
        assert (status, health["status"], health["pid"]) == (200, "ok", worker.pid)
        assert (health["worker_pool"], str(worker.pid) in health["worker_id"]) == ("default", True)
        assert asked(port, "/anything")[0] == 404
        # The listener must not take the signal away from the worker.
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


def of_role(role: str) -> set[str]:
    return {name for name, described in METRICS.items() if role in described.roles}


def complete(role: str, scrape: Callable[[], dict[str, Family]]) -> dict[str, Family]:
    """What a process shows as soon as it shows all that its role must."""
    wait_until(lambda: scrape().keys() >= of_role(role), seconds=60, what=f"{of_role(role) - scrape().keys()} is shown")
    found = scrape()
    assert found.keys() <= METRICS.keys()
    for name, family in found.items():
        assert (family.kind, family.meaning) == (METRICS[name].kind, METRICS[name].meaning)
    return found


def test_every_process_shows_every_metric_of_its_role() -> None:
    worker_port, projector_port = free_port(), free_port()
    with running_server(workers=0) as server:
        server.start("projector", NOETL_PROJECTOR_METRICS_PORT=str(projector_port))
        server.start_worker(NOETL_WORKER_METRICS_PORT=str(worker_port))
        told = server.finish(server.submit(PLAYBOOK))
        assert told["status"] == "COMPLETED", (told["error"], server.logs())

        shown = complete(SERVER, lambda: server_metrics(server))
        owners = shown["noetl_shard_owner"].samples
        assert len(owners) == 16
        assert set(owners.values()) == {1}
        assert all({name for name, _ in labels} == {"shard", "instance"} for _, labels in owners)
        assert shown["noetl_shards_owned"].value() == 16
        assert shown["noetl_commits_total"].value() > 1
        assert shown["noetl_commit_events_total"].value() >= len(server.events(told["execution_id"]))
        assert shown["noetl_inputs_waiting"].value() == 0
        assert (shown["noetl_sessions"].value(), shown["noetl_timers_due"].value()) == (1, 0)
        slots = shown["noetl_session_slots"]
        assert slots.value(pool="default", state="all") == slots.value(pool="default", state="free") == 16
        assert shown["noetl_process_resident_bytes"].value() > 10_000_000
        # The one server has every role, so it shows the age of checkpoints too.
        ages = shown["noetl_checkpoint_age_ms"].samples
        assert {dict(labels)["shard"] for _, labels in ages} == {str(shard) for shard in range(16)}

        worker = complete(WORKER, lambda: parse(asked(worker_port, "/metrics")[2]))
        assert "tier" in {name for _, labels in worker["noetl_reference_resolve_ms"].samples for name, _ in labels}
        projector = complete(PROJECTOR, lambda: parse(asked(projector_port, "/metrics")[2]))
        wait_until(
            lambda: len(parse(asked(projector_port, "/metrics")[2])["noetl_projection_lag_ms"].samples) == 16,
            seconds=60,
            what="the projector has all shards",
        )
        assert projector["noetl_process_info"].value(role="projector") == 1


def test_what_waits_is_shown_by_pool() -> None:
    with running_server(workers=0) as server:
        server.submit(PLAYBOOK)
        wait_until(lambda: "noetl_queue_commands" in server_metrics(server), seconds=60, what="the queue is shown")
        shown = server_metrics(server)["noetl_queue_commands"]
        assert (shown.value(pool="default", state="waiting"), shown.value(pool="default", state="held")) == (1, 0)


def test_an_embedded_host_shows_what_a_server_and_a_projector_do() -> None:
    with cli(NOETL_PORT="0") as noetl:
        up = noetl("up", "--tcp")
        assert up.code == 0, up.stderr
        home = Place(noetl.home, noetl.environment(), url=up.stdout.split()[-1])
        shown = complete(SERVER, lambda: server_metrics(home))
        assert shown.keys() >= of_role(PROJECTOR)
        assert shown["noetl_process_info"].value(role="host") == 1


def test_metrics_of_a_server_need_a_token_and_those_of_a_worker_are_off() -> None:
    with running_server(workers=1) as server:
        assert server.request("GET", "/metrics", token=None).status == 401
        assert server.request("GET", "/metrics", token="worker_token").status == 403
        assert "noetl_process_info" in server_metrics(server)


@pytest.mark.parametrize("port", ["70000", "here"])
def test_a_wrong_port_is_told_at_the_start(port: str) -> None:
    with place() as somewhere:
        process = somewhere.start("worker", "--server", "http://127.0.0.1:1", NOETL_WORKER_METRICS_PORT=port)
        assert process.wait() == 2
        assert "NOETL_WORKER_METRICS_PORT" in process.text()


def test_a_taken_port_is_told_at_the_start() -> None:
    with socket.socket() as taken, place() as somewhere:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        process = somewhere.start("worker", "--server", "http://127.0.0.1:1", NOETL_WORKER_METRICS_PORT=port)
        assert process.wait() != 0
        assert f"cannot listen on 127.0.0.1:{port}" in process.text()
        assert "Traceback" not in process.text()
