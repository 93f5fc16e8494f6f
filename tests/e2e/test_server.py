"""`noetl server` over TCP, as programs use it: tokens, tenants, waiting, streams, and errors that say what they are."""

from __future__ import annotations

import hashlib
import json
import re
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.cli import Cli, cli
from tests.support.server import Answer, Place, place, running_server
from tests.support.yaml import one_step, playbook, slow_chain, write

API_ONLY = "a token that may not work"
BOUND = "a token of tenant acme"
QUICK = playbook('workflow:\n  - step: start\n    tool: {kind: noop, result: {n: "{{ workload.n | default(1) }}"}}\n')


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens.json"
    tokens.write_text(
        json.dumps(
            [
                {"sha256": digest(API_ONLY), "scopes": ["api"]},
                {"sha256": digest(BOUND), "scopes": ["api"], "tenant_id": "acme", "organization_id": "sales"},
            ]
        )
    )
    with running_server(NOETL_TOKENS_FILE=str(tokens)) as found:
        yield found


def expect_problem(answer: Answer, status: int, code: str) -> None:
    assert answer.status == status, answer.content
    assert answer.headers["content-type"] == "application/problem+json"
    if not answer.content and int(answer.headers["content-length"]):
        return  # the answer to a HEAD says how long the problem would be
    assert answer.json["code"] == code
    assert answer.json["status"] == status
    assert answer.json["detail"]


# --- who may do what -------------------------------------------------------------------------------------


def routes_of(server: Place) -> list[tuple[str, str, set[str]]]:
    """Method, address and declared scopes of everything the server can be asked."""
    document = server.request("GET", "/openapi.json").json
    found = []
    for path, operations in document["paths"].items():
        address = re.sub(r"\{[^}]*\}", "1", path.replace("{sha256}", "0" * 64))
        for method, operation in operations.items():
            found.append((method.upper(), address, set(operation["x-noetl-scopes"])))
    return found


def test_every_route_refuses_whoever_has_no_token_or_the_wrong_scope(server: Place) -> None:
    routes = [*routes_of(server), ("GET", "/openapi.json", {"api"}), ("GET", "/no/such/route", {"api", "worker"})]
    assert len(routes) > 20
    seen: set[str] = set()
    for method, address, scopes in routes:
        seen |= scopes
        anonymous = server.request(method, address, token=None)
        if scopes == {"open"}:
            assert anonymous.status == 200, (method, address)
            continue
        assert scopes <= {"api", "worker", "admin"}
        expect_problem(anonymous, 401, "unauthorized")
        assert anonymous.headers["www-authenticate"].startswith("Bearer")
        expect_problem(server.request(method, address, token="an unknown token"), 401, "unauthorized")
        for scope, wrong in (("api", API_ONLY), ("worker", "worker_token")):
            if scope not in scopes:
                expect_problem(server.request(method, address, token=wrong), 403, "forbidden")
    assert seen == {"open", "api", "worker", "admin"}
    assert {address for _, address, scopes in routes if "open" in scopes} == {"/livez", "/readyz"}


def test_a_worker_token_opens_the_routes_of_workers_and_an_admin_token_all(server: Place) -> None:
    for token in ("worker_token", "token"):
        expect_problem(server.request("POST", "/api/worker/sessions/1/heartbeat", token=token), 409, "lease_lost")
    assert server.request("GET", "/api/executions", token=API_ONLY).status == 200


def test_the_token_file_is_private_and_no_log_holds_a_token(server: Place) -> None:
    path = server.home / "server.token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert all(token not in server.logs() for token in server.tokens.values())


def test_a_server_does_not_listen_beyond_loopback_without_a_configured_token() -> None:
    with place(NOETL_HOST="0.0.0.0", NOETL_PORT="0") as found:
        refused = found.start("server")
        assert refused.wait(60) == 2
        assert "NOETL_TOKEN" in refused.text()
        assert "Traceback" not in refused.text()


def test_a_port_that_is_taken_is_named(server: Place) -> None:
    port = server.url.rpartition(":")[2]
    with place(NOETL_PORT=port) as found:
        refused = found.start("server")
        assert refused.wait(60) == 2
        assert f":{port}" in refused.text()
        assert "NOETL_PORT" in refused.text()


