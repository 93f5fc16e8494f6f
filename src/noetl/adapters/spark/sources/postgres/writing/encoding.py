"""Arrow batches as the CSV that the server copies in: null is an empty field, and an empty text is a quoted one."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

_OPTIONS = pa_csv.WriteOptions(include_header=False)
_UTC = pa.timestamp("us", tz="UTC")


def encoded(batch: pa.RecordBatch, *, task: str) -> bytes:
    """The rows, each with the name of its task behind it."""
    columns = [_plain(column) for column in batch.columns]
    columns.append(pa.repeat(pa.scalar(task), batch.num_rows))
    named = pa.Table.from_arrays(columns, names=[str(number) for number in range(len(columns))])
    out = io.BytesIO()
    pa_csv.write_csv(named, out, _OPTIONS)
    return out.getvalue()


def _plain(column: Any) -> Any:
    """What Arrow writes in the server's way already stays; the rest becomes text."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return column.cast(_UTC)
    if pa.types.is_float32(kind):
        # The short text of a float is another double.  A `real` reads the long one as the same float.
        return column.cast(pa.float64())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if value is None else _hex(value) for value in column.to_pylist()], pa.string())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _arrays(column)
    return column


def _hex(value: bytes) -> str:
    return f"\\x{value.hex()}"


def _arrays(column: Any) -> Any:
    """Array constants.  The items are made texts as a column; every one of them is quoted."""
    items = _plain(column.values)
    texts = items.cast(pa.string()).to_pylist()
    ends = column.offsets.to_pylist()
    spans = zip(ends, ends[1:], column.is_valid().to_pylist(), strict=False)
    return pa.array(
        [_constant(texts[first:last]) if is_there else None for first, last, is_there in spans], pa.string()
    )


def _constant(texts: list[str | None]) -> str:
    return "{" + ",".join("NULL" if text is None else _quoted(text) for text in texts) + "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
