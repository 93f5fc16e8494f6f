"""Which statements are read through a portal, a few thousand rows at a time.  Pure.

A portal needs a transaction around the statement, and the server plans no parallel workers for one that is read in
pieces.  So it is only for statements that may return many rows, and only where a transaction block changes nothing."""

from __future__ import annotations

from functools import lru_cache

from noetl.core.limits import SQL_CACHED_CHARS_MAX, SQL_CACHED_TEXTS_MAX
from noetl.tools.sql.split import PLAIN, first_word, tokens

FIRST_ROWS = 64
"""So many rows are read before their size is known."""

_QUERIES = frozenset(("select", "with", "values", "table"))
_CHANGES = frozenset(("insert", "update", "delete", "merge"))
# Without GROUP BY and the like they give one row.
_AGGREGATES = frozenset(("count", "sum", "avg", "min", "max", "bool_and", "bool_or", "every"))
_MULTIPLIERS = frozenset(("group", "union", "intersect", "except", "over", "into"))


def is_read_in_pieces(text: str) -> bool:
    """Whether a statement may return more rows than can be held, and may run in a transaction block.

    CALL, EXPLAIN, SHOW and whatever else is not named here runs as it is: its rows are few."""
    if len(text) > SQL_CACHED_CHARS_MAX:
        # A long INSERT of values has as many rows as it was long.
        first = first_word(text)
        return first in _QUERIES or (first in _CHANGES - {"insert"} and "returning" in text.lower())
    return _is_read_in_pieces(text)


@lru_cache(maxsize=SQL_CACHED_TEXTS_MAX)
def _is_read_in_pieces(text: str) -> bool:
    words = _outer_words(text)
    first = words[0][0] if words else ""
    if first in _CHANGES:
        names = {word for word, _ in words}
        return "returning" in names and (first != "insert" or not names.isdisjoint(_QUERIES - {"values"}))
    return first in _QUERIES and not _is_one_row(words) and not _is_limited(words, text)


def _outer_words(text: str) -> list[tuple[str, int]]:
    """The words outside brackets, and where they end.  Brackets around the whole statement do not count."""
    found: list[tuple[str, int]] = []
    depth = outside = 0
    for kind, start, end in tokens(text, PLAIN):
        if kind == "open":
            depth += 1
            outside += 1 if not found and depth == outside + 1 else 0
        elif kind == "close":
            depth -= 1
        elif kind == "word" and depth <= outside:
            found.append((text[start:end].lower(), end))
    return found


def _is_one_row(words: list[tuple[str, int]]) -> bool:
    names = [word for word, _ in words[:2]]
    return (
        len(names) == 2
        and names[0] == "select"
        and names[1] in _AGGREGATES
        and _MULTIPLIERS.isdisjoint(word for word, _ in words)
    )


def _is_limited(words: list[tuple[str, int]], text: str) -> bool:
    """`LIMIT 10` at the end."""
    if words[-1][0] != "limit":
        return False
    number = text[words[-1][1] :].strip()
    return number.isascii() and number.isdigit() and int(number[:9]) <= FIRST_ROWS
