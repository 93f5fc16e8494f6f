"""The ports of recovery behind one face, in memory or on Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.durability.checkpoints import MemoryCheckpoints
from noetl.adapters.memory.durability.leftovers import MemoryQueueLeftovers
from noetl.adapters.memory.durability.partitions import MemoryPartitions
from noetl.adapters.memory.durability.roles import MemoryRoleLeases
from noetl.adapters.memory.durability.snapshots import MemorySnapshots
from noetl.adapters.memory.faults import Faults
from noetl.adapters.memory.ledger import MemoryLedger
from noetl.adapters.memory.queue import MemoryQueue
from noetl.adapters.postgres.durability.checkpoints import PostgresCheckpoints
from noetl.adapters.postgres.durability.leftovers import PostgresQueueLeftovers
from noetl.adapters.postgres.durability.partitions import PostgresPartitions
from noetl.adapters.postgres.durability.roles import PostgresRoleLeases
from noetl.adapters.postgres.durability.snapshots import PostgresSnapshots
from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.postgres.queue import PostgresQueue
from noetl.adapters.system.clock import SystemClock
from noetl.adapters.system.ids import SnowflakeIds
from noetl.engine.durability.checkpointer import Checkpointer
from noetl.engine.durability.roles import CHECKPOINTER
from noetl.ports.durability.checkpoints import Checkpoints
from noetl.ports.durability.leftovers import QueueLeftovers
from noetl.ports.durability.partitions import Partitions
from noetl.ports.durability.roles import RoleLease, RoleLeases
from noetl.ports.durability.snapshots import Snapshots
from noetl.ports.ledger import Ledger
from noetl.ports.queue import Queue
from tests.support.databases import SHARDS, connected
from tests.support.events import EventMaker

OpenDurable = Callable[[], AbstractAsyncContextManager["Durable"]]
LEASE_SECONDS = 30.0
PRODUCER = "noetl://tenant/acme/org/sales/test/durability"
_IDS = SnowflakeIds(node=1022)


@dataclass(slots=True, kw_only=True)
class Durable:
    ledger: Ledger
    snapshots: Snapshots
    roles: RoleLeases
    checkpoints: Checkpoints
    partitions: Partitions
    leftovers: QueueLeftovers
    queue: Queue
    make: EventMaker
    apply: Callable[[int, int, int], Awaitable[None]]
    """Pretend that the projector of a shard has applied all up to a position, which is that of this event."""
    wait: Callable[[float], Awaitable[None]]

    def checkpointer(self) -> Checkpointer:
        return Checkpointer(
            self.checkpoints, ids=self.make.ids, clock=self.make.clock, producer=PRODUCER, interval_seconds=0.01
        )

    async def lease(self, runtime_id: int = 1) -> RoleLease:
        (lease,) = await self.roles.hold([CHECKPOINTER], runtime_id=runtime_id, lease_seconds=LEASE_SECONDS)
        return lease


def memory_parts(
    database: MemoryDatabase, applied: dict[int, tuple[int, int]], faults: Faults | None = None
) -> Durable:
    """The ports of one process over a database that outlives it."""
    clock = database.clock

    async def apply(shard_id: int, position: int, event_id: int) -> None:
        applied[shard_id] = position, event_id

    async def wait(seconds: float) -> None:
        clock.advance(seconds)

    return Durable(
        ledger=MemoryLedger(database, faults),
        snapshots=MemorySnapshots(database, faults),
        roles=MemoryRoleLeases(database, faults),
        checkpoints=MemoryCheckpoints(database, faults, applied=lambda: applied),
        partitions=MemoryPartitions(database, faults),
        leftovers=MemoryQueueLeftovers(database, faults),
        queue=MemoryQueue(database, faults),
        make=EventMaker(ids=VirtualIds(clock), clock=clock),
        apply=apply,
        wait=wait,
    )


@asynccontextmanager
async def memory_durable() -> AsyncIterator[Durable]:
    yield memory_parts(MemoryDatabase(clock=VirtualClock(), shard_count=SHARDS), {})


@asynccontextmanager
async def postgres_durable(address: str) -> AsyncIterator[Durable]:
    writer, reader = Writer(address), Reader(address, size_max=4)
    await reader.open()

    async def apply(shard_id: int, position: int, event_id: int) -> None:
        await sql(
            address,
            "INSERT INTO noetl.projection_checkpoint (shard_id, position, last_projected_event_id, ledger_incarnation)"
            " SELECT $1, $2, $3, ledger_incarnation FROM noetl.ledger ON CONFLICT (shard_id) DO UPDATE SET"
            " position = excluded.position, last_projected_event_id = excluded.last_projected_event_id,"
            " ledger_incarnation = excluded.ledger_incarnation",
            *(shard_id, position, event_id),
        )

    try:
        yield Durable(
            ledger=PostgresLedger(writer, reader),
            snapshots=PostgresSnapshots(reader),
            roles=PostgresRoleLeases(reader),
            checkpoints=PostgresCheckpoints(reader),
            partitions=PostgresPartitions(address, reader),
            leftovers=PostgresQueueLeftovers(reader),
            queue=PostgresQueue(reader),
            make=EventMaker(ids=_IDS, clock=SystemClock()),
            apply=apply,
            wait=asyncio.sleep,
        )
    finally:
        await writer.close()
        await reader.close()


async def sql(address: str, statement: str, *values: object) -> list[Any]:
    async with connected(address) as connection:
        rows: list[Any] = await connection.fetch(statement, *values)
        return rows
