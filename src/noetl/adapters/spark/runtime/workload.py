"""A little of everything that playbooks do, so that its classes are in the archive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

_ROWS = 2_000


class _NumbersReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"id": list(range(partition.value, _ROWS, 2))})


class Numbers(DataSource):
    @classmethod
    def name(cls) -> str:
        return "noetl_numbers"

    def schema(self) -> str:
        return "id bigint"

    def reader(self, schema: object) -> DataSourceReader:  # noqa: ARG002 - the shape is Spark's
        return _NumbersReader()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def run(spark: SparkSession, folder: Path) -> int:
    """The number of rows at the end, which is known."""
    spark.dataSource.register(Numbers)
    numbers = spark.read.format("noetl_numbers").load()
    numbers.mapInArrow(_same, "id bigint").createOrReplaceTempView("numbers")
    rows = spark.range(_ROWS).selectExpr(
        "id",
        "id % 7 AS kind",
        "id * 1.5D AS amount",
        "concat('n', id) AS name",
        "date_add(DATE'2026-01-01', 1) AS day",
        "timestamp_seconds(id) AS moment",
        "CAST(id AS DECIMAL(12, 2)) AS price",
    )
    path = str(folder / "rows")
    rows.write.parquet(path)
    spark.read.schema(rows.schema).parquet(path).createOrReplaceTempView("rows")
    joined = spark.table("rows").join(spark.table("numbers"), "id").groupBy("kind")
    result = joined.agg({"amount": "sum", "name": "max", "id": "count"}).orderBy("kind")
    result.write.partitionBy("kind").parquet(str(folder / "result"))
    spark.createDataFrame(pa.table({"id": [1, 2], "word": ["a", "b"]})).createOrReplaceTempView("words")
    spark.table("words").join(spark.table("rows"), "id").toArrow()
    rows.dropDuplicates(["kind"]).count()
    return spark.read.parquet(str(folder / "result")).count()
