"""The keychain through the whole engine: entries made when a task asks for them, tokens remembered, nothing left
behind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from noetl.core.event import envelope
from noetl.core.reference import reference_from_json
from noetl.processes.server.owners import Owner
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import OWNER, Running, Told, running_engine
from tests.support.web import web_server

SECRET = "canary/secret&71f0"
TOKEN = "canary/token+9ab3"


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


class Partner:
    """An API whose door opens with a token, and the endpoint that gives it."""

    def __init__(self) -> None:
        self.granted = 0
        self.granting: list[Mapping[str, str]] = []
        self.seen: list[Mapping[str, str]] = []
        self.status = 200
        self.is_revoked = False

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/token":
            self.granted += 1
            self.granting.append(dict(await request.post()))
            if self.status != 200:
                return web.json_response({"error": f"wrong secret {SECRET}"}, status=self.status)
            return web.json_response(
                {"access_token": f"{TOKEN}{self.granted}", "expires_in": 3600, "token_type": "Bearer"}
            )
        self.seen.append(dict(request.headers))
        if self.is_revoked and request.headers.get("Authorization") == f"Bearer {TOKEN}1":
            return web.json_response({"error": "revoked"}, status=401)
        return web.json_response({"headers": dict(request.headers), "n": len(self.seen)})


@asynccontextmanager
async def running(address: str, home: Path) -> AsyncIterator[tuple[Running, Partner, str]]:
    partner = Partner()
    async with web_server(partner) as port, running_engine(address, home) as engine:
        await engine.engine.credentials.put(
            "partner", type="generic", data={"client_id": "someone", "client_secret": SECRET}, owner=Owner(**OWNER)
        )
        yield engine, partner, f"http://127.0.0.1:{port}"


KEYCHAIN = """
workload: {api: none, region: eu}
keychain:
  - {name: stored, kind: credential, credential: partner}
  - name: access
    kind: oauth2
    endpoint: "{{ api }}/token"
    data: {grant_type: client_credentials, client_id: "{{ keychain.stored.client_id }}",
           client_secret: "{{ keychain.stored.client_secret }}", region: "{{ workload.region }}"}
  - {name: key, kind: api_key, value: "{{ keychain.stored.client_secret }}", header_name: X-Key}
  - {name: pair, kind: basic, username: u, password: "{{ keychain.stored.client_secret }}"}
  - {name: words, kind: static, map: {one: "{{ keychain.stored.client_secret }}"}}
"""


async def left_behind(engine: Running, told: Told) -> str:
    """Everything that an execution recorded, its payloads included, as one text."""
    kept = [json.dumps(envelope(event), default=str) for event in told.events]
    found = [
        one for event in told.events for one in _references([event.meta, event.result, event.writes, event.payload_ref])
    ]
    kept += [(await engine.engine.payloads.read(reference_from_json(one), **OWNER)).decode() for one in found]
    return "\n".join(kept)


def _references(value: Any) -> list[Mapping[str, Any]]:
    if isinstance(value, dict):
        own = [value] if {"uri", "sha256", "store"} <= value.keys() else []
        return own + [found for item in value.values() for found in _references(item)]
    return [found for item in value for found in _references(item)] if isinstance(value, list | tuple) else []


# --- dsl §12 -----------------------------------------------------------------------------------------------


@asynchronous
async def test_12_25_keychain_entries_that_are_never_used_are_never_resolved(address: str, tmp_path: Path) -> None:
    """None of the entries could be resolved: nobody listens, there is no such credential, there is no provider."""
    async with running(address, tmp_path) as (engine, partner, api):
        told = await engine.run(
            """
            workload: {api: none}
            keychain:
              - {name: unused_oauth, kind: oauth2, endpoint: "{{ api }}/token", data: {a: b}}
              - {name: unused_endpoint, kind: oauth2, endpoint: "http://127.0.0.1:9/token"}
              - {name: unused_credential, kind: credential, credential: nobody_has_set_it}
              - {name: unused_google, kind: google_oauth, anything: x}
              - {name: used, kind: static, map: {word: hello there}}
            workflow:
              - step: a
                tool: {kind: python, input: {word: "{{ keychain.used.word }}"}, code: "result = {'n': len(word)}"}
                next: b
              - step: b
                tool: {kind: http, url: "{{ api }}/x"}
            """,
            {"api": api},
        )
        assert told.state.status == "COMPLETED", told.state.failure
        assert partner.granted == 0
        assert len(partner.seen) == 1


# --- using it ----------------------------------------------------------------------------------------------


@asynchronous
async def test_entries_reach_headers_input_code_and_auth_and_are_scrubbed_from_all_of_it(
    address: str, tmp_path: Path
) -> None:
    async with running(address, tmp_path) as (engine, partner, api):
        told = await engine.run(
            KEYCHAIN
            + """
