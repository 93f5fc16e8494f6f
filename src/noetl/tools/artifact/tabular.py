"""Rows as files that other programs read: CSV, Parquet and Arrow by the ending of the name.

The types are those of plain data: a table that is put has been read as a template sees it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from noetl.core.codec import ordered_bytes
from noetl.core.errors import Failure, ToolFailed
from noetl.core.expression import normalise
from noetl.core.reference import MEDIA_ARROW

CSV, PARQUET = "text/csv; charset=utf-8", "application/vnd.apache.parquet"
_TYPES = {".csv": CSV, ".parquet": PARQUET, ".arrow": MEDIA_ARROW}

Rows = Sequence[Mapping[str, object]]


def packed_rows(data: object, path: str) -> tuple[bytes, str] | None:
    """The bytes of a file of rows and their content type; None when the name or the data asks for none."""
    content_type = _TYPES.get(PurePath(path.removesuffix(".gz")).suffix.lower())
    if content_type is None or not isinstance(data, list):
        return None
    rows: Any = normalise(data)
    if not all(isinstance(row, Mapping) for row in rows):
        return None
    if content_type == CSV:
        return _csv(rows), content_type
    return _columnar(rows, content_type), content_type


def _names(rows: Rows) -> list[str]:
    """The keys of all rows in the order in which they appear."""
    return list(dict.fromkeys(key for row in rows for key in row))


def _csv(rows: Rows) -> bytes:
    names = _names(rows)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return text.getvalue().encode("utf-8")


def _cell(value: object) -> object:
    """Null is nothing, truth is as in JSON, and so are lists and mappings."""
    if isinstance(value, bool | list | Mapping):
        return ordered_bytes(value).decode()
    return value


def _columnar(rows: Rows, content_type: str) -> bytes:
    import pyarrow as pa  # noqa: PLC0415 - few tasks write such files, and loading it takes its time
    from pyarrow import ipc, parquet  # noqa: PLC0415

    columns: dict[str, Any] = {}
    for name in _names(rows):
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowException, OverflowError) as error:
            message = f"artifact: the values of {name!r} have no type in common: write .csv or .json, or convert them"
            raise ToolFailed(Failure(kind="config", message=message)) from error
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    if content_type == PARQUET:
        parquet.write_table(table, sink, compression="zstd")
    else:
        with ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content
