"""Recorded writes applied to the context, and the small tools of folding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from noetl.core.execution.state import Entry

V = TypeVar("V")


def write(variables: Mapping[str, Entry], writes: Sequence[Mapping[str, object]] | None) -> Mapping[str, Entry]:
    """Apply recorded writes in order: `path` below ctx, then `v` or a place (`ref`, `at`) in a payload.  A
    deeper path updates a copy of the nested mapping."""
    if not writes:
        return variables
    result = dict(variables)
    for item in writes:
        path: Any = item["path"]
        reference: Any = item.get("ref")
        at: Any = item.get("at", ())
        if len(path) == 1:
            result[path[0]] = Entry(item.get("v"), reference, tuple(at))
        else:
            base = result.get(path[0], Entry({}))
            result[path[0]] = Entry(nested(base.value, path[1:], item.get("v")))
    return result


def compacted(writes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The writes that still count, in order: one that replaces a value makes those to it and below it needless.  Many
    rows write the same few names, and an event has a bound."""
    kept: dict[tuple[str, ...], dict[str, Any]] = {}
    for item in writes:
        path = tuple(item["path"])
        for known in [known for known in kept if known[: len(path)] == path]:
            del kept[known]
        kept[path] = item
    return list(kept.values())


def nested(base: object, path: Sequence[str], value: object) -> dict[str, object]:
    """A copy of a mapping with a value at a path; what is no mapping on the way is replaced by one."""
    copy = dict(base) if isinstance(base, dict) else {}
    if len(path) == 1:
        copy[path[0]] = value
    else:
        copy[path[0]] = nested(copy.get(path[0]), path[1:], value)
    return copy


def without(mapping: Mapping[str, V], key: str) -> dict[str, V]:
    return {name: value for name, value in mapping.items() if name != key}


def integer(value: object) -> int:
    assert isinstance(value, int)
    return value