# --- whose it is -----------------------------------------------------------------------------------------


def test_executions_of_another_tenant_do_not_exist(server: Place) -> None:
    theirs = {"Noetl-Tenant": quote("größe / x"), "Noetl-Organization": "sales"}
    execution_id = server.submit(QUICK, **theirs)
    paths = [f"/api/executions/{execution_id}{rest}" for rest in ("", "/events", "/events/stream")]
    for path in paths:
        expect_problem(server.request("GET", path), 404, "execution_unknown")
        unknown = server.request("GET", path.replace(execution_id, "1"))
        assert unknown.json["code"] == "execution_unknown"
    expect_problem(server.request("POST", f"{paths[0]}/cancel"), 404, "execution_unknown")
    assert server.request("GET", paths[0], headers=theirs, wait="terminal").json["status"] == "COMPLETED"
    listed = server.request("GET", "/api/executions", headers=theirs).json["executions"]
    assert [row["execution_id"] for row in listed] == [execution_id]
    assert execution_id not in {r["execution_id"] for r in server.request("GET", "/api/executions").json["executions"]}


def test_a_bound_token_acts_for_its_own_tenant_and_no_other(server: Place) -> None:
    answer = server.request("POST", "/api/executions", {"playbook": QUICK}, token=BOUND)
    execution_id = answer.json["execution_id"]
    owner = {"Noetl-Tenant": "acme", "Noetl-Organization": "sales"}
    assert server.request("GET", f"/api/executions/{execution_id}", headers=owner).status == 200
    assert server.request("GET", f"/api/executions/{execution_id}", token=BOUND).status == 200
    expect_problem(server.request("GET", f"/api/executions/{execution_id}"), 404, "execution_unknown")
    other = server.request("GET", "/api/executions", token=BOUND, headers={"Noetl-Tenant": "other"})
    expect_problem(other, 403, "forbidden")


@pytest.mark.parametrize("name", ["", "%00", "%ff", "x" * 101, "a%0Ab"])
def test_a_tenant_that_is_no_name_is_refused(server: Place, name: str) -> None:
    expect_problem(server.request("GET", "/api/executions", headers={"Noetl-Tenant": name}), 422, "request_invalid")


# --- errors ----------------------------------------------------------------------------------------------

BAD_REQUESTS: list[tuple[str, str, Any, int, str]] = [
    ("GET", "/api/nothing", None, 404, "not_found"),
    ("DELETE", "/api/executions", None, 405, "method_not_allowed"),
    ("POST", "/api/executions", b"{", 422, "request_invalid"),
    ("POST", "/api/executions", b"\xff", 422, "request_invalid"),
    ("POST", "/api/executions", [1], 422, "request_invalid"),
    ("POST", "/api/executions", {}, 422, "request_invalid"),
    ("POST", "/api/executions", {"playbook": 1}, 422, "request_invalid"),
    ("POST", "/api/executions", {"playbook": QUICK, "payload": []}, 422, "request_invalid"),
    ("POST", "/api/executions", {"playbook": QUICK, "nonsense": 1}, 422, "request_invalid"),
    ("POST", "/api/executions", {"playbook": QUICK, "path": "x"}, 422, "request_invalid"),
    ("POST", "/api/executions", {"path": "no/such"}, 404, "playbook_unknown"),
    ("POST", "/api/executions", {"path": "no/such", "version": "1"}, 422, "request_invalid"),
    ("POST", "/api/executions", {"playbook": "a: ["}, 422, "playbook_invalid"),
    ("POST", "/api/executions", b'{"playbook": "\\ud800"}', 422, "request_invalid"),
    ("POST", "/api/executions", b'{"playbook": NaN}', 422, "request_invalid"),
    ("POST", "/api/executions", b"[" * 100_000, 422, "request_invalid"),
    ("POST", "/api/executions", b'{"payload":' + b'{"a":' * 150 + b"1" + b"}" * 151, 422, "request_invalid"),
    ("POST", "/api/executions", b" " * 9_000_000, 413, "too_large"),
    ("GET", "/api/executions?limit=-1", None, 422, "request_invalid"),
    ("GET", "/api/executions?limit=many", None, 422, "request_invalid"),
    ("GET", "/api/executions?status=LATE", None, 422, "request_invalid"),
    ("GET", "/api/executions?before=x", None, 404, "execution_unknown"),
    ("GET", "/api/executions/x", None, 404, "execution_unknown"),
    ("GET", "/api/executions/99999999999999999999", None, 404, "execution_unknown"),
    ("GET", "/api/executions/1?wait=for%20it", None, 422, "request_invalid"),
    ("GET", "/api/executions/1?timeout_s=nan", None, 422, "request_invalid"),
    ("GET", "/api/executions/1/events?after_position=-1", None, 422, "request_invalid"),
    ("GET", "/api/ledger/events?shard_id=1000", None, 404, "shard_unknown"),
    ("GET", "/api/payloads/xyz", None, 404, "payload_missing"),
    ("GET", "/api/commands/7", None, 422, "request_invalid"),
    ("GET", "/api/commands/7/x", None, 404, "command_unknown"),
    ("POST", "/api/events", {"session_id": "1"}, 422, "envelope_invalid"),
    ("POST", "/api/events/batch", {"session_id": "1", "facts": [{}]}, 409, "lease_lost"),
    ("POST", "/api/events/batch", {"session_id": "1", "facts": {}}, 422, "request_invalid"),
    ("POST", "/api/worker/sessions", {"worker_id": "w", "slots": 0}, 422, "request_invalid"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "code"), BAD_REQUESTS)
