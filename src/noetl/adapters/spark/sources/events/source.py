"""The data source `noetl_events`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from noetl.adapters.spark.sources.access import GrantedSource
from noetl.adapters.spark.sources.events.offsets import (
    Offset,
    advanced,
    beginning,
    check_life,
    end_of,
    offset_from,
)
from noetl.adapters.spark.sources.events.options import EARLIEST, EventOptions, event_options
from noetl.adapters.spark.sources.events.rows import Window, read, struct, windows
from noetl.adapters.spark.sources.telling import told
from noetl.adapters.spark.sources.waiting import check_owner, reached, waited
from noetl.core.errors import RequestInvalid
from noetl.ports.data.sources import LedgerHeads, SourceAccess


class EventsSource(GrantedSource):
    """The ledger: one row for each event, `meta` and `result` as JSON text.

    `spark.read.format("noetl_events").load()`, `spark.readStream.format("noetl_events").load()`."""

    @classmethod
    def name(cls) -> str:
        return "noetl_events"

    def schema(self) -> StructType:
        return struct()

    @told
    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - it has one schema
        return EventsReader(reached(self.access), self._options())

    @told
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 - Spark's name
        options = self._options()
        if options.until is not None or "to" in self.options:
            raise RequestInvalid("option to: a stream has no end")
        return EventsStream(reached(self.access), options)

    def _options(self) -> EventOptions:
        own = reached(self.access)
        found = event_options(self.options, tenant_id=own.tenant_id, organization_id=own.organization_id)
        check_owner(own, found.tenant_id, found.organization_id)
        return found


class EventsReader(DataSourceReader):
    def __init__(self, access: SourceAccess, options: EventOptions) -> None:
        self._access = access
        self._options = options

    @told
    def partitions(self) -> list[InputPartition]:
        heads = _heads(self._access)
        start, end = _offset(self._options.start, heads), _offset(self._options.end, heads)
        return windows(start, end, self._options) or [Window(None)]

    @told
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Window)
        return read(self._access, partition)


class EventsStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Exactly the committed events: the offset of a batch is fixed before the batch is read."""

    def __init__(self, access: SourceAccess, options: EventOptions) -> None:
        self._access = access
        self._options = options
        self._target: LedgerHeads | None = None

    @told
    def initialOffset(self) -> dict[str, Any]:
        return _offset(self._options.start, _heads(self._access)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.events_per_batch)

    @told
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = _heads(self._access)

    @told
    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        events_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        assert events_max is not None or isinstance(limit, ReadAllAvailable), limit
        return advanced(offset_from(start), self._target or _heads(self._access), events_max).to_json()

    @told
    def reportLatestOffset(self) -> dict[str, Any]:
        return end_of(_heads(self._access)).to_json()

    @told
    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        return windows(offset_from(start), offset_from(end), self._options)

    @told
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Window)
        return read(self._access, partition)


def _heads(access: SourceAccess) -> LedgerHeads:
    return waited(access, lambda stores: stores.ledger.heads())


def _offset(bound: str | Mapping[str, Any], heads: LedgerHeads) -> Offset:
    """Never beyond what is there: positions that are not given yet may be given to anybody.  Raises LedgerCorrupt."""
    if isinstance(bound, str):
        return beginning(heads) if bound == EARLIEST else end_of(heads)
    known = offset_from({"incarnation": heads.incarnation, **bound})
    check_life(known, heads)
    positions = {shard: min(known.at(shard), head) for shard, head in heads.positions.items()}
    return Offset(heads.incarnation, positions)
