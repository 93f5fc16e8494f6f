"""The fields that hold SQL as statements in order (dsl §9.4, §9.5).  Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from noetl.core.expression import to_text
from noetl.core.limits import SQL_STATEMENTS_MAX
from noetl.tools.sql.params import Bound, ParamsInvalid, bind
from noetl.tools.sql.split import WITH_PLACEHOLDERS, Find, statements

SQL_FIELDS = ("command", "query", "commands", "queries", "sql", "cmd", "cmds")


class SqlInvalid(ValueError):
    """The fields hold no SQL that could be sent; the text says why."""


def read_statements(
    fields: Mapping[str, object], script: str | None = None, *, placeholders: Find = WITH_PLACEHOLDERS
) -> tuple[Bound, ...]:
    """What to run, in order; a script wins over every field.  Raises SqlInvalid."""
    texts = _texts(fields) if script is None else [script]
    params = fields.get("params")
    if params:
        bound = _with_params(texts, params, placeholders)
    else:
        bound = [Bound(one) for text in texts for one in statements(text)]
    if not bound:
        raise SqlInvalid("there is no statement: the text is empty or only comments")
    if len(bound) > SQL_STATEMENTS_MAX:
        raise SqlInvalid(f"{len(bound)} statements in one task, at most {SQL_STATEMENTS_MAX}")
    for number, one in enumerate(bound):
        _check_sendable(one, number)
    return tuple(bound)


def _texts(fields: Mapping[str, object]) -> list[str]:
    given = [name for name in SQL_FIELDS if fields.get(name) is not None or fields.get(f"{name}_b64") is not None]
    if not given:
        names = ", ".join(SQL_FIELDS)
        raise SqlInvalid(f"no SQL: one of {names}, one of them with _b64, or script is required and may not be null")
    if len(given) > 1:
        raise SqlInvalid(f"{' and '.join(given)} are both given: use one, a list runs several in order")
    name = given[0]
    encoded = fields.get(f"{name}_b64")
    source = encoded if encoded is not None else fields[name]
    entries = source if isinstance(source, list | tuple) else [source]
    if any(entry is None or isinstance(entry, Mapping | list | tuple) for entry in entries):
        raise SqlInvalid(f"{name} must be a text or a list of texts")
    return [_decoded(name, entry) if encoded is not None else to_text(entry) for entry in entries]


def _decoded(name: str, entry: object) -> str:
    try:
        return base64.b64decode(str(entry), validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        raise SqlInvalid(f"{name}_b64 is not the base64 of UTF-8 text") from None


def _with_params(texts: list[str], params: object, placeholders: Find) -> list[Bound]:
    """Each text is one statement.  Values by position belong to one statement only."""
    if len(texts) > 1 and not isinstance(params, Mapping):
        raise SqlInvalid(f"params is a list and there are {len(texts)} statements: give the values by name")
    try:
        return [bind(text, params, placeholders) for text in texts if statements(text)]
    except ParamsInvalid as error:
        raise SqlInvalid(str(error)) from error


def _check_sendable(bound: Bound, number: int) -> None:
    """What no database can take, whatever it means."""
    if "\0" in bound.text:
        raise SqlInvalid(f"statement {number} has a NUL character")
    try:
        bound.text.encode()
    except UnicodeEncodeError:
        raise SqlInvalid(f"statement {number} has half a character (a lone surrogate)") from None