def test_every_refusal_is_a_problem_with_a_stable_code(
    server: Place, method: str, path: str, body: Any, status: int, code: str
) -> None:
    expect_problem(server.request(method, path, body), status, code)


def test_a_body_of_another_media_type_is_refused(server: Place) -> None:
    answer = server.request("POST", "/api/executions", b"a: 1", headers={"Content-Type": "application/yaml"})
    expect_problem(answer, 415, "media_type_unsupported")


def test_a_body_without_an_announced_length_is_bounded_too(server: Place) -> None:
    connection = server.connect()
    connection.putrequest("POST", "/api/executions")
    connection.putheader("Authorization", f"Bearer {server.tokens['token']}")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    try:
        for _ in range(10):
            connection.send(b"f4240\r\n" + b" " * 1_000_000 + b"\r\n")
        connection.send(b"0\r\n\r\n")
    except OSError:
        pass  # refused while we were still talking
    assert connection.getresponse().status == 413
    connection.close()


def test_an_invalid_playbook_names_line_and_step(server: Place) -> None:
    text = playbook("workflow:\n  - step: a\n    tool: {kind: noop}\n    next: [bee]\n")
    answer = server.request("POST", "/api/executions", {"playbook": text, "file": "mine.yaml"})
    expect_problem(answer, 422, "playbook_invalid")
    (found,) = answer.json["problems"]
    assert (found["file"], found["line"], found["step"]) == ("mine.yaml", 7, "a")


# --- executions ------------------------------------------------------------------------------------------


def test_both_paths_start_an_execution_and_ids_are_text(server: Place) -> None:
    for path in ("/api/executions", "/api/execute"):
        answer = server.request("POST", path, {"playbook": QUICK, "payload": {"n": 7}})
        assert answer.status == 201
        assert answer.json["warnings"] == []
        final = server.finish(answer.json["execution_id"])
        assert final["result"] == {"n": 7}


def test_a_playbook_of_the_catalog_is_started_by_its_path(server: Place) -> None:
    text = QUICK.replace("metadata: {name: test}", "metadata: {name: test, path: team/quick}")
    assert server.request("POST", "/api/catalog", {"playbook": text}).status == 201
    newer = text.replace("default(1)", "default(2)")
    assert server.request("POST", "/api/catalog", {"playbook": newer}).json["version"] == 2
    for body, n in (({"path": "team/quick"}, 2), ({"path": "team/quick", "version": 1}, 1)):
        answer = server.request("POST", "/api/executions", body)
        assert server.finish(answer.json["execution_id"])["result"] == {"n": n}


def test_the_same_idempotency_key_is_the_same_execution(server: Place) -> None:
    one, again = (server.submit(QUICK, **{"Idempotency-Key": "key 1"}) for _ in range(2))
    assert one == again
    other = server.request(
        "POST", "/api/executions", {"playbook": QUICK, "payload": {"n": 2}}, headers={"Idempotency-Key": "key 1"}
    )
    expect_problem(other, 422, "request_invalid")
    empty = server.request("POST", "/api/executions", {"playbook": QUICK}, headers={"Idempotency-Key": ""})
    expect_problem(empty, 422, "request_invalid")


