"""Late commits (reliability.md §3.1): ids are drawn before the commit, so a reader that remembers the largest id it
saw loses events.  A reader that remembers one position per shard loses none."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest

from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.statements import Statement
from noetl.ports.ledger import Offer
from tests.support.aio import asynchronous
from tests.support.backends import Backend, postgres_backend
from tests.support.databases import connected, fresh_database
from tests.support.events import decision, offer

SHARDS = 4
WRITERS = 12


class SlowCommit:
    """A writer whose transactions stay open for a while between the statement and the commit."""

    def __init__(self, connection: Any, chance: random.Random) -> None:
        self._connection = connection
        self._chance = chance

    async def fetch(self, statement: Statement, values: dict[str, object]) -> Sequence[Any]:
        async with self._connection.transaction():
            rows: Sequence[Any] = await self._connection.fetch(statement.text, *statement.bind(values))
            await asyncio.sleep(self._chance.uniform(0.0, 0.006))
        return rows


@dataclass(slots=True)
class Seen:
    positions: dict[int, list[int]] = field(default_factory=lambda: {shard: [] for shard in range(SHARDS)})
    ids: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(map(len, self.positions.values()))


def offers_of(b: Backend, chance: random.Random) -> Iterator[list[Offer]]:
    """Commits of one writer: a few events in one or two shards, their ids drawn some time before they commit."""
    while True:
        shards = chance.sample(range(SHARDS), chance.choice((1, 1, 2)))
        yield [
            offer(shard, *(b.make.initialized(b.make.execution_id()) for _ in range(chance.randint(1, 12))))
            for shard in shards
        ]


async def write(address: str, b: Backend, *, seed: int, events: int) -> int:
    chance = random.Random(seed)
    written = 0
    async with connected(address) as connection:
        ledger = PostgresLedger(SlowCommit(connection, chance), None)  # type: ignore[arg-type]
        for offers in offers_of(b, chance):
            await ledger.append(offers)
            written += sum(len(one.events) for one in offers)
            if written >= events:
                return written
    raise AssertionError("unreachable")


async def tail(b: Backend, seen: Seen, expected: asyncio.Future[int]) -> None:
    """Follow every shard by position until all that was written has been seen."""
    while not expected.done() or seen.count < expected.result():
        for shard, positions in seen.positions.items():
            last = positions[-1] if positions else 0
            for event in await b.ledger.read_shard(shard, after_position=last):
                positions.append(event.position)
                seen.ids.append(event.event_id)
        await asyncio.sleep(0.001)


async def tail_naively(address: str, found: set[int], expected: asyncio.Future[int]) -> None:
    """What must not be built: follow the table by `event_id > watermark`."""
    watermark = 0
    async with connected(address) as connection:
        while True:
            is_last = expected.done()
            rows = await connection.fetch(
                "SELECT event_id FROM noetl.event WHERE event_id > $1 ORDER BY event_id", watermark
            )
            found.update(row["event_id"] for row in rows)
            watermark = max([watermark, *(row["event_id"] for row in rows)])
            if is_last:
                return
            await asyncio.sleep(0.001)


async def run_workload(address: str, *, events: int, seed: int) -> tuple[Seen, set[int], int]:
    seen, naive = Seen(), set[int]()
    async with postgres_backend(address) as b:
        expected: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def write_all() -> None:
            shares = [write(address, b, seed=seed * 1000 + n, events=events // WRITERS + 1) for n in range(WRITERS)]
            expected.set_result(sum(await asyncio.gather(*shares)))

        await asyncio.gather(write_all(), tail(b, seen, expected), tail_naively(address, naive, expected))
        return seen, naive, expected.result()


def check_workload(events: int) -> None:
    address = fresh_database(shards=SHARDS)
    seen, naive, written = asyncio.run(run_workload(address, events=events, seed=events))
    assert written >= events
    for shard, positions in seen.positions.items():
        assert positions == list(range(1, len(positions) + 1)), f"shard {shard}: a gap or a wrong order"
    assert len(seen.ids) == len(set(seen.ids)) == written
    # The test of the test: under the same load the naive reader does lose events.
    assert naive < set(seen.ids), "the load is too tame to show a late commit"


def test_a_reader_by_position_misses_no_late_commit_and_a_reader_by_id_does() -> None:
    check_workload(10_000)


@pytest.mark.long
def test_a_reader_by_position_misses_none_of_a_hundred_thousand_events() -> None:
    check_workload(100_000)


# --- the fence under concurrency ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


@asynccontextmanager
async def several(address: str, count: int) -> Any:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(postgres_backend(address)) for _ in range(count)]


@asynchronous
async def test_one_of_many_owners_with_the_same_fence_commits(address: str) -> None:
    async with several(address, 8) as backends:
        b = backends[0]
        head = next(head for head in await b.own() if head.shard_id == 3)
        for _ in range(20):
            events = [
                b.make.initialized(b.make.execution_id())._replace(shard_id=3, stream_version=1) for _ in backends
            ]
            outcomes = await asyncio.gather(
                *(one.ledger.advance(decision([head], event)) for one, event in zip(backends, events, strict=True))
            )
            assert sorted(map(len, outcomes)) == [0] * 7 + [1]
            following = (await b.heads())[3]
            assert following.next_position == head.next_position + 1
            head = following


@asynchronous
async def test_an_advance_that_waited_for_an_append_misses(address: str) -> None:
    async with postgres_backend(address) as b, connected(address) as intruder:
        head = next(head for head in await b.own() if head.shard_id == 4)
        appended, decided = b.make.execution_id(), b.make.execution_id()
        ledger = PostgresLedger(_Inside(intruder), None)  # type: ignore[arg-type]
        transaction = intruder.transaction()
        await transaction.start()
        await ledger.append([offer(4, b.make.initialized(appended))])
        event = b.make.initialized(decided)._replace(shard_id=4, stream_version=1)
        waiting = asyncio.ensure_future(b.ledger.advance(decision([head], event)))
        await _blocked(address)
        await transaction.commit()
        assert await waiting == frozenset()
        assert await b.ledger.read_execution(decided) == []


@asynchronous
async def test_an_advance_holds_its_fence_over_a_heartbeat_of_the_shard_row(address: str) -> None:
    """The row changes while the statement waits for it, but neither epoch nor position does."""
    async with postgres_backend(address) as b, connected(address) as intruder:
        head = next(head for head in await b.own() if head.shard_id == 5)
        transaction = intruder.transaction()
        await transaction.start()
        await intruder.execute("UPDATE noetl.execution_shard SET updated_at = clock_timestamp() WHERE shard_id = 5")
        event = b.make.initialized(b.make.execution_id())._replace(shard_id=5, stream_version=1)
        waiting = asyncio.ensure_future(b.ledger.advance(decision([head], event)))
        await _blocked(address)
        await transaction.commit()
        assert await waiting == {5}
        after = (await b.heads())[5]
        assert (after.next_position, after.decided_position) == (head.next_position + 1, head.next_position)


@asynchronous
async def test_an_append_that_waited_gets_the_positions_behind(address: str) -> None:
    async with postgres_backend(address) as b, connected(address) as intruder:
        first, second, third = (b.make.execution_id() for _ in range(3))
        before = (await b.heads())[6].next_position
        ledger = PostgresLedger(_Inside(intruder), None)  # type: ignore[arg-type]
        transaction = intruder.transaction()
        await transaction.start()
        await ledger.append([offer(6, b.make.initialized(first), b.make.initialized(second))])
        waiting = asyncio.ensure_future(b.ledger.append([offer(6, b.make.initialized(third))]))
        await _blocked(address)
        await transaction.commit()
        outcome = await waiting
        assert outcome.first_positions == {6: before + 2}
        events = await b.ledger.read_shard(6, after_position=before - 1)
        assert [event.position for event in events] == [before, before + 1, before + 2]
        assert (await b.heads())[6].next_position == before + 3


class _Inside:
    """A writer inside a transaction that the test holds open."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def fetch(self, statement: Statement, values: dict[str, object]) -> Sequence[Any]:
        rows: Sequence[Any] = await self._connection.fetch(statement.text, *statement.bind(values))
        return rows


async def _blocked(address: str) -> None:
    """Wait until some statement of this database waits for a lock."""
    async with connected(address) as connection:
        for _ in range(500):
            if await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ):
                return
            await asyncio.sleep(0.002)
    raise AssertionError("nothing waits for a lock")
