"""The data source `noetl`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceWriter, Filter, InputPartition
from pyspark.sql.types import StructType

from noetl.adapters.spark.sources.access import GrantedSource
from noetl.adapters.spark.sources.payloads.finding import Found, FoundDataset, find
from noetl.adapters.spark.sources.payloads.fitting import declared
from noetl.adapters.spark.sources.payloads.options import read_options, write_options
from noetl.adapters.spark.sources.payloads.planning import Nothing, PartSlice, Rows, TableSlice, slices
from noetl.adapters.spark.sources.payloads.pruning import needed_parts
from noetl.adapters.spark.sources.payloads.reading import Reading
from noetl.adapters.spark.sources.payloads.writing import DatasetWriter
from noetl.adapters.spark.sources.telling import told
from noetl.adapters.spark.sources.waiting import reached, waited
from noetl.adapters.spark.types import plan_of
from noetl.core.errors import RequestInvalid


class NoetlSource(GrantedSource):
    """Rows behind a `noetl://` locator, on every payload back end; new datasets that a commit makes visible.

    `spark.read.format("noetl").load("noetl://…")`, `df.write.format("noetl").mode("append").save("orders.noetl")`."""

    _found: Found | None = None

    @classmethod
    def name(cls) -> str:
        return "noetl"

    @told
    def schema(self) -> StructType:
        return self._chosen(plan_of(self._located().schema).struct)

    @told
    def reader(self, schema: StructType) -> DataSourceReader:
        kind = PruningReader if self.access.pushes_filters else PayloadReader
        reading = Reading(
            access=reached(self.access), target=declared(schema), is_verified=read_options(self.options).is_verified
        )
        return kind(self._located(), reading, cores=self.access.cores)

    @told
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return DatasetWriter(reached(self.access), schema, write_options(self.options), overwrite)

    def _located(self) -> Found:
        """Spark asks for the schema in one process and for the reader in another, to which it sends this object."""
        if self._found is None:
            options, own = read_options(self.options), reached(self.access)
            self._found = waited(own, lambda stores: find(stores, options, own))
        return self._found

    def _chosen(self, struct: StructType) -> StructType:
        columns = read_options(self.options).columns
        if columns is None:
            return struct
        unknown = [name for name in columns if name not in struct.names]
        if unknown:
            raise RequestInvalid(f"there is no column {unknown[0]!r}: there are {', '.join(struct.names[:50])}")
        return StructType([struct[name] for name in columns])


class PayloadReader(DataSourceReader):
    def __init__(self, found: Found, reading: Reading, *, cores: int) -> None:
        self._found: Found | None = found
        self._reading = reading
        self._cores = cores

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get their own parts with their partition: the list of all of them stays behind."""
        return {**self.__dict__, "_found": None}

    @told
    def partitions(self) -> list[InputPartition]:
        found = self._found
        assert found is not None, "only the planner plans"
        has_files = self._reading.access.has_files
        if not isinstance(found, FoundDataset):
            return slices(found, (), cores=self._cores, has_files=has_files)
        types = {name: found.schema.field(name).type for name in found.manifest.partition_by}
        parts = needed_parts(found.manifest.parts, types, self._reading.filters)
        return slices(found, parts, cores=self._cores, has_files=has_files)

    @told
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PartSlice | TableSlice | Rows | Nothing)
        return self._reading.batches(partition)


class PruningReader(PayloadReader):
    """In a session that hands filters to its sources."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """What they let out is not read; Spark still applies all of them to the rows."""
        self._reading = replace(self._reading, filters=tuple(filters))
        return filters
