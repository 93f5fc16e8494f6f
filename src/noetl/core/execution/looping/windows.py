"""Rows of a loop as half-open ranges of item indexes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

Range = tuple[int, int]
_BEHIND = float("inf")


def next_open(kept: Sequence[Range], index: int, total: int) -> Range | None:
    """The next rows from an index on that are not kept.  `kept` is in order, and no two of its ranges touch."""
    number = bisect_right(kept, (index, _BEHIND)) - 1
    if number >= 0:
        index = max(index, kept[number][1])
    end = kept[number + 1][0] if number + 1 < len(kept) else total
    return (index, min(end, total)) if index < total else None


def merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """In order, with those that overlap or touch made one."""
    found: list[Range] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif first < end:
            found.append((first, end))
    return tuple(found)


def common(some: Sequence[Range], others: Sequence[Range]) -> tuple[Range, ...]:
    """What is in both.  Both are in order."""
    found: list[Range] = []
    mine, theirs = 0, 0
    while mine < len(some) and theirs < len(others):
        first, end = max(some[mine][0], others[theirs][0]), min(some[mine][1], others[theirs][1])
        if first < end:
            found.append((first, end))
        if some[mine][1] <= others[theirs][1]:
            mine += 1
        else:
            theirs += 1
    return tuple(found)


def rows_in(ranges: Iterable[Range]) -> int:
    return sum(end - first for first, end in ranges)
