"""Which version a child runs: the one that its parent is bound to."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.errors import RequestInvalid
from noetl.core.execution.evolve import fold_all
from noetl.engine.executions import Origin, StartRequest
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import HEAD, OWNER, Running, Told, _Owner, running_engine


def child(number: int) -> str:
    return f"workflow: [{{step: start, tool: {{kind: python, code: 'result = {number}'}}}}]"


GATE = """
import pathlib, time
while not pathlib.Path(gate).exists():
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


def versions_of(told: Told) -> list[int]:
    found: list[Any] = [event.meta["catalog"] for event in told.of_type(kinds.CHILD_STARTED)]
    return [one["version"] for one in found]


async def until_it_waits(engine: Running, execution_id: int) -> None:
    await engine.until(execution_id, lambda state: state.commands)


@asynchronous
async def test_a_written_path_is_the_version_that_was_newest_when_the_execution_began(
    address: str, tmp_path: Path
) -> None:
    body = f"""
    workflow:
      - step: start
        tool: {{kind: python, input: {{gate: {str(tmp_path / "gate")!r}}}, code: {json.dumps(GATE)}}}
        next: [{{step: call}}]
      - step: call
        loop: {{in: [1, 2], iterator: n}}
        tool: {{kind: playbook, path: pin/written}}
    """
    async with running_engine(address, tmp_path) as engine:
        first = await engine.register("pin/written", child(1))
        execution_id = await engine.start(body)
        await until_it_waits(engine, execution_id)
        await engine.register("pin/written", child(2))
        (tmp_path / "gate").touch()
        told = await engine.finish(execution_id)
        assert [one["data"] for one in told.result["results"]] == [1, 1]
        assert versions_of(told) == [1, 1]
        facts = {"id": str(first.catalog_id), "version": 1, "sha256": first.sha256}
        assert told.events[0].meta["playbooks"] == {"pin/written": facts}
        # Each side names the content of the child.
        started = told.of_type(kinds.CHILD_STARTED)[0]
        begun = (await engine.finish(int(str(started.meta["child_execution_id"])))).events[0]
        assert begun.meta["playbook"] == started.meta["playbook"]
        assert begun.meta["catalog"] == started.meta["catalog"] == {"id": str(first.catalog_id), "version": 1}
        assert fold_all(told.events) == told.state
        told = await engine.run(body)
        assert versions_of(told) == [2, 2]


@asynchronous
async def test_a_retry_starts_the_version_that_the_first_try_started(address: str, tmp_path: Path) -> None:
    failing = f"""
    workflow:
      - step: start
        tool:
          kind: python
          input: {{gate: {str(tmp_path / "gate")!r}}}
          code: |
            import pathlib, time
            if pathlib.Path(gate).exists():
                result = 'the first version'
            else:
                pathlib.Path(gate + '.began').touch()
                while not pathlib.Path(gate).exists():
                    time.sleep(0.01)
                raise ConnectionError('once')
    """
    async with running_engine(address, tmp_path) as engine:
        await engine.register("pin/retried", failing)
        execution_id = await engine.start(
            """
        workload: {name: retried}
        workflow:
          - step: start
            tool:
              kind: playbook
              path: "pin/{{ workload.name }}"
              spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 2}}]}}
        """
        )
        while not (tmp_path / "gate.began").exists():
            await asyncio.sleep(0.01)
        await engine.register("pin/retried", child(2))
        (tmp_path / "gate").touch()
        told = await engine.finish(execution_id)
    assert versions_of(told) == [1, 1]
    assert told.result["data"] == "the first version"


