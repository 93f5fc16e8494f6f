"""Frames by request: a worker that speaks plain HTTP claims, persists and commits the frames of a loop."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.cli import wait_until
from tests.support.server import Place, place

LOOP = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: pulled}
workflow:
  - step: items
    loop: {in: [10, 20, 30, 40, 50, 60], iterator: n, spec: {mode: parallel, max_in_flight: 2}}
    tool: {kind: noop, result: "{{ n }}"}
"""


@pytest.fixture(scope="module")
def ground() -> Iterator[Place]:
    with place() as found:
        found.start_server()
        # Everything but the rows: a real worker seals the loop.
        found.start_worker("--kinds", "seal,evaluate,collect")
        yield found


class Puller:
    """A session that is given nothing and takes frames itself."""

    def __init__(self, ground: Place) -> None:
        self._ground = ground
        body = {"worker_id": "puller", "slots": 8, "kinds": []}
        self.session_id = ground.request("POST", "/api/worker/sessions", body).json["session_id"]

    def post(self, path: str, **body: Any) -> Any:
        return self._ground.request("POST", path, {"worker_id": self.session_id, **body})

    def claim(self, execution_id: str, **body: Any) -> list[dict[str, Any]]:
        answer = self.post(f"/api/stages/{quote(f'{execution_id}/items#1')}/frames/claim", **body)
        assert answer.status == 200, answer.json
        found: list[dict[str, Any]] = answer.json["frames"]
        return found

    def store(self, document: object) -> dict[str, Any]:
        content = json.dumps(document).encode()
        path, headers = f"/api/payloads/{hashlib.sha256(content).hexdigest()}", {"Content-Type": "application/json"}
        answer = self._ground.request("PUT", path, content, token="worker_token", headers=headers)
        assert answer.status == 201, answer.json
        found: dict[str, Any] = answer.json
        return found

    def commit(self, frame: dict[str, Any], records: list[Any], **body: Any) -> Any:
        path = f"/api/frames/{quote(frame['frame_id'])}/commit"
        return self.post(path, attempt=frame["attempt"], records=records, **body)


def started(ground: Place) -> str:
    execution_id: str = ground.request("POST", "/api/executions", {"playbook": LOOP}).json["execution_id"]
    return execution_id


def rows_of(frame: dict[str, Any]) -> list[int]:
    items = frame["body"]["stage"]["collection"]["v"]
    first = frame["cursor"]["first"]
    found: list[int] = items[first : first + frame["cursor"]["rows"]]
    return found


def test_a_loop_is_worked_off_by_request(ground: Place) -> None:
    puller, execution_id = Puller(ground), started(ground)
    frames = puller.claim(execution_id, requested_count=5)
    assert len(frames) == 2, "no more than max_in_flight rows are given out"
    assert puller.claim(execution_id, requested_count=5) == []
    done = 0
    while frames:
        frame = frames.pop()
        rows = rows_of(frame)
        answer = puller.commit(frame, [{"v": n + 1} for n in rows], wants_next=True, wall_ms=300.0)
        assert answer.json["ok"] is True, answer.json
        done += len(rows)
        if answer.json["next_action"]:
            frames += answer.json["next_action"]["frames"]
    assert done == 6
    final = ground.request("GET", f"/api/executions/{execution_id}", wait="terminal").json
    assert final["status"] == "COMPLETED", final
    assert final["result"]["results"] == [11, 21, 31, 41, 51, 61]


def test_the_same_request_gets_the_same_frames(ground: Place) -> None:
    puller, execution_id = Puller(ground), started(ground)
    first = puller.claim(execution_id, worker_slot="a", frame_index=0)
    assert len(first) == 1
    assert puller.claim(execution_id, worker_slot="a", frame_index=0) == first
    assert puller.claim(execution_id, worker_slot="a", frame_index=1) != first


def test_each_slot_of_a_worker_may_repeat_its_request(ground: Place) -> None:
    """Several slots ask side by side: what one of them is told again does not depend on what another asked since."""
    puller, execution_id = Puller(ground), started(ground)
    first = puller.claim(execution_id, worker_slot="a", frame_index=0)
    second = puller.claim(execution_id, worker_slot="b", frame_index=0)
    assert first != second
    assert puller.claim(execution_id, worker_slot="a", frame_index=0) == first
    assert puller.claim(execution_id, worker_slot="b", frame_index=0) == second


def test_that_there_was_no_frame_is_not_the_answer_for_ever(ground: Place) -> None:
    puller, execution_id = Puller(ground), started(ground)
    held = puller.claim(execution_id, requested_count=2)
    assert puller.claim(execution_id, worker_slot="a", frame_index=0) == []
    assert puller.commit(held[0], [{"v": n} for n in rows_of(held[0])]).status == 200
    assert len(puller.claim(execution_id, worker_slot="a", frame_index=0)) == 1


HINT = {"node": "here", "name": "noetl-1", "until": 1}


@pytest.mark.parametrize(
    "value",
    [{"ipc": HINT}, {"rows_ref": {"ipc": {"a" * 64: HINT}}}, [{"deep": [{"ipc": HINT, "uri": None}]}]],
)
def test_shared_memory_without_a_durable_reference_is_refused(ground: Place, value: Any) -> None:
    puller, execution_id = Puller(ground), started(ground)
    (frame,) = puller.claim(execution_id)
    records = [{"v": value} for _ in rows_of(frame)]
    refused = puller.commit(frame, records)
    assert (refused.status, refused.json["code"]) == (422, "envelope_invalid"), refused.json
    assert "durable reference" in refused.json["detail"]
    path = f"/api/frames/{quote(frame['frame_id'])}"
    rows = [{"index": frame["cursor"]["first"], "record": records[0]}]
    assert puller.post(f"{path}/heartbeat", attempt=frame["attempt"], rows=rows).status == 422
    only = {"ipc": HINT, "kind": "payload"}
    assert puller.post(f"{path}/commit", attempt=frame["attempt"], output_ref=only).status == 422
    # Nothing was recorded: the frame is still this worker's, and data that is only called so is data.
    plain = [{"v": {"ipc": {"port": 1}, "also": {"ipc": HINT, "uri": "noetl://x"}}} for _ in records]
    assert puller.commit(frame, plain).status == 200


