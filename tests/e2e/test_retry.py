"""`noetl retry` and its address, over a real server with a remote worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from noetl.processes.server.models import RetriedView
from tests.support.retries import Flaky
from tests.support.server import Place, running_server
from tests.support.yaml import playbook

NOBODY = "4611686018427387904"


@pytest.fixture(scope="module")
def server() -> Iterator[Place]:
    with running_server(workers=1) as found:
        yield found


@pytest.fixture
def flaky(tmp_path: Path) -> Flaky:
    return Flaky(tmp_path)


def book(flaky: Flaky) -> str:
    return playbook(f"""
workflow:
  - step: rows
    loop:
      in: "{{{{ range(60) | list }}}}"
      iterator: x
      spec: {{mode: parallel, max_in_flight: 4, frame: {{max_rows: 10}}}}
    spec: {{policy: {{failure: {{mode: best_effort}}}}}}
{flaky.tool()}
    next: {{arcs: [{{step: after}}]}}
  - step: after
    tool: {{kind: python, input: {{s: "{{{{ rows.stats }}}}"}}, code: "result = s"}}
""")


def test_the_command_line_runs_failed_items_again(server: Place, flaky: Flaky) -> None:
    run = server.cli()
    flaky.breaks([3, 44])
    old = server.submit(book(flaky))
    assert server.finish(old)["result"] == {"total": 60, "success": 58, "failed": 2}
    failed = run("items", old, "rows", "--failed")
    assert "dead letter: noetl://" in failed.stderr
    assert "dead letter noetl://" in run("status", old).stdout
    flaky.breaks([44])
    again = run("retry", old, "--failed-items", "--json")
    assert again.code == 0, again.stderr
    new = json.loads(again.stdout)["execution_id"]
    assert json.loads(again.stdout)["result"] == {"total": 60, "success": 59, "failed": 1}
    assert f"retry of   {old}" in run("status", new).stdout
    assert server.request("GET", f"/api/executions/{new}").json["retry_of"] == old
    assert any(line.startswith(new) and f"retry of {old}" in line for line in run("list").stdout.splitlines())
    shown = run("items", new, "rows", "--limit", "0").stdout.splitlines()
    assert shown[0].startswith("rows#1  collection  60 of 60 done, 1 failed, 2 frames")
    assert len(shown) == 61
    assert f"kept from {old}, frame rows#1/1" in shown[1]
    assert "kept" not in shown[1 + 3]
    # And the retry once more, to its good end.
    flaky.breaks(())
    last = run("retry", new, "--failed-items", "--step", "rows")
    assert last.code == 0, last.stderr
    assert "60 of 60 items" in last.stderr
    assert flaky.ran() == {index: {3: 2, 44: 3}.get(index, 1) for index in range(60)}
    nothing = run("retry", old, "--failed-items", "--step", "after")
    assert (nothing.code, "is no loop" in nothing.stderr) == (2, True), nothing.stderr
    unsaid = run("retry", old)
    assert (unsaid.code, "--failed-items" in unsaid.stderr) == (2, True)


def test_the_address_of_retries_answers_once_per_key_and_says_why_not(server: Place, flaky: Flaky) -> None:
    flaky.breaks([5])
    old = server.submit(book(flaky))
    server.finish(old)
    flaky.breaks(())
    path = f"/api/executions/{old}/retry"
    headers = {"Idempotency-Key": f"once-{old}"}
    first = server.request("POST", path, body={"items": "failed"}, headers=headers)
    assert first.status == 201, first.content
    assert RetriedView.model_validate(first.json).retry_of == old
    assert server.request("POST", path, body={"items": "failed"}, headers=headers).json == first.json
    new = first.json["execution_id"]
    assert server.finish(new)["status"] == "COMPLETED"
    assert flaky.ran()[5] == 2
    for target, body, status, code in (
        (new, {"items": "failed"}, 409, "nothing_to_retry"),
        (old, {"items": "failed", "step": "nowhere"}, 404, "result_unknown"),
        (NOBODY, {"items": "failed"}, 404, "execution_unknown"),
        ("abc", {"items": "failed"}, 404, "execution_unknown"),
        (old, {"items": "all"}, 422, "request_invalid"),
        (old, {}, 422, "request_invalid"),
        (old, {"items": "failed", "more": 1}, 422, "request_invalid"),
    ):
        answer = server.request("POST", f"/api/executions/{target}/retry", body=body)
        assert (answer.status, answer.json["code"]) == (status, code), answer.content
    waits = server.submit(
        playbook("workflow:\n  - step: waits\n    tool: {kind: python, code: 'import time; time.sleep(60)'}\n")
    )
    answer = server.request("POST", f"/api/executions/{waits}/retry", body={"items": "failed"})
    assert (answer.status, answer.json["code"]) == (409, "execution_running"), answer.content
    server.cli()("cancel", waits)
