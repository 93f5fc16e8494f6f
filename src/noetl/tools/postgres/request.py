"""The fields of a call as statements (dsl §9.4).  Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

from noetl.core.expression import to_text
from noetl.core.limits import SQL_STATEMENTS_MAX
from noetl.core.playbook.reading.kinds import CONNECTION_FIELDS
from noetl.tools.postgres.failures import failed
from noetl.tools.postgres.params import Bound, ParamsInvalid, bind
from noetl.tools.postgres.split import speaks_to_client, statements

SQL_FIELDS = ("command", "query", "commands", "queries", "sql", "cmd", "cmds")


@dataclass(frozen=True, slots=True)
class Request:
    statements: tuple[Bound, ...]
    search_path: str | None = None


def read_request(fields: Mapping[str, object], script: str | None = None) -> Request:
    """What to run, in order.  Raises ToolFailed."""
    direct = sorted(CONNECTION_FIELDS & fields.keys())
    if direct:
        names = ", ".join(direct)
        raise failed("config", f"{names}: a tool has no connection of its own; register a credential and use auth")
    texts = _texts(fields) if script is None else [script]
    params = fields.get("params")
    bound = _with_params(texts, params) if params else [Bound(one) for text in texts for one in statements(text)]
    if not bound:
        raise failed("config", "there is no statement: the text is empty or only comments")
    if len(bound) > SQL_STATEMENTS_MAX:
        raise failed("config", f"{len(bound)} statements in one task, at most {SQL_STATEMENTS_MAX}")
    for number, one in enumerate(bound):
        _check_sendable(one, number)
    return Request(tuple(bound), _search_path(fields))


def _texts(fields: Mapping[str, object]) -> list[str]:
    given = [name for name in SQL_FIELDS if fields.get(name) is not None or fields.get(f"{name}_b64") is not None]
    if not given:
        names = ", ".join(SQL_FIELDS)
        raise failed(
            "config", f"no SQL: one of {names}, one of them with _b64, or script is required and may not be null"
        )
    if len(given) > 1:
        raise failed("config", f"{' and '.join(given)} are both given: use one, a list runs several in order")
    name = given[0]
    encoded = fields.get(f"{name}_b64")
    source = encoded if encoded is not None else fields[name]
    entries = source if isinstance(source, list | tuple) else [source]
    if any(entry is None or isinstance(entry, Mapping | list | tuple) for entry in entries):
        raise failed("config", f"{name} must be a text or a list of texts")
    return [_decoded(name, entry) if encoded is not None else to_text(entry) for entry in entries]


def _decoded(name: str, entry: object) -> str:
    try:
        return base64.b64decode(str(entry), validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        raise failed("config", f"{name}_b64 is not the base64 of UTF-8 text") from None


def _with_params(texts: list[str], params: object) -> list[Bound]:
    """Each text is one statement.  Values by position belong to one statement only."""
    if len(texts) > 1 and not isinstance(params, Mapping):
        raise failed("config", f"params is a list and there are {len(texts)} statements: give the values by name")
    try:
        return [bind(text, params) for text in texts if statements(text)]
    except ParamsInvalid as error:
        raise failed("config", str(error)) from error


def _check_sendable(bound: Bound, number: int) -> None:
    """What would break the connection and not only the statement."""
    if "\0" in bound.text:
        raise failed("config", f"statement {number} has a NUL character")
    try:
        bound.text.encode()
    except UnicodeEncodeError:
        raise failed("config", f"statement {number} has half a character (a lone surrogate)") from None
    if speaks_to_client(bound.text):
        message = f"statement {number}: COPY from STDIN or to STDOUT is not supported, use INSERT, SELECT or transfer"
        raise failed("unsupported", message)


def _search_path(fields: Mapping[str, object]) -> str | None:
    """The schemas as quoted names, so that a template can only ever choose a schema."""
    given = fields.get("search_path") or fields.get("schema")
    if not given:
        return None
    entries = given if isinstance(given, list | tuple) else to_text(given).split(",")
    names = [to_text(entry).strip().strip('"') for entry in entries]
    if not all(names) or any("\0" in name for name in names):
        raise failed("config", "schema must be the name of a schema, or several with commas")
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)
