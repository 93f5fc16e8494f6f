"""Producers that store and use payloads again, somebody who drops old executions, and a collector beside them, all in
virtual time.  Every deletion and every append is judged at once: an event never names what is not there."""

from __future__ import annotations

import asyncio
import datetime
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.adapters.memory.collecting import MemoryBooks, MemoryRoots, MemoryTurn, TimedPayloads
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults, Mishap
from noetl.adapters.memory.ledger import MemoryLedger
from noetl.adapters.sqlite.holdings import SqliteHoldings
from noetl.core.collection.names import names_in
from noetl.core.collection.plan import Policy
from noetl.core.reference import Payload, Result, address
from noetl.engine.collecting.collector import Collector, CollectorParts
from noetl.ports.data.collection import Control, Owner
from tests.simulation.loop import run_simulated
from tests.support.events import EventMaker, offer

GRACE, MARGIN = 100.0, 20.0
REAL = Policy(grace_seconds=GRACE, margin_seconds=MARGIN, ttl_seconds=GRACE * 5)
NONE = Policy(grace_seconds=0.0, margin_seconds=0.0, ttl_seconds=0.0)
OWNER = {"tenant_id": "acme", "organization_id": "sales"}
EXECUTIONS_KEPT = 12


class Dangling(AssertionError):
    """An event names, perhaps by way of a payload, what is not there."""


class Delays(Faults):
    """Every operation takes a while; nothing else goes wrong."""

    def __init__(self, chance: random.Random, seconds_max: float) -> None:
        super().__init__()
        self._chance = chance
        self._seconds_max = seconds_max

    def draw(self, operation: str) -> Mishap:
        before, after = (self._chance.random() ** 3 * self._seconds_max for _ in range(2))
        return Mishap(seconds_before=before, seconds_after=after)


class Careless(TimedPayloads):
    """A store that does not look at the time before it deletes."""

    def _delete(self, key: tuple[str, str, str], renewed_before: float) -> bool:
        return super()._delete(key, float("inf"))


class Stale(TimedPayloads):
    """A store that does not renew what is put again."""

    def _put(self, payload: Payload) -> None:
        key = (payload.tenant_id, payload.organization_id, payload.reference.sha256)
        if key not in self._contents:
            super()._put(payload)


class Opaque(TimedPayloads):
    """A store whose payloads cannot be looked into, so that nothing is reachable by way of them."""

    async def contents(
        self, digests: Sequence[str], *, owner: Owner
    ) -> AsyncIterator[tuple[str, AsyncGenerator[bytes, None]]]:
        async for sha256, stream in super().contents(digests, owner=owner):
            await stream.aclose()
            yield sha256, _nothing()


async def _nothing() -> AsyncGenerator[bytes, None]:
    yield b""


class Wrong(VirtualClock):
    """A store's own clock."""

    def __init__(self, right: VirtualClock, seconds: float) -> None:
        super().__init__()
        self._right = right
        self._seconds = datetime.timedelta(seconds=seconds)

    def moment(self) -> datetime.datetime:
        return self._right.moment() + self._seconds


