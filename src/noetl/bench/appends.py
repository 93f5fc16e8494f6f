"""`append`: many callers through the group commit, against a plain loop without counter and guard."""

from __future__ import annotations

import asyncio
import datetime
import time
from typing import Any

import asyncpg

from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.system.ids import SnowflakeIds
from noetl.bench.ground import Ground
from noetl.bench.measure import Metric, Report
from noetl.core import kinds
from noetl.core.event import Event, seal
from noetl.core.ids import ExecutionId, quarter_of
from noetl.core.locator import payload_locator, producer_locator
from noetl.core.reference import Result
from noetl.core.shards import shard_of
from noetl.engine.append import GroupAppender
from noetl.ports.ledger import Offer

CALLERS = 16
WRITERS = 2
CALLS = 250
PRODUCER = producer_locator("default", "default", "host", "bench")
PLAIN_EVENTS_PER_STATEMENT = 64
_COLUMNS = (
    "execution_id, position, shard_id, event_id, tenant_id, organization_id, stream_id, stream_version, "
    "aggregate_type, aggregate_id, event_type, schema_name, schema_version, event_time, ingest_time, producer, "
    "causation_id, correlation_id, idempotency_key, transition_key, command_id, stage_id, frame_id, parent_event_id, "
    "parent_execution_id, payload_ref, result, writes, meta, checksum"
)
_TYPES = (
    "position bigint, stream_version bigint, shard_id integer, checksum bytea, execution_id bigint, event_id bigint, "
    "tenant_id text, organization_id text, stream_id text, aggregate_type text, aggregate_id text, event_type text, "
    "schema_name text, schema_version integer, event_time timestamptz, producer text, causation_id bigint, "
    "correlation_id text, idempotency_key text, transition_key text, command_id text, stage_id text, frame_id text, "
    "parent_event_id bigint, parent_execution_id bigint, payload_ref json, result json, writes json, meta json"
)
_PLAIN = (
    f"INSERT INTO plain.event ({_COLUMNS}) SELECT {_COLUMNS.replace('ingest_time', 'clock_timestamp()')} "  # noqa: S608
    f"FROM json_to_recordset($1::json) AS t({_TYPES})"
)


async def append(ground: Ground) -> Report:
    rate, limit = 0.0, 0.0
    for _ in range(3):
        limit = max(limit, await _plain_rate(ground))
        rate = max(rate, await _group_rate(ground))
    return Report("append", {"events_per_s": Metric(rate, "1/s", limit)})


def task_events(execution_id: int, number: int, ids: SnowflakeIds, moment: str) -> list[Event]:
    """The four events that tell one task's story."""
    command = f"step_{number}#1"
    reference = {
        "kind": "payload",
        "uri": payload_locator("default", "default", f"{number:064x}"),
        "sha256": f"{number:064x}",
        "media_type": "application/json",
        "bytes": 64,
        "store": "db",
    }
    result = Result(status="ok", context={"atoms": {"0123456789abcdef": {"v": number}}}).to_json() | {
        "reference": reference
    }
    stories: list[tuple[str, str, dict[str, Any], Any]] = [
        (kinds.COMMAND_ISSUED, kinds.issued_key(command), {"step": command, "run": 1, "kind": "step"}, None),
        (kinds.COMMAND_CLAIMED, kinds.claimed_key(command, 1), {"attempt": 1, "session": "1"}, None),
        (kinds.COMMAND_COMPLETED, kinds.terminal_key(command), {"step": command, "attempt": 1}, result),
        (kinds.STEP_DECIDED, kinds.decided_key(command, 1), {"step": command, "run": 1, "arcs": [0]}, None),
    ]
    return [
        Event(
            execution_id=execution_id,
            event_id=ids.next_id(),
            tenant_id="default",
            organization_id="default",
            event_type=kind,
            event_time=moment,
            producer=PRODUCER,
            transition_key=key,
            correlation_id=str(execution_id),
            command_id=command,
            result=told,
            meta=meta,
        )
        for kind, key, meta, told in stories
    ]


async def _group_rate(ground: Ground) -> float:
    reader = Reader(ground.database, size_max=1)
    connections = [Writer(ground.database) for _ in range(WRITERS)]
    appender = GroupAppender(*(PostgresLedger(connection, reader) for connection in connections))
    ids = SnowflakeIds(node=1001)
    moment = _now()

    async def call() -> None:
        execution_id = ids.next_id()
        shard_id = shard_of(ExecutionId(execution_id), ground.settings.shard_count)
        for number in range(CALLS):
            events = [seal(event) for event in task_events(execution_id, number, ids, moment)]
            await appender.append(Offer(shard_id=shard_id, events=events))

    async with asyncio.TaskGroup() as writers:
        writer = writers.create_task(appender.run())
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(call())
        seconds = time.perf_counter() - started
        writer.cancel()
    for one in connections:
        await one.close()
    return CALLERS * CALLS * 4 / seconds


async def _plain_rate(ground: Ground) -> float:
    connection = await asyncpg.connect(ground.database)
    try:
        await _make_plain_table(connection)
        insert = await connection.prepare(_PLAIN)
        ids = SnowflakeIds(node=1002)
        moment = _now()
        tasks = PLAIN_EVENTS_PER_STATEMENT // 4
        position = 0
        started = time.perf_counter()
        for _ in range(CALLERS * CALLS // tasks):
            execution_id = ids.next_id()
            rows = []
            for number in range(tasks):
                for event in task_events(execution_id, number, ids, moment):
                    sealed = seal(event)
                    position += 1
                    rows.append(
                        f'{{"position":{position},"stream_version":{position},"shard_id":0,'
                        f'"checksum":"\\\\x{sealed.checksum}",{sealed.text[1:]}'
                    )
            await insert.fetch(f"[{','.join(rows)}]")
        return CALLERS * CALLS * 4 / (time.perf_counter() - started)
    finally:
        await connection.close()


async def _make_plain_table(connection: Any) -> None:
    """The same columns, partitioning, indexes and CHECK as the ledger's table, and nothing around it."""
    low, high = quarter_of(datetime.datetime.now(datetime.UTC)).id_bounds()
    await connection.execute("DROP SCHEMA IF EXISTS plain CASCADE")
    await connection.execute("CREATE SCHEMA plain")
    await connection.execute(
        "CREATE TABLE plain.event (LIKE noetl.event INCLUDING ALL) PARTITION BY RANGE (execution_id)"
    )
    await connection.execute(
        f"CREATE TABLE plain.event_now PARTITION OF plain.event FOR VALUES FROM ({low}) TO ({high})"
    )


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
