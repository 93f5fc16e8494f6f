"""Columns that a dataset is partitioned by: their values stand in the manifest and in the names of folders, not in
files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import types

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and Spark write for null, and for an empty text as well."""
# What Hive and Spark do not leave as it is in the name of a folder.
_ESCAPED = frozenset([*map(chr, range(1, 0x20)), *"\"#%'*/:=?\\\x7f{[]^"])


def folder_of(partition: Mapping[str, str | None], partition_by: Sequence[str]) -> PurePosixPath:
    """`day=2026-01-01/country=AT`, as Spark writes and reads it.  Raises ValueError."""
    names = [f"{escaped(name)}={escaped(partition[name] or NULL_FOLDER)}" for name in partition_by]
    return PurePosixPath(*names)


def escaped(text: str) -> str:
    """One part of such a name.  Raises ValueError for what no folder can be called."""
    if "\0" in text:
        raise ValueError("a value of a partitioning holds a NUL character, and no folder can be called so")
    return "".join(f"%{ord(one):02X}" if one in _ESCAPED else one for one in text)


def constant(text: str | None, kind: Any, rows: int) -> Any:
    """A column that has one value everywhere.  Raises what Arrow raises for a text that is no such value."""
    return pa.repeat(typed(text, kind), rows) if rows else pa.array([], kind)


def typed(text: str | None, kind: Any) -> Any:
    """The value of a partitioning as a scalar."""
    if text is None:
        return pa.scalar(None, kind)
    if types.is_dictionary(kind):
        return pa.array([text], pa.string()).cast(kind.value_type).cast(kind)[0]
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(
            kind, pa.array([typed(text, kind.storage_type).as_py()], kind.storage_type)
        )[0]
    value = pa.array([text], pa.string())
    if types.is_timestamp(kind) and kind.tz is not None:
        # Such moments are written as they are in UTC, with or without saying so.
        naive = pa.timestamp(kind.unit)
        return value.cast(naive if not _has_zone(text) else kind).cast(kind)[0]
    if types.is_duration(kind):
        return value.cast(pa.int64()).cast(pa.duration("us")).cast(kind)[0]
    if types.is_time(kind):
        moment = pa.array([f"1970-01-01 {text}"], pa.string()).cast(pa.timestamp("us"))
        return moment.cast(pa.time64("us")).cast(kind)[0]
    if types.is_float16(kind):
        return value.cast(pa.float32()).cast(kind)[0]
    return value.cast(kind)[0]


def _has_zone(text: str) -> bool:
    clock = text[10:]
    return clock.endswith("Z") or "+" in clock or "-" in clock
