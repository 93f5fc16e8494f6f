"""Projections behind one face, in memory or on Postgres, and a projector over them."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults
from noetl.adapters.memory.ledger import MemoryLedger
from noetl.adapters.memory.projecting.projections import MemoryProjectionLeases, MemoryProjections
from noetl.adapters.memory.projecting.reading import MemoryExecutionViews, MemoryTail
from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.postgres.projecting.leases import PostgresProjectionLeases
from noetl.adapters.postgres.projecting.projections import PostgresProjections
from noetl.adapters.postgres.projecting.tail import PostgresTail
from noetl.adapters.postgres.projecting.views import PostgresExecutionViews
from noetl.adapters.system.clock import SystemClock
from noetl.adapters.system.ids import SnowflakeIds
from noetl.core.event import Event, seal
from noetl.engine.control.states import States
from noetl.engine.projecting.feed import Feed
from noetl.engine.projecting.folder import Folder
from noetl.engine.projecting.ownership import Ownership
from noetl.engine.projecting.projector import Pace, Projector, ProjectorParts
from noetl.engine.projecting.watching import Watched
from noetl.ports.clock import Clock
from noetl.ports.ledger import ExecutionRow, Ledger, Offer
from noetl.ports.projections import ExecutionViews, Member, ProjectionLeases, Projections, Tail
from tests.support.databases import SHARDS, connected
from tests.support.events import EventMaker

LEASE_SECONDS = 3.0


@dataclass(slots=True, kw_only=True)
class Projecting:
    """One open ledger with its projections; `restore` makes it another incarnation, with fewer events if asked."""

    ledger: Ledger
    leases: ProjectionLeases
    projections: Projections
    tail: Tail
    views: ExecutionViews
    make: EventMaker
    clock: Clock
    wait: Callable[[float], Awaitable[None]]
    restore: Callable[[], Awaitable[None]]
    spoil: Callable[[int], Awaitable[None]]
    rows: Callable[[], Awaitable[list[ExecutionRow]]]
    lives: list[int] = field(default_factory=list)

    async def append(self, shard_id: int, *events: Event) -> None:
        await self.ledger.append([Offer(shard_id=shard_id, events=[seal(event) for event in events])])

    def member(self, *, is_dedicated: bool = False, lease_seconds: float = LEASE_SECONDS) -> Member:
        """Another process."""
        self.lives.append(len(self.lives) + 1)
        return Member(
            runtime_id=self.lives[-1], instance="test", is_dedicated=is_dedicated, lease_seconds=lease_seconds
        )

    def projector(self, member: Member, *, pace: Pace | None = None, by_force: bool = False) -> Projector:
        ownership = Ownership(
            self.leases,
            member,
            clock=self.clock,
            heartbeat_seconds=member.lease_seconds / 3,
            by_force=by_force,
        )
        parts = ProjectorParts(
            ownership=ownership,
            projections=self.projections,
            tail=self.tail,
            folder=Folder(States(self.ledger), self.tail),
            feed=Feed(self.clock),
            watched=Watched(self.views, poll_seconds=0.01),
            clock=self.clock,
        )
        return Projector(parts, pace=pace or Pace(window_seconds=0.005, poll_seconds=0.005, batch_events=200))

    async def is_caught_up(self) -> bool:
        return all(one.position == one.head for one in await self.projections.progress())

    async def until_caught_up(self, seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not await self.is_caught_up():
                await asyncio.sleep(0.01)


OpenProjecting = Callable[[], AbstractAsyncContextManager[Projecting]]


@asynccontextmanager
async def memory_projecting(faults: Faults | None = None) -> AsyncIterator[Projecting]:
    clock = VirtualClock()
    database = MemoryDatabase(clock=clock, shard_count=SHARDS)

    async def wait(seconds: float) -> None:
        clock.advance(seconds)

    async def restore() -> None:
        database.tables.incarnation = "00000000-0000-4000-8000-000000000002"

    async def spoil(execution_id: int) -> None:
        rows = database.tables.events[execution_id]
        spoiled = rows[-1]._replace(text=rows[-1].text.replace("acme", "emca"))
        shard = database.tables.shards[spoiled.shard_id]
        shard[spoiled.position - 1] = rows[-1] = spoiled

    async def rows() -> list[ExecutionRow]:
        return [row for _, row in sorted(database.tables.executions.items())]

    yield Projecting(
        ledger=MemoryLedger(database),
        leases=MemoryProjectionLeases(database, faults),
        projections=MemoryProjections(database, faults),
        tail=MemoryTail(database, faults),
        views=MemoryExecutionViews(database),
        make=EventMaker(ids=VirtualIds(clock), clock=clock),
        clock=clock,
        wait=wait,
        restore=restore,
        spoil=spoil,
        rows=rows,
    )


# One source for the process: tests share databases and must not share ids.
_IDS = SnowflakeIds(node=1022)


@asynccontextmanager
async def postgres_projecting(address: str) -> AsyncIterator[Projecting]:
    """On a database whose projections nobody has begun."""
    writer, derived, reader = Writer(address), Writer(address, is_derived=True), Reader(address, size_max=6)
    await reader.open()

    async def restore() -> None:
        async with connected(address) as connection:
            await connection.execute("UPDATE noetl.ledger SET ledger_incarnation = gen_random_uuid()")

    async def spoil(execution_id: int) -> None:
        text = (
            "UPDATE noetl.event SET tenant_id = 'emca' WHERE execution_id = $1 AND position = "
            "(SELECT max(position) FROM noetl.event WHERE execution_id = $1)"
        )
        async with connected(address) as connection:
            await connection.execute(text, execution_id)

    async def rows() -> list[ExecutionRow]:
        async with connected(address) as connection:
            return await _stored_rows(connection)

    async with connected(address) as connection:
        await connection.execute("TRUNCATE noetl.projection_checkpoint, noetl.projector")
    try:
        yield Projecting(
            ledger=PostgresLedger(writer, reader),
            leases=PostgresProjectionLeases(reader),
            projections=PostgresProjections(derived, reader),
            tail=PostgresTail(reader),
            views=PostgresExecutionViews(reader),
            make=EventMaker(ids=_IDS, clock=SystemClock()),
            clock=SystemClock(),
            wait=asyncio.sleep,
            restore=restore,
            spoil=spoil,
            rows=rows,
        )
    finally:
        await writer.close()
        await derived.close()
        await reader.close()


_COLUMNS = (
    "execution_id, tenant_id, organization_id, shard_id, path, playbook_digest, status, started_at, ended_at, "
    "last_step, last_event_id, applied_position, parent_execution_id, version, state::text AS state, "
    "quarantine::text AS quarantine"
)


async def _stored_rows(connection: object) -> list[ExecutionRow]:
    found = []
    for row in await connection.fetch(f"SELECT {_COLUMNS} FROM noetl.execution ORDER BY execution_id"):  # type: ignore[attr-defined]
        values = dict(row)
        for name in ("started_at", "ended_at"):
            moment: datetime.datetime | None = values[name]
            if moment is not None:
                values[name] = moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        found.append(ExecutionRow(**values))
    return found


def story(make: EventMaker, execution_id: int, *, steps: int = 2, ends: bool = True) -> list[Event]:
    """Events of an execution that can be folded: steps one after the other, and an end."""
    reference = {"sha256": "0" * 64, "uri": "noetl://x"}
    meta: dict[str, object] = {"path": "test", "entry": "s1", "workload": {}, "playbook": reference}
    events = [make.initialized(execution_id, meta=meta)]
    for number in range(1, steps + 1):
        command = f"s{number}#1"
        events.append(make.issued(execution_id, command))
        events.append(make.completed(execution_id, command))
    if ends:
        events.append(make.ended(execution_id))
    return events


def poison(make: EventMaker, execution_id: int, command_id: str = "poison#1") -> Event:
    """An event that the ledger takes and that no fold understands: it says nothing of what it should."""
    return make.issued(execution_id, command_id, meta={})


def folded_rows(rows: Sequence[ExecutionRow]) -> dict[int, ExecutionRow]:
    return {row.execution_id: row for row in rows}
