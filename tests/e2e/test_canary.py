"""Secrets with a mark: used by every tool, from the store, the keychain, an endpoint and the environment, also by tasks
that fail and by an API that sends them back; and then looked for in everything that is left: events, payloads, the
files or the rows of Postgres, logs, answers and what the commands print."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from noetl.adapters.postgres.locations import existing_place
from tests.support.aio import asynchronous
from tests.support.cli import Cli, Finished, cli
from tests.support.databases import connected
from tests.support.postgres import SYSTEM_ROOT
from tests.support.server import Place, running_server
from tests.support.standin import standin_process
from tests.support.yaml import write

TOKEN = "canary-token/4f9c&b1=72e0"
PASSWORD = "canary-password %7d21/ae53"
CLIENT = "canary-client+5c/19ad 0b"
GRANTED = "canary-granted/88e1+d4=c6"
VARIABLE = "canary-variable/3b7a&f02d"
SECRETS = (TOKEN, PASSWORD, CLIENT, GRANTED, VARIABLE)
CREDENTIALS: dict[str, tuple[str, dict[str, object]]] = {
    "canary_token": ("bearer", {"token": TOKEN}),
    "canary_key": ("api_key", {"api_key": TOKEN, "header_name": "X-Canary"}),
    "canary_basic": ("basic", {"username": "someone", "password": PASSWORD}),
    "canary_client": ("generic", {"client_id": "someone", "client_secret": CLIENT}),
    "canary_database": (
        "postgres",
        {"db_host": "127.0.0.1", "db_port": 1, "db_user": "someone", "db_password": PASSWORD, "db_name": "x"},
    ),
}

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: canary}
workload: {api: none, tokens: none}
keychain:
  - {name: client, kind: credential, ref: canary_client}
  - name: words
    kind: static
    map: {one: "{{ keychain.client.client_secret }}", two: "x-{{ keychain.client.client_id }}"}
  - {name: single, kind: bearer, token: "{{ keychain.words.one }}"}
  - name: access
    kind: oauth2
    endpoint: "{{ tokens }}/token"
    data: {grant_type: client_credentials, client_secret: "{{ keychain.client.client_secret }}"}
  - name: refused
    kind: oauth2
    endpoint: "{{ tokens }}/refused"
    data: {client_secret: "{{ keychain.client.client_secret }}"}
  - {name: database, kind: postgres_credential, credential: canary_database}
  - {name: unused, kind: oauth2, endpoint: "{{ tokens }}/unused"}
workflow:
  - step: echo
    tool: {kind: http, url: "{{ api }}/anything", auth: canary_token, method: POST, json: {a: 1}}
    next: {arcs: [{step: header, set: {ctx.seen: "{{ output.data.data.headers }}"}}]}
  - step: header
    tool: {kind: http, url: "{{ api }}/get", auth: {credential: canary_key}}
    next: looped
  - step: looped
    loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel}}
    tool:
      - {name: call, kind: http, url: "{{ api }}/anything?n={{ n }}&k={{ keychain.words.one }}", auth: access}
      - name: look
        kind: python
        input: {seen: "{{ call.data }}", given: "{{ keychain.access.token }}", word: "{{ keychain.words }}"}
        code: |
          print(seen, given, word)
          result = {"seen": seen, "given": given, "word": word}
        set: {ctx.written: "{{ input.given }}"}
    next: pipeline
  - step: pipeline
    tool:
      - {name: env, kind: http, url: "{{ api }}/anything", auth: {source: env, name: CANARY_VARIABLE, type: bearer}}
      - {name: bearer, kind: http, url: "{{ api }}/anything", auth: single}
      - name: token
        kind: http
        url: "{{ api }}/anything"
        method: POST
        headers: {X-T: "{{ token('canary_token') }}"}
        json: {pair: ["{{ keychain.single }}", "{{ keychain.words.two }}"]}
      - name: code
        kind: python
        auth: database
        env: {CANARY: "{{ keychain.access.access_token }}"}
        input: {given: "{{ keychain.client }}", before: "{{ results }}"}
        code: |
          import base64, binascii, json, os, sys, urllib.parse
          held = [given["client_secret"], os.environ["CANARY"], os.environ["PGPASSWORD"], "{{ keychain.single }}"]
          print(held, file=sys.stderr)
          result = {
              "held": held, "before": before, "lengths": [len(one) for one in held], "context": str(context),
              "hex": [one.encode().hex() for one in held], "url": [urllib.parse.quote(one) for one in held],
              "base64": [base64.b64encode(f"me:{one}".encode()).decode() for one in held], "json": json.dumps(held),
          }
        spec:
          policy:
            rules: [{else: {then: {do: continue, set: {ctx.input: "{{ input }}", ctx.out: "{{ output.data }}"}}}}]
      - {name: nothing, kind: noop, result: "{{ keychain.access }}"}
    next: {arcs: [{step: raising, set: {ctx.lengths: "{{ pipeline.code.lengths }}"}}]}
  - step: raising
    tool:
      kind: python
      input: {given: "{{ keychain.words.one }}"}
      code: |
        secret_of_mine = given + "!"
        raise ValueError(secret_of_mine.encode())
    next: {arcs: [{step: unfetched, when: "{{ output.status == 'error' }}", set: {ctx.raised: "{{ output.error }}"}}]}
  - step: unfetched
    tool: {kind: http, url: "{{ api }}/anything", auth: refused}
    next: {arcs: [{step: strange, when: "{{ output.status == 'error' }}"}]}
  - step: strange
    tool: {kind: http, url: "{{ api }}/anything", timeout: 5, auth: "{{ keychain.words.one }}"}
    next: {arcs: [{step: basic, when: "{{ output.status == 'error' }}"}]}
  - step: basic
    tool:
      kind: http
      url: "{{ api }}/api/v1/errors"
      params: {error_type: "404"}
      auth: canary_basic
    next: {arcs: [{step: database, when: "{{ output.status == 'error' }}"}]}
  - step: database
    tool: {kind: postgres, auth: database, query: "SELECT '{{ keychain.words.one }}'"}
    next: {arcs: [{step: last, when: "{{ output.status == 'error' }}", set: {ctx.why: "{{ output.error.message }}"}}]}
  - step: last
    tool: {kind: postgres, auth: {credential: canary_database, fields: {db_port: 2}}, query: SELECT 1}
"""


