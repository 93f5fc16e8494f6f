"""The fields of a call as statements and the name of a database (dsl §9.5).  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from noetl.core.expression import to_text
from noetl.tools.duckdb.failures import failed
from noetl.tools.sql.params import Bound
from noetl.tools.sql.request import SqlInvalid, read_statements
from noetl.tools.sql.split import WITH_MORE_PLACEHOLDERS, first_word, outer_words, statements

MEMORY = ":memory:"
_DATABASE_FIELDS = ("database", "db_path")


@dataclass(frozen=True, slots=True)
class Request:
    statements: tuple[Bound, ...]
    database: str | None
    """The name of a database, MEMORY, or None for the one of the execution."""


def read_request(fields: Mapping[str, object], script: str | None = None) -> Request:
    """What to run, in order, and where.  Raises ToolFailed."""
    try:
        bound = read_statements(fields, script, placeholders=WITH_MORE_PLACEHOLDERS)
    except SqlInvalid as error:
        raise failed("config", str(error)) from error
    for number, one in enumerate(bound):
        _check(one, number)
    return Request(bound, _database(fields))


def _check(bound: Bound, number: int) -> None:
    """What DuckDB would refuse too, in words that say why."""
    if bound.values and len(statements(bound.text)) > 1:
        message = f"statement {number} is several: with params each entry of a list is one statement"
        raise failed("config", message)
    word = first_word(bound.text)
    if word in ("install", "load"):
        message = f"statement {number}: {word.upper()} is refused: no code is loaded into a task's DuckDB"
        raise failed("policy", message, "DUCKDB_EXTENSION")
    if word == "copy" and any(
        before in ("from", "to") and after == "program" for before, after in pairwise(outer_words(bound.text))
    ):
        raise failed(
            "policy", f"statement {number}: COPY … PROGRAM is refused: no program is started", "DUCKDB_PROGRAM"
        )


def _database(fields: Mapping[str, object]) -> str | None:
    given = [name for name in _DATABASE_FIELDS if fields.get(name) not in (None, "")]
    if not given:
        return None
    if len(given) > 1:
        raise failed("config", "database and db_path are both given: use database")
    value = fields[given[0]]
    if isinstance(value, Mapping | list | tuple):
        raise failed(
            "config", f"{given[0]} must be a name, not a {'mapping' if isinstance(value, Mapping) else 'list'}"
        )
    return to_text(value).strip() or None
