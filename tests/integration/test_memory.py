"""A server's memory does not grow with what it has done: whatever is remembered is bounded."""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from pathlib import Path

import pytest

from noetl.core.execution.state import Status
from tests.support.aio import asynchronous
from tests.support.databases import connected, fresh_database
from tests.support.engine import Running, running_engine
from tests.support.load import resident_bytes

MEGABYTE = 1024 * 1024
# Beyond every cache: what comes after these must find room where others were.
WARM = 5_000
AT_ONCE = 64
GROWTH_BYTES_MAX = 24 * MEGABYTE
# Of anything that is kept for each execution there would be thousands.
OBJECTS_MAX = 1_000
PLAYBOOK = """
workload: {n: 1}
workflow:
  - step: start
    tool: {kind: noop}
    set: {ctx.seen: "{{ workload.n }}"}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: noop}
"""


@pytest.mark.long
def test_memory_is_flat_over_fifty_thousand_executions(tmp_path: Path) -> None:
    figures = asyncio.run(grown(fresh_database(), tmp_path, 50_000, every=5_000))
    assert figures[-1] - figures[0] < GROWTH_BYTES_MAX, [round(one / MEGABYTE, 1) for one in figures]


def test_nothing_is_kept_for_each_execution_that_has_ended(tmp_path: Path) -> None:
    address = fresh_database()

    @asynchronous
    async def counted() -> Counter[str]:
        async with running_engine(address, tmp_path) as running:
            await run(running, 300)
            before = objects(running)
            await run(running, 1_200)
            after = objects(running)
        return after - before

    grown_kinds = {name: count for name, count in counted().items() if count > OBJECTS_MAX}
    assert not grown_kinds, grown_kinds


async def grown(address: str, home: Path, executions: int, *, every: int) -> list[int]:
    """Resident bytes of this process after the caches are full, and then again and again."""
    async with running_engine(address, home) as running:
        await run(running, WARM)
        figures = [settled()]
        for done in range(every, executions + 1, every):
            await run(running, every)
            figures.append(settled())
            print(f"{done:>7,} executions  {figures[-1] / MEGABYTE:8.1f} MB")
    async with connected(address) as database:
        ended = await database.fetchval("SELECT count(*) FROM noetl.event WHERE event_type = 'playbook.completed'")
        assert ended == WARM + executions
    return figures


async def run(running: Running, executions: int) -> None:
    """So many executions to their good end, some of them at a time."""
    todo = iter(range(executions))

    async def one_after_the_other() -> None:
        for number in todo:
            execution_id = await running.start(PLAYBOOK, {"n": number}, key=f"{os.urandom(8).hex()}")
            told = await running.engine.service.wait_terminal(
                execution_id, timeout_seconds=60, tenant_id="default", organization_id="default"
            )
            assert told.status is Status.COMPLETED

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_after_the_other())


def settled() -> int:
    gc.collect()
    return resident_bytes(os.getpid())


def objects(running: Running) -> Counter[str]:
    """Objects by their type, without those that the cache of states may keep."""
    running.engine.states.clear()
    gc.collect()
    return Counter(type(one).__qualname__ for one in gc.get_objects())
