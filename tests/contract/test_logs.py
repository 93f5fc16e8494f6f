"""The log port: chunks written once, read in the order in which they become visible, by their owner only."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Protocol

import pytest

from noetl.adapters.memory.logs.chunks import MemoryLogs
from noetl.adapters.postgres.logs.chunks import PostgresLogs
from noetl.adapters.postgres.pool import Reader
from noetl.ports.data.logs import LogChunk, LogReader, LogSink, StoredChunk
from tests.support.aio import asynchronous

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
_ids = count(1_000)


class Logs(LogSink, LogReader, Protocol): ...


OpenLogs = Callable[[], AbstractAsyncContextManager[Logs]]


@pytest.fixture(params=["memory", "postgres"])
def open_logs(request: pytest.FixtureRequest) -> OpenLogs:
    @asynccontextmanager
    async def memory() -> AsyncIterator[Logs]:
        yield MemoryLogs()

    if request.param == "memory":
        return memory
    address: str = request.getfixturevalue("address")

    @asynccontextmanager
    async def postgres() -> AsyncIterator[Logs]:
        reader = Reader(address, size_max=8)
        await reader.open()
        try:
            yield PostgresLogs(reader)
        finally:
            await reader.close()

    return postgres


def chunk(execution_id: int, seq: int = 0, **given: object) -> LogChunk:
    usual = LogChunk(
        **OWNER,
        execution_id=execution_id,
        step="load",
        command_id="load#1",
        attempt=1,
        seq=seq,
        first_at_ms=1_767_225_600_123,
        last_at_ms=1_767_225_601_000,
        lines=2,
        size_bytes=11,
        content=b'{"lines":[],"tasks":[]}\x00',
    )
    return replace(usual, **given)  # type: ignore[arg-type]


async def read(
    logs: Logs, execution_id: int, *, after: int = 0, step: str | None = None, limit: int = 1_000, tenant: str = "acme"
) -> list[StoredChunk]:
    owner = {"tenant_id": tenant, "organization_id": "sales"}
    return await logs.read(execution_id, **owner, after=after, step=step, limit=limit)


@asynchronous
async def test_a_chunk_comes_back_as_it_was_written(open_logs: OpenLogs) -> None:
    async with open_logs() as logs:
        one = next(_ids)
        reference = {"sha256": "ab", "store": "file", "bytes": 3}
        written = [chunk(one), chunk(one, 1, content=None, reference=reference, attempt=2, step="ü", lines=0)]
        await logs.write(written)
        found = await read(logs, one)
        assert [stored.chunk for stored in found] == written
        assert found[0].log_id < found[1].log_id


@asynchronous
async def test_writing_nothing_or_the_same_again_changes_nothing(open_logs: OpenLogs) -> None:
    async with open_logs() as logs:
        one = next(_ids)
        await logs.write([])
        await logs.write([chunk(one), chunk(one, 1)])
        before = await read(logs, one)
        await logs.write([chunk(one, content=b"{other"), chunk(one, 1), chunk(one, 2)])
        after = await read(logs, one)
        assert after[:2] == before
        assert [stored.chunk.seq for stored in after] == [0, 1, 2]


@asynchronous
async def test_pages_are_read_behind_the_last_one_and_by_step(open_logs: OpenLogs) -> None:
    async with open_logs() as logs:
        one = next(_ids)
        await logs.write([chunk(one, seq, step=("a", "b")[seq % 2]) for seq in range(10)])
        seen: list[int] = []
        last = 0
        while page := await read(logs, one, after=last, limit=3):
            assert len(page) <= 3
            last = page[-1].log_id
            seen += [stored.chunk.seq for stored in page]
        assert seen == list(range(10))
        assert [stored.chunk.seq for stored in await read(logs, one, step="b", limit=2)] == [1, 3]


@asynchronous
async def test_nobody_reads_the_logs_of_another_owner_or_execution(open_logs: OpenLogs) -> None:
    async with open_logs() as logs:
        one, other = next(_ids), next(_ids)
        await logs.write([chunk(one), chunk(other)])
        assert await read(logs, one, tenant="other") == []
        assert [stored.chunk.execution_id for stored in await read(logs, one)] == [one]


@asynchronous
async def test_a_reader_who_remembers_the_last_one_misses_no_chunk(open_logs: OpenLogs) -> None:
    """Writers of one execution, some of several, at the same time: numbers become visible in their order."""
    async with open_logs() as logs:
        executions = [next(_ids) for _ in range(3)]
        chance = random.Random(7)
        is_over = asyncio.Event()

        async def write(number: int) -> None:
            for seq in range(15):
                some = [chunk(e, seq, command_id=f"c#{number}") for e in chance.sample(executions, k=3)]
                await logs.write(some)

        async def follow(execution_id: int) -> list[tuple[str, int]]:
            found: list[tuple[str, int]] = []
            last = 0
            while True:
                was_over = is_over.is_set()
                page = await read(logs, execution_id, after=last, limit=7)
                found += [(stored.chunk.command_id, stored.chunk.seq) for stored in page]
                last = page[-1].log_id if page else last
                if was_over and not page:
                    return found
                await asyncio.sleep(0)

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            followers = [group.create_task(follow(one)) for one in executions]
            await asyncio.gather(*(write(number) for number in range(6)))
            is_over.set()
        for follower in followers:
            assert sorted(follower.result()) == sorted((f"c#{n}", seq) for n in range(6) for seq in range(15))
