"""Workers on different nodes: frames run where their collection was made, while somebody there has a slot; and where
somebody else has one, when not."""

from __future__ import annotations

import json
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.test_metrics import asked, free_port
from tests.support.cli import cli, wait_until
from tests.support.prometheus import parse
from tests.support.server import Place, Process, place

A = {"region": "eu", "zone": "za", "cluster": "prod", "node": "node-a"}
B = {"region": "eu", "zone": "zb", "node": "node-b"}
HOST = socket.gethostname()
VARIABLES = {"node": "NOETL_NODE_ID", "zone": "NOETL_ZONE", "region": "NOETL_REGION", "cluster": "NOETL_CLUSTER_ID"}


def playbook(*, rows: int, in_flight: int, locality: str = "{}") -> str:
    """`make` runs on A, which alone can run python; the frames of `each` anywhere."""
    return f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: placed}}
workflow:
  - step: make
    tool:
      kind: python
      code: |
        def main():
            return {{"rows": [{{"n": n, "text": "x" * 100}} for n in range({rows})]}}
    next: [{{step: each}}]
  - step: each
    loop:
      in: "{{{{ make.rows }}}}"
      iterator: item
      spec: {{mode: parallel, max_in_flight: {in_flight}, frame: {{max_rows: 1}}, locality: {locality}}}
    tool: {{kind: noop, result: "{{{{ item.n }}}}"}}