def forms(secret: str) -> Iterator[bytes]:
    """The secret as tools and libraries like to write it; of base64 the part that does not depend on what is around."""
    raw = secret.encode()
    yield raw
    yield raw.hex().encode()
    yield quote(secret).encode()
    yield quote(secret, safe="").encode()
    yield json.dumps(secret)[1:-1].encode()
    for shift in range(3):
        encoded = base64.b64encode(b"x" * shift + raw)
        yield encoded[4 if shift else 0 : -4]


def places_with(content: bytes) -> list[str]:
    return [f"{secret[:12]}… as {form!r}" for secret in SECRETS for form in forms(secret) if form in content]


@dataclass(slots=True)
class Endpoint:
    """Gives tokens, and says in detail why it does not."""

    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def token_endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
            endpoint.asked.append((self.path, body))
            is_granted = self.path == "/token"
            answer = {"access_token": GRANTED, "expires_in": 3600} if is_granted else {"error": f"wrong: {body}"}
            content = json.dumps(answer).encode()
            self.send_response(200 if is_granted else 401, "OK" if is_granted else CLIENT)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        endpoint.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield endpoint
        finally:
            server.shutdown()
            thread.join()


def set_credentials(noetl: Cli, folder: Path) -> list[Finished]:
    answers = []
    for name, (kind, data) in CREDENTIALS.items():
        file = folder / f"{name}.json"
        file.write_text(json.dumps(data))
        answers.append(noetl("credential", "set", name, "--type", kind, "--data", f"@{file}"))
        assert answers[-1].code == 0, answers[-1].stderr
    return answers


def check_that_the_secrets_were_used(events: list[dict[str, Any]], endpoint: Endpoint) -> None:
    """A secret that is not used is not found either."""
    ended = {e["command_id"]: e for e in events if e["transition_key"].startswith("command.terminal/")}
    errors = {name: e["result"]["context"].get("error") for name, e in ended.items()}
    assert ended["echo#1"]["event_type"] == "command.completed"
    assert ended["pipeline#1"]["event_type"] == "command.completed", errors["pipeline#1"]
    written = {".".join(w["path"]): w.get("v") for e in events for w in e.get("writes") or ()}
    assert written["lengths"] == [len(CLIENT), len(GRANTED), len(PASSWORD), len(CLIENT)], "the code had them"
    assert written["written"] == "***"
    assert "***" in errors["raising#1"]["message"]
    assert errors["unfetched#1"]["message"] == (
        "keychain entry 'refused' gives no token: the request for it failed with HTTP 401"
    )
    assert errors["strange#1"]["kind"] == "auth"
    assert errors["basic#1"]["kind"] == "not_found"
    assert errors["database#1"]["kind"] == "db_connection"
    paths = [path for path, _ in endpoint.asked]
    assert paths == ["/token", "/refused"], "asked once, and nobody asked for what is not used"
    assert quote(CLIENT, safe="").replace("%20", "+") in endpoint.asked[0][1]


