"""Snapshots and checkpoints on a real database: how much is read after a restart, what the statements cost, and who
never sees the executions of the system."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.queue import PostgresExecutions
from noetl.adapters.postgres.statements import query
from noetl.adapters.system.background import ThreadBackground
from noetl.core import kinds, limits
from noetl.core.errors import ExecutionUnknown, SchemaOutdated
from noetl.core.event import Event
from noetl.core.execution.evolve import evolve
from noetl.core.execution.state import ExecutionState
from noetl.core.ids import SYSTEM_ID_LIMIT, system_execution_of
from noetl.engine.control.states import Held, States, events_behind
from noetl.engine.durability.snapshotter import Snapshotter
from noetl.ports.ledger import Ledger
from tests.support.aio import asynchronous
from tests.support.databases import connected, fresh_database
from tests.support.durability import Durable, postgres_durable, sql
from tests.support.events import offer

EVENTS, INTERVAL, TAIL = 30_000, 10_000, 137


@pytest.fixture
def address() -> str:
    return fresh_database()


class Counting:
    """The real ledger, and how many events were read from it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.events_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def read_execution(self, execution_id: int, **options: Any) -> list[Event]:
        found = await self._ledger.read_execution(execution_id, **options)
        self.events_read += len(found)
        return found


@asynccontextmanager
async def running(snapshotter: Snapshotter) -> AsyncIterator[None]:
    task = asyncio.ensure_future(snapshotter.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def saved(snapshotter: Snapshotter, count: int) -> None:
    async with asyncio.timeout(60):
        while ("noetl_snapshots_total", {}, count) not in [*snapshotter.samples()]:
            await asyncio.sleep(0.02)


async def long_execution(d: Durable, snapshotter: Snapshotter, count: int) -> ExecutionState:
    """One that goes on for so many events; whoever folds it offers its states."""
    execution_id = d.make.execution_id()
    first = {"path": "p", "playbook": {}, "entry": "s", "workload": {"x": {"v": [1, {"k": "v"}]}}}
    fired = (
        d.make.event(execution_id, kinds.TIMER_FIRED, f"timer.fired/{n}", meta={"name": str(n)})
        for n in range(1, count)
    )
    story = [d.make.initialized(execution_id, meta=first), *fired]
    state: ExecutionState | None = None
    for start in range(0, count, 500):
        await d.ledger.append([offer(3, *story[start : start + 500])])
        for position, event in enumerate(story[start : start + 500], start=start + 1):
            state = evolve(state, event._replace(shard_id=3, position=position, stream_version=position))
        assert state is not None
        snapshotter.offer(Held(state, 3, position))
    assert state is not None
    return state


@asynchronous
async def test_a_restarted_server_reads_what_came_after_the_snapshot_and_no_more(address: str) -> None:
    async with postgres_durable(address) as d:
        snapshotter = Snapshotter(d.snapshots, background=ThreadBackground(), interval_events=INTERVAL)
        async with running(snapshotter):
            state = await long_execution(d, snapshotter, EVENTS + TAIL)
            await saved(snapshotter, 3)
        ledger = Counting(d.ledger)
        held = await States(ledger, d.snapshots).fold(state.execution_id)
        assert held == Held(state, 3, EVENTS + TAIL)
        assert ledger.events_read == 500 + TAIL


@asynchronous
async def test_a_snapshot_that_does_not_fit_is_passed_over(address: str) -> None:
    async with postgres_durable(address) as d:
        snapshotter = Snapshotter(d.snapshots, background=ThreadBackground(), interval_events=1_000)
        async with running(snapshotter):
            state = await long_execution(d, snapshotter, 3_100)
            await saved(snapshotter, 3)

        async def events_read() -> int:
            ledger = Counting(d.ledger)
            assert (await States(ledger, d.snapshots).fold(state.execution_id)).state == state
            return ledger.events_read

        assert await events_read() == 500 + 100
        await sql(address, "UPDATE noetl.projection_snapshot SET checksum = 'x' WHERE position > 2500")
        assert await events_read() == 500 + 1_100
        await sql(address, "UPDATE noetl.projection_snapshot SET code_version = 'other'")
        assert await events_read() == 3_100


@asynchronous
async def test_of_a_short_execution_nobody_asks_for_a_snapshot(address: str) -> None:
    class Untouchable:
        async def newest(self, execution_id: int) -> Any:
            raise AssertionError(f"somebody asked for snapshots of {execution_id}")

        save = newest

    async with postgres_durable(address) as d:
        snapshotter = Snapshotter(d.snapshots, background=ThreadBackground(), interval_events=INTERVAL)
        state = await long_execution(d, snapshotter, 40)
        held = await States(d.ledger, Untouchable()).fold(state.execution_id)
        assert held.state == state


@asynchronous
async def test_rows_of_checkpoints_do_not_grow_with_the_ledger(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_ROWS_MAX", 3)
    async with postgres_durable(address) as d:
        lease, checkpointer = await d.lease(), d.checkpointer()
        for _ in range(7):
            event = d.make.initialized(d.make.execution_id())
            await d.ledger.append([offer(2, event)])
            (stored,) = await d.ledger.read_execution(event.execution_id)
            await d.apply(2, stored.position, stored.event_id)
            assert await checkpointer.look(lease) == {2}
        rows = await sql(address, "SELECT epoch FROM noetl.checkpoint ORDER BY epoch")
        assert [row["epoch"] for row in rows] == [5, 6, 7]
        assert len(await d.ledger.read_execution(system_execution_of(2))) == 7


@asynchronous
async def test_the_executions_of_the_system_are_in_no_list_and_nobody_decides_them(address: str) -> None:
    async with postgres_durable(address) as d:
        event = d.make.initialized(d.make.execution_id())
        await d.ledger.append([offer(2, event)])
        await d.apply(2, 1, event.event_id)
        assert await d.checkpointer().look(await d.lease()) == {2}
        system = system_execution_of(2)
        (stored,) = await d.ledger.read_execution(system)
        assert stored.execution_id < SYSTEM_ID_LIMIT
        reader = Reader(address, size_max=2)
        await reader.open()
        try:
            executions = PostgresExecutions(reader)
            assert await executions.open_ids() == [event.execution_id]
            owner = {"tenant_id": stored.tenant_id, "organization_id": stored.organization_id}
            assert await executions.newest(limit=10, **owner) == []
            assert await executions.find(system, **owner) is None
        finally:
            await reader.close()
        with pytest.raises(ExecutionUnknown):
            await States(d.ledger, d.snapshots).fold(system)
        (head,) = [head for head in await d.ledger.heads() if head.shard_id == 2]
        found = await events_behind(d.ledger, head, head.decided_position)
        assert [one.execution_id for one in found] == [event.execution_id]
        rows = await sql(address, "SELECT count(*) AS n FROM noetl_views.events WHERE tenant_id = 'acme'")
        assert rows[0]["n"] == 1


@asynchronous
async def test_many_checkpointers_at_once_leave_one_checkpoint_of_each_epoch(address: str) -> None:
    """Also when each believes that the role is its own."""
    async with postgres_durable(address) as d:
        lease = await d.lease()
        for round_number in range(1, 4):
            for shard_id in range(16):
                event = d.make.initialized(d.make.execution_id())
                await d.ledger.append([offer(shard_id, event)])
                (stored,) = await d.ledger.read_execution(event.execution_id)
                await d.apply(shard_id, stored.position, stored.event_id)
            looks = (d.checkpointer().look(lease) for _ in range(6))
            await asyncio.gather(*looks, return_exceptions=True)
            rows = await sql(
                address, "SELECT shard_id, max(epoch) AS epoch, count(*) AS n FROM noetl.checkpoint GROUP BY 1"
            )
            assert {row["shard_id"]: (row["epoch"], row["n"]) for row in rows} == dict.fromkeys(
                range(16), (round_number, round_number)
            )
        gaps = await sql(
            address,
            "SELECT s.shard_id FROM noetl.execution_shard s WHERE s.next_position - 1 <>"
            " (SELECT count(*) FROM noetl.event e WHERE e.shard_id = s.shard_id)",
        )
        assert gaps == []


@asynchronous
async def test_a_checkpoint_beside_appends_leaves_no_gap(address: str) -> None:
    async with postgres_durable(address) as d:
        lease, checkpointer = await d.lease(), d.checkpointer()

        async def write() -> None:
            for _ in range(60):
                event = d.make.initialized(d.make.execution_id())
                await d.ledger.append([offer(1, event)])
                (stored,) = await d.ledger.read_execution(event.execution_id)
                await d.apply(1, stored.position, stored.event_id)

        async def state() -> int:
            total = 0
            for _ in range(40):
                total += len(await checkpointer.look(lease))
                await asyncio.sleep(0.002)
            return total

        _, committed = await asyncio.gather(write(), state())
        events = await d.ledger.read_shard(1, after_position=0)
        assert [event.position for event in events] == list(range(1, 61 + committed))
        assert committed > 3


async def plan(address: str, statement: str, values: list[object]) -> str:
    async with connected(address) as connection:
        await connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off")
        rows = await connection.fetch(f"EXPLAIN (FORMAT JSON, ANALYZE) {statement}", *values)
        return json.dumps(json.loads(rows[0][0]))


@asynchronous
async def test_looking_at_the_shards_reads_no_partition_whole(address: str) -> None:
    async with postgres_durable(address) as d:
        for shard_id in range(16):
            await d.ledger.append([offer(shard_id, *(d.make.initialized(d.make.execution_id()) for _ in range(20)))])
            await d.apply(shard_id, 20, 1)
        await d.checkpointer().look(await d.lease())
        text = query("durability.sql", "barriers")
        found = json.loads(await plan(address, text.text, [SYSTEM_ID_LIMIT]))

        def nodes(node: Any) -> Any:
            yield node
            for inner in node.get("Plans", ()):
                yield from nodes(inner)

        scans = [node for node in nodes(found[0]["Plan"]) if str(node.get("Relation Name", "")).startswith("event_")]
        assert scans
        assert all(node["Node Type"].startswith("Index") for node in scans)
        assert not any(node["Relation Name"] == "event_system" and node["Actual Loops"] for node in scans)


@asynchronous
async def test_partitions_are_made_while_others_append_and_hold_nobody_up(address: str) -> None:
    async with postgres_durable(address) as d, connected(address) as reader:
        # Somebody is in the middle of a long transaction that has read the ledger.
        async with reader.transaction():
            await reader.fetch("SELECT count(*) FROM noetl.event")
            later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=800)
            made = await asyncio.wait_for(d.partitions.ensure(later), timeout=60)
            await d.ledger.append([offer(1, d.make.initialized(d.make.execution_id()))])
        assert len(made) == 5
        rows = await sql(
            address,
            "SELECT count(*) AS n FROM pg_indexes WHERE schemaname = 'noetl' AND tablename = $1",
            made[-1],
        )
        other = await sql(
            address,
            "SELECT count(*) AS n FROM pg_indexes WHERE schemaname = 'noetl' AND tablename = 'event_system'",
        )
        assert rows[0]["n"] == other[0]["n"]


@asynchronous
async def test_a_role_that_may_not_make_tables_is_told_what_to_do(address: str) -> None:
    async with connected(address.replace("//noetl@", "//postgres@")) as connection:
        await connection.execute("CREATE ROLE noetl_plain LOGIN")
        await connection.execute("GRANT USAGE ON SCHEMA noetl TO noetl_plain")
    plain = address.replace("//noetl@", "//noetl_plain@")
    async with postgres_durable(address) as d:
        d.partitions._database = plain  # type: ignore[attr-defined]
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=800)
        with pytest.raises(SchemaOutdated, match="noetl migrate"):
            await d.partitions.ensure(later)
