"""SQL lives in `sql/*.sql` as named queries.  Values are bound as `$n`; what cannot be bound (names, the text of a
user's query, conditions) stands in braces and is put in here, quoted by who gives it."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_PLACE = re.compile(r"\{([a-z_]+)\}")
# What a query is made of, as far as it hides semicolons: comments, then texts of all kinds, then single signs.
_PIECE = re.compile(
    r"""(?P<blank>\s+|--[^\n]*)|(?P<open>/\*)|(?P<end>;)
      |[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|(?P<dollar>\$(?:[^\W\d]\w*)?\$)|\w[\w$]*|.""",
    re.DOTALL | re.VERBOSE,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


@cache
def _sections(file: str) -> dict[str, str]:
    text = files("noetl.adapters.spark.sources.postgres").joinpath("sql", file).read_text("utf-8")
    code = "\n".join(line for line in text.splitlines() if not line.startswith("--") or line.startswith("-- name:"))
    pieces = re.split(r"^-- name: *(\w+) *$", code, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}


def statement(file: str, name: str, **places: str) -> str:
    """A named query with its places filled.  Every place must be given, and nothing else."""
    text = _sections(file)[name]
    assert places.keys() == set(_PLACE.findall(text)), f"{name} has other places than {sorted(places)}"
    return _PLACE.sub(lambda found: places[found[1]], text)


def trimmed(query: str) -> str:
    """A query without the semicolons and comments behind it.  One in the middle stays: the server refuses that."""
    place, end = 0, 0
    while place < len(query):
        found = _PIECE.match(query, place)
        assert found is not None, "any sign is a piece"
        place = found.end()
        if found["open"]:
            place = _behind_comment(query, place)
        elif found["dollar"]:
            close = query.find(found["dollar"], place)
            place = end = len(query) if close < 0 else close + len(found["dollar"])
        elif not found["blank"] and not found["end"]:
            end = place
    return query[:end].strip()


def _behind_comment(query: str, place: int) -> int:
    """Comments may be inside of comments."""
    depth = 1
    while depth:
        edge = _COMMENT_EDGE.search(query, place)
        if edge is None:
            return len(query)
        depth += 1 if edge[0] == "/*" else -1
        place = edge.end()
    return place


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def identifiers(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(identifier(name) for name in names)


def literal(text: str) -> str:
    """A text constant.  Sessions have standard_conforming_strings on, so that a backslash is a backslash."""
    return "'" + text.replace("'", "''") + "'"
