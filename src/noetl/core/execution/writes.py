"""Recorded writes applied to the context, and the small tools of folding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from noetl.core.execution.state import Entry

V = TypeVar("V")


def write(variables: Mapping[str, Entry], writes: Sequence[Mapping[str, object]] | None) -> Mapping[str, Entry]:
    """Apply recorded writes in order: `path` below ctx, then `v` or a place (`ref`, `at`) in a payload.  A
    deeper path changes a part of a value."""
    if not writes:
        return variables
    result = dict(variables)
    for item in writes:
        path: Any = item["path"]
        reference: Any = item.get("ref")
        at: Any = item.get("at", ())
        entry = Entry(item.get("v"), reference, tuple(at))
        name, *below = path
        result[name] = patched(result.get(name, Entry({})), tuple(below), entry) if below else entry
    return result


def patched(base: Entry, below: tuple[str, ...], part: Entry) -> Entry:
    """A value with another one at a place below it.  What is inline stays inline; of what is not, the parts are
    remembered beside the rest.  Keys of `set` stand in the playbook, so there are never many."""
    is_apart = not any(_overlap(known, below) for known, _ in base.patches)
    if base.reference is None and part.is_inline and is_apart:
        return replace(base, value=nested(base.value, below, part.value))
    kept = tuple((known, entry) for known, entry in base.patches if known[: len(below)] != below)
    return replace(base, patches=(*kept, (below, part)))


def _overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    length = min(len(one), len(other))
    return one[:length] == other[:length]


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