# --- everything on one machine -------------------------------------------------------------------------------


@dataclass(slots=True)
class Ran:
    noetl: Cli
    answers: list[Finished]
    execution_id: str
    endpoint: Endpoint


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """The playbook was run; its answers so far, and its id."""
    folder = tmp_path_factory.mktemp("canary")
    settings = {"NOETL_LOG_LEVEL": "DEBUG", "NOETL_AUTH_ENV_ALLOW": "CANARY_VARIABLE", "CANARY_VARIABLE": VARIABLE}
    with cli(**settings) as noetl, standin_process() as api, token_endpoint() as endpoint:
        answers = [noetl("up"), *set_credentials(noetl, folder)]
        inputs = ("--set", f"api={api}", "--set", f"tokens={endpoint.url}")
        answers.append(noetl("run", write(folder, PLAYBOOK), *inputs, "--json"))
        yield Ran(noetl, answers, answers[-1].json["execution_id"], endpoint)


def test_the_secrets_were_used(run: Ran) -> None:
    check_that_the_secrets_were_used(run.noetl.events(run.execution_id), run.endpoint)


def test_no_answer_shows_a_secret(run: Ran) -> None:
    noetl, execution_id = run.noetl, run.execution_id
    answers = [
        *run.answers,
        noetl("events", execution_id, "--json"),
        noetl("events", execution_id),
        noetl("logs", execution_id, "--json"),
        noetl("logs", execution_id),
        noetl("status", execution_id, "--json"),
        noetl("status", execution_id),
        noetl("list", "--json"),
        noetl("credential", "list"),
    ]
    for answer in answers:
        assert places_with((answer.stdout + answer.stderr).encode()) == []


def test_no_file_holds_a_secret(run: Ran) -> None:
    run.noetl("down")
    roots = (run.noetl.home, existing_place(run.noetl.home.resolve(), SYSTEM_ROOT).directory)
    contents = {path: path.read_bytes() for root in roots for path in root.rglob("*") if path.is_file()}
    assert any(b"canary_database" in content for content in contents.values()), "the search looks in the wrong place"
    assert {path: places_with(content) for path, content in contents.items() if places_with(content)} == {}


# --- a server and a worker of its own ------------------------------------------------------------------------


@dataclass(slots=True)
class RanAway:
    place: Place
    execution_id: str
    endpoint: Endpoint
    told: Any


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RanAway]:
    folder = tmp_path_factory.mktemp("canary-away")
    key = base64.b64encode(bytes(range(32))).decode()
    settings = {
        "NOETL_LOG_LEVEL": "DEBUG",
        "NOETL_CREDENTIAL_KEY": key,
        "NOETL_AUTH_ENV_ALLOW": "CANARY_VARIABLE",
        "CANARY_VARIABLE": VARIABLE,
    }
    with running_server(**settings) as place, standin_process() as api, token_endpoint() as endpoint:
        set_credentials(place.cli(), folder)
        execution_id = place.submit(PLAYBOOK, {"api": api, "tokens": endpoint.url})
        yield RanAway(place, execution_id, endpoint, place.finish(execution_id))


def test_a_worker_far_away_used_them(away: RanAway) -> None:
    check_that_the_secrets_were_used(away.place.events(away.execution_id), away.endpoint)


def test_no_answer_of_a_server_shows_a_secret(away: RanAway) -> None:
    paths = [f"/api/executions/{away.execution_id}", f"/api/executions/{away.execution_id}/events"]
    paths += ["/api/executions", "/api/credentials"]
    for path in paths:
        answer = away.place.request("GET", path)
        assert (answer.status, places_with(answer.content)) == (200, [])
    assert places_with(json.dumps(away.told).encode()) == []


def test_no_log_and_no_file_of_a_server_or_a_worker_holds_a_secret(away: RanAway) -> None:
    assert "noetl" in away.place.logs(), "the search looks in the wrong place"
    contents = {path: path.read_bytes() for path in away.place.home.rglob("*") if path.is_file()}
    assert {path: places_with(content) for path, content in contents.items() if places_with(content)} == {}


@asynchronous
async def test_no_row_of_the_database_holds_a_secret(away: RanAway) -> None:
    found: list[str] = []
    rows_seen = 0
    async with connected(away.place.environment["NOETL_POSTGRES_DSN"]) as connection:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'noetl'")
        for (table,) in tables:
            for row in await connection.fetch(f'SELECT * FROM noetl."{table}"'):
                rows_seen += 1
                for value in row.values():
                    content = value if isinstance(value, bytes) else str(value).encode()
                    found += [f"{table}: {place}" for place in places_with(content)]
    assert rows_seen > 50
    assert found == []
