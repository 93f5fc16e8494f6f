"""Thousands of requests that nobody would write, drawn from the server's own description: no 5xx, no hang, no half of
anything.  A real server process answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.support.databases import connected
from tests.support.server import Place, running_server
from tests.support.yaml import playbook

SECONDS_MAX = 5.0
# The first would end the server, as it should.  The others take nothing that could be wrong, and much time: they look
# at everything there is.
LEFT_OUT = {("POST", "/api/host/stop"), ("GET", "/api/doctor"), ("POST", "/api/doctor/fix")}
STREAMS = {"/api/executions/{execution_id}/events/stream", "/api/worker/sessions/{session_id}/commands"}
STARTS = {"/api/executions", "/api/execute"}
VALID = [
    playbook("workflow:\n  - {step: start, tool: {kind: noop}}\n"),
    playbook('workflow:\n  - step: start\n    tool: {kind: noop, result: "{{ workload }}"}\n'),
]

ADDRESS_CHARS_MAX = 60_000


@dataclass
class Fuzz:
    """The server, everything it can be asked, and what it answered."""

    server: Place
    session: requests.Session
    operations: list[Any]
    executions: set[str] = field(default_factory=set)
    statuses: dict[int, int] = field(default_factory=dict)
    registered: str = ""
    registered_at: float = float("-inf")

    def call(self, case: Any) -> None:
        for attempt in (1, 2):
            # A busy machine may be slow once; a hang is slow again.
            response = self._send(case)
            if response.elapsed.total_seconds() <= SECONDS_MAX:
                break
            assert attempt == 1, f"{case.method} {case.path} took {response.elapsed}: {case.as_curl_command()}"
        self.statuses[response.status_code] = self.statuses.get(response.status_code, 0) + 1
        assert response.status_code < 500, f"{response.status_code} {response.text}: {case.as_curl_command()}"
        if response.status_code >= 400:
            if len(str(response.request.url)) >= ADDRESS_CHARS_MAX:
                return  # too long for the parser of the protocol: it never came to an application
            assert response.headers["Content-Type"] == "application/problem+json", response.text
            if case.method.upper() == "HEAD":
                return
            problem = response.json()
            assert problem["status"] == response.status_code
            assert problem["code"]
        elif case.path in STARTS and case.method.upper() == "POST":
            assert response.status_code == 201
            self.executions.add(response.json()["execution_id"])

    def bring_near(self, case: Any, text: str) -> None:
        """Half of the requests are about something that exists: a playbook, an execution, a session."""
        if case.path in STARTS and isinstance(case.body, dict):
            case.body = {"playbook": text, "payload": case.body.get("payload")}
        if case.path in STREAMS:
            return
        real = {
            "execution_id": next(iter(self.executions), "1"),
            "session_id": self._live_session(),
            "step": "start",
        }
        for name, value in real.items():
            if name in (case.path_parameters or {}):
                case.path_parameters[name] = value
            if isinstance(case.body, dict) and name in case.body:
                case.body[name] = value
        for container in (case.query, case.body):
            for name in ("timeout_s", "wait_s"):  # who asks to wait is not made to hang
                if isinstance(container, dict) and isinstance(container.get(name), int | float):
                    container[name] = min(container[name], 0.05)

    def _live_session(self) -> str:
        if time.monotonic() - self.registered_at > 1:
            body = {"worker_id": "fuzz", "slots": 2, "kinds": ["none"]}
            self.registered = self.server.request("POST", "/api/worker/sessions", body).json["session_id"]
            self.registered_at = time.monotonic()
        return self.registered

    def _send(self, case: Any) -> requests.Response:
        sent = case.as_transport_kwargs(base_url=self.server.url)
        sent["headers"] = {**sent["headers"], "Authorization": f"Bearer {self.server.tokens['token']}"}
        response = self.session.request(**sent, timeout=30, allow_redirects=False)
        if case.path in STARTS and response.status_code == 201:
            self.executions.add(response.json()["execution_id"])
        return response


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Fuzz]:
    with running_server() as server, requests.Session() as session:
        document = server.request("GET", "/openapi.json").json
        schema = schemathesis.openapi.from_dict(document)
        operations = [
            found.ok()
            for found in schema.get_all_operations()
            if (found.ok().method.upper(), found.ok().path) not in LEFT_OUT
        ]
        assert len(operations) > 20
        yield Fuzz(server, session, operations)


def fire(fuzz: Fuzz, examples: int) -> None:
    """So many requests for each operation, half of them against its own description."""
    for operation in fuzz.operations:
        for mode in GenerationMode:
            _fire_one(fuzz, operation, operation.as_strategy(generation_mode=mode), examples // 2)


def _fire_one(fuzz: Fuzz, operation: Any, cases: Any, examples: int) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples < 100,  # the short form is the same every time
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, text=st.sampled_from(VALID), is_near=st.booleans())
    def shoot(case: Any, text: str, is_near: bool) -> None:
        if is_near:
            fuzz.bring_near(case, text)
        fuzz.call(case)

    shoot()


def check_nothing_is_half(fuzz: Fuzz) -> None:
    """As many executions as were answered with 201, and the server is as healthy as before."""

    async def count() -> int:
        async with connected(fuzz.server.environment["NOETL_POSTGRES_DSN"]) as connection:
            return int(await connection.fetchval("SELECT count(*) FROM noetl.execution"))

    assert asyncio.run(count()) == len(fuzz.executions)
    assert fuzz.executions, fuzz.statuses
    assert fuzz.server.request("GET", "/readyz", token=None).status == 200
    assert "request.defect" not in fuzz.server.logs()
    final = fuzz.server.submit(VALID[0])
    fuzz.executions.add(final)
    assert fuzz.server.finish(final)["status"] == "COMPLETED"


def test_no_request_is_answered_with_a_failure_of_ours(fuzz: Fuzz) -> None:
    fire(fuzz, 16)
    assert sum(fuzz.statuses.values()) > 300, fuzz.statuses
    check_nothing_is_half(fuzz)


@pytest.mark.long
def test_ten_thousand_requests_are_answered(fuzz: Fuzz) -> None:
    before = sum(fuzz.statuses.values())
    fire(fuzz, 2 * (10_000 // len(fuzz.operations)) + 2)
    assert sum(fuzz.statuses.values()) - before >= 10_000, fuzz.statuses
    check_nothing_is_half(fuzz)
