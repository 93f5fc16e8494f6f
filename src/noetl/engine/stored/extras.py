"""Names of a result beside its own: where it is stored, and the few fields that travelled with its event."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from noetl.core.expression import Lazy, data_of, find, lookup
from noetl.core.expression.views import MISSING, Path
from noetl.core.expression.views.absence import put
from noetl.core.results.preview import preview_of

Open = Callable[[], object]


def extras_of(reference: Mapping[str, Any] | None, stored: Mapping[str, Any] | None, open_: Open) -> dict[str, object]:
    """`_ref` and its companions; they exist only for what is stored externally (dsl §8.5)."""
    if reference is None or stored is None:
        return {}
    names = {
        "_ref": dict(reference),
        "_store": stored["store"],
        "_size_bytes": stored["bytes"],
        "_preview": Preview(open_, stored["preview"]),
    }
    # A key of the result itself stands above these, and whether it has one is known without opening it.
    return {name: value for name, value in names.items() if name not in stored.get("own", ())}


class Preview(Lazy):
    """The beginning of a result's JSON."""

    __slots__ = ("_bytes_max", "_open")
    _open: Open
    _bytes_max: int

    def __init__(self, open_: Open, bytes_max: int) -> None:
        put(self, "_open", open_)
        put(self, "_bytes_max", bytes_max)

    def _inner(self) -> Any:
        return preview_of(self._open(), self._bytes_max)


class Selected:
    """Fields that a playbook selected: readable by their alias, and by their path, without the result."""

    def __init__(self, recorded: Sequence[Sequence[Any]], open_: Open) -> None:
        """`recorded` has for each its alias or null, its path, and its value (`v`), or where it is (`a`)."""
        self._open = open_
        self.names: dict[str, object] = {}
        self._known: list[tuple[Path, object]] = []
        for alias, path, outcome in recorded:
            value = outcome["v"] if "v" in outcome else Place(open_, outcome["a"])
            self._known.append((tuple(path), value))
            if alias is not None:
                self.names[alias] = value

    def __bool__(self) -> bool:
        return bool(self._known)

    def find(self, above: Path, key: object) -> object:
        """What is known of a path below the result, or MISSING."""
        path = (*above, key)
        for known, value in self._known:
            if known == path:
                return value
        if any(known[: len(path)] == path for known, _ in self._known):
            return Known(self, path)  # type: ignore[arg-type]
        return MISSING

    def at(self, path: Path) -> object:
        """What the result has at a path.  Raises Absent."""
        return _at(self._open(), path)


class Known(Lazy):
    """A part of a result of which only deeper parts are at hand."""

    __slots__ = ("_path", "_selected")
    _selected: Selected
    _path: Path

    def __init__(self, selected: Selected, path: Path) -> None:
        put(self, "_selected", selected)
        put(self, "_path", path)

    def _inner(self) -> Any:
        return self._selected.at(self._path)

    def _find(self, key: object) -> object:
        known = self._selected.find(self._path, key)
        return find(self._inner(), key) if known is MISSING else known


class Place(Lazy):
    """A selected field that was too large to travel."""

    __slots__ = ("_open", "_path")
    _open: Open
    _path: Sequence[str | int]

    def __init__(self, open_: Open, path: Sequence[str | int]) -> None:
        put(self, "_open", open_)
        put(self, "_path", path)

    def _inner(self) -> Any:
        return data_of(_at(self._open(), self._path))


def _at(value: object, path: Sequence[str | int]) -> object:
    for key in path:
        value = lookup(value, key, "path")
    return value
