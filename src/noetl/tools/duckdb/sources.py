"""Credentials of a call (`auth`, dsl §9.5) as databases beside the main one.

A credential of type `duckdb` names another database of the same owner, which is attached under its alias.  Every other
type would need code that DuckDB loads at run time and a way into the network, which a task does not have; such data
comes as a table from a step with the tool for it.  So the control plane's database can never be reached from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from noetl.core.expression import to_text
from noetl.ports.secrets import Credential
from noetl.tools.duckdb.failures import failed
from noetl.tools.duckdb.request import MEMORY

_NAMES = ("database", "db_path", "path")
_OTHER_TOOLS = {"postgres": "postgres", "postgresql": "postgres", "s3": "artifact", "aws": "artifact"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    alias: str
    database: str
    is_read_only: bool


def attachments_of(auth: Credential | Mapping[str, Credential] | None) -> list[Attachment]:
    """What to attach, in order.  Raises ToolFailed; no message holds a value of a credential."""
    if auth is None:
        return []
    if isinstance(auth, Credential):
        return [_attachment(auth.name, auth)]
    return [_attachment(alias, credential) for alias, credential in auth.items()]


def _attachment(alias: str, credential: Credential) -> Attachment:
    kind = credential.type.lower()
    if kind != "duckdb":
        tool = _OTHER_TOOLS.get(kind)
        instead = f"read it with a step of kind {tool}" if tool else "read it with another step"
        message = (
            f"credential {credential.name!r} (alias {alias!r}) has type {credential.type!r}, which this DuckDB cannot "
            f"open: it has no extensions and no network; {instead} and give its rows as a table in `input`"
        )
        raise failed("unsupported", message, "DUCKDB_AUTH_TYPE")
    data = credential.data.reveal()
    name = next((to_text(data[key]) for key in _NAMES if data.get(key)), None)
    if name is None or name == MEMORY:
        raise failed("config", f"credential {credential.name!r} has no {' or '.join(_NAMES)} that names a database")
    return Attachment(alias=alias, database=name, is_read_only=data.get("read_only", True) is not False)
