"""Shared limits over HTTP: what a worker says, what is refused, and what is shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cli import wait_until
from tests.support.server import Answer, Place, running_server
from tests.support.yaml import playbook

ONE = playbook("""
limits: {api: {concurrency: 1}}
workflow: [{step: start, tool: {kind: noop, limit: api}}]
""")
USE = {"limit": "api", "concurrency": 1, "returned": 0, "in_use": 0, "waiting": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Place]:
    with running_server(workers=0, NOETL_SESSION_LEASE_SECONDS="30") as found:
        yield found


def session(server: Place) -> str:
    body = {"worker_id": "foreign", "slots": 1, "kinds": ["noop"]}
    return str(server.request("POST", "/api/worker/sessions", body, token="worker_token").json["session_id"])


def say(server: Place, session_id: str, turn: int, *uses: dict[str, Any], **more: object) -> Answer:
    body = {"turn": turn, "uses": list(uses), **more}
    return server.request("POST", f"/api/worker/sessions/{session_id}/permits", body, token="worker_token")


def claimed(server: Place, session_id: str) -> str:
    body = {"session_id": session_id, "count": 1, "wait_s": 20}
    (command,) = server.request("POST", "/api/commands/claim", body, token="worker_token").json["commands"]
    return str(command["execution_id"])


def in_use(server: Place) -> dict[str, int]:
    (found,) = server.request("GET", "/api/limits").json["limits"]
    assert found["concurrency"] == 1
    return {one["execution_id"]: one["in_use"] for one in found["executions"]}


def test_permits_are_granted_to_who_holds_the_command_and_end_with_the_session(server: Place) -> None:
    for _ in range(2):
        server.submit(ONE)
    one, two = session(server), session(server)
    first, second = claimed(server, one), claimed(server, two)
    (granted,) = say(server, one, 1, {**USE, "execution_id": first, "waiting": 1}, wait_s=10).json["permits"]
    told = {"execution_id": first, "limit": "api", "granted": 1, "rate": None, "concurrency": 1, "keep_s": 0.25}
    assert granted == told
    # The answer was lost: said again, it is the same.
    assert say(server, one, 2, {**USE, "execution_id": first, "waiting": 1}, wait_s=1).json["permits"] == [granted]
    assert in_use(server)[first] == 1
    (nothing,) = say(server, two, 1, {**USE, "execution_id": second, "waiting": 1}, wait_s=0.3).json["permits"]
    assert nothing["granted"] == 0
    # What one does not hold it gets nothing for, and a word that comes too late changes nothing.
    assert say(server, two, 2, {**USE, "execution_id": first, "waiting": 1}, wait_s=0.1).json["permits"] == []
    assert say(server, two, 1, {**USE, "execution_id": second, "waiting": 9}).json["permits"] == []
    waiting = {**USE, "execution_id": second, "waiting": 1}
    say(server, two, 3, waiting)
    assert server.request("DELETE", f"/api/worker/sessions/{one}", token="worker_token").status == 200
    wait_until(lambda: in_use(server).get(second) == 1, seconds=20, what="the permit came back")
    (granted,) = say(server, two, 4, waiting, wait_s=5).json["permits"]
    assert granted["granted"] == 1
    server.request("DELETE", f"/api/worker/sessions/{two}", token="worker_token")
    wait_until(lambda: server.request("GET", "/api/limits").json == {"limits": []}, seconds=20, what="all is free")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"turn": 1},
        {"turn": -1, "uses": []},
        {"turn": 1, "uses": [], "wait_s": 3600},
        {"turn": 1, "uses": [], "more": 1},
        {"turn": 1, "uses": [{**USE, "execution_id": "1", "waiting": 10**9}]},
        {"turn": 1, "uses": [{**USE, "execution_id": "1", "returned": -1}]},
        {"turn": 1, "uses": [{**USE, "execution_id": "1", "limit": ""}]},
        {"turn": 1, "uses": [{**USE, "execution_id": "1", "limit": "a\u0000b"}]},
        {"turn": 1, "uses": [{**USE, "execution_id": "1", "limit": "x" * 101}]},
        {"turn": 1, "uses": [{**USE, "execution_id": "1", "concurrency": 0}]},
        {"turn": 1, "uses": [{**USE, "execution_id": "1", "concurrency": None}]},
        {"turn": 1, "uses": [{**USE, "execution_id": "1", "rate": 0}]},
        {"turn": 1, "uses": [{"execution_id": "1", "limit": "api"}]},
        [],
    ],
)
def test_what_makes_no_sense_is_refused(server: Place, body: object) -> None:
    path = f"/api/worker/sessions/{session(server)}/permits"
    refused = server.request("POST", path, body, token="worker_token")
    assert (refused.status, refused.json["code"]) == (422, "request_invalid"), refused.content


def test_a_session_that_never_was_gets_nothing(server: Place) -> None:
    refused = say(server, "12345", 1)
    assert (refused.status, refused.json["code"]) == (409, "lease_lost")


def test_the_list_is_for_users_and_not_for_workers(server: Place) -> None:
    assert server.request("GET", "/api/limits", token="worker_token").status == 403
    assert server.request("GET", "/api/limits", token=None).status == 401
