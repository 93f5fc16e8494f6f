"""The fields of a call as statements (dsl §9.4).  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from noetl.clients.postgres.failures import failed
from noetl.core.expression import to_text
from noetl.core.playbook.reading.kinds import CONNECTION_FIELDS
from noetl.tools.sql.params import Bound
from noetl.tools.sql.request import SqlInvalid, read_statements
from noetl.tools.sql.split import speaks_to_client


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
    try:
        bound = read_statements(fields, script)
    except SqlInvalid as error:
        raise failed("config", str(error)) from error
    for number, one in enumerate(bound):
        if speaks_to_client(one.text):
            other = "use INSERT, SELECT or transfer"
            message = f"statement {number}: COPY from STDIN or to STDOUT is not supported, {other}"
            raise failed("unsupported", message)
    return Request(bound, _search_path(fields))


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