def test_a_list_is_read_page_by_page(server: Place) -> None:
    owner = {"Noetl-Tenant": "pages"}
    made = [server.submit(QUICK, **owner) for _ in range(5)]
    for execution_id in made:
        server.request("GET", f"/api/executions/{execution_id}", headers=owner, wait="terminal")
    seen: list[str] = []
    before: dict[str, str] = {}
    while True:
        page = server.request("GET", "/api/executions", headers=owner, limit=2, **before).json
        seen += [row["execution_id"] for row in page["executions"]]
        if page["next_before"] is None:
            break
        before = {"before": page["next_before"]}
    assert seen == made[::-1]
    done = server.request("GET", "/api/executions", headers=owner, status="COMPLETED").json["executions"]
    assert len(done) == 5
    assert server.request("GET", "/api/executions", headers=owner, status="FAILED").json["executions"] == []


def test_a_read_waits_for_a_position_and_says_when_it_was_not_reached(server: Place) -> None:
    execution_id = server.submit(slow_chain(3, seconds=1.0))
    path = f"/api/executions/{execution_id}"
    first = server.request("GET", path).json
    later = server.request("GET", path, min_position=first["position"] + 1, timeout_s=20).json
    assert later["position"] > first["position"]
    far = server.request("GET", path, min_position=first["position"] + 10**6, timeout_s=0)
    expect_problem(far, 409, "position_not_reached")
    assert server.request("GET", path, wait="terminal", timeout_s=0).status == 200
    assert server.finish(execution_id)["result"] == {"n": 3}


def read_stream(server: Place, execution_id: str, **headers: str) -> list[tuple[int, dict[str, Any]]]:
    connection = server.connect()
    connection.request(
        "GET",
        f"/api/executions/{execution_id}/events/stream",
        headers={"Authorization": f"Bearer {server.tokens['token']}", **headers},
    )
    response = connection.getresponse()
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/event-stream")
    content = response.read().decode()  # until the server ends it
    connection.close()
    found = []
    for block in content.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            event = json.loads(fields["data"])
            assert fields["event"] == event["event_type"]
            found.append((int(fields["id"]), event))
    return found


