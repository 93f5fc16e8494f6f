"""Rows for a screen: columns below each other, as wide as the first rows need them."""

from __future__ import annotations

from typing import Any

from pyarrow import types

from noetl.adapters.arrow.files.inferred import text_of
from noetl.adapters.arrow.rows import values_of

SAMPLE_ROWS = 200
CELL_CHARS_MAX = 48
GAP = "  "


class ScreenWriter:
    def __init__(self, schema: Any) -> None:
        self._names = [_cut(name) for name in schema.names]
        self._is_right = [_is_number(field.type) for field in schema]
        self._waiting: list[list[str]] = []
        self._widths: list[int] | None = None

    def write(self, batch: Any) -> bytes:
        columns = [[_cell(value) for value in values_of(column)] for column in batch.columns]
        rows = [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(batch.num_rows)]
        if self._widths is not None:
            return self._lines(rows) if self._widths else b""
        self._waiting += rows
        return self._begin() if len(self._waiting) >= SAMPLE_ROWS else b""

    def finish(self) -> bytes:
        return self._begin() if self._widths is None else b""

    def _begin(self) -> bytes:
        waiting, self._waiting = self._waiting, []
        if not self._names:
            self._widths = []
            return b""
        self._widths = [
            max([len(name), *(len(row[number]) for row in waiting[:SAMPLE_ROWS])])
            for number, name in enumerate(self._names)
        ]
        dashes = ["-" * width for width in self._widths]
        return self._lines([self._names, dashes, *waiting])

    def _lines(self, rows: list[list[str]]) -> bytes:
        assert self._widths is not None
        lines = []
        for row in rows:
            cells = zip(row, self._widths, self._is_right, strict=True)
            text = GAP.join(cell.rjust(width) if is_right else cell.ljust(width) for cell, width, is_right in cells)
            lines.append(text.rstrip() + "\n")
        return "".join(lines).encode("utf-8")


def _is_number(kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _cell(value: object) -> str:
    return _cut(text_of(value) or "")


def _cut(text: str) -> str:
    """One line of a bounded width, with nothing in it that a terminal would obey."""
    if not text.isprintable():
        text = "".join(one if one.isprintable() else _ESCAPES.get(one, "�") for one in text[: CELL_CHARS_MAX + 1])
    return text if len(text) <= CELL_CHARS_MAX else f"{text[: CELL_CHARS_MAX - 1]}…"


_ESCAPES = {"\n": "⏎", "\r": "", "\t": " "}
