"""Where results of tasks are that are stored already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from noetl.core import limits
from noetl.core.expression.views import Path
from noetl.core.results.parts import Parted, StoredPart, unique
from noetl.engine.work.pipeline.run import Run

Pointer = Mapping[str, Any]
_MEMBERS_SEARCHED_MAX = 100
_NAMES = ("_ref", "ref")
_NAME_CHARS_MAX = 100
_TOLD = ("sha256", "media_type", "bytes", "row_count", "store")


def pointers_of(value: object, reference: object) -> tuple[Pointer, ...]:
    """The references of a task's result: of the result itself, of its parts, and of what a tool stored and names as
    `_ref` or `ref`, in the result or in one of its members."""
    own = (reference,) if isinstance(reference, Mapping) else ()
    if isinstance(value, StoredPart):
        return (*own, value._reference)
    parts: tuple[Pointer, ...] = ()
    if isinstance(value, Parted):
        parts, value = tuple(unique(value._parts)), value._base
    return (*own, *parts, *_named(value)) if isinstance(value, dict) else (*own, *parts)


def _named(value: dict[str, Any]) -> Iterator[Pointer]:
    members = list(value.values())[:_MEMBERS_SEARCHED_MAX]
    for place in (value, *(member for member in members if isinstance(member, dict))):
        for name in _NAMES:
            found = place.get(name)
            if isinstance(found, Mapping) and {"sha256", "uri", "store"} <= found.keys():
                yield found


def with_pointers(tasks: list[dict[str, object]], run: Run) -> list[dict[str, object]]:
    """The entries about task runs; the last one of each task says where its result is stored, if it is, and of a result
    with several parts where each of them is (`parts`; `parts_more` are those that are too many to say)."""
    left = dict(run.results)
    for entry in reversed(tasks):
        label = str(entry["task"])
        if label in left:
            value = left.pop(label)
            found = pointers_of(value, (run.stored.get(label) or {}).get("_ref"))
            if found:
                entry["stored"] = _told(found[0])
            if isinstance(value, Parted) and len(value._parts) > 1:
                parts = list(value._parts.items())
                entry["parts"] = [
                    {"name": _dotted(place), **_told(part._reference)}
                    for place, part in parts[: limits.RESULT_PARTS_TOLD_MAX]
                ]
                if len(parts) > limits.RESULT_PARTS_TOLD_MAX:
                    entry["parts_more"] = len(parts) - limits.RESULT_PARTS_TOLD_MAX
    return tasks


def _told(reference: Pointer) -> dict[str, object]:
    return {name: reference[name] for name in _TOLD if reference.get(name) is not None}


def _dotted(place: Path) -> str:
    return ".".join(map(str, place))[:_NAME_CHARS_MAX]


def digests_of(reference: Pointer | None) -> tuple[object, ...]:
    """The digests of the payloads behind a reference: its own, and that of its index."""
    if reference is None:
        return ()
    return reference.get("sha256"), (reference.get("index") or {}).get("sha256")
