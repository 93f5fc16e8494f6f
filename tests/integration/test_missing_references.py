"""A payload that is gone or damaged when a task needs it: what a task of the same pipeline stored is made again, what
another step gave is a failure that says whose it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from noetl.adapters.objects.filesystem import FileBlobs
from noetl.core import kinds
from noetl.core.errors import REFERENCE_NOT_AVAILABLE, StoreRefused
from noetl.core.execution.state import Status
from noetl.core.limits import HTTP_BODY_BYTES_IN_MEMORY_MAX, REFERENCE_RETURNS_MAX
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import Told, completed, running_engine
from tests.support.web import web_server

BODY = b"0123456789abcdex" * (HTTP_BODY_BYTES_IN_MEMORY_MAX // 16 + 1)
# What happens to the files of the store between two tasks, so often as `times` says.
HARMS = {"gone": "path.unlink()", "corrupt": "path.write_bytes(path.read_bytes().replace(b'x', b'y'))"}


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


class Source:
    """A server that counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked += 1
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        await response.prepare(request)
        await response.write(BODY)
        return response


def harming(home: Path, how: str, times: int) -> str:
    """The code of a task that harms every file of the store, the first few times."""
    return f"""
                  import pathlib
                  count = pathlib.Path("{home}/harmed")
                  so_far = len(count.read_text()) if count.exists() else 0
                  for path in pathlib.Path("{home}/payloads").rglob("*"):
                      if path.is_file() and so_far < {times}:
                          {HARMS[how]}
                  count.write_text("x" * (so_far + 1))
                  result = so_far + 1
"""


def fetching(home: Path, port: int, how: str, times: int) -> str:
    """A pipeline that stores a large body, has its file harmed, and reads it."""
    return f"""
        workflow:
          - step: start
            tool:
              - {{kind: http, name: fetch, url: "http://127.0.0.1:{port}/"}}
              - kind: python
                name: harm
                code: |{harming(home, how, times)}
              - {{kind: artifact, name: load, result_ref: "{{{{ fetch.data._ref }}}}"}}
              - {{kind: python, name: size, input: {{n: "{{{{ load.size_bytes }}}}"}}, code: "result = n"}}
        """


def error_of(told: Told) -> dict[str, Any]:
    assert told.state.status is Status.FAILED
    failure: Any = told.state.failure
    error: dict[str, Any] = failure["error"]
    return error


@pytest.mark.parametrize("how", HARMS)
@asynchronous
async def test_a_body_that_is_lost_between_two_tasks_is_fetched_again(how: str, address: str, tmp_path: Path) -> None:
    source = Source()
    async with web_server(source) as port, running_engine(address, tmp_path) as engine:
        told = await engine.run(fetching(tmp_path, port, how, 1))
    assert completed(told)["size"] == len(BODY)
    assert source.asked == 2
    (ended,) = told.of_type(kinds.COMMAND_COMPLETED)
    tasks: Any = ended.meta["tasks"]
    assert [one["task"] for one in tasks] == ["fetch", "harm", "load", "fetch", "harm", "load", "size"]
    assert tasks[2]["error"] == "missing_reference"
    assert (tasks[3]["attempt"], tasks[3]["stored"]["bytes"]) == (2, len(BODY))


@asynchronous
async def test_at_the_bound_the_failure_stands_and_says_whose_result_it_is(address: str, tmp_path: Path) -> None:
    source = Source()
    async with web_server(source) as port, running_engine(address, tmp_path) as engine:
        told = await engine.run(fetching(tmp_path, port, "gone", 100))
    error = error_of(told)
    assert source.asked == 1 + REFERENCE_RETURNS_MAX
    assert (error["kind"], error["code"], error["retryable"]) == ("missing_reference", REFERENCE_NOT_AVAILABLE, True)
    assert "task 'fetch' of this step" in error["message"]
    assert (error["details"]["step"], error["details"]["task"]) == ("start", "fetch")
    assert error["details"]["sha256"] in error["message"]


@asynchronous
async def test_rules_act_on_the_failure_that_stands(address: str, tmp_path: Path) -> None:
    body = fetching(tmp_path, 0, "gone", 100).replace(
        'result_ref: "{{ fetch.data._ref }}"}',
        'result_ref: "{{ fetch.data._ref }}", spec: {policy: {rules: [{when: "{{ error.code == \'REFERENCE_NOT_'
        "AVAILABLE' and error.details.task == 'fetch' }}\", then: {do: continue}}]}}}",
    )
    body = body.replace("{{ load.size_bytes }}", "{{ load.size_bytes | default(-1) }}")
    source = Source()
    async with web_server(source) as port, running_engine(address, tmp_path) as engine:
        told = await engine.run(body.replace(":0/", f":{port}/"))
    assert completed(told)["size"] == -1


