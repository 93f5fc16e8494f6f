"""Rows in columns as files of other formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from noetl.core.results.columns import ColumnType


class TableWriter(Protocol):
    """The bytes of one file, made batch by batch.  Used by one thread at a time."""

    def write(self, batch: Any) -> bytes:
        """The bytes that are ready; the first call also gives those before the rows.  Raises ResultNotTabular."""
        ...

    def finish(self) -> bytes:
        """The rest, also of a file without rows."""
        ...


class TableFormats(Protocol):
    """`csv`, `arrow`, `parquet`, and `table`, which is for reading on a screen."""

    def writer(self, name: str, schema: Any, columns: Sequence[str] | None = None) -> TableWriter:
        """For batches with all columns of a schema, or with these in this order.  Raises ResultNotTabular when the
        format cannot hold one of them."""
        ...

    def schema_of(self, columns: Mapping[str, ColumnType]) -> Any:
        """The Arrow schema of plain rows."""
        ...

    def batch_of(self, rows: Sequence[Mapping[str, object]], schema: Any) -> Any:
        """Plain rows as a record batch of their schema."""
        ...
