"""Events in Arrow, read page by page behind a position."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from noetl.adapters.spark.sources.events.offsets import Offset
from noetl.adapters.spark.sources.events.options import EventOptions
from noetl.adapters.spark.types import plan_of
from noetl.ports.data.sources import EVENT_COLUMNS, EventPage, EventWindow, SourceAccess

PAGE_ROWS = 2_000
WINDOW_POSITIONS = 50_000
"""Of one task."""

_TYPES = {
    "shard_id": pa.int32(),
    "position": pa.int64(),
    "execution_id": pa.int64(),
    "event_id": pa.int64(),
    "stream_version": pa.int64(),
    "schema_version": pa.int32(),
    "event_time": pa.timestamp("us", "UTC"),
    "ingest_time": pa.timestamp("us", "UTC"),
    "causation_id": pa.int64(),
    "parent_event_id": pa.int64(),
    "parent_execution_id": pa.int64(),
}
SCHEMA = pa.schema([(name, _TYPES.get(name, pa.string())) for name in EVENT_COLUMNS])
_TIME = EVENT_COLUMNS.index("event_time")


def struct() -> StructType:
    return plan_of(SCHEMA).struct


@dataclass(frozen=True)
class Window(InputPartition):
    """What one task reads; None when there is nothing."""

    window: EventWindow | None
    since: datetime | None = None
    until: datetime | None = None


def windows(start: Offset, end: Offset, options: EventOptions) -> list[InputPartition]:
    """All positions behind one offset, up to another one, each in exactly one window."""
    found: list[InputPartition] = []
    for shard_id in sorted(end.positions):
        last = end.at(shard_id)
        for first in range(start.at(shard_id), last, WINDOW_POSITIONS):
            window = EventWindow(
                shard_id=shard_id,
                after_position=first,
                until_position=min(first + WINDOW_POSITIONS, last),
                tenant_id=options.tenant_id,
                organization_id=options.organization_id,
                execution_id=options.execution_id,
                event_types=options.event_types,
            )
            found.append(Window(window, options.since, options.until))
    return found


def read(access: SourceAccess, task: Window) -> Iterator[pa.RecordBatch]:
    """One page at a time: a task holds no more than that, and the database no more than one short query."""
    window = task.window
    if window is None:
        return
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            stores = runner.run(stack.enter_async_context(access.opened()))
            position = window.after_position
            while position < window.until_position:
                page = runner.run(stores.ledger.events(_behind(window, position), rows_max=PAGE_ROWS))
                assert page.position > position, "every page gets further"
                position = page.position
                batch = _batch(page, task)
                if batch.num_rows:
                    yield batch
        finally:
            runner.run(stack.aclose())


def _behind(window: EventWindow, position: int) -> EventWindow:
    return EventWindow(
        shard_id=window.shard_id,
        after_position=position,
        until_position=window.until_position,
        tenant_id=window.tenant_id,
        organization_id=window.organization_id,
        execution_id=window.execution_id,
        event_types=window.event_types,
    )


def _batch(page: EventPage, task: Window) -> pa.RecordBatch:
    rows = [row for row in page.rows if _is_within(row[_TIME], task)]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMA)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _is_within(time: object, task: Window) -> bool:
    assert isinstance(time, datetime)
    return (task.since is None or time >= task.since) and (task.until is None or time < task.until)