class Scene:
    def __init__(
        self,
        seed: int,
        *,
        policy: Policy,
        puts: int,
        store: type[TimedPayloads] = TimedPayloads,
    ) -> None:
        self.chance = random.Random(f"collecting {seed}")
        self.clock = VirtualClock()
        self.database = MemoryDatabase(clock=self.clock, shard_count=1)
        self.policy = policy
        self.puts = puts
        self.seen: Counter[str] = Counter()
        delays = Delays(self.chance, self.chance.choice((0.0, 0.5, 5.0)))
        self.large = store(
            {},
            {},
            name="file",
            clock=Wrong(self.clock, self.chance.choice((-MARGIN / 2, 0.0, MARGIN / 2))),
            faults=delays,
            renewal_seconds=self.chance.choice((0.0, MARGIN / 2)),
        )
        tables = self.database.tables
        self.small = store(tables.payloads, tables.payload_times, name="db", clock=self.clock, faults=delays)
        self.roots = MemoryRoots(self.database, delays)
        self.ledger = MemoryLedger(self.database, delays)
        self.make = EventMaker(ids=VirtualIds(self.clock), clock=self.clock, **OWNER)
        self.books = MemoryBooks(self.clock)
        self.pool = [f"content {number}".encode() for number in range(self.chance.choice((3, 10, 30)))]
        self.number = 0
        self.is_over = False
        self.database.observers.append(lambda _rows: self.check("after an append"))

    # --- the story ---------------------------------------------------------------------------------------

    async def run(self) -> Counter[str]:
        async with asyncio.TaskGroup() as group:
            producers = [group.create_task(self._produce()) for _ in range(self.chance.choice((1, 3, 8)))]
            group.create_task(self._drop())
            group.create_task(self._collect())
            await asyncio.wait(producers)
            self.is_over = True
        self.check("at the end")
        return self.seen

    async def _produce(self) -> None:
        """Store something, often what was there before, and record it within the grace."""
        while self.number < self.puts:
            self.number += 1
            mine = self.number
            names = await self._stored()
            await asyncio.sleep(self.chance.random() ** 2 * 0.8 * GRACE)
            execution_id = self.make.execution_id()
            small = self._payload(self.chance.choice(self.pool), store="db")
            result = Result(status="ok", reference=names.reference).to_json()
            events = (
                self.make.initialized(execution_id, meta={"said": small.reference.to_json()}),
                self.make.completed(execution_id, f"step#{mine}", result=result),
            )
            self.seen["reused"] += (*OWNER.values(), small.reference.sha256) in self.database.tables.payloads
            await self.ledger.append([offer(0, *events, payloads=[small])])
            await asyncio.sleep(self.chance.choice((0.0, 1.0, 300.0)) * self.chance.random())

    async def _stored(self) -> Payload:
        """A payload in the large store; some name another one, which is put before them."""
        inner = self._payload(self.chance.choice(self.pool), store="file")
        await self._put(inner)
        if self.chance.random() < 0.5:
            return inner
        outer = self._payload(b'{"_ref":{"sha256":"%s"}}' % inner.reference.sha256.encode(), store="file")
        await self._put(outer)
        return outer

    async def _put(self, payload: Payload) -> None:
        self.seen["reused"] += (*OWNER.values(), payload.reference.sha256) in self.large._contents
        await self.large.put(payload)

    def _payload(self, content: bytes, *, store: str) -> Payload:
        return address(content, media_type="application/json", store=store, **OWNER)

    async def _drop(self) -> None:
        """Old executions go, and with them whatever only they named."""
        events = self.database.tables.events
        while not self.is_over:
            while len(events) > EXECUTIONS_KEPT:
                del events[min(events)]
            if self.chance.random() < 0.1:
                events.clear()
            await asyncio.sleep(self.chance.random() * 50)

    async def _collect(self) -> None:
        while not self.is_over:
            holdings = SqliteHoldings()
            control = Control(self.roots, self.small, self.books, MemoryTurn())
            parts = CollectorParts(control=control, large=[self.large], holdings=holdings)
            report = await Collector(parts, self.policy, is_dry_run=False).run()
            holdings.close()
            for kind, heap in report.heaps.items():
                self.seen[kind.fate] += heap.count
            self.check("after a collection")
            await asyncio.sleep(self.chance.random() * 60)

    # --- the judge ---------------------------------------------------------------------------------------

    def check(self, when: str) -> None:
        held = {key[2] for key in self.large._contents} | {key[2] for key in self.database.tables.payloads}
        rows = [row for found in self.database.tables.events.values() for row in found]
        for name in set().union(*(names_in(row.text.encode()) for row in rows)):
            if name not in held:
                raise Dangling(f"{when}, at {self.clock.now()}: {name} is named and gone")
            content = self.large._contents.get((*OWNER.values(), name), b"")
            for inner in names_in(content):
                if inner not in held:
                    raise Dangling(f"{when}, at {self.clock.now()}: {inner} is named by {name} and gone")


def simulate(
    seed: int, *, policy: Policy = REAL, puts: int, store: type[TimedPayloads] = TimedPayloads
) -> Counter[str]:
    scene = Scene(seed, policy=policy, puts=puts, store=store)
    return run_simulated(scene.run(), scene.clock, random.Random(f"loop {seed}"))
