"""`script`: where the text of a task's program stands (dsl §9.2).

A descriptor is `{uri, source: {type, …}}`; a plain text is the path of a file.  A file whose path is written out is
*pinned*: its content belongs to the playbook from the moment it is registered or started.  Everything else is known
only when the task runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.codec import canonical_bytes, sha256_hex
from noetl.core.playbook.document import Spot

FIELD = "script"
FILE, HTTP, INLINE = "file", "http", "inline"
UNSUPPORTED_TYPES = ("gcs", "s3")
TYPES = (FILE, HTTP, INLINE, *UNSUPPORTED_TYPES)
# Kinds that mean something of their own by the word.
_OTHER_MEANING = frozenset(("script", "container", "agent", "workbook"))
# Programs: braces in them are their own, so they are run as they stand.  Every other script is a template.
PROGRAM_KINDS = frozenset(("python", "spark"))
_SQL_FIELDS = ("command", "query", "commands", "queries", "sql", "cmd", "cmds")
# The fields that hold the text when there is no script; the first is where an inline script goes.
_TEXT_FIELDS = {
    "python": ("code",),
    "spark": ("code", "sql"),
    **dict.fromkeys(("postgres", "duckdb", "ducklake", "snowflake"), _SQL_FIELDS),
}
_SCHEMES = (("http://", HTTP), ("https://", HTTP), ("gs://", "gcs"), ("s3://", "s3"), ("file://", FILE))
_KEYS = frozenset(("uri", "source"))
_TEMPLATE_MARKS = ("{{", "{%", "{#")


def is_sql_script(name: str) -> bool:
    """Whether a script holds SQL by its name."""
    return name.partition("?")[0].strip().lower().endswith(".sql")


def is_program(kind: str, name: str) -> bool:
    """Whether a script is run as it stands.  SQL is a template, whoever runs it."""
    return kind in PROGRAM_KINDS and not is_sql_script(name)


def takes_script(kind: str) -> bool:
    return kind not in _OTHER_MEANING


def is_literal(text: object) -> bool:
    """Whether a value means what it says, whatever the names around it are."""
    return isinstance(text, str) and not any(mark in text for mark in _TEMPLATE_MARKS)


def read_script(kind: str, fields: Mapping[str, object], spot: Spot) -> dict[str, object]:
    """The fields with a descriptor in its full form.  One that holds the text itself becomes the kind's own field."""
    found = {key: value for key, value in fields.items() if key != FIELD or value is not None}
    if FIELD not in found or not takes_script(kind):
        return found
    given = found[FIELD]
    if isinstance(given, str) and given.strip():
        given = {"uri": given}
    if not isinstance(given, dict) or not isinstance(given.get("source", {}), dict):
        spot.error("script_shape", "script is the path of a file, or a mapping {uri, source: {type, …}}", FIELD)
        return found
    source = {**given.get("source", {})}
    source["type"] = source.get("type") or _type_of(given.get("uri"))
    if _check(given, source, spot):
        found[FIELD] = {"uri": given.get("uri"), "source": source}
    names = _TEXT_FIELDS.get(kind, ())
    others = [key for key in found if key.removesuffix("_b64") in names]
    for key in others:
        spot.warn("script_wins", f"{key!r} is ignored: script wins", key)
        del found[key]
    if source["type"] == INLINE and names and "code" in source:
        del found[FIELD]
        found[names[0]] = source["code"]
    return found


def _type_of(uri: object) -> str:
    """What a descriptor without a type means.  A template that begins with its scheme says as much as a text."""
    text = uri.strip().lower() if isinstance(uri, str) else ""
    return next((kind for scheme, kind in _SCHEMES if text.startswith(scheme)), FILE)


def _check(given: Mapping[str, object], source: Mapping[str, object], spot: Spot) -> bool:
    kind, at = source["type"], spot.at(FIELD)
    at.warn_unknown(given, _KEYS)
    if not isinstance(kind, str) or (is_literal(kind) and kind not in TYPES):
        at.error("script_type", f"script.source.type must be one of {', '.join(TYPES)}, not {kind!r}", "source", "type")
        return False
    if kind == INLINE and not isinstance(source.get("code"), str):
        at.error("script_shape", "an inline script needs source.code, a text", "source")
        return False
    uri = source.get("endpoint", given.get("uri")) if kind == HTTP else given.get("uri")
    if kind in (FILE, HTTP) and (not isinstance(uri, str) or not uri.strip()):
        where = "uri, or source.endpoint," if kind == HTTP else "uri"
        at.error("script_shape", f"a script of type {kind} needs {where} as a text")
        return False
    if kind in UNSUPPORTED_TYPES:
        message = f"scripts of type {kind} cannot be read by this installation; running the task fails"
        at.warn("unsupported_script", message, "source", "type")
    return True


def pinned_uri(kind: str, config: Mapping[str, object]) -> str | None:
    """The path of the file whose content is pinned; None for any other script, or none."""
    script: Any = config.get(FIELD)
    if not takes_script(kind) or not isinstance(script, dict):
        return None
    uri, source = script.get("uri"), script.get("source")
    is_file = isinstance(source, dict) and source.get("type") == FILE
    return uri if is_file and is_literal(uri) else None


def scripts_digest(scripts: Mapping[str, str]) -> str:
    """One digest for the scripts of a playbook, given theirs by path; empty when there are none."""
    return sha256_hex(canonical_bytes(dict(scripts))) if scripts else ""


def version_digest(sha256: str, scripts_sha256: str) -> str:
    """The digest of all that belongs to a version: its text alone, or its text and its scripts."""
    return sha256_hex(f"{sha256}/{scripts_sha256}".encode()) if scripts_sha256 else sha256
