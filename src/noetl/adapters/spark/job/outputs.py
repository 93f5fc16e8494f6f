"""DataFrames as Parquet files that are exactly what Spark committed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as kinds

from noetl.adapters.spark.job.account import account_of, described
from noetl.adapters.spark.job.failures import JobInvalid
from noetl.adapters.spark.job.inputs import IN_UTC, literal_path, parquet_frame
from noetl.adapters.spark.job.parts import SUCCESS, parts_of
from noetl.adapters.spark.types import arrow_schema_of, schema_text, storable, written_schema
from noetl.core.errors import Failure, ToolFailed
from noetl.ports.data.compute import JobDataset, JobOutput, JobPart

# A committer that moves files one by one while a task commits would show half of an output.
_COMMIT = {
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "true",
}
# What has one text for each value, that every reader of a dataset takes back.  A column without a type becomes text.
_PARTITION_KINDS = (
    kinds.BooleanType,
    kinds.IntegralType,
    kinds.FractionalType,
    kinds.StringType,
    kinds.DateType,
    kinds.TimestampType,
    kinds.TimestampNTZType,
    kinds.TimeType,
    kinds.NullType,
)
_NO_FOLDER = re.compile(r"(?:Mkdirs failed to create [^\n]*\0|Nul character not allowed)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An output in a folder of its own, which no other write has touched."""

    name: str
    folder: Path
    struct: kinds.StructType
    """All columns in their order, those of the partitioning too."""
    parts: tuple[JobPart, ...]
    partition_by: tuple[str, ...] = ()
    files: int | None = None
    is_quarantine: bool = False

    @property
    def rows(self) -> int:
        return sum(part.row_count for part in self.parts)

    def dataset(self) -> JobDataset:
        files = [part.path for part in self.parts]
        return JobDataset(
            name=self.name,
            parts=self.parts,
            arrow_schema=schema_text(written_schema(self.struct, files, partition_by=self.partition_by)),
            columns=tuple(self.struct.names),
            row_count=self.rows,
            partition_by=self.partition_by,
            is_quarantine=self.is_quarantine,
        )


def fit_frame(frame: DataFrame, output: JobOutput) -> DataFrame:
    """The rows as they will be written.  Raises what the columns make impossible, before anything is computed."""
    label = told(output.name)
    if frame.isStreaming:
        raise JobInvalid(
            f"{label} is a stream: write it with a query of its own, or read it as a batch", "SPARK_STREAM"
        )
    if not frame.columns:
        raise JobInvalid(f"{label} has no columns: select at least one", "SPARK_NO_COLUMNS")
    _check_names(frame.columns, label)
    arrow_schema_of(frame.schema)
    partition_columns(frame.schema, output)
    return storable(frame)


def partition_columns(struct: kinds.StructType, output: JobOutput) -> tuple[str, ...]:
    """The columns to partition by, as they are written in the schema."""
    label = told(output.name)
    by_name = {name.lower(): name for name in struct.names}
    missing = [name for name in output.partition_by if name.lower() not in by_name]
    if missing:
        message = f"{label}: partition_by names {', '.join(missing)}; the columns are {', '.join(struct.names)}"
        raise JobInvalid(message, "SPARK_PARTITION_COLUMN")
    found = tuple(by_name[name.lower()] for name in output.partition_by)
    if len(found) >= len(struct.names):
        message = f"{label}: partition_by takes all columns, and none is left for the files"
        raise JobInvalid(message, "SPARK_PARTITION_COLUMN")
    for name in found:
        kind = struct[name].dataType
        if not isinstance(kind, _PARTITION_KINDS):
            message = f"{label}: partition_by names {name}, which is {kind.simpleString()}: cast it to text or a number"
            raise JobInvalid(message, "SPARK_PARTITION_COLUMN")
        if name.startswith("."):
            message = (
                f"{label}: partition_by names {name!r}, and Spark reads no folder that begins with a dot: rename it"
            )
            raise JobInvalid(message, "SPARK_PARTITION_COLUMN")
    return found


def write(spark: SparkSession, frame: DataFrame, folder: Path, *, output: JobOutput, description: str) -> Written:
    """Compute a DataFrame, once, into a new folder, and hold the files against Spark's account of them."""
    partition_by = partition_columns(frame.schema, output)
    shaped = frame if output.files is None else frame.coalesce(output.files)
    # `errorifexists`: a folder with anything in it belongs to another write.
    writer = shaped.write.options(**_COMMIT, **IN_UTC).mode("errorifexists")
    with described(spark, description):
        try:
            writer.parquet(str(folder), partitionBy=list(partition_by))
        except (Py4JJavaError, PySparkException) as error:
            if not partition_by or not _NO_FOLDER.search(str(error)):
                raise
            message = (
                f"{told(output.name)}: a value of {' or '.join(partition_by)}, which it is partitioned by, holds a NUL "
                f"character, and no folder can be called so: take it out, or partition by another column"
            )
            raise JobInvalid(message, "SPARK_PARTITION_VALUE", kind="schema") from error
    parts = parts_of(folder, partition_by)
    _compare(spark, parts, description, told(output.name))
    return Written(
        name=output.name,
        folder=folder,
        struct=frame.schema,
        parts=parts,
        partition_by=partition_by,
        files=output.files,
    )


