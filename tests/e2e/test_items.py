"""`noetl items` and its address, over a real server with a remote worker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from noetl.processes.server.reading.items import ItemsView
from tests.support.server import Place, running_server
from tests.support.yaml import playbook

BOOK = playbook("""
workflow:
  - step: odd name/here
    loop:
      in: "{{ range(2500) | list }}"
      iterator: x
      spec: {mode: parallel, max_in_flight: 4, frame: {max_rows: 500}}
    spec: {policy: {failure: {mode: best_effort}}}
    tool: {kind: noop, result: "{{ 10 // (x % 1000) }}"}
""")
PATH = "/api/executions/{}/items/odd%20name%2Fhere"


@pytest.fixture(scope="module")
def server() -> Iterator[Place]:
    with running_server(workers=1) as found:
        yield found


@pytest.fixture(scope="module")
def ended(server: Place) -> str:
    execution_id = server.submit(BOOK)
    assert server.finish(execution_id)["status"] == "COMPLETED", server.logs()
    return execution_id


def test_a_page_of_items(server: Place, ended: str) -> None:
    answer = server.request("GET", PATH.format(ended), first=998, limit=3)
    assert answer.status == 200, answer.content
    view = ItemsView.model_validate(answer.json)
    assert (view.execution_id, view.step, view.kind) == (ended, "odd name/here", "collection")
    assert (view.total, view.done, view.failed, view.frames, view.next_index) == (2500, 2500, 3, 5, 1001)
    assert [(item.index, item.status, item.frame_id) for item in view.items] == [
        (998, "success", "odd name/here#1/2"),
        (999, "success", "odd name/here#1/2"),
        (1000, "failed", "odd name/here#1/3"),
    ]
    assert "input" not in answer.json["items"][0]


def test_one_item_by_its_index(server: Place, ended: str) -> None:
    view = ItemsView.model_validate(server.request("GET", PATH.format(ended), index=2001).json)
    assert [(item.index, item.status, item.input, item.result) for item in view.items] == [(2001, "success", 2001, 10)]


def test_what_cannot_be_asked_for_says_why(server: Place, ended: str) -> None:
    for query, status, words in (
        ({"index": 3, "failed": "true"}, 422, "one item"),
        ({"index": 2500}, 404, "has 2,500 items"),
        ({"limit": 0}, 422, "limit"),
        ({"nothing": 1}, 422, "nothing"),
    ):
        answer = server.request("GET", PATH.format(ended), **query)
        assert (answer.status, words in answer.content.decode()) == (status, True), answer.content
    assert server.request("GET", f"/api/executions/{ended}/items/nowhere").status == 404


def test_the_command_line_shows_items(server: Place, ended: str) -> None:
    run = server.cli()
    shown = run("items", ended, "odd name/here", "--failed")
    assert shown.code == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0] == "odd name/here#1  collection  2,500 of 2,500 done, 3 failed, 5 frames"
    assert [line.split()[:2] for line in lines[1:]] == [["0", "failed"], ["1000", "failed"], ["2000", "failed"]]
    assert "row 0, attempt 1" in lines[1]
    one = run("items", ended, "odd name/here", "--index", "2")
    assert one.stdout.splitlines()[1:] == ["input   2", "result  5"]
    few = run("items", ended, "odd name/here", "--limit", "2")
    assert len(few.stdout.splitlines()) == 3
    assert "--first 2" in few.stderr
    everything = run("items", ended, "odd name/here", "--limit", "0", "--json")
    assert [json.loads(line)["index"] for line in everything.stdout.splitlines()] == list(range(2500))


def test_a_status_says_what_the_rows_cost(server: Place, ended: str) -> None:
    shown = server.cli()("status", ended)
    assert shown.code == 0, shown.stderr
    lines = [line.strip() for line in shown.stdout.splitlines()]
    assert any(line.startswith("5 frames, ") for line in lines), lines
    (task,) = [line for line in lines if " calls" in line]
    assert task.startswith("odd name/here_task (noop): 2,500 calls, 3 failed, ")
    assert task.endswith(" ms tool")