@pytest.mark.parametrize("how", HARMS)
@asynchronous
async def test_what_a_task_put_into_the_store_is_put_again(how: str, address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(f"""
        workflow:
          - step: start
            tool:
              - kind: artifact
                name: kept
                action: put
                data: "{{{{ 'x' * 300000 }}}}"
              - kind: python
                name: harm
                code: |{harming(tmp_path, how, 2)}
              - {{kind: artifact, name: load, result_ref: "{{{{ kept.ref }}}}"}}
              - {{kind: python, name: size, input: {{n: "{{{{ load.data | length }}}}"}}, code: "result = n"}}
        """)
    assert told.state.failure is None, told.state.failure
    assert completed(told)["size"] == 300_000
    (ended,) = told.of_type(kinds.COMMAND_COMPLETED)
    tasks: Any = ended.meta["tasks"]
    assert [one["task"] for one in tasks].count("kept") == 3


@pytest.mark.parametrize("how", HARMS)
@asynchronous
async def test_what_another_step_gave_is_a_failure_that_names_it(how: str, address: str, tmp_path: Path) -> None:
    source = Source()
    async with web_server(source) as port, running_engine(address, tmp_path) as engine:
        told = await engine.run(f"""
        workflow:
          - step: start
            tool: {{kind: python, code: "result = {{'rows': [{{'a': 'x' * 100}} for _ in range(20000)]}}"}}
            next: [{{step: harm}}]
          - step: harm
            tool:
              - kind: python
                name: harm
                code: |{harming(tmp_path, how, 1)}
            next: [{{step: use}}]
          - step: use
            tool: {{kind: artifact, result_ref: "{{{{ start._ref }}}}"}}
        """)
        assert port
    error = error_of(told)
    assert (error["kind"], error["code"], error["retryable"]) == ("missing_reference", REFERENCE_NOT_AVAILABLE, True)
    assert (error["details"]["step"], error["details"]["task"]) == ("start", None)
    assert "it is a result of step 'start'" in error["message"]


@asynchronous
async def test_the_returns_of_a_row_are_its_own(address: str, tmp_path: Path) -> None:
    source = Source()
    async with web_server(source) as port, running_engine(address, tmp_path) as engine:
        body = fetching(tmp_path, port, "gone", 2).replace(
            "          - step: start\n", "          - step: start\n            loop: {in: [1, 2], iterator: x}\n"
        )
        told = await engine.run(body)
    assert told.state.failure is None, told.state.failure
    assert [row["size"] for row in completed(told)["results"]] == [len(BODY)] * 2
    assert source.asked == 4


def kept(home: Path, how: str, times: int) -> str:
    """A pipeline whose first result is stored on its own, because a later task asks where it is."""
    return f"""
        workflow:
          - step: start
            tool:
              - {{kind: python, name: make, code: "result = {{'text': ['x' * 1000] * 1000}}"}}
              - kind: python
                name: harm
                code: |{harming(home, how, times)}
              - {{kind: artifact, name: load, result_ref: "{{{{ make._ref }}}}"}}
              - {{kind: python, name: size, input: {{n: "{{{{ load.text | length }}}}"}}, code: "result = n"}}
        """


@pytest.mark.parametrize("how", HARMS)
@asynchronous
async def test_a_result_that_is_stored_on_its_own_is_made_again(how: str, address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(kept(tmp_path, how, 1))
    assert told.state.failure is None, told.state.failure
    assert completed(told)["size"] == 1_000
    (ended,) = told.of_type(kinds.COMMAND_COMPLETED)
    tasks: Any = ended.meta["tasks"]
    assert [one["task"] for one in tasks].count("make") == 2


class Refusing:
    """Trouble of a store that passes: it refuses so many puts of large payloads."""

    def __init__(self, times: int) -> None:
        self.left = times
        self._write = FileBlobs.settle

    def settle(self) -> Any:
        """What stands in the place of the method."""

        def settle(blobs: FileBlobs, *arguments: Any, **options: Any) -> None:
            if self.left > 0:
                self.left -= 1
                raise StoreRefused("the store is closed for a moment")
            self._write(blobs, *arguments, **options)

        return settle


@pytest.mark.parametrize("times", [REFERENCE_RETURNS_MAX, REFERENCE_RETURNS_MAX + 1])
@asynchronous
async def test_a_task_whose_result_cannot_be_stored_runs_again(
    times: int, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_engine(address, tmp_path) as engine:
        monkeypatch.setattr(FileBlobs, "settle", Refusing(times).settle())
        told = await engine.run(kept(tmp_path, "gone", 0))
    if times <= REFERENCE_RETURNS_MAX:
        assert completed(told)["size"] == 1_000
        return
    error = error_of(told)
    assert (error["kind"], error["code"]) == ("missing_reference", REFERENCE_NOT_AVAILABLE)
    assert (error["details"]["step"], error["details"]["task"]) == ("start", "make")
    assert "could not be stored" in error["message"]


@asynchronous
async def test_a_resume_point_remembers_what_tasks_stored_and_how_often_the_run_went_back(
    address: str, tmp_path: Path
) -> None:
    """The task that needs the payload runs in another attempt of the command than the one that stored it."""
    marker = tmp_path / "waited"
    source = Source()
    async with web_server(source) as port, running_engine(address, tmp_path) as engine:
        waiting = f"""
              - kind: python
                name: wait
                code: |
                  import pathlib
                  marker = pathlib.Path("{marker}")
                  if not marker.exists():
                      marker.touch()
                      raise ConnectionError("once")
                  result = 2
                spec: {{policy: {{rules: [{{when: "{{{{ error }}}}", then: {{do: retry, attempts: 9, delay: 2.1}}}}]}}}}
              - {{kind: artifact, name: load,"""
        body = fetching(tmp_path, port, "gone", 1).replace("              - {kind: artifact, name: load,", waiting[1:])
        told = await engine.run(body)
    assert len(told.of_type(kinds.TASK_WAITING)) == 1
    assert completed(told)["size"] == len(BODY)
    assert source.asked == 2
