"""What looks like a credential stays out of events and stays usable: it travels by reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from noetl.core.event import envelope
from noetl.core.playbook.compile import compile_playbook
from tests.support.aio import asynchronous
from tests.support.databases import empty_database
from tests.support.engine import Told, running_engine
from tests.support.playbooks import document

MARK = "mark-5e1f"


@pytest.fixture(scope="module")
def address() -> str:
    return empty_database()


def recorded(told: Told) -> str:
    return json.dumps([envelope(event) for event in told.events], default=str)


def written(told: Told) -> dict[str, object]:
    """The last write of each key of ctx: its value, or that it is a reference."""
    writes = [write for event in told.events for write in event.writes or ()]
    return {".".join(write["path"]): write.get("v", "by reference") for write in writes}  # type: ignore[arg-type]


LOGIN = f"""
workflow:
  - step: login
    tool:
      kind: python
      code: |
        result = {{"data": {{"access_token": "{MARK}-a", "next_token": "page-2", "user": "me"}},
                  "session": {{"id": 7, "nested": [{{"api_key": "{MARK}-b"}}]}}, "value": "{MARK}-c"}}
      set: {{ctx.worker_password: "{{{{ output.value }}}}", ctx.held: "{{{{ output.session }}}}", ctx.n: 1}}
    set:
      ctx.access_token: "{{{{ login.data.access_token }}}}"
      ctx.header: "Bearer {{{{ login.data.access_token }}}}"
      ctx.renamed: {{who: "{{{{ login.data.user }}}}", password: "{{{{ login.value }}}}"}}
      ctx.inside: {{deep: ["{{{{ login.session }}}}"], who: "{{{{ login.data.user }}}}"}}
      ctx.parts.token: "{{{{ login.value }}}}"
      ctx.next_token: "{{{{ login.data.next_token }}}}"
    next:
      arcs:
        - {{step: wrong, when: "{{{{ login.data.access_token == 'x' or ctx.next_token != 'page-2' }}}}"}}
        - step: use
          set: {{ctx.parts.n: "{{{{ ctx.n + 1 }}}}"}}
          when: "{{{{ login.data.access_token and ctx.access_token }}}}"
  - step: wrong
    tool: {{kind: noop}}
  - step: use
    tool:
      kind: python
      input: {{ctx: "{{{{ ctx }}}}"}}
      code: |
        result = ctx
"""


@asynchronous
async def test_a_login_works_and_no_event_shows_what_it_gave(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(LOGIN)
        assert told.state.status == "COMPLETED", told.state.failure
        session = {"id": 7, "nested": [{"api_key": f"{MARK}-b"}]}
        assert told.result == {
            "worker_password": f"{MARK}-c",
            "held": session,
            "n": 1,
            "access_token": f"{MARK}-a",
            "header": f"Bearer {MARK}-a",
            "renamed": {"who": "me", "password": f"{MARK}-c"},
            "inside": {"deep": [session], "who": "me"},
            "parts": {"token": f"{MARK}-c", "n": 2},
            "next_token": "page-2",
        }
        assert MARK not in recorded(told)
        inline = {name: value for name, value in written(told).items() if value != "by reference"}
        assert inline == {"n": 1, "next_token": "page-2", "parts.n": 2}
        assert "credential_in_context: ctx.worker_password" in recorded(told)
        assert "credential_in_context: ctx.held.nested.0.api_key" in recorded(told)


@asynchronous
async def test_a_cursor_of_paging_stays_where_routing_reads_it(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workload: {next_token: start}
        workflow:
          - step: page
            tool:
              kind: python
              input: {at: "{{ ctx.next_token }}"}
              code: |
                following = {"start": "two", "two": "three"}.get(at)
                result = {"nextPageToken": following, "at": at}
            next:
              arcs:
                - {step: page, when: "{{ page.nextPageToken }}", set: {ctx.next_token: "{{ page.nextPageToken }}"}}
                - {step: end}
        """)
        assert told.state.status == "COMPLETED"
        assert told.result == {"nextPageToken": None, "at": "three"}
        assert told.state.runs["page"] == 3
        assert written(told) == {"next_token": "three"}
        kinds = [event.event_type for event in told.events]
        assert kinds.count("command.completed") == 3, "no worker was asked for the value of a cursor"


@asynchronous
async def test_a_password_among_the_inputs_is_not_in_the_first_event(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(
            """
            workload: {db: {user: u, password: none}, plain: 1}
            workflow:
              - step: a
                tool: {kind: python, input: {given: "{{ db }}"}, code: "result = given['password']"}
                next: {arcs: [{step: b, when: "{{ workload.db.user == 'u' and plain == 1 }}"}]}
              - step: b
                tool: {kind: python, input: {given: "{{ db.password }}"}, code: "result = given"}
            """,
            {"db": {"password": f"{MARK}-d"}},
        )
        assert told.state.status == "COMPLETED"
        assert told.result == f"{MARK}-d"
        assert MARK not in recorded(told)


@asynchronous
async def test_rows_of_a_loop_may_write_them_too(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(f"""
        workflow:
          - step: rows
            loop: {{in: [1, 2, 3], iterator: n}}
            tool:
              kind: python
              input: {{n: "{{{{ n }}}}", before: "{{{{ ctx.secret }}}}"}}
              code: |
                result = {{"mine": f"{MARK}-{{n}}", "before": before}}
              set: {{ctx.secret: "{{{{ output.mine }}}}"}}
            next: last
          - step: last
            tool: {{kind: python, input: {{seen: "{{{{ ctx.secret }}}}"}}, code: "result = seen"}}
        """)
        assert told.state.status == "COMPLETED"
        assert told.result == f"{MARK}-3"
        assert MARK not in recorded(told)


def test_registration_says_what_becomes_of_it() -> None:
    text = document("""
workflow:
  - step: a
    tool: {kind: noop}
    set: {ctx.password: "{{ a.x }}", ctx.s.token: "{{ a.y }}", ctx.next_token: "{{ a.z }}", ctx.api_key: constant}
""")
    playbook = compile_playbook(text, file="x.yaml", kinds=frozenset(("noop",)))
    told = [warning for warning in playbook.warnings if warning.code == "credential_in_context"]
    assert [(warning.step, warning.line) for warning in told] == [("a", 8), ("a", 8)]
    assert "ctx.password looks like a credential and is kept out of events" in told[0].message
    assert "ctx.s.token looks like a credential" in told[1].message
