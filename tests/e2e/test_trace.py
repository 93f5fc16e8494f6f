"""Where results come from, over a real server with a remote worker, and by the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from noetl.processes.server.routes.trace import TraceView
from tests.support.cli import cli
from tests.support.server import Answer, Place, running_server
from tests.support.yaml import playbook

BOOK = playbook("""
workflow:
  - step: start
    tool: {kind: python, code: "result = {'rows': list(range(30))}"}
    next: [{step: each}]
  - step: each
    loop: {in: "{{ start.rows }}", iterator: x, spec: {mode: parallel, max_in_flight: 30, frame: {max_rows: 1}}}
    tool: {kind: python, input: {x: "{{ x }}"}, code: "result = x * 2"}
    next: [{step: odd name/here}]
  - step: odd name/here
    tool:
      - {kind: python, name: sum, input: {all: "{{ each.results }}"}, code: "result = {'sum': sum(all)}"}
      - {kind: python, name: add, input: {one: "{{ start.rows[1] }}"}, code: "result = {'one': one}"}
    next: [{step: broken}]
  - step: broken
    tool: {kind: python, code: "raise ValueError('no')"}
""")


@pytest.fixture(scope="module")
def server() -> Iterator[Place]:
    with running_server(workers=1) as found:
        yield found


@pytest.fixture(scope="module")
def ended(server: Place) -> str:
    execution_id = server.submit(BOOK)
    assert server.finish(execution_id)["status"] == "FAILED", server.logs()
    return execution_id


def ask(server: Place, execution_id: str, step: str, **query: object) -> Answer:
    return server.request("GET", f"/api/executions/{execution_id}/trace/{quote(step, safe='')}", **query)


def test_a_trace_goes_back_to_the_first_result(server: Place, ended: str) -> None:
    answer = ask(server, ended, "odd name/here")
    assert answer.status == 200, answer.content
    view = TraceView.model_validate(answer.json)
    assert (view.step, view.run, view.status, view.is_cut) == ("odd name/here", 1, "ok", False)
    nodes = {node.ref_id: node for node in view.results}
    assert view.ref_id is not None
    own = nodes[view.ref_id]
    assert (own.step, own.role, own.depth, own.media_type) == (
        *("odd name/here", "step", 0),
        "application/vnd.noetl.pipeline+json",
    )
    assert [task.task for task in own.tasks] == ["sum", "add"]
    assert own.parent_ref is not None
    loop = nodes[own.parent_ref]
    assert (loop.step, loop.role) == ("each", "loop")
    assert {nodes[str(one.ref_id)].step for one in own.inputs} == {"each", "start"}
    assert loop.parent_ref is not None
    frame = nodes[loop.parent_ref]
    assert (frame.role, frame.correlation is not None) == ("frame", True)
    assert frame.parent_ref is not None
    start = nodes[frame.parent_ref]
    assert (start.step, start.parent_ref, start.inputs, start.store) == ("start", None, [], "db")
    (frames,) = view.frames
    assert (frames.stage_id, frames.total, len(frames.shown)) == ("each#1", 30, 20)
    events = {event["event_id"]: event for event in server.events(ended)}
    assert events[own.ref_id]["result"]["parent_ref"] == {"ref_id": own.parent_ref}
    assert events[own.ref_id]["result"]["reference"]["sha256"] == own.sha256


def test_a_step_that_failed_says_where_it_stands(server: Place, ended: str) -> None:
    view = TraceView.model_validate(ask(server, ended, "broken").json)
    assert (view.status, view.ref_id) == ("error", None)
    assert view.error is not None
    assert view.error["kind"] == "python"
    assert view.results[0].step == "odd name/here"
    assert view.parent_ref == view.results[0].ref_id


def test_what_is_not_there_is_a_problem_that_says_what_is(server: Place, ended: str) -> None:
    missing = ask(server, ended, "nobody")
    assert (missing.status, missing.json["code"]) == (404, "result_unknown")
    assert missing.headers["content-type"] == "application/problem+json"
    for step in ("start", "each", "odd name/here", "broken"):
        assert repr(step) in missing.json["detail"]
    for answer in (ask(server, ended, "start", run=9), ask(server, "77", "start"), ask(server, "x", "start")):
        assert answer.status == 404
    for answer in (ask(server, ended, "start", run=0), ask(server, ended, "start", run="x")):
        assert answer.json["code"] == "request_invalid", answer.content


def test_another_tenant_sees_nothing(server: Place, ended: str) -> None:
    path = f"/api/executions/{ended}/trace/start"
    assert server.request("GET", path).status == 200
    assert server.request("GET", path, headers={"Noetl-Tenant": "other"}).status == 404
    assert server.request("GET", path, token=None).status == 401


def test_the_description_has_the_trace(server: Place) -> None:
    document = server.request("GET", "/openapi.json").json
    operation = document["paths"]["/api/executions/{execution_id}/trace/{step}"]["get"]
    assert operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/TraceView")


def test_the_command_line_draws_a_tree(server: Place, ended: str) -> None:
    run = server.cli()
    shown = run("trace", ended, "odd name/here")
    assert shown.code == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert re.match(
        r"odd name/here#1  ok  \d+ B  application/vnd\.noetl\.pipeline\+json  db  [0-9a-f]{12}  20\d\d-", lines[0]
    )
    assert any(line.startswith("├─ task sum  ok  ") for line in lines)
    assert any("each#1 (loop)  ok  " in line for line in lines)
    assert sum("frame each#1/" in line for line in lines) == 20
    assert any(line.endswith("… 10 more frames") for line in lines)
    assert sum("start#1" in line for line in lines) == 2
    assert sum("start#1  (see above)" in line for line in lines) == 1
    assert TraceView.model_validate(run("trace", ended, "start", "--json").json).step == "start"
    failed = run("trace", ended, "broken")
    assert failed.stdout.startswith("broken#1  error  python: ")
    assert "└─ after odd name/here#1" in failed.stdout
    unknown = run("trace", ended, "nobody")
    assert (unknown.code, "'start'" in unknown.stderr) == (2, True)
    assert run("trace", ended, "start", "--run", "4").code == 2


def test_the_command_line_reads_its_own_home(tmp_path: Path) -> None:
    file = tmp_path / "book.yaml"
    file.write_text(BOOK)
    with cli() as command:
        done = command("run", str(file), "--json")
        assert done.code == 1, done.stderr
        execution_id = done.json["execution_id"]
        shown = command("trace", execution_id, "start")
        assert (shown.code, shown.stdout.startswith("start#1  ok  ")) == (0, True), shown.stderr
