"""Ranges of numbers as a picture for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

CHARS = 60


def chart(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each row: from the lowest to the highest value, with a mark where the average is."""
    top = max((row["highest"] for row in rows), default=0) or 1
    for row in rows:
        low, middle, high = (round(row[name] / top * (CHARS - 1)) for name in ("lowest", "average", "highest"))
        bar = [" "] * CHARS
        bar[low : high + 1] = "━" * (high + 1 - low)
        bar[middle] = "●"
        yield f"{row['month']}  {''.join(bar).rstrip()}"