@asynchronous
async def test_a_playbook_that_starts_itself_starts_its_own_version(address: str, tmp_path: Path) -> None:
    itself = """
    workload: {{again: true}}
    workflow:
      - step: start
        tool: {{kind: noop}}
        next: [{{step: inner, when: "{{{{ workload.again }}}}"}}, {{step: leaf}}]
      - {{step: inner, tool: {{kind: playbook, path: pin/itself, input: {{again: false}}}}}}
      - {{step: leaf, tool: {{kind: python, code: 'result = {number}'}}}}
    """
    async with running_engine(address, tmp_path) as engine:
        for number in (1, 2):
            await engine.register("pin/itself", itself.format(number=number))
        for version in (1, 2):
            told = await engine.finish(await engine.start_version("pin/itself", version))
            assert told.result["data"] == version
            assert versions_of(told) == [version]


@asynchronous
async def test_a_version_is_chosen_by_number_or_by_its_id(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        first = await engine.register("pin/chosen", child(1))
        await engine.register("pin/chosen", child(2))
        told = await engine.run(f"""
        workload: {{id: "{first.catalog_id}"}}
        workflow:
          - step: start
            tool:
              - {{name: a, kind: playbook, path: pin/chosen, version: 1}}
              - {{name: b, kind: playbook, path: pin/chosen, version: "2"}}
              - {{name: c, kind: playbook, path: pin/chosen, version: latest}}
              - {{name: d, kind: playbook, catalog_id: {first.catalog_id}}}
              - {{name: e, kind: playbook, catalog_id: "{{{{ workload.id }}}}"}}
        """)
        assert told.state.failure is None, told.state.failure
        assert [told.result[label]["data"] for label in "abcde"] == [1, 2, 2, 1, 1]
        assert told.result["d"]["path"] == "pin/chosen"
        assert versions_of(told) == [1, 2, 2, 1, 1]


@pytest.mark.parametrize(
    ("wanted", "kind", "said"),
    [
        ("path: pin/none", "not_found", "the catalog has no playbook 'pin/none'"),
        ("path: pin/chosen, version: 99", "not_found", "in version 99"),
        ("path: pin/chosen, version: -1", "not_found", "in version -1"),
        ("path: pin/chosen, version: 0", "not_found", "in version 0"),
        ("catalog_id: '12345'", "not_found", "no playbook with the id 12345"),
        ("catalog_id: x", "config", "catalog_id must be the number of a version"),
        ("catalog_id: '0'", "config", "catalog_id must be the number of a version"),
        ("input: {a: 1}", "config", "path is required and must be text, or catalog_id"),
    ],
)
@asynchronous
async def test_what_cannot_be_started_fails_the_task(
    address: str, tmp_path: Path, wanted: str, kind: str, said: str
) -> None:
    async with running_engine(address, tmp_path) as engine:
        await engine.register("pin/chosen", child(1))
        told = await engine.run(f"workflow: [{{step: start, tool: {{kind: playbook, {wanted}}}}}]")
    assert told.state.failure is not None
    error: Any = told.state.failure["error"]
    assert error["kind"] == kind
    assert said in error["message"]


@asynchronous
async def test_the_same_request_is_the_same_execution_whatever_is_newest(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        ids = []
        for number in (1, 2):
            await engine.register("pin/keyed", child(number))
            found = await engine.engine.catalog.find("pin/keyed", owner=_Owner())
            request = StartRequest(text=found.text, file="x", payload={}, idempotency_key="once", **OWNER)
            origin = Origin(entry=found.entry, asked=("catalog", "pin/keyed", None, None))
            ids.append((await engine.engine.service.start(request, origin)).execution_id)
        assert ids[0] == ids[1]
        assert (await engine.finish(ids[0])).result == 1
        # With scripts that came along, the text alone does not make two requests the same.
        text = HEAD + "workflow: [{step: start, tool: {kind: python, script: a.py}}]"
        request = StartRequest(text=text, file="x", payload={}, idempotency_key="scripted", **OWNER)
        started = [
            (await engine.engine.service.start(request, Origin(scripts={"a.py": "result = 1"}))).execution_id
            for _ in range(2)
        ]
        assert started[0] == started[1]
        with pytest.raises(RequestInvalid, match="another request"):
            await engine.engine.service.start(request, Origin(scripts={"a.py": "result = 2"}))
        assert (await engine.finish(started[0])).result == 1
