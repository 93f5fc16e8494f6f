"""Projectors as processes of their own: killed, restarted, asked to leave, and beside a server that has one inside."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import socket
from typing import Any

import pytest

from tests.support.cli import cli, wait_until
from tests.support.databases import connected
from tests.support.server import Place
from tests.support.server import place as server_place
from tests.support.yaml import HEAD

SOON = {"NOETL_SHARD_LEASE_SEC": "0.9", "NOETL_SHARD_HEARTBEAT_SEC": "0.3"}
LOOP = (
    HEAD
    + """
workload: {items: 60}
workflow:
  - step: start
    tool: {kind: noop}
    next: {arcs: [{step: each}]}
  - step: each
    loop: {in: "{{ range(items) | list }}", iterator: n, spec: {max_in_flight: 4}}
    tool:
      kind: python
      input: {n: "{{ iter.n }}"}
      code: |
        import time
        time.sleep(0.02)
        result = {"n": n}
"""
)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def asked(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def summary(port: int) -> Any:
    try:
        return json.loads(asked(port, "/summary"))
    except OSError:
        return {"shards": []}


def start_projector(place: Place) -> tuple[Any, int]:
    port = free_port()
    process = place.start("projector", NOETL_PROJECTOR_METRICS_PORT=str(port), **SOON)
    return process, port


@pytest.fixture
def place() -> Any:
    with server_place(**SOON) as found:
        yield found


def test_a_projector_that_is_killed_is_followed_by_another(place: Place) -> None:
    place.start_server("--no-projector")
    place.start_worker()
    first, port = start_projector(place)
    wait_until(lambda: len(summary(port)["shards"]) == 16, seconds=60, what="the projector holds every shard")
    execution_id = place.submit(LOOP)
    path = f"/api/executions/{execution_id}"
    started = place.request("GET", path).json
    assert started["status"] == "RUNNING"
    wait_until(lambda: done(place, path) > 3, seconds=60, what="the loop is under way")
    first.signal(signal.SIGKILL)
    first.wait()
    seen = place.request("GET", path).json
    # Nobody projects: what is shown stands still, and says how far it is.
    place.request("GET", f"{path}/events", wait_s=5, after_position=seen["position"])
    second, port = start_projector(place)
    view = place.finish(execution_id)
    assert view["status"] == "COMPLETED"
    assert view["progress"]["loop.each"] == {
        "loop_id": "each#1",
        "total": 60,
        "done": 60,
        "failed": 0,
        "collection_ref": None,
        "completed": True,
    }
    events = place.events(execution_id)
    assert view["version"] == len(events)
    assert view["position"] >= events[-1]["position"]
    metrics = asked(port, "/metrics").decode()
    assert re.search(r'^noetl_projection_lag_ms\{[^}]*shard="\d+"\} \d+$', metrics, re.M)
    assert re.search(r"^noetl_projector_events_total\{[^}]*\} [1-9]", metrics, re.M)
    assert json.loads(asked(port, "/health"))["status"] == "ok"
    second.signal(signal.SIGTERM)
    assert second.wait() == 0, second.text()


def done(place: Place, path: str) -> int:
    loop = place.request("GET", path).json["steps"].get("each", {}).get("loop")
    return int(loop["done"]) if loop else 0


def test_a_server_hands_over_to_a_projector_and_takes_over_when_it_leaves(place: Place) -> None:
    place.start_server()
    place.start_worker()
    execution_id = place.submit(LOOP, {"items": 2})
    assert place.finish(execution_id)["status"] == "COMPLETED"
    projector, port = start_projector(place)
    wait_until(lambda: len(summary(port)["shards"]) == 16, seconds=60, what="the server has handed over")
    assert place.finish(place.submit(LOOP, {"items": 2}))["status"] == "COMPLETED"
    assert summary(port)["events"] > 0
    projector.signal(signal.SIGTERM)
    assert projector.wait() == 0
    assert place.finish(place.submit(LOOP, {"items": 2}))["status"] == "COMPLETED"
    rows = place.request("GET", "/api/executions").json["executions"]
    assert [row["status"] for row in rows] == ["COMPLETED"] * 3


def test_whoever_starts_an_execution_finds_it_at_once_also_without_a_projector(place: Place) -> None:
    place.start_server("--no-projector")
    for _ in range(5):
        execution_id = place.submit(LOOP)
        view = place.request("GET", f"/api/executions/{execution_id}").json
        assert (view["status"], list(view["steps"])) == ("RUNNING", ["start"])
        listed = place.request("GET", "/api/executions", limit=1).json["executions"][0]
        assert {name: view[name] for name in listed} == listed
    far = place.request("GET", f"/api/executions/{execution_id}", wait="terminal", timeout_s=0.2)
    assert far.json["status"] == "RUNNING"


def test_a_projector_needs_a_database_that_others_have() -> None:
    with cli() as noetl:
        refused = noetl("projector")
        assert refused.code == 2
        assert "NOETL_POSTGRES_DSN" in refused.stderr
        refused = noetl("server", "--no-projector")
        assert refused.code == 2
        assert "NOETL_POSTGRES_DSN" in refused.stderr


async def forget_projections(address: str) -> None:
    async with connected(address) as connection:
        await connection.execute("TRUNCATE noetl.projection_checkpoint, noetl.execution")


def test_what_is_recorded_and_not_shown_yet_is_not_called_unknown(place: Place) -> None:
    place.start_server("--no-projector")
    place.start_worker()
    projector, _ = start_projector(place)
    execution_id = place.submit(LOOP, {"items": 2})
    assert place.finish(execution_id)["status"] == "COMPLETED"
    projector.signal(signal.SIGTERM)
    assert projector.wait() == 0
    asyncio.run(forget_projections(place.environment["NOETL_POSTGRES_DSN"]))
    answer = place.request("GET", f"/api/executions/{execution_id}")
    assert (answer.status, answer.json["code"]) == (503, "not_shown_yet")
    assert int(answer.headers["retry-after"]) >= 1
    assert place.request("GET", f"/api/executions/{int(execution_id) + 1}").status == 404
    start_projector(place)
    # Whoever waits is told when it is shown again.
    assert place.finish(execution_id)["status"] == "COMPLETED"
