"""`spark.read.format("noetl_http")`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from noetl.adapters.spark.sources.access import Carried, GrantedSource
from noetl.adapters.spark.sources.http.columns import Encoder
from noetl.adapters.spark.sources.http.fetching import Service, first_page, pages
from noetl.adapters.spark.sources.http.options import NAME, http_options, wrong
from noetl.adapters.spark.sources.http.paging import (
    Measure,
    PageRange,
    items_of,
    measured,
    needs_first_page,
    ranges,
)
from noetl.adapters.spark.sources.http.shapes import struct_of
from noetl.adapters.spark.sources.telling import told
from noetl.clients.http.failures import place


class HttpSource(GrantedSource):
    """The pages of a web service."""

    _is_inferred = False
    """Whether the schema is that of the first page, and nobody's wish."""

    @classmethod
    def name(cls) -> str:
        return NAME

    @told
    def schema(self) -> StructType:
        service = self._service()
        items = items_of(first_page(service).value, service.options.data_path)
        if not items:
            raise wrong("the first page has no rows to tell the schema by: give a schema", "SCHEMA_UNKNOWN")
        # Kept with the source when Spark sends it on to be planned.
        self._is_inferred = True
        return struct_of(items)

    @told
    def reader(self, schema: StructType) -> HttpReader:
        return HttpReader(self._service(), schema, is_inferred=self._is_inferred)

    def _service(self) -> Service:
        options = http_options(self.options)
        credential = self.access.credential(self.options)
        return Service(
            options=options,
            carried=None if credential is None else Carried.of(credential),
            allow=self.access.http_allow,
            is_one_machine=self.access.is_one_machine,
        )


class HttpReader(DataSourceReader):
    def __init__(self, service: Service, struct: StructType, *, is_inferred: bool) -> None:
        self._service = service
        self._struct = struct
        self._is_inferred = is_inferred

    @told
    def partitions(self) -> Sequence[InputPartition]:
        options = self._service.options
        is_measured = needs_first_page(options)
        return ranges(options, measured(options, first_page(self._service).value) if is_measured else Measure())

    @told
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PageRange)
        encoder = Encoder(self._struct, is_strict=self._is_inferred)
        method = str(self._service.options.fields["method"])
        for page, items in pages(self._service, partition):
            if items:
                yield encoder.batch(items, where=place(method, page.url))