def test_a_stream_tells_every_event_in_order_resumes_by_position_and_ends_with_the_last(server: Place) -> None:
    execution_id = server.submit(slow_chain(3, seconds=0.1))
    told = read_stream(server, execution_id)
    events = server.events(execution_id)
    assert [event for _, event in told] == events
    assert [position for position, _ in told] == [event["position"] for event in events]
    half = told[len(told) // 2][0]
    assert read_stream(server, execution_id, **{"Last-Event-ID": str(half)}) == [one for one in told if one[0] > half]
    assert read_stream(server, execution_id, **{"Last-Event-ID": str(told[-1][0])}) == []
    wrong = server.request(
        "GET", f"/api/executions/{execution_id}/events/stream", headers={"Last-Event-ID": "half past"}
    )
    expect_problem(wrong, 422, "request_invalid")


def test_events_wait_for_the_next_one(server: Place) -> None:
    execution_id = server.submit(slow_chain(2, seconds=2.0))
    path = f"/api/executions/{execution_id}/events"
    last = server.events(execution_id)[-1]["position"]
    begun = time.monotonic()
    more = server.request("GET", path, after_position=last, wait_s=30).json["events"]
    assert more
    assert time.monotonic() - begun < 25
    server.finish(execution_id)


def test_a_cancelled_execution_ends_and_asking_again_changes_nothing(server: Place) -> None:
    execution_id = server.submit(slow_chain(100, seconds=0.2))
    path = f"/api/executions/{execution_id}/cancel"
    assert server.request("POST", path, {"reason": "enough"}).status == 202
    final = server.finish(execution_id)
    assert final["status"] == "CANCELLED"
    assert server.request("POST", path).status == 202
    ended = server.submit(QUICK)
    server.finish(ended)
    expect_problem(server.request("POST", f"/api/executions/{ended}/cancel"), 409, "execution_closed")


# --- health and description ------------------------------------------------------------------------------


def test_health_says_what_this_process_is(server: Place) -> None:
    assert server.request("GET", "/livez", token=None).json == {"status": "ok"}
    assert server.request("GET", "/readyz", token=None).json == {"status": "ok"}
    health = server.request("GET", "/api/health").json
    assert health["status"] == "ok"
    assert health["url"] == server.url
    assert health["has_worker"] is False
    assert health["worker_sessions"] == 1


def test_the_document_describes_every_route_and_every_post_honours_a_key(server: Place) -> None:
    document = server.request("GET", "/openapi.json").json
    assert document["openapi"].startswith("3.")
    references = json.dumps(document).split('"#/components/schemas/')[1:]
    assert {one.split('"', 1)[0] for one in references} <= set(document["components"]["schemas"])
    for path in ("/api/executions", "/api/events/batch", "/api/worker/sessions", "/api/commands/claim"):
        parameters = {one["name"] for one in document["paths"][path]["post"]["parameters"]}
        assert "Idempotency-Key" in parameters


def test_the_command_line_speaks_to_a_server(server: Place, tmp_path: Path) -> None:
    noetl = server.cli()
    file = tmp_path / "p.yaml"
    file.write_text(one_step("result = {'n': 1}"))
    done = noetl("run", str(file), "--json")
    assert done.code == 0, done.stderr
    execution_id = done.json["execution_id"]
    assert server.finish(execution_id)["result"] == {"n": 1}
    assert noetl("status", execution_id, "--json").json["status"] == "COMPLETED"
    assert execution_id in noetl("list").stdout
    assert noetl.events(execution_id) == server.events(execution_id)
    # Of another home no token is found, and the server says so.
    noetl.home = tmp_path
    refused = noetl("list", "--server", server.url)
    assert refused.code == 2
    assert "NOETL_TOKEN" in refused.stderr


def test_a_server_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    noetl = Cli(tmp_path, {})
    begun = time.monotonic()
    done = noetl("list", "--server", "http://127.0.0.1:1")
    assert done.code == 2
    assert "http://127.0.0.1:1" in done.stderr
    assert time.monotonic() - begun < 60
    for wrong in ("ftp://x", "http://user:pass@x", "http://x/path", "127.0.0.1:8082"):
        done = noetl("list", "--server", wrong)
        assert done.code == 2
        assert "--server" in done.stderr
        assert "pass@" not in done.stderr


def test_many_clients_wait_at_the_same_time(server: Place) -> None:
    execution_id = server.submit(slow_chain(2, seconds=0.4))
    seen: list[str] = []

    def wait() -> None:
        seen.append(server.request("GET", f"/api/executions/{execution_id}", wait="terminal").json["status"])

    threads = [threading.Thread(target=wait) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["COMPLETED"] * 20


def test_an_embedded_server_with_a_worker_of_its_own_also_serves_its_home(tmp_path: Path) -> None:
    with cli(NOETL_PORT="0") as noetl:
        server = noetl.spawn("server", "--with-worker")
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        file = write(tmp_path, QUICK)
        for words in (["--server", url], ["--runtime", "local"]):
            done = noetl("run", file, "--json", *words)
            assert done.code == 0, done.stderr
        assert len(noetl("list", "--json", "--server", url).json) == 2
        server.terminate()
        assert server.wait(30) == 0
        server.communicate()


def test_a_host_listens_on_tcp_only_when_asked() -> None:
    with cli(NOETL_PORT="0") as noetl:
        assert "listening" not in noetl("up").stdout
        assert noetl("down").code == 0
        assert not (noetl.home / "server.token").exists()
        up = noetl("up", "--tcp")
        url = up.stdout.split("listening on ")[1].split()[0]
        assert noetl("list", "--server", url).code == 0


def test_a_worker_without_a_good_token_ends_and_says_why(server: Place, tmp_path: Path) -> None:
    noetl = Cli(tmp_path, {"NOETL_WORKER_TOKEN": "a-token-that-is-not-known"})
    done = noetl("worker", "--server", server.url, timeout=30)
    assert done.code == 2
    assert "unauthorized" in done.stderr
    assert "Traceback" not in done.stderr