workflow:
  - step: web
    tool:
      - {name: templated, kind: http, url: "{{ api }}/a", headers: {X-T: "Bearer {{ keychain.access.access_token }}"}}
      - {name: by_auth, kind: http, url: "{{ api }}/b", auth: "{{ keychain.access }}"}
      - {name: by_key, kind: http, url: "{{ api }}/c", auth: {key: key}}
      - {name: by_pair, kind: http, url: "{{ api }}/d", auth: pair}
      - {name: by_token, kind: http, url: "{{ api }}/e", headers: {X-T: "{{ token('access') }}"}}
      - name: whole
        kind: http
        url: "{{ api }}/f"
        headers: {X-T: "{{ keychain.words }}", X-U: "{{ keychain.words.one }}"}
      - name: code
        kind: python
        input: {given: "{{ keychain.access.token }}", seen: "{{ results }}"}
        env: {OF_ENV: "{{ keychain.words }}"}
        code: |
          import os
          print(given, os.environ["OF_ENV"], input_data)
          held = "{{ keychain.key.api_key }}"
          result = {"given": given, "env": os.environ["OF_ENV"], "held": held, "seen": seen,
                    "hex": given.encode().hex(), "length": len(held)}
        set: {ctx.leak: "{{ input.given }}"}
    set: {ctx.whole: "{{ web }}"}
    next: failing
  - step: failing
    tool:
      kind: python
      input: {given: "{{ keychain.words.one }}"}
      code: |
        raise ValueError(f"no good: {given}")
""",
            {"api": api},
        )
        assert told.state.status == "FAILED"
        used = [one.get("X-T") or one.get("Authorization") or one.get("X-Key") for one in partner.seen]
        basic = "Basic dTpjYW5hcnkvc2VjcmV0JjcxZjA="
        assert used == [f"Bearer {TOKEN}1", f"Bearer {TOKEN}1", SECRET, basic, f"{TOKEN}1", SECRET]
        assert partner.seen[-1]["X-U"] == SECRET
        assert partner.granted == 1
        assert partner.granting[0]["client_secret"] == SECRET
        left = await left_behind(engine, told)
        assert '"length":18' in left.replace(" ", ""), "the code had it"
        assert "no good: ***" in left
        for secret in (SECRET, TOKEN, SECRET.encode().hex(), TOKEN.encode().hex(), "canary"):
            assert secret not in left


@asynchronous
async def test_a_loop_and_a_second_execution_use_one_token_unless_it_is_local(address: str, tmp_path: Path) -> None:
    body = (
        KEYCHAIN
        + """
