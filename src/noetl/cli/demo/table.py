"""Rows as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

CELL_CHARS_MAX = 60


def table(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Lines: a header, a rule, the rows; numbers to the right."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    is_number = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in names]
    widths = [max(len(name), *(len(line[n]) for line in cells)) for n, name in enumerate(names)]
    yield "  ".join(_placed(name, width, right) for name, width, right in zip(names, widths, is_number, strict=True))
    yield "  ".join("─" * width for width in widths)
    for line in cells:
        yield "  ".join(_placed(cell, width, right) for cell, width, right in zip(line, widths, is_number, strict=True))


def _placed(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= CELL_CHARS_MAX else f"{text[: CELL_CHARS_MAX - 1]}…"