@pytest.mark.parametrize("record", [1, "hello", [1]])
def test_a_stored_record_that_is_no_object_is_refused(ground: Place, record: Any) -> None:
    puller, execution_id = Puller(ground), started(ground)
    (frame,) = puller.claim(execution_id)
    document = {"first": frame["cursor"]["first"], "records": [record for _ in rows_of(frame)]}
    stored = puller.store(document)
    path = f"/api/frames/{quote(frame['frame_id'])}/commit"
    refused = puller.post(path, attempt=frame["attempt"], output_ref=stored)
    assert (refused.status, refused.json["code"]) == (422, "envelope_invalid"), refused.json


def test_a_commit_says_what_its_tasks_cost(ground: Place) -> None:
    puller, execution_id = Puller(ground), started(ground)
    (frame,) = puller.claim(execution_id)
    records = [{"v": n} for n in rows_of(frame)]
    cost = {"kind": "http", "calls": len(records), "failed": 0, "render_ms": 1.5, "tool_ms": 20.0, "limit_ms": 0.0}
    assert puller.commit(frame, records, wall_ms=25.0, tasks={"fetch": {**cost, "calls": -1}}).status == 422
    assert puller.commit(frame, records, wall_ms=25.0, tasks={"fetch": cost}).status == 200
    events = ground.request("GET", f"/api/executions/{execution_id}/events").json["events"]
    (told,) = [event for event in events if event["event_type"] == "frame.committed"]
    assert told["meta"]["profile"]["tasks"] == {"fetch": cost}


def test_rows_that_are_named_twice_in_one_heartbeat_are_refused(ground: Place) -> None:
    puller, execution_id = Puller(ground), started(ground)
    (frame,) = puller.claim(execution_id)
    rows = [{"index": frame["cursor"]["first"], "record": {"v": n}} for n in range(2)]
    path = f"/api/frames/{quote(frame['frame_id'])}/heartbeat"
    assert puller.post(path, attempt=frame["attempt"], rows=rows).status == 422


def test_a_frame_ends_once(ground: Place) -> None:
    puller, execution_id = Puller(ground), started(ground)
    (frame,) = puller.claim(execution_id)
    records = [{"v": n} for n in rows_of(frame)]
    assert puller.commit(frame, [*records, {"v": 0}]).status == 422
    assert puller.commit(frame, records).status == 200
    again = puller.commit(frame, records)
    assert (again.status, again.json["code"]) == (409, "frame_already_terminal")
    events = ground.request("GET", f"/api/executions/{execution_id}/events").json["events"]
    terminal = [e["event_id"] for e in events if e["transition_key"] == f"frame.terminal/{frame['command_id']}"]
    assert terminal == [again.json["terminal_event_id"]]
    late = puller.post(f"/api/frames/{quote(frame['frame_id'])}/heartbeat", attempt=1)
    assert (late.status, late.json["code"]) == (409, "frame_already_terminal")


def test_rows_of_a_lost_session_that_were_persisted_are_not_run_again(ground: Place) -> None:
    puller, execution_id = Puller(ground), started(ground)
    frames = puller.claim(execution_id, requested_count=2)
    kept = frames[0]
    first = kept["cursor"]["first"]
    rows = [{"index": first, "record": {"v": "kept"}}]
    path = f"/api/frames/{quote(kept['frame_id'])}/heartbeat"
    assert puller.post(path, attempt=1, rows=rows).status == 200
    assert puller.post(path, attempt=1, rows=[{"index": 99, "record": {}}]).status == 422
    ground.request("DELETE", f"/api/worker/sessions/{puller.session_id}")
    heir = Puller(ground)
    taken: list[dict[str, Any]] = []

    def takes_over() -> bool:
        taken.extend(heir.claim(execution_id, requested_count=8))
        return len(taken) >= len(frames)

    wait_until(takes_over, seconds=60, what="the frames of the lost session")
    again = next(frame for frame in taken if frame["frame_id"] == kept["frame_id"])
    assert again["attempt"] == 2
    assert again["body"]["stage"]["parts"][0]["ranges"] == [[first, first + 1]]
    assert puller.commit(kept, [{"v": 0}] * kept["cursor"]["rows"]).status == 409


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/stages/1%2Fitems%231/frames/claim", 404),
        ("/api/stages/nonsense/frames/claim", 422),
        ("/api/frames/1%2Fitems%231%2F1/heartbeat", 409),
    ],
)
def test_what_is_not_there_is_refused(ground: Place, path: str, status: int) -> None:
    answer = Puller(ground).post(path, **({"attempt": 1} if "heartbeat" in path else {}))
    assert answer.status == status, answer.json


def test_an_open_stage_must_be_named(ground: Place) -> None:
    puller, execution_id = Puller(ground), started(ground)
    answer = puller.post(f"/api/stages/{quote(f'{execution_id}/other#1')}/frames/claim")
    assert (answer.status, answer.json["code"]) == (404, "stage_unknown")
