"""SQL text cut into statements as Spark's scanner sees it.  Pure, but for the parser that it is handed.

Only where strings, quoted names and comments begin and end is known here.  Blocks (`BEGIN … END`) have semicolons of
their own, and only a parser knows where they end: pieces are joined until it takes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from noetl.core.limits import SQL_STATEMENTS_MAX

# A raw string has no escapes.  The order matters: its prefix comes before the word that it also is.
_TOKENS = re.compile(
    r"(?P<raw>(?<![A-Za-z0-9_])[rR](?:'[^']*+(?:'|\Z)|\"[^\"]*+(?:\"|\Z)))"
    r"|(?P<string>'(?:[^'\\]++|\\.)*+(?:'|\\?\Z)|\"(?:[^\"\\]++|\\.)*+(?:\"|\\?\Z))"
    r"|(?P<name>`[^`]*+(?:`|\Z))"
    r"|(?P<line>--(?:\\\n|[^\n\r])*+)"
    r"|(?P<block>/\*)"
    r"|(?P<end>;)",
    re.DOTALL,
)
_EDGE = re.compile(r"/\*|\*/")
_BLOCK = re.compile(r"BEGIN\b", re.IGNORECASE)
_ENDS = re.compile(r"\bEND\s*\Z", re.IGNORECASE)
_LINE = re.compile(r"\s+|--(?:\\\n|[^\n\r])*")


class TooManyStatements(ValueError):
    """More than a job may have."""


@dataclass(frozen=True, slots=True)
class Statement:
    text: str
    line: int
    """Of its first word, in the whole text."""


def statements(text: str, parses: Callable[[str], bool]) -> list[Statement]:
    """The statements of a text; pieces that hold only comments are none.  Raises TooManyStatements."""
    pieces = list(_pieces(text))
    found: list[Statement] = []
    place = 0
    while place < len(pieces):
        start, end = pieces[place]
        first = _content(text, start, end)
        place += 1
        if first == end:
            continue
        if _BLOCK.match(text, first, end):
            place, end = _block(text, pieces, place, first, parses)
        found.append(Statement(text[start:end].strip(), text.count("\n", 0, first) + 1))
        if len(found) > SQL_STATEMENTS_MAX:
            raise TooManyStatements(f"there are more than {SQL_STATEMENTS_MAX} statements")
    return found


def _block(
    text: str, pieces: list[tuple[int, int]], place: int, first: int, parses: Callable[[str], bool]
) -> tuple[int, int]:
    """Where the block ends that begins at `first`: the piece behind it and the character.  A block that never ends
    takes all, and the parser says what is wrong with it."""
    for number in range(place - 1, len(pieces)):
        end = pieces[number][1]
        if _ENDS.search(text, first, end) and parses(text[first:end]):
            return number + 1, end
    return len(pieces), pieces[-1][1]


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    first = place = 0
    while found := _TOKENS.search(text, place):
        place = found.end()
        if found.lastgroup == "block":
            place = _comment_end(text, place)
        elif found.lastgroup == "end":
            yield first, found.start()
            first = place
    yield first, len(text)


def _content(text: str, place: int, end: int) -> int:
    """Where something other than space and comments begins; the end when nothing does."""
    while place < end:
        if text.startswith("/*", place) and not text.startswith("/*+", place):
            place = min(_comment_end(text, place + 2), end)
        elif skipped := _LINE.match(text, place, end):
            place = skipped.end()
        else:
            return place
    return end


def _comment_end(text: str, place: int) -> int:
    depth = 1
    for edge in _EDGE.finditer(text, place):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)
