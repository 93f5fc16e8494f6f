"""The ports behind one face, in memory or on Postgres, for suites that every adapter must pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults
from noetl.adapters.memory.ledger import MemoryLedger
from noetl.adapters.memory.lineage.lineage import MemoryLineage
from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.adapters.memory.queue import MemoryExecutions, MemoryQueue
from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.lineage.lineage import PostgresLineage
from noetl.adapters.postgres.payloads import PostgresPayloads
from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.postgres.queue import PostgresExecutions, PostgresQueue
from noetl.adapters.system.clock import SystemClock
from noetl.adapters.system.ids import SnowflakeIds
from noetl.engine.append import GroupAppender
from noetl.ports.data.lineage import Lineage
from noetl.ports.data.payloads import PayloadStore
from noetl.ports.ledger import Ledger, ShardHead
from noetl.ports.queue import Executions, Queue
from tests.support.databases import SHARDS, connected, own_shards
from tests.support.events import EventMaker

OpenBackend = Callable[[], AbstractAsyncContextManager["Backend"]]


@dataclass(slots=True, kw_only=True)
class Backend:
    """One open ledger with everything around it."""

    ledger: Ledger
    queue: Queue
    executions: Executions
    payloads: PayloadStore
    lineage: Lineage
    make: EventMaker
    own: Callable[[], Awaitable[list[ShardHead]]]
    tamper: Callable[[int], Awaitable[None]]
    wait: Callable[[float], Awaitable[None]]

    async def heads(self) -> dict[int, ShardHead]:
        return {head.shard_id: head for head in await self.ledger.heads()}


@asynccontextmanager
async def memory_backend(faults: Faults | None = None) -> AsyncIterator[Backend]:
    clock = VirtualClock()
    database = MemoryDatabase(clock=clock, shard_count=SHARDS)
    ledger = MemoryLedger(database, faults)

    async def tamper(execution_id: int) -> None:
        rows = database.tables.events[execution_id]
        rows[0] = rows[0]._replace(text=rows[0].text.replace("acme", "emca"))

    async def wait(seconds: float) -> None:
        clock.advance(seconds)

    yield Backend(
        ledger=ledger,
        queue=MemoryQueue(database, faults),
        executions=MemoryExecutions(database, faults),
        payloads=MemoryPayloads(database.tables.payloads, faults),
        lineage=MemoryLineage(database),
        make=EventMaker(ids=VirtualIds(clock), clock=clock),
        own=ledger.own_shards,
        tamper=tamper,
        wait=wait,
    )


@asynccontextmanager
async def postgres_backend(address: str) -> AsyncIterator[Backend]:
    writer, reader = Writer(address), Reader(address, size_max=4)
    await reader.open()

    async def tamper(execution_id: int) -> None:
        async with connected(address) as connection:
            await connection.execute("UPDATE noetl.event SET tenant_id = 'emca' WHERE execution_id = $1", execution_id)

    try:
        yield Backend(
            ledger=PostgresLedger(writer, reader),
            queue=PostgresQueue(reader),
            executions=PostgresExecutions(reader),
            payloads=PostgresPayloads(reader),
            lineage=PostgresLineage(reader),
            make=EventMaker(ids=_IDS, clock=SystemClock()),
            own=lambda: own_shards(address),
            tamper=tamper,
            wait=asyncio.sleep,
        )
    finally:
        await writer.close()
        await reader.close()


# One source for the process: tests share databases and must not share ids.
_IDS = SnowflakeIds(node=1023)


@asynccontextmanager
async def appender(ledger: Ledger) -> AsyncIterator[GroupAppender]:
    """A running group appender."""
    group = GroupAppender(ledger)
    task = asyncio.ensure_future(group.run())
    try:
        yield group
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            task.result()