workflow:
  - step: rows
    loop: {in: "{{ range(30) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 8}}
    tool: {kind: http, url: "{{ api }}/{{ n }}", auth: access}
"""
    )
    async with running(address, tmp_path) as (engine, partner, api):
        assert (await engine.run(body, {"api": api})).state.status == "COMPLETED"
        assert (await engine.run(body, {"api": api})).state.status == "COMPLETED"
        assert partner.granted == 1
        assert len(partner.seen) == 60
        # Another workload is another request, and a local entry is one execution's own.
        await engine.run(body, {"api": api, "region": "us"})
        assert partner.granted == 2
        local = body.replace("kind: oauth2", "kind: oauth2\n    scope: local")
        await engine.run(local, {"api": api})
        await engine.run(local, {"api": api})
        assert partner.granted == 4


@asynchronous
async def test_a_token_that_is_refused_is_asked_for_anew(address: str, tmp_path: Path) -> None:
    async with running(address, tmp_path) as (engine, partner, api):
        partner.is_revoked = True
        told = await engine.run(
            KEYCHAIN
            + """
workflow:
  - step: call
    tool:
      kind: http
      url: "{{ api }}/x"
      auth: access
      spec: {policy: {rules: [{when: "{{ output.error.kind == 'auth' }}", then: {do: retry, attempts: 2}}]}}
""",
            {"api": api},
        )
        assert told.state.status == "COMPLETED"
        assert partner.granted == 2


# --- what does not work ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "kind", "message"),
    [
        ('{kind: http, url: "{{ api }}", auth: broken}', "auth", "keychain entry 'broken' gives no token: the request"),
        ('{kind: http, url: "{{ api }}", auth: missing}', "auth", "there is no credential 'nobody_has_set_it'"),
        ('{kind: http, url: "{{ api }}", auth: nobody}', "auth", "there is no credential 'nobody'"),
        ('{kind: http, url: "{{ api }}", auth: google}', "unsupported", "keychain entry 'google' has kind"),
        ('{kind: http, url: "{{ keychain.zz.x }}"}', "auth", "there is no keychain entry 'zz'"),
        ('{kind: http, url: "{{ keychain.empty }}"}', "auth", "keychain entry 'empty': token is empty"),
        ('{kind: http, url: "{{ keychain.wrong }}"}', "auth", "keychain entry 'wrong': one of its templates failed"),
        ("{kind: http, url: \"{{ token('nobody') }}\"}", "auth", "there is no credential 'nobody'"),
        ('{kind: http, url: "{{ token(keychain.words.one) }}"}', "auth", "there is no credential '***'"),
        ("{kind: http, url: \"{{ token('pair') }}\"}", "auth", "type 'basic' gives no token"),
        ("{kind: http, url: \"{% for i in [1] %}{{ token('access') }}{% endfor %}\"}", "template", "not available in"),
        ('{kind: http, url: "{{ keychain.words.one | int + 1 }}/{{ [] + keychain.words.one }}"}', "template", "field"),
        ('{kind: http, url: "{{ api }}", auth: {source: env, name: HOME}}', "auth", "NOETL_AUTH_ENV_ALLOW"),
        ('{kind: http, url: "{{ api }}", auth: {source: adc}}', "unsupported", "adc"),
        ('{kind: http, url: "{{ api }}", auth: "{{ keychain.words.one }}"}', "auth", "there is no credential"),
        ("{kind: python, auth: pair, code: result = 1}", "unsupported", "type 'basic', which has no variables"),
    ],
)
@asynchronous
async def test_a_failure_says_which_entry_and_nothing_of_it(
    tool: str, kind: str, message: str, address: str, tmp_path: Path
) -> None:
    async with running(address, tmp_path) as (engine, partner, api):
        partner.status = 401
        more = """
  - {name: broken, kind: oauth2, endpoint: "{{ api }}/token", data: {client_secret: "{{ keychain.words.one }}"}}
  - {name: missing, kind: credential, credential: nobody_has_set_it}
  - {name: google, kind: google_oauth}
  - {name: empty, kind: bearer, token: "{{ keychain.stored.nothing }}"}
  - {name: wrong, kind: bearer, token: "x{{ keychain.stored.nothing }}"}
"""
        told = await engine.run(f"{KEYCHAIN}{more}workflow:\n  - step: a\n    tool: {tool}\n", {"api": api})
        assert told.state.status == "FAILED"
        error: Any = told.state.failure
        assert (error["error"]["kind"], error["step"]) == (kind, "a")
        assert message in error["error"]["message"]
        left = await left_behind(engine, told)
        assert SECRET not in left


@asynchronous
async def test_python_gets_a_database_by_the_names_of_its_library(address: str, tmp_path: Path) -> None:
    async with running(address, tmp_path) as (engine, _, _api):
        data = {"db_host": "db.example", "db_user": "app", "db_password": SECRET, "db_name": "orders"}
        await engine.engine.credentials.put("orders", type="postgres", data=data, owner=Owner(**OWNER))
        told = await engine.run("""
        keychain: [{name: db, kind: postgres_credential, ref: orders}]
        workflow:
          - step: a
            tool:
              kind: python
              auth: db
              env: {PGAPPNAME: "{{ execution_id }}", EMPTY: null}
              code: |
                import os
                result = {"names": sorted(n for n in os.environ if n.startswith("PG")), "host": os.environ["PGHOST"],
                          "password": os.environ["PGPASSWORD"], "empty": os.environ.get("EMPTY")}
            next: b
          - step: b
            tool: {kind: python, code: "import os; result = [n for n in os.environ if n.startswith('PG')]"}
        """)
        assert told.result == []
        left = await left_behind(engine, told)
        assert '"password":"***"' in left
        names = ["PGAPPNAME", "PGDATABASE", "PGHOST", "PGPASSWORD", "PGUSER"]
        assert json.dumps(names, separators=(",", ":")) in left
        assert SECRET not in left