"""


class Ground:
    """A server with a worker on A that can do everything, and one on B that only runs rows."""

    def __init__(self, server: Place, near: Process, far: Process) -> None:
        self.server, self.near, self.far = server, near, far

    def sessions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.server.request("GET", "/api/runtimes").json["sessions"]
        return found

    def claims(self, execution_id: str) -> list[dict[str, Any]]:
        return [event["meta"] for event in self.server.events(execution_id) if event["event_type"] == "frame.started"]

    def nodes(self, execution_id: str) -> Counter[str]:
        return Counter(meta["locality"]["node"] for meta in self.claims(execution_id))

    def finish(self, execution_id: str) -> None:
        told = self.server.finish(execution_id, seconds=120)
        assert told["status"] == "COMPLETED", (told["error"], self.server.logs())
        loop = told["steps"]["each"]["loop"]
        assert loop["done"] == loop["total"]
        assert loop["failed"] == 0


@contextmanager
def ground(slots: tuple[int, int], *, lease: float = 60.0, **extra: str) -> Iterator[Ground]:
    with place(NOETL_SESSION_LEASE_SECONDS=str(lease)) as server:
        server.start_server(**extra)
        near = start(server, A, slots[0])
        far = start(server, B, slots[1], "--kinds", "noop,frame")
        yield Ground(server, near, far)


def start(server: Place, where: dict[str, str], slots: int, *words: str, **extra: str) -> Process:
    variables = {VARIABLES[level]: name for level, name in where.items()}
    return server.start_worker(*words, NOETL_WORKER_SLOTS=str(slots), **variables, **extra)


def test_frames_run_where_their_collection_was_made_and_every_claim_says_so() -> None:
    with ground((4, 16)) as g:
        assert sorted((one["place"]["node"], one["slots"]) for one in g.sessions()) == [("node-a", 4), ("node-b", 16)]
        assert {one["worker_id"]: one["place"] for one in g.sessions()}[f"{HOST}-{g.near.pid}"] == A
        execution_id = g.server.submit(playbook(rows=30, in_flight=2))
        g.finish(execution_id)
        assert g.nodes(execution_id) == {"node-a": 30}, "although the other one has more free slots"
        meta = g.claims(execution_id)[0]
        assert meta["locality"] == meta["source_locality"] == A
        assert meta["placement"] == {"distance": "node", "max_distance": "any", "within_max_distance": True}
        where = "tenant/default/org/default/region/eu/zone/za/cluster/prod/node/node-a/worker"
        assert meta["worker_locator"] == f"noetl://{where}/{HOST}-{g.near.pid}"
        first = next(event for event in g.server.events(execution_id) if event["event_type"] == "command.claimed")
        assert first["meta"]["locality"] == A
        assert "placement" not in first["meta"], "it reads nothing that was made anywhere"


def test_when_the_near_worker_has_no_slot_left_the_others_take_the_rest() -> None:
    with ground((1, 8)) as g:
        execution_id = g.server.submit(playbook(rows=40, in_flight=4))
        g.finish(execution_id)
        found = g.nodes(execution_id)
        assert set(found) == {"node-a", "node-b"}
        distances = {meta["locality"]["node"]: meta["placement"]["distance"] for meta in g.claims(execution_id)}
        assert distances == {"node-a": "node", "node-b": "region"}
        metrics = parse(g.server.request("GET", "/metrics").content.decode())
        placed = metrics["noetl_claims_placed_total"]
        # The result of the loop is written where it can be, too: its rows were mostly run on B.
        told = [e["meta"]["placement"]["distance"] for e in g.server.events(execution_id) if "placement" in e["meta"]]
        assert placed.value(distance="region", within_max_distance="true") == Counter(told)["region"] >= found["node-b"]


def test_with_a_distance_frames_wait_for_a_near_slot_that_comes_soon() -> None:
    with ground((1, 8), NOETL_LOCALITY_PREFERENCE="any") as g:
        execution_id = g.server.submit(playbook(rows=20, in_flight=4, locality="{max_distance: zone}"))
        g.finish(execution_id)
        assert g.nodes(execution_id)["node-a"] == 20


def test_the_servers_preference_is_the_distance_of_loops_that_say_nothing() -> None:
    with ground((1, 8), NOETL_LOCALITY_PREFERENCE="zone") as g:
        execution_id = g.server.submit(playbook(rows=20, in_flight=4))
        g.finish(execution_id)
        assert g.nodes(execution_id) == {"node-a": 20}
        assert {meta["placement"]["max_distance"] for meta in g.claims(execution_id)} == {"zone"}
        execution_id = g.server.submit(playbook(rows=20, in_flight=4, locality="{max_distance: any}"))
        g.finish(execution_id)
        assert set(g.nodes(execution_id)) == {"node-a", "node-b"}


def test_when_the_near_worker_stands_still_frames_go_far_after_a_moment_and_say_so() -> None:
    # Its lease is long: what decides is the patience, and not its death.
    with ground((2, 8)) as g:
        execution_id = g.server.submit(playbook(rows=400, in_flight=6, locality="{max_distance: node}"))
        wait_until(lambda: g.nodes(execution_id)["node-a"] > 3, seconds=60, what="frames run near")
        g.near.signal(signal.SIGSTOP)
        wait_until(lambda: g.nodes(execution_id)["node-b"] > 3, seconds=60, what="frames run far")
        assert len(g.sessions()) == 2, "the near worker is still there"
        far = [meta for meta in g.claims(execution_id) if meta["locality"]["node"] == "node-b"]
        assert {json.dumps(meta["placement"], sort_keys=True) for meta in far} == {
            '{"distance": "region", "max_distance": "node", "within_max_distance": false}'
        }
        g.near.signal(signal.SIGCONT)
        g.finish(execution_id)


@pytest.mark.parametrize("locality", ["{}", "{max_distance: node}"])
def test_when_the_near_worker_is_killed_its_frames_and_the_rest_run_far(locality: str) -> None:
    with ground((2, 8), lease=3.0) as g:
        # Sealing is for whoever can: another one beside the dead one.
        start(g.server, {"zone": "zc", "node": "node-c"}, 1, "--kinds", "seal,collect,evaluate")
        execution_id = g.server.submit(playbook(rows=400, in_flight=2, locality=locality))
        wait_until(lambda: g.nodes(execution_id)["node-a"] > 3, seconds=60, what="frames run near")
        g.near.signal(signal.SIGKILL)
        g.finish(execution_id)
        found = g.claims(execution_id)
        assert found[-1]["locality"] == B
        assert found[-1]["placement"]["within_max_distance"] is (locality == "{}")


def test_a_worker_that_says_nothing_of_its_place_works_as_ever_and_one_with_a_long_name_is_refused() -> None:
    with place() as server:
        server.start_server()
        server.start_worker()
        execution_id = server.submit(playbook(rows=5, in_flight=2))
        assert server.finish(execution_id)["status"] == "COMPLETED"
        claims = [
            e["meta"] for e in server.events(execution_id) if e["event_type"] in ("frame.started", "command.claimed")
        ]
        assert {frozenset(meta) for meta in claims} == {frozenset({"attempt", "session"})}
        (session,) = server.request("GET", "/api/runtimes").json["sessions"]
        assert session["place"] == {}
        body = {"worker_id": "w", "slots": 1, "place": {"node": "n" * 101}}
        answer = server.request("POST", "/api/worker/sessions", body)
        assert answer.status == 422, answer.json
        assert "place.node" in answer.json["detail"]
        body["place"] = {"zone": "z", "rack": "7"}
        assert server.request("POST", "/api/worker/sessions", body).status == 201, "more than it knows is ignored"
        refused = server.start("worker", "--server", server.url, NOETL_ZONE="z" * 101)
        assert refused.wait() == 2
        assert "NOETL_ZONE must be at most 100 printable characters" in refused.text()


def test_places_label_the_metrics_of_a_worker() -> None:
    port = free_port()
    with place() as server:
        server.start_server()
        start(server, A, 1, NOETL_WORKER_METRICS_PORT=str(port))
        _, _, text = asked(port, "/metrics")
        labels = {"node_id": "node-a", "zone": "za", "region": "eu", "cluster_id": "prod", "worker_pool": "default"}
        assert parse(text)["noetl_process_info"].value(role="worker", **labels) == 1


def test_a_worker_in_the_process_of_its_server_has_the_place_of_that_process(tmp_path: Path) -> None:
    file = tmp_path / "placed.yaml"
    file.write_text(playbook(rows=20, in_flight=2))
    with cli(NOETL_NODE_ID="laptop") as noetl:
        execution_id = noetl("run", str(file), "--json").json["execution_id"]
        claims = [event["meta"] for event in noetl.events(execution_id) if event["event_type"] == "frame.started"]
    assert len(claims) == 20
    assert {str(meta["locality"]) for meta in claims} == {"{'node': 'laptop'}"}
    assert all(meta["placement"]["distance"] == "node" for meta in claims)


# --- by request --------------------------------------------------------------------------------------------


def test_frames_by_request_are_left_to_somebody_nearer_for_a_moment() -> None:
    with ground((1, 1)) as g:
        body = {"worker_id": "puller", "slots": 4, "kinds": [], "place": B}
        session = g.server.request("POST", "/api/worker/sessions", body).json["session_id"]
        execution_id = g.server.submit(playbook(rows=400, in_flight=4))
        wait_until(lambda: g.nodes(execution_id)["node-a"] > 1, seconds=60, what="the loop runs")
        for process in (g.near, g.far):
            process.signal(signal.SIGSTOP)
        try:
            path = f"/api/stages/{quote(f'{execution_id}/each#1')}/frames/claim"

            def claim(**locality: object) -> Any:
                return g.server.request("POST", path, {"worker_id": session, "locality": locality})

            refused = claim(max_distance="planet")
            assert refused.status == 422
            assert "there is no distance 'planet': there are node, cluster, zone, region, any" in refused.json["detail"]
            assert claim(prefer_rack="7").status == 422
            assert claim(max_distance="node").json["frames"] == [], "somebody nearer may soon have a slot"
            wait_until(
                lambda: claim(max_distance="node").json["frames"] != [], seconds=60, what="nobody nearer takes it"
            )
            found = [meta for meta in g.claims(execution_id) if meta["session"] == session]
            assert found[0]["placement"] == {
                "distance": "region",
                "max_distance": "node",
                "within_max_distance": False,
            }
            assert len(claim(prefer_node="node-a", prefer_zone="za").json["frames"]) == 1
        finally:
            for process in (g.near, g.far):
                process.signal(signal.SIGCONT)
