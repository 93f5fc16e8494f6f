"""Inputs of a job as DataFrames, views and plain values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from noetl.adapters.spark.job.failures import JobInvalid, describe
from noetl.adapters.spark.job.parquet import batches_of, store, table_of
from noetl.adapters.spark.types import TypePlan, TypeUnsupported, plan_of, schema_from_text
from noetl.core.errors import EnvelopeInvalid, ToolFailed
from noetl.ports.data.compute import JobInput, SparkJob

_OURS = "noetl"
# What these give may be something else a moment later.
_CHANGING = frozenset(("noetl_postgres", "noetl_http", "noetl_events"))
_PATTERN = re.compile(r"[\\*?\[\]{}]")
IN_UTC = {"timeZone": "UTC"}
"""For every write and every read of ours: a moment in the name of a folder is one of UTC, whatever zone a session has,
and two moments never have the same name because a clock was put back."""
_NAME_CHARS_MAX = 80


@dataclass(frozen=True, slots=True)
class Inputs:
    frames: dict[str, DataFrame] = field(default_factory=dict)
    values: dict[str, object] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)
    """What Spark keeps of inputs that are read once."""

    def release(self, spark: SparkSession) -> None:
        """No frame of an input can be used any more."""
        context: Any = spark.sparkContext
        for number in self.held:
            context._jsc.sc().unpersistRDD(number, False)

    def all(self) -> dict[str, object]:
        return {**self.frames, **self.values}


def read_inputs(spark: SparkSession, job: SparkJob) -> Inputs:
    """All inputs; each DataFrame is also a view of the session by its name.  Raises ToolFailed naming the input."""
    found = Inputs()
    if _needs_sources(job):
        from noetl.adapters.spark.job.granting import grant  # noqa: PLC0415 - loads drivers that few jobs need

        grant(spark, job)
    for one in job.inputs:
        try:
            value = _read(spark, one, job.folder / "inputs" / folder_name(one.name))
            if isinstance(value, DataFrame):
                if one.kind == "source" and one.format in _CHANGING:
                    value = _read_once(value, found.held)
                value.createOrReplaceTempView(quoted(one.name))
                found.frames[one.name] = value
            else:
                found.values[one.name] = value
        except ToolFailed:
            raise
        except (PySparkException, Py4JJavaError, TypeUnsupported, EnvelopeInvalid, pa.ArrowException, OSError) as error:
            raise ToolFailed(describe(error, where=f"input {one.name}")[0]) from error
    return found


def _needs_sources(job: SparkJob) -> bool:
    """Whether a job speaks of a data source of ours."""
    formats = [one.format or "" for one in job.inputs]
    return bool(job.credentials) or any(_OURS in text for text in (job.text, *formats))


def rows_of(value: object) -> list[dict[str, object]] | None:
    """The rows that a plain value is, if it is rows."""
    is_rows = isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)
    return [dict(row) for row in value] if is_rows else None  # type: ignore[attr-defined]


def land_rows(spark: SparkSession, one: JobInput, folder: Path) -> tuple[str, TypePlan] | None:
    """An Arrow stream or plain rows as Parquet files below `folder`; None for any other input."""
    cores = spark.sparkContext.defaultParallelism
    if one.kind == "arrow":
        assert one.path is not None, "an arrow input has a file"
        schema, batches = batches_of(one.path, one.offset, one.length)
        return str(folder), store(schema, batches, folder, cores=cores)
    rows = rows_of(one.value) if one.kind == "value" else None
    if rows is None:
        return None
    table = table_of(one.name, rows)
    return str(folder), store(table.schema, table.to_batches(), folder, cores=cores)


def read_stored(spark: SparkSession, root: str, plan: TypePlan) -> DataFrame:
    """Parquet files of ours, natively and without a job that looks for their schema."""
    files = sum(1 for _ in Path(root).rglob("*.parquet"))
    return parquet_frame(spark, root, plan.struct, files=files) if files else spark.createDataFrame([], plan.struct)


def parquet_frame(spark: SparkSession, root: str, struct: StructType, *, files: int) -> DataFrame:
    """All columns in their order: Spark puts those of a partitioning last.  Raises ToolFailed unless Spark sees as many
    files as there are: it passes over some names without a word."""
    frame = spark.read.options(**IN_UTC).schema(struct).parquet(literal_path(root))
    java: Any = frame._jdf
    seen = len(java.inputFiles())
    if seen != files:
        message = f"Spark sees {seen:,} of {files:,} files, so rows would be missing: look at the names of partitions"
        raise JobInvalid(message, "SPARK_FILES_UNSEEN", kind="schema")
    return frame.select(*[F.col(quoted(name)) for name in struct.names])


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def literal_path(path: str) -> str:
    """A path that Spark takes as it is, although it reads paths as patterns."""
    return _PATTERN.sub(lambda letter: "\\" + letter[0], path)


def folder_name(name: str) -> str:
    """A name of a playbook as a name of a folder, which patterns and partitionings leave alone.  No other name has the
    same one, also where capital letters do not tell files apart."""
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)[:_NAME_CHARS_MAX]
    if kept == name.lower():
        return f"of_{kept}"
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"of_{kept}-{digest[:12]}"


def _read(spark: SparkSession, one: JobInput, folder: Path) -> object:
    landed = land_rows(spark, one, folder)
    if landed is not None:
        return read_stored(spark, *landed)
    if one.kind == "dataset":
        if one.path is None or one.arrow_schema is None:
            raise JobInvalid(f"input {one.name}: a dataset needs its folder and its schema", "SPARK_INPUT_INVALID")
        return read_stored(spark, one.path, plan_of(schema_from_text(one.arrow_schema)))
    if one.kind == "table":
        return spark.table(one.path or one.name)
    if one.kind == "source":
        return _source(spark, one)
    return one.value


def _read_once(frame: DataFrame, held: list[int]) -> DataFrame:
    """The same rows, which Spark reads when they are first used and keeps until the job ends.  Every use of such a
    source would ask its system again, and outputs and rules of one job would speak of different rows.

    A plan that Spark caches is found by every session that has an equal one; these rows belong to this frame alone."""
    kept = frame.localCheckpoint(eager=False, storageLevel=StorageLevel.MEMORY_AND_DISK_DESER)
    java: Any = kept._jdf
    held.append(java.queryExecution().analyzed().rdd().id())
    return kept


def _source(spark: SparkSession, one: JobInput) -> DataFrame:
    """What Spark, or a source that it knows, reads by itself."""
    reader = spark.read.options(**one.options)
    if one.format is not None:
        reader = reader.format(one.format)
    return reader.load(one.path) if one.path is not None else reader.load()
