"""Secrets with a mark: used by every tool, also by tasks that fail and by an API that sends them back, and then looked
for in everything that is left: events, payloads, the files of Postgres, logs, answers and what the commands print."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from noetl.adapters.postgres.locations import existing_place
from tests.support.cli import Cli, Finished, cli
from tests.support.postgres import SYSTEM_ROOT
from tests.support.standin import standin_process
from tests.support.yaml import write

TOKEN = "canary-token/4f9c&b1=72e0"
PASSWORD = "canary-password %7d21/ae53"

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: canary}
workload: {api: none}
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
      - {name: call, kind: http, url: "{{ api }}/anything?n={{ n }}", auth: canary_token}
      - name: look
        kind: python
        input: {seen: "{{ call.data }}"}
        code: |
          print(seen)
          result = {"seen": seen}
    next: basic
  - step: basic
    tool:
      kind: http
      url: "{{ api }}/api/v1/errors"
      params: {error_type: "404"}
      auth: canary_basic
    next: {arcs: [{step: database, when: "{{ output.status == 'error' }}"}]}
  - step: database
    tool: {kind: postgres, auth: canary_database, query: SELECT 1}
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
    return [f"{secret[:10]}… as {form!r}" for secret in (TOKEN, PASSWORD) for form in forms(secret) if form in content]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cli, list[Finished], str]]:
    """The playbook was run; its answers so far, and its id."""
    folder = tmp_path_factory.mktemp("canary")
    credentials = {
        "canary_token": ("bearer", {"token": TOKEN}),
        "canary_key": ("api_key", {"api_key": TOKEN, "header_name": "X-Canary"}),
        "canary_basic": ("basic", {"username": "someone", "password": PASSWORD}),
        "canary_database": (
            "postgres",
            {"db_host": "127.0.0.1", "db_port": 1, "db_user": "someone", "db_password": PASSWORD, "db_name": "x"},
        ),
    }
    with cli(NOETL_LOG_LEVEL="DEBUG") as noetl, standin_process() as api:
        answers = [noetl("up")]
        for name, (kind, data) in credentials.items():
            file = folder / f"{name}.json"
            file.write_text(json.dumps(data))
            answers.append(noetl("credential", "set", name, "--type", kind, "--data", f"@{file}"))
            assert answers[-1].code == 0, answers[-1].stderr
        answers.append(noetl("run", write(folder, PLAYBOOK), "--set", f"api={api}", "--json"))
        execution_id = answers[-1].json["execution_id"]
        yield noetl, answers, execution_id


def test_the_secrets_were_used(run: tuple[Cli, list[Finished], str]) -> None:
    noetl, _, execution_id = run
    events = noetl.events(execution_id)
    ended = {e["command_id"]: e for e in events if e["transition_key"].startswith("command.terminal/")}
    assert ended["echo#1"]["event_type"] == "command.completed"
    assert "***" in json.dumps([e.get("writes") for e in events]), "the API sent the token back and it was hidden"
    assert ended["basic#1"]["result"]["context"]["error"]["kind"] == "not_found"
    assert ended["database#1"]["result"]["context"]["error"]["kind"] == "db_connection"


def test_no_answer_shows_a_secret(run: tuple[Cli, list[Finished], str]) -> None:
    noetl, answers, execution_id = run
    answers = [
        *answers,
        noetl("events", execution_id, "--json"),
        noetl("events", execution_id),
        noetl("status", execution_id, "--json"),
        noetl("status", execution_id),
        noetl("list", "--json"),
        noetl("credential", "list"),
    ]
    for answer in answers:
        assert places_with((answer.stdout + answer.stderr).encode()) == []


def test_no_file_holds_a_secret(run: tuple[Cli, list[Finished], str]) -> None:
    noetl, _, _ = run
    noetl("down")
    roots = (noetl.home, existing_place(noetl.home.resolve(), SYSTEM_ROOT).directory)
    contents = {path: path.read_bytes() for root in roots for path in root.rglob("*") if path.is_file()}
    assert any(b"canary_database" in content for content in contents.values()), "the search looks in the wrong place"
    assert {path: places_with(content) for path, content in contents.items() if places_with(content)} == {}
