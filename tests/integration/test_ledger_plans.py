"""Plans of the ledger's statements: rows of `noetl.event` are found by index, in the partition they are in."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from noetl.adapters.postgres import pool
from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.statements import Statement, query
from noetl.core.errors import EnvelopeInvalid
from noetl.core.ids import first_id_at, quarter_of, quarters_from
from noetl.ports.ledger import Advance, ExecutionRow, IdempotencyRow, Offer, QueuedCommand, ShardHead
from tests.support.aio import asynchronous
from tests.support.backends import postgres_backend
from tests.support.databases import connected, fresh_database
from tests.support.events import ORGANIZATION, TENANT, EventMaker, decision, offer

OWNER = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
WRITER = {**pool._COMMON_SETTINGS, **pool._WRITER_SETTINGS}
READER = {**pool._COMMON_SETTINGS, **pool._READER_SETTINGS}
EXECUTIONS, EVENTS_EACH = 300, 40


@pytest.fixture(scope="module")
def address() -> str:
    """A ledger with enough rows, in two quarters, that a wrong plan would be cheaper than no plan at all."""
    address = fresh_database()
    asyncio.run(fill(address))
    return address


async def fill(address: str) -> None:
    async with postgres_backend(address) as b:
        first_of_next = first_id_at(quarters_from(datetime.datetime.now(datetime.UTC), 2)[1].start)
        ids = [b.make.execution_id() for _ in range(EXECUTIONS)]
        ids += [first_of_next + number * 1000 for number in range(EXECUTIONS // 4)]
        for start in range(0, len(ids), 12):
            await b.ledger.append([story(b.make, execution) for execution in ids[start : start + 12]])
    async with connected(address) as connection:
        await connection.execute("ANALYZE")


def story(make: EventMaker, execution: int) -> Offer:
    commands = (make.issued(execution, f"s#{number}") for number in range(EVENTS_EACH))
    return offer(execution % 16, make.initialized(execution), *commands)


class _Recorded:
    """A writer that runs nothing and remembers what it was asked to."""

    def __init__(self) -> None:
        self.statement = Statement("", ())
        self.values: dict[str, object] = {}

    async def fetch(self, statement: Statement, values: dict[str, object]) -> list[Any]:
        self.statement, self.values = statement, values
        return []


def literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    if isinstance(value, list):
        return f"ARRAY[{', '.join(map(literal, value))}]"
    return "'" + str(value).replace("'", "''") + "'"


async def explained(
    address: str, statement: Statement, values: dict[str, object], settings: dict[str, str]
) -> dict[str, Any]:
    """The plan that a prepared statement gets on a connection with these settings, and what it did."""
    connection = await asyncpg.connect(address, server_settings=settings)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(f"PREPARE looked_at AS {statement.text}")
        bound = ", ".join(map(literal, statement.bind(values)))
        text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE looked_at ({bound})")
        await transaction.rollback()
        plan: dict[str, Any] = json.loads(text)[0]["Plan"]
        return plan
    finally:
        await connection.close()


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def event_scans(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Nodes that read a partition of the ledger."""
    return [node for node in nodes(plan) if "Scan" in node["Node Type"] and _is_ledger(node)]


def _is_ledger(node: dict[str, Any]) -> bool:
    name = str(node.get("Relation Name", ""))
    return name == "event" or name.startswith("event_")


def touched(plan: dict[str, Any]) -> set[str]:
    """Partitions that were read."""
    return {node["Relation Name"] for node in event_scans(plan) if node["Actual Loops"] > 0}


def sequential(plan: dict[str, Any]) -> list[str]:
    """Tables that are read from one end to the other."""
    return [str(node.get("Relation Name")) for node in nodes(plan) if node["Node Type"] == "Seq Scan"]


def current_partition() -> str:
    return f"event_{quarter_of(datetime.datetime.now(datetime.UTC)).name}"


async def recorded(call: str, *arguments: Any) -> _Recorded:
    writer = _Recorded()
    ledger = PostgresLedger(writer, None)  # type: ignore[arg-type]
    with suppress(EnvelopeInvalid):  # an answer without rows is no answer to an append
        await getattr(ledger, call)(*arguments)
    assert writer.statement.text
    return writer


async def some_executions(address: str, count: int) -> list[int]:
    async with connected(address) as connection:
        rows = await connection.fetch("SELECT execution_id FROM noetl.stream ORDER BY execution_id LIMIT $1", count)
        return [row["execution_id"] for row in rows]


