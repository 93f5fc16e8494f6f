"""`spark.read.format("noetl_postgres")` and `df.write.format("noetl_postgres")`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from noetl.adapters.spark.sources.access import GrantedSource
from noetl.adapters.spark.sources.postgres import options as option
from noetl.adapters.spark.sources.postgres.connecting import Server, server_of
from noetl.adapters.spark.sources.postgres.decoding import selected
from noetl.adapters.spark.sources.postgres.describing import described
from noetl.adapters.spark.sources.postgres.filters import condition
from noetl.adapters.spark.sources.postgres.planning import RowRange, planned
from noetl.adapters.spark.sources.postgres.reading import batches
from noetl.adapters.spark.sources.postgres.statements import statement
from noetl.adapters.spark.sources.postgres.types import Column, struct_of
from noetl.adapters.spark.sources.postgres.writing.writer import PostgresWriter, planned_writer
from noetl.adapters.spark.sources.telling import told


class PostgresSource(GrantedSource):
    """Tables and queries of a Postgres."""

    @classmethod
    def name(cls) -> str:
        return option.NAME

    @told
    def schema(self) -> StructType:
        options = option.read_options(self.options)
        return struct_of(asyncio.run(_columns(server_of(self.access, self.options), options)), options.columns)

    @told
    def reader(self, schema: StructType) -> PostgresReader:
        options = option.read_options(self.options)
        make = FilteringReader if self.access.pushes_filters else PostgresReader
        return make(server_of(self.access, self.options), options, schema)

    @told
    def writer(self, schema: StructType, overwrite: bool) -> PostgresWriter:
        options = option.write_options(self.options)
        server = server_of(self.access, self.options)
        return asyncio.run(planned_writer(server, options, schema, is_overwriting=overwrite))


class PostgresReader(DataSourceReader):
    """Each partition is one statement in a read-only transaction of its own."""

    def __init__(self, server: Server, options: option.ReadOptions, struct: StructType) -> None:
        self._server = server
        self._options = options
        self._struct = struct
        self._conditions: list[str] = []

    @told
    def partitions(self) -> Sequence[InputPartition]:
        return asyncio.run(self._planned())

    @told
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RowRange)
        wanted = " AND ".join((partition.condition, *self._conditions))
        query = statement(
            "reading.sql", "rows", columns=selected(self._struct), source=partition.source, condition=wanted
        )
        return batches(self._server, query, self._struct, snapshot=self._options.snapshot)

    async def _planned(self) -> list[RowRange]:
        # Without the snapshot: describing a query makes a view, and that is no reading.
        async with self._server.connection() as connection:
            return await planned(connection, self._options)


class FilteringReader(PostgresReader):
    """Leaves to the server what it can decide as Spark would."""

    @told
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        columns = {column.name: column for column in asyncio.run(_columns(self._server, self._options))}
        for one in filters:
            found = condition(one, columns)
            if found is None:
                yield one
            else:
                self._conditions.append(f"({found})")


async def _columns(server: Server, options: option.ReadOptions) -> list[Column]:
    async with server.connection() as connection:
        return await described(connection, options)
