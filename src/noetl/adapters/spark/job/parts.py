"""Files that a write left: which they are, how many rows they have, and what their folders say of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from noetl.adapters.spark.job.failures import JobInvalid
from noetl.ports.data.compute import JobPart

SUCCESS = "_SUCCESS"
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
# A file that a tool of Hadoop's has not copied yet.  Spark passes over whatever is called so.
_COPYING = "._COPYING_"
# Marks of Spark's for dates and moments of a calendar that no other reader knows, and the settings that ask for it.
_OTHER_CALENDAR = {
    b"org.apache.spark.legacyDateTime": "spark.sql.parquet.datetimeRebaseModeInWrite",
    b"org.apache.spark.legacyINT96": "spark.sql.parquet.int96RebaseModeInWrite",
}
_MOMENTS = ("DATE", "TIMESTAMP")


def parts_of(folder: Path, partition_by: Sequence[str] | None = None) -> tuple[JobPart, ...]:
    """The files of a folder in the order in which tasks wrote them, with the row counts of their footers.

    Raises JobInvalid for what is no complete Parquet file, and for rows that Spark would not find again."""
    files = [path for path in folder.rglob("*") if path.is_file() and not _is_hidden(path.relative_to(folder))]
    return tuple(_part(folder, path, partition_by) for path in sorted(files))


def _is_hidden(path: Path) -> bool:
    """Whether it is one of Spark's markers and checksums, or what a task left that did not commit."""
    for name in path.parts[:-1]:
        _check_seen(name)
        if name.startswith(".") or (name.startswith("_") and "=" not in name):
            return True
    return path.name.startswith((".", "_")) or path.name.endswith(_COPYING)


def _check_seen(name: str) -> None:
    """Spark passes over folders that are called like this, and over the rows in them, without a word."""
    column, equals, value = name.partition("=")
    if not equals:
        return
    if column.startswith("."):
        message = f"partition_by: Spark does not read folders whose name begins with a dot: rename {unquote(column)!r}"
        raise JobInvalid(message, "SPARK_PARTITION_COLUMN")
    if value.endswith(_COPYING):
        message = (
            f"a value of {unquote(column)!r}, which the output is partitioned by, ends with {_COPYING!r}, and Spark "
            f"reads no folder that is called so: nothing was published. Change the value or partition by another column"
        )
        raise JobInvalid(message, "SPARK_PARTITION_VALUE", kind="schema")


def _part(folder: Path, path: Path, partition_by: Sequence[str] | None) -> JobPart:
    partition = dict(_pair(name) for name in path.relative_to(folder).parts[:-1])
    if partition_by is not None and list(partition) != list(partition_by):
        raise JobInvalid(f"{path.name} is in no folder of {', '.join(partition_by)}", "OUTPUT_TORN", kind="schema")
    try:
        footer = pq.read_metadata(path)
    except (pa.ArrowInvalid, OSError) as error:
        message = f"{path.relative_to(folder)} is no complete Parquet file: nothing of the output was published"
        raise JobInvalid(message, "OUTPUT_TORN", kind="schema") from error
    _check_calendar(footer)
    return JobPart(path=str(path), row_count=footer.num_rows, partition=partition)


def _check_calendar(footer: pq.FileMetaData) -> None:
    """Old dates in the calendar of Spark 2 are other days to whoever reads the files by Parquet's own."""
    found = [setting for mark, setting in _OTHER_CALENDAR.items() if mark in (footer.metadata or {})]
    if not found:
        return
    columns = [footer.schema.column(number) for number in range(footer.num_columns)]
    names = [one.path for one in columns if one.physical_type == "INT96" or one.logical_type.type in _MOMENTS]
    if names:
        message = (
            f"the dates of {', '.join(names)} are written in an old calendar, which only Spark reads: leave out the "
            f"setting {' and '.join(found)} (LEGACY)"
        )
        raise JobInvalid(message, "SPARK_CALENDAR", kind="schema")


def _pair(name: str) -> tuple[str, str | None]:
    column, equals, value = name.partition("=")
    if not equals:
        raise JobInvalid(f"the folder {name!r} is no partition (name=value)", "OUTPUT_TORN", kind="schema")
    # Spark writes what a file system might not take as %XX; a plus is a plus.
    return unquote(column), None if value == NULL_PARTITION else unquote(value)
