"""What the API reads of executions, with the engine running: one's own writes, waiting, lists."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.system.clock import SystemClock
from noetl.core.errors import ExecutionUnknown
from noetl.settings import ControlSettings
from noetl.wiring.projections.inside import ProjectionSide
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import OWNER, running_engine


@pytest.fixture
def address() -> str:
    return fresh_database()


STEPS = """
workflow:
  - step: start
    tool: {kind: noop}
    next: {arcs: [{step: each}]}
  - step: each
    loop: {in: "{{ [1, 2, 3] }}", iterator: n}
    tool: {kind: python, input: {n: "{{ iter.n }}"}, code: "result = n"}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: noop}
"""


@asynchronous
async def test_whoever_starts_an_execution_finds_it_and_its_end(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as running:
        status = running.engine.status
        for _ in range(5):
            execution_id = await running.start(STEPS)
            first = await status.find(execution_id, **OWNER)
            assert json.loads(first.row.state or "")["steps"], "the first row shows what was begun"
            (newest,) = await status.newest(limit=1, **OWNER)
            assert newest.execution_id == execution_id
            ended = await status.wait_terminal(execution_id, timeout_seconds=60, **OWNER)
            told = await running.finish(execution_id)
            last = told.events[-1]
            assert (ended.row.status, ended.row.version) == ("COMPLETED", last.stream_version)
            assert ended.row.last_event_id == last.event_id
            assert ended.position >= last.position
            document = json.loads(ended.row.state or "")
            assert document["progress"]["loop.each"]["done"] == 3
            # What waiting gives is what everybody reads.
            again = await status.find(execution_id, **OWNER)
            assert again.row == ended.row
            (newest,) = await status.newest(limit=1, status="COMPLETED", **OWNER)
            assert newest.status == again.row.status
            with pytest.raises(ExecutionUnknown):
                await status.find(execution_id, tenant_id="other", organization_id="default")


@asynchronous
async def test_a_position_is_waited_for_and_no_longer_than_asked(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as running:
        status = running.engine.status
        execution_id = await running.start(STEPS)
        events = (await running.finish(execution_id)).events
        for event in events:
            shown = await status.wait_position(execution_id, position=event.position, timeout_seconds=60, **OWNER)
            assert shown.position >= event.position
        far = await status.wait_position(execution_id, position=10**9, timeout_seconds=0, **OWNER)
        assert far.position < 10**9
        with pytest.raises(ExecutionUnknown):
            await status.wait_position(5, position=1, timeout_seconds=0, **OWNER)


@asynchronous
async def test_a_server_that_projects_nothing_sees_what_another_one_projects(address: str, tmp_path: Path) -> None:
    reader = Reader(address, size_max=2)
    await reader.open()
    elsewhere = ProjectionSide(ControlSettings(), address, reader=reader, clock=SystemClock())
    try:
        async with running_engine(address, tmp_path) as running, asyncio.TaskGroup() as group:
            looking = group.create_task(elsewhere.run())
            execution_id = await running.start(STEPS)
            shown = await elsewhere.status.wait_terminal(execution_id, timeout_seconds=25, **OWNER)
            assert shown.row.status == "COMPLETED"
            looking.cancel()
    finally:
        await elsewhere.close()
        await reader.close()