def read_written(spark: SparkSession, written: Written) -> DataFrame:
    """The rows that are in the files.  Raises ToolFailed if Spark does not see all of them."""
    struct = kinds.StructType([kinds.StructField(f.name, f.dataType, True, f.metadata) for f in written.struct])
    if not written.parts:
        return spark.createDataFrame([], struct)
    return parquet_frame(spark, str(written.folder), struct, files=len(written.parts))


def told(name: str) -> str:
    return f"output {name}" if name else "the output"


def _check_names(names: Sequence[str], label: str) -> None:
    seen: set[str] = set()
    for name in names:
        if not name:
            raise JobInvalid(
                f"{label} has a column without a name: name it with AS", "SPARK_COLUMN_NAME", kind="schema"
            )
        if name.lower() in seen:
            message = (
                f"{label} has the column {name} twice (capital letters do not tell columns apart): rename one with AS"
            )
            raise JobInvalid(message, "SPARK_COLUMN_TWICE", kind="schema")
        seen.add(name.lower())


def _compare(spark: SparkSession, parts: tuple[JobPart, ...], description: str, label: str) -> None:
    account = account_of(spark, description)
    if account is None:
        # Spark drops what its listeners cannot keep up with.  Without its account nobody knows what is missing.
        message = f"{label}: Spark has no account of what it wrote, so nothing was published. Run the step again"
        raise ToolFailed(Failure(kind="server_error", code="OUTPUT_UNACCOUNTED", message=message, retryable=True))
    rows = sum(part.row_count for part in parts)
    if account.rows != rows or account.files != len(parts):
        message = (
            f"{label}: Spark wrote {account.rows:,} rows in {account.files:,} files, and there are {rows:,} rows in "
            f"{len(parts):,} files: nothing was published. Run the step again; if it stays so, look who else writes"
        )
        raise ToolFailed(Failure(kind="server_error", code="OUTPUT_TORN", message=message, retryable=True))


def adopt(spark: SparkSession, folder: Path, output: JobOutput) -> Written:
    """A folder that another program of Spark's wrote.  Its marker says that the write was committed.

    Columns that it is partitioned by are text: of which type they were is not in the files, and a guess makes a number
    of '007'."""
    label = told(output.name)
    if not (folder / SUCCESS).is_file():
        message = f"{label}: {SUCCESS} is missing in its folder, so the write was not committed; nothing was published"
        raise JobInvalid(message, "OUTPUT_TORN", kind="schema")
    parts = parts_of(folder)
    if not parts:
        message = f"{label}: there is no Parquet file in its folder. Write it with `df.write.parquet(folder)`"
        raise JobInvalid(message, "OUTPUT_MISSING", kind="schema")
    partition_by = tuple(parts[0].partition)
    _check_alike(parts, label)
    # Below a file there is no partitioning to guess at.
    stored = spark.read.parquet(literal_path(parts[0].path)).schema
    struct = kinds.StructType([*stored, *(kinds.StructField(name, kinds.StringType()) for name in partition_by)])
    _check_names(struct.names, label)
    arrow_schema_of(struct)
    return Written(
        name=output.name,
        folder=folder,
        struct=struct,
        parts=parts,
        partition_by=partition_by,
        files=output.files,
    )


def _check_alike(parts: Sequence[JobPart], label: str) -> None:
    """Spark takes the columns of one file for those of all, and the values of the others would be lost."""
    first = _columns(parts[0])
    for part in parts[1:]:
        if tuple(part.partition) != tuple(parts[0].partition):
            message = f"{label}: its files are partitioned by different columns: write each output once"
            raise JobInvalid(message, "OUTPUT_MIXED", kind="schema")
        found = _columns(part)
        differing = [name for name in {**first, **found} if first.get(name) != found.get(name)]
        if differing:
            name = differing[0]
            message = (
                f"{label}: the column {name} is {first.get(name, 'missing')} in one file and "
                f"{found.get(name, 'missing')} in another: write all files of an output with the same columns"
            )
            raise JobInvalid(message, "OUTPUT_MIXED", kind="schema")


def _columns(part: JobPart) -> dict[str, str]:
    """The types by name.  Whether a column may be null depends on the rows that were written with it."""
    schema: pa.Schema = pq.read_schema(part.path)
    return {field.name: str(field.type).replace(" not null", "") for field in schema}
