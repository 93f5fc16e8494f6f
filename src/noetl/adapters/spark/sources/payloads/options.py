"""The options of `noetl`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from noetl.core.errors import RequestInvalid
from noetl.core.locator import SCHEME, is_ours

READ = frozenset(("path", "part", "columns", "verify"))
WRITE = frozenset(("path", "output", "partition_by"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    path: str
    """A locator, or the file that names one."""
    part: str = ""
    """A part of a result that is no table itself, such as `pull.rows`."""
    columns: tuple[str, ...] | None = None
    is_verified: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    output: str
    partition_by: tuple[str, ...] = ()


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Raises RequestInvalid."""
    _check(options, READ)
    path = options.get("path", "")
    if not path:
        raise RequestInvalid(f"say what to read: load('{SCHEME}…'), or the file that a write has made")
    columns = options.get("columns")
    return ReadOptions(
        path=path,
        part=options.get("part", ""),
        columns=None if columns is None else names_of(columns, "columns"),
        is_verified=_truth(options.get("verify", "true"), "verify"),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Raises RequestInvalid."""
    _check(options, WRITE)
    output = options.get("output") or options.get("path") or ""
    if not output or is_ours(output):
        raise RequestInvalid(
            "say which file shall name the dataset: save('orders.noetl'), or noetl.spark.save(df) for the locator; "
            "a locator is made from the rows and cannot be chosen"
        )
    columns = options.get("partition_by")
    return WriteOptions(output=output, partition_by=() if not columns else names_of(columns, "partition_by"))


def names_of(text: str, option: str) -> tuple[str, ...]:
    """`a,b`, or a JSON list for names with commas."""
    names: object = [part.strip() for part in text.split(",")]
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError:
            names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise RequestInvalid(f"option {option}: write a,b or a JSON list of names")
    if len(set(names)) < len(names):
        raise RequestInvalid(f"option {option} names a column twice")
    return tuple(names)


def _check(options: Mapping[str, str], known: frozenset[str]) -> None:
    """A mistyped option would be one that is silently not obeyed."""
    unknown = sorted(name for name in options if name.lower() not in known)
    if unknown:
        raise RequestInvalid(f"noetl has no option {unknown[0]!r}: it has {', '.join(sorted(known))}")


def _truth(text: str, option: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise RequestInvalid(f"option {option} is true or false, not {text!r}")
    return text.lower() == "true"
