"""Some rows of a result in a format.

JSON and NDJSON are written from plain rows.  All others need columns: those of a table, or those that are found by
looking through the rows of the request once before they are written."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from noetl.core.codec import ordered_bytes
from noetl.core.errors import RequestInvalid, ResultNotTabular
from noetl.core.results.columns import SINGLE, Columns
from noetl.engine.reading.rows import Rows, TableRows, in_thread
from noetl.ports.data.formats import TableFormats

TEXTS = ("csv", "table")
"""Formats whose cells are texts, whatever their type was."""
_NAMES_SHOWN_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """So many rows from one on, with all columns or some."""

    first: int
    count: int
    columns: tuple[str, ...] | None = None


def window_of(rows: Rows, *, offset: int, limit: int | None, columns: Sequence[str] | None) -> Window:
    """Raises RequestInvalid for a column that a table does not have."""
    if columns is not None and isinstance(rows, TableRows):
        names = rows.schema.names
        unknown = [name for name in columns if name not in names]
        if unknown:
            known = ", ".join(names[:_NAMES_SHOWN_MAX])
            raise RequestInvalid(f"there is no column {unknown[0][:80]!r}: there are {known}")
    left = max(rows.total - offset, 0)
    count = left if limit is None else min(limit, left)
    return Window(first=offset, count=count, columns=None if columns is None else tuple(columns))


class RowEncoder:
    def __init__(self, formats: Callable[[], TableFormats]) -> None:
        """`formats` is called when columns are needed: what makes them takes its time to be loaded."""
        self._load = formats

    async def encoded(self, rows: Rows, window: Window, name: str) -> AsyncGenerator[bytes]:
        """The bytes of a format; closes the rows.  Raises ResultNotTabular."""
        if name == "json":
            pieces = self._json(rows, window)
        elif name == "ndjson":
            pieces = self._lines(rows, window)
        elif isinstance(rows, TableRows):
            pieces = self._table(rows, window, name)
        else:
            pieces = self._inferred(rows, window, name)
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    if piece:
                        yield piece
        finally:
            rows.close()

    # --- plain rows ----------------------------------------------------------------------------------------

    async def _json(self, rows: Rows, window: Window) -> AsyncGenerator[bytes]:
        before = b"["
        async with aclosing(_chosen(rows, window)) as chunks:
            async for chunk in chunks:
                yield before + ordered_bytes(chunk)[1:-1]
                before = b","
        yield b"]" if before == b"," else b"[]"

    async def _lines(self, rows: Rows, window: Window) -> AsyncGenerator[bytes]:
        async with aclosing(_chosen(rows, window)) as chunks:
            async for chunk in chunks:
                yield b"".join(ordered_bytes(row) + b"\n" for row in chunk)

    # --- columns -------------------------------------------------------------------------------------------

    async def _table(self, rows: TableRows, window: Window, name: str) -> AsyncGenerator[bytes]:
        formats = await in_thread(self._load)
        writer = formats.writer(name, rows.schema, window.columns)
        async with aclosing(rows.batches(window.first, window.count, window.columns)) as batches:
            async for batch in batches:
                yield await in_thread(writer.write, batch)
        yield await in_thread(writer.finish)

    async def _inferred(self, rows: Rows, window: Window, name: str) -> AsyncGenerator[bytes]:
        columns = Columns(window.columns, are_texts=name in TEXTS)
        async with aclosing(rows.chunks(window.first, window.count)) as chunks:
            async for chunk in chunks:
                await in_thread(columns.add, chunk)
        formats = await in_thread(self._load)
        schema = formats.schema_of(columns.types())
        writer = formats.writer(name, schema)

        def written(chunk: list[Any]) -> bytes:
            keyed = [row or {} for row in chunk] if columns.is_keyed else [{SINGLE: row} for row in chunk]
            return writer.write(formats.batch_of(keyed, schema))

        async with aclosing(rows.chunks(window.first, window.count)) as chunks:
            async for chunk in chunks:
                yield await in_thread(written, chunk)
        yield await in_thread(writer.finish)


async def _chosen(rows: Rows, window: Window) -> AsyncGenerator[list[Any]]:
    """Plain rows with the columns that are wanted."""
    names = window.columns
    async with aclosing(rows.chunks(window.first, window.count)) as chunks:
        async for chunk in chunks:
            yield chunk if names is None else [_selected(row, names) for row in chunk]


def _selected(row: object, names: Sequence[str]) -> dict[str, object]:
    if row is not None and not isinstance(row, dict):
        raise ResultNotTabular("the rows are no mappings: they have no columns that could be chosen")
    return {name: None if row is None else row.get(name) for name in names}