@pytest.mark.parametrize("count", [1, 64])
@asynchronous
async def test_an_append_looks_only_into_the_partition_of_its_executions(address: str, count: int) -> None:
    known = await some_executions(address, count)
    async with postgres_backend(address) as b:
        offers = [
            offer(execution % 16, b.make.issued(execution, "s#1"), b.make.issued(execution, "new#1"))
            for execution in known
        ]
        asked = await recorded("append", offers)
    plan = await explained(address, asked.statement, asked.values, WRITER)
    scans = event_scans(plan)
    assert scans
    assert sequential(plan) == []
    assert {node["Node Type"] for node in scans} <= {"Index Scan", "Index Only Scan"}
    assert all("uidx" in node["Index Name"] or "transition_key" in node["Index Name"] for node in scans)
    assert touched(plan) == {current_partition()}
    # Pruned when the statement starts and not row by row, which would crash a server of Postgres 18.
    assert {node["Relation Name"] for node in scans} == {current_partition()}


@pytest.mark.parametrize("shards", [[3], [3, 5]], ids=["one-shard", "two-shards"])
@asynchronous
async def test_an_advance_with_all_its_parts_reads_no_table_from_end_to_end(address: str, shards: list[int]) -> None:
    known = (await some_executions(address, 1))[0]
    async with postgres_backend(address) as b:
        await b.own()
        heads = [head for shard_id, head in (await b.heads()).items() if shard_id in shards]
        new = b.make.execution_id()
        asked = await recorded("advance", full_decision(b.make, heads, known, new))
    plan = await explained(address, asked.statement, asked.values, WRITER)
    assert event_scans(plan) == [], "a decision reads nothing of the ledger: its fence says that it has seen all"
    assert sequential(plan) == []


def full_decision(make: EventMaker, heads: list[ShardHead], known: int, new: int) -> Advance:
    def command(execution: int, command_id: str) -> QueuedCommand:
        return QueuedCommand(
            execution_id=execution, command_id=command_id, shard_id=3, tool_kind="noop", body="{}", **OWNER
        )

    return decision(
        heads,
        make.initialized(new)._replace(shard_id=3, stream_version=1),
        make.completed(known)._replace(shard_id=3, stream_version=EVENTS_EACH + 2),
        payloads=[make.payload(b"x")],
        queue=[command(new, "s#1")],
        claims=[command(known, "s#1")],
        dequeue=[(known, "s#2")],
        timers=[(new, "t", 3, "2026-01-01T00:00:00.000000Z")],
        timers_gone=[(known, "t")],
        executions=[
            ExecutionRow(
                execution_id=new,
                shard_id=3,
                path="p",
                playbook_digest="d",
                status="RUNNING",
                started_at="2026-01-01T00:00:00.000000Z",
                ended_at=None,
                last_step=None,
                last_event_id=1,
                applied_position=1,
                **OWNER,
            )
        ],
        idempotency=[IdempotencyRow(idempotency_key=f"k{new}", request_digest="d", execution_id=new, **OWNER)],
    )


@asynchronous
async def test_an_execution_is_read_by_index_from_its_own_partition(address: str) -> None:
    known = (await some_executions(address, 1))[0]
    for settings in (READER, {**READER, "plan_cache_mode": "force_generic_plan"}):
        plan = await explained(
            address,
            query("reads.sql", "execution_events"),
            {"execution_id": known, "after_position": 0, "rows": 100},
            settings,
        )
        assert {node["Node Type"] for node in event_scans(plan)} == {"Index Scan"}
        assert touched(plan) == {current_partition()}
        assert not any(node["Node Type"] == "Sort" for node in nodes(plan))


@asynchronous
async def test_the_tail_of_a_shard_is_read_by_index(address: str) -> None:
    async with connected(address) as connection:
        head = await connection.fetchval("SELECT next_position FROM noetl.execution_shard WHERE shard_id = 3")
    for settings in (READER, {**READER, "plan_cache_mode": "force_generic_plan"}):
        for after in (0, head - 10):
            plan = await explained(
                address,
                query("reads.sql", "shard_events"),
                {"shard_id": 3, "after_position": after, "rows": 100},
                settings,
            )
            scans = [node for node in event_scans(plan) if node["Actual Loops"] > 0]
            assert {node["Node Type"] for node in scans} <= {"Index Scan"}
            assert sequential(plan) == []
