"""SQL text cut into statements, and the few tokens that cutting and binding need.  Pure.

This is no parser: it only knows where strings, quoted names, dollar quotes and comments begin and end, as Postgres'
own scanner does with `standard_conforming_strings` on.  What has no end reaches to the end of the text.  Every
character is looked at a bounded number of times, so no text can make it slow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise

from noetl.core.limits import SQL_CACHED_CHARS_MAX, SQL_CACHED_TEXTS_MAX

Token = tuple[str, int, int]
"""Kind, first character, character behind the last one."""
Find = Callable[[str, int], re.Match[str] | None]

SPACE = " \t\n\r\f\v"

_LETTER = r"A-Za-z_\x80-\U0010ffff"
_TAG = rf"(?:[{_LETTER}][{_LETTER}0-9]*+)?"
_OPENINGS = (
    rf"(?P<dollar>\${_TAG}\$)"
    r"|(?P<string>')"
    r'|(?P<name>")'
    r"|(?P<line>--)"
    r"|(?P<block>/\*)"
    r"|(?P<end>;)"
)
# The order matters: the prefix of a string comes before the word that it also is.
_ALL = (
    r"(?P<escape>[eE]')"
    rf"|(?P<word>[{_LETTER}][{_LETTER}0-9$]*)"
    rf"|(?P<number>[0-9][{_LETTER}0-9.]*)"
    r"|(?P<parameter>\$[0-9]{1,9})"
    rf"|{_OPENINGS}"
    r"|(?P<open>\()"
    r"|(?P<close>\))"
)
# `:n` behind a letter, a digit or a bracket is the end of an array slice, and `::` is a cast.
_PLACEHOLDERS = (
    r"(?P<cast>::)"
    rf"|(?P<colon>(?<![{_LETTER}0-9$\])]):[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<percent>%(?:%|s|\([^()'\"]{1,200}\)s))"
)
# What cutting may pass over in one go: a large INSERT is read at the speed of the expression engine.
_DULL = (
    rf"(?:[^{_LETTER}0-9$'\"\-/;]++"
    rf"|(?![eE]')[{_LETTER}][{_LETTER}0-9$]*+"
    rf"|[0-9][{_LETTER}0-9.]*+"
    r"|\$[0-9]++"
    rf"|\$(?!{_TAG}\$)"
    r"|'[^']*+'"
    r'|"[^"]*+"'
    r"|--[^\n\r]*+"
    r"|-|/(?!\*))*+"
)
# `$name` and `?` are placeholders where no operator is written with them; a colon behind a quote ends a struct's key.
_MORE_PLACEHOLDERS = (
    r"(?P<cast>::)"
    rf"|(?P<colon>(?<![{_LETTER}0-9$\])'\"]):[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<named>\$[A-Za-z_][A-Za-z0-9_]*+(?!\$))"
    r"|(?P<question>\?)"
    r"|(?P<percent>%(?:%|s|\([^()'\"]{1,200}\)s))"
)
PLAIN: Find = re.compile(_ALL).search
WITH_PLACEHOLDERS: Find = re.compile(f"{_PLACEHOLDERS}|{_ALL}").search
WITH_MORE_PLACEHOLDERS: Find = re.compile(f"{_MORE_PLACEHOLDERS}|{_ALL}").search
_CUTS: Find = re.compile(rf"{_DULL}(?:(?P<escape>[eE]')|{_OPENINGS})").match

# Only a rule and the body of a function have semicolons of their own, and these words tell of them.
_NESTING = re.compile(r"\b(?:rule|atomic)\b", re.IGNORECASE)
_ESCAPED_END = re.compile(r"(?:[^'\\]++|\\.?|'')*+(?:'|\Z)", re.DOTALL)
# Strings on several lines are one string, and stay of the kind of the first.
_CONTINUED = re.compile(r"(?:[ \t\f\v]|--[^\n\r]*+)*+[\n\r](?:[ \t\n\r\f\v]|--[^\n\r]*+[\n\r])*+'")
_LINE_END = re.compile(r"[\n\r]")
_BLOCK_EDGE = re.compile(r"/\*|\*/")
_WORD = re.compile(r"[A-Za-z]+")
_SPACES = re.compile(r"[ \t\n\r\f\v]*")


def tokens(text: str, find: Find = PLAIN) -> Iterator[Token]:
    """Strings, names, comments and whatever else `find` looks for; the rest is not told."""
    place = 0
    while found := find(text, place):
        kind = found.lastgroup
        assert kind is not None, "every alternative has a name"
        start, place = found.span(kind)
        if finish := _ENDS.get(kind):
            place = finish(text, start, place)
        yield kind, start, place


def statements(text: str) -> tuple[str, ...]:
    """The statements of a text.  A piece that holds only comments is none."""
    return _remembered(text) if len(text) <= SQL_CACHED_CHARS_MAX else _statements(text)


def fragments(text: str) -> list[str]:
    """Everything between the top-level semicolons; joined with `;` it is the text again."""
    return [text[start:end] for start, end in _pieces(text)]


def speaks_to_client(statement: str) -> bool:
    """Whether this is a COPY whose data goes through the connection instead of a file of the server."""
    head = _content_start(statement)
    if statement[head : head + 4].lower() != "copy":
        return False
    return any(
        before in ("from", "to") and word in ("stdin", "stdout") for before, word in pairwise(outer_words(statement))
    )


def outer_words(statement: str) -> list[str]:
    """The words outside of all brackets, strings and comments, in small letters."""
    return [statement[start:end].lower() for kind, start, end in _shallow(statement) if kind == "word"]


def first_word(statement: str) -> str:
    """What a statement begins with, behind its comments, in small letters."""
    word = _WORD.match(statement, _content_start(statement))
    return word[0].lower() if word is not None else ""


def _statements(text: str) -> tuple[str, ...]:
    pieces = (text[start:end].strip(SPACE) for start, end in _pieces(text))
    return tuple(piece for piece in pieces if _content_start(piece) < len(piece))


_remembered = lru_cache(maxsize=SQL_CACHED_TEXTS_MAX)(_statements)


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Each piece between top-level semicolons."""
    first = depth = 0
    body = _Body()
    for kind, start, end in tokens(text, PLAIN if _NESTING.search(text) else _CUTS):
        if kind == "open":
            depth += 1
        elif kind == "close":
            depth = max(0, depth - 1)
        elif kind == "word" and depth == 0:
            body.read(text[start:end].lower())
        elif kind == "end" and depth == 0 and body.depth == 0:
            yield first, start
            first, body = end, _Body()
    yield first, len(text)


