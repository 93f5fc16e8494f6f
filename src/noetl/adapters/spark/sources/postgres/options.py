"""The options of `noetl_postgres`, read and checked.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from noetl.adapters.spark.sources.postgres.statements import trimmed
from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import SOURCE_PARTITIONS_MAX, SOURCE_STAGE_STALE_SECONDS

NAME = "noetl_postgres"
_SHARED = frozenset({"auth", "dsn_env", "table", "path"})
_READING = _SHARED | {"query", "columns", "partitions", "partition_column", "snapshot"}
_WRITING = _SHARED | {"key", "on_conflict", "write_id", "overwrite_by", "stage_schema", "stale_after_seconds"}
_CONFLICTS = ("update", "nothing")
_OVERWRITES = ("delete", "truncate")
# It is part of a key, and those have a limit.
_NAME_CHARS_MAX = 500
AUTOMATIC = 0
"""As many partitions as the size of the table asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    table: str | None
    query: str | None
    columns: tuple[str, ...]
    partitions: int
    partition_column: str | None
    snapshot: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    table: str
    key: tuple[str, ...]
    is_updating: bool
    write_id: str | None
    is_truncating: bool
    stage_schema: str | None
    """Where tables of ours may be made; None is the schema of the target."""
    stale_after_seconds: float


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Raises ToolFailed with the name of the option."""
    _known(options, _READING)
    table, query = options.get("table") or options.get("path"), options.get("query")
    if (table is None) == (query is None):
        raise wrong("table or query is required, and not both")
    snapshot, column = options.get("snapshot"), options.get("partition_column")
    # Without a snapshot only one statement sees one moment: more of them are the user's decision.
    text = options.get("partitions", "auto" if snapshot and table else "1")
    if column is None and query is not None and text not in ("1", "auto"):
        raise wrong("partitions of a query need partition_column: a number, date or timestamp of its result")
    if column is not None and "partitions" not in options:
        raise wrong("partition_column needs partitions: how many ranges to make of it")
    return ReadOptions(
        table=table,
        query=None if query is None else _one_statement(query),
        columns=_names(options.get("columns")),
        partitions=AUTOMATIC if text == "auto" else _whole("partitions", text, SOURCE_PARTITIONS_MAX),
        partition_column=column,
        snapshot=snapshot,
    )


def _one_statement(query: str) -> str:
    text = trimmed(query)
    if not text:
        raise wrong("query is empty: a SELECT is expected")
    return text


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Raises ToolFailed with the name of the option."""
    _known(options, _WRITING)
    table = options.get("table") or options.get("path")
    if not table:
        raise wrong("table is required")
    key = _names(options.get("key"))
    if "on_conflict" in options and not key:
        raise wrong("on_conflict needs key: the columns that tell rows apart")
    return WriteOptions(
        table=table,
        key=key,
        is_updating=_one_of("on_conflict", options, _CONFLICTS) == "update",
        write_id=_short("write_id", options.get("write_id")),
        is_truncating=_one_of("overwrite_by", options, _OVERWRITES) == "truncate",
        stage_schema=options.get("stage_schema") or None,
        stale_after_seconds=_seconds("stale_after_seconds", options, SOURCE_STAGE_STALE_SECONDS),
    )


def wrong(message: str, code: str = "OPTION_INVALID") -> ToolFailed:
    return ToolFailed(Failure(kind="config", code=code, message=f"{NAME}: {message}"))


def _known(options: Mapping[str, str], known: frozenset[str]) -> None:
    unknown = sorted(name for name in options if name.lower() not in known)
    if unknown:
        raise wrong(f"{', '.join(unknown)}: there is no such option; there are {', '.join(sorted(known))}")


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip().strip('"') for name in (text or "").split(",") if name.strip())


def _one_of(name: str, options: Mapping[str, str], words: tuple[str, ...]) -> str:
    word = options.get(name, words[0]).lower()
    if word not in words:
        raise wrong(f"{name} must be {' or '.join(words)}, not {word!r}")
    return word


def _whole(name: str, text: str, high: int) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= high:
        raise wrong(f"{name} must be a whole number from 1 to {high}, not {text!r}")
    return int(text)


def _short(name: str, text: str | None) -> str | None:
    if text is not None and (len(text) > _NAME_CHARS_MAX or "\0" in text):
        raise wrong(f"{name} must be a text of at most {_NAME_CHARS_MAX} characters")
    return text or None


def _seconds(name: str, options: Mapping[str, str], default: float) -> float:
    text = options.get(name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise wrong(f"{name} must be a number of seconds, not {text!r}")
    return seconds
