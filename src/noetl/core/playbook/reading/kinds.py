"""What the language says about single kinds: which there are, other words for fields, fields that may not be there."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.playbook.document import Spot
from noetl.core.playbook.spark.fields import check_spark

# Kinds of the language.  One that is not installed passes with a warning and fails with `unsupported`.
LANGUAGE_KINDS = frozenset(
    (
        *("spark", "python", "postgres", "http", "playbook", "duckdb", "noop", "workbook", "nats", "artifact"),
        *("transfer", "shell", "snowflake", "ducklake", "container", "subscription", "script", "agent"),
        *("secrets", "gcs", "mcp", "gateway", "rhai", "wasm", "result_fetch", "playbooks", "iterator"),
        *("snowflake_transfer", "task_sequence"),
    )
)
# Where a database is and who may enter it is the business of a credential, never of a playbook.
CONNECTION_FIELDS = frozenset(
    (
        *("db_host", "db_port", "db_user", "db_password", "db_name", "dsn", "connection_string", "connection"),
        *("host", "hostname", "pg_host", "port", "user", "username", "password", "database", "dbname", "sslmode"),
    )
)
# What every task may have, whatever its kind.
COMMON_KEYS = frozenset(
    (
        *("kind", "name", "desc", "input", "args", "auth", "spec", "set", "output", "output_select"),
        *("timeout", "timeout_seconds", "retry", "limit"),
    )
)

TABLE_MODES = ("rows", "arrow", "pandas")
"""As what user code gets tables of its input."""


def read_kind(value: object, spot: Spot, kinds: frozenset[str]) -> str:
    kind = str(value).lower()
    if kind not in LANGUAGE_KINDS and kind not in kinds:
        spot.error("unknown_kind", f"unknown tool kind {value!r}{spot.near(kind, LANGUAGE_KINDS | kinds)}", "kind")
    elif kind not in kinds:
        message = f"tool kind {kind!r} is not available in this installation; running it fails"
        spot.warn("unsupported_kind", message, "kind")
    return kind


def check_fields(kind: str, fields: Mapping[str, object], spot: Spot) -> dict[str, object]:
    """The fields under their right names; a finding for each that has a wrong one."""
    found = dict(fields)
    if kind == "postgres":
        _check_postgres(found, spot)
    elif kind == "python":
        _check_python(found, spot)
    elif kind == "duckdb":
        _check_duckdb(found, spot)
    elif kind == "spark":
        check_spark(found, spot, COMMON_KEYS)
    elif kind == "playbook" and "payload" in found:
        spot.warn("deprecated_payload", "use input instead of payload", "payload")
        found.setdefault("input", found["payload"])
        del found["payload"]
    return found


def _check_postgres(fields: dict[str, object], spot: Spot) -> None:
    for key in sorted(CONNECTION_FIELDS & fields.keys()):
        message = f"{key!r} is not for a playbook; register a credential and name it in auth"
        spot.error("connection_field", message, key)
    if "credential" in fields:
        spot.warn("deprecated_credential", "use auth instead of credential", "credential")
        fields.setdefault("auth", fields["credential"])
        del fields["credential"]


def _check_duckdb(fields: dict[str, object], spot: Spot) -> None:
    """`tables` is another word for the part of `input` that statements read as tables."""
    given = fields.get("input")
    if fields.get("tables") is None or not isinstance(given, dict | None):
        return
    tables = fields.pop("tables")
    if isinstance(tables, dict):
        fields["input"] = {**tables, **(given or {})}
    else:
        spot.error("tables_shape", "tables must be a mapping: the name of a table to its rows", "tables")


def _check_python(fields: dict[str, object], spot: Spot) -> None:
    tables = fields.get("tables")
    is_template = isinstance(tables, str) and "{{" in tables
    if tables is not None and tables not in TABLE_MODES and not is_template:
        known = ", ".join(TABLE_MODES)
        spot.error("tables_mode", f"tables must be one of {known}{spot.near(str(tables), TABLE_MODES)}", "tables")
    if isinstance(fields.get("libs"), list):
        spot.warn("libs_ignored", "a list of libs installs nothing and is ignored; write alias: module", "libs")
        del fields["libs"]
    if "iterator" in fields:
        spot.warn("iterator_ignored", "iterator is ignored, a loop belongs to the step", "iterator")
        del fields["iterator"]