def _content_start(piece: str) -> int:
    """Where something other than space and comments begins; the end when nothing does."""
    place = 0
    while True:
        space = _SPACES.match(piece, place)
        assert space is not None, "the pattern takes any text"
        place = space.end()
        if piece.startswith("--", place):
            place = _line_end(piece, place, place + 2)
        elif piece.startswith("/*", place):
            place = _block_end(piece, place, place + 2)
        else:
            return place


class _Body:
    """Whether we are inside the `BEGIN ATOMIC … END` of a function, whose semicolons are its own."""

    __slots__ = ("_head", "depth")

    def __init__(self) -> None:
        self._head: list[str] = []
        self.depth = 0

    def read(self, word: str) -> None:
        if len(self._head) < 4:
            self._head.append(word)
        if self._head[0] != "create":
            return
        if (word == "begin" and self._is_routine()) or (word == "case" and self.depth):
            self.depth += 1
        elif word == "end" and self.depth:
            self.depth -= 1

    def _is_routine(self) -> bool:
        what = self._head[3:4] if self._head[1:3] == ["or", "replace"] else self._head[1:2]
        return what in (["function"], ["procedure"])


def _shallow(text: str) -> Iterator[Token]:
    """The tokens outside of all brackets."""
    depth = 0
    for token in tokens(text):
        if token[0] == "open":
            depth += 1
        elif token[0] == "close":
            depth = max(0, depth - 1)
        elif depth == 0:
            yield token


# --- where things end ------------------------------------------------------------------------------------


def _string_end(text: str, _start: int, place: int) -> int:
    # A doubled quote ends one string and begins the next: for cutting that is the same.
    return text.find("'", place) + 1 or len(text)


def _name_end(text: str, _start: int, place: int) -> int:
    return text.find('"', place) + 1 or len(text)


def _escape_end(text: str, _start: int, place: int) -> int:
    while True:
        found = _ESCAPED_END.match(text, place)
        assert found is not None, "the pattern takes any text"
        continued = _CONTINUED.match(text, found.end())
        if continued is None:
            return found.end()
        place = continued.end()


def _dollar_end(text: str, start: int, place: int) -> int:
    mark = text[start:place]
    found = text.find(mark, place)
    return len(text) if found < 0 else found + len(mark)


def _line_end(text: str, _start: int, place: int) -> int:
    found = _LINE_END.search(text, place)
    return found.start() if found else len(text)


def _block_end(text: str, _start: int, place: int) -> int:
    depth = 1
    for edge in _BLOCK_EDGE.finditer(text, place):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)


_ENDS: dict[str, Callable[[str, int, int], int]] = {
    "string": _string_end,
    "name": _name_end,
    "escape": _escape_end,
    "dollar": _dollar_end,
    "line": _line_end,
    "block": _block_end,
}
