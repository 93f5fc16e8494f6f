"""Views of a stored value that read the parts of it which are looked at, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from noetl.core.expression import Lazy
from noetl.core.expression.views import MISSING, Path
from noetl.core.expression.views.absence import put
from noetl.core.results.index import Node, Part


class PartSource(Protocol):
    """Where the parts of one payload come from."""

    def members(self, node: Node, part: Part) -> Any:
        """The members of a part as a list or mapping.  Raises Absent."""
        ...

    def need(self, node: Node, parts: Sequence[Part] | None = None) -> None:
        """Raises Absent, for all of them at once, when parts of a node, or some of its parts, are not here."""
        ...


class Origin(NamedTuple):
    """Where a stored value stands: a reference, and the path below the result that it names."""

    reference: Mapping[str, object]
    path: Path

    def below(self, *keys: str | int) -> Origin:
        return Origin(self.reference, (*self.path, *keys))


class Stored(Lazy):
    """A list or mapping of a payload with an index."""

    __slots__ = ("_node", "_origin", "_source")
    _source: PartSource
    _node: Node
    _origin: Origin | None

    def __init__(self, source: PartSource, node: Node, origin: Origin | None) -> None:
        """Without an origin its place among the results of a playbook is not known."""
        put(self, "_source", source)
        put(self, "_node", node)
        put(self, "_origin", origin)

    def _inner(self) -> Any:
        return self._plain()

    def _sample(self) -> object:
        return [] if self._node.is_list else {}

    def _is_keyed(self) -> bool:
        return not self._node.is_list

    def _holds_parts(self) -> bool:
        return False

    def _bytes_min(self) -> int:
        return self._node.length

    def _loaded(self) -> object:
        return self._plain()

    def __len__(self) -> int:
        return self._node.count

    def __bool__(self) -> bool:
        return self._node.count > 0

    def _plain(self) -> object:
        self._source.need(self._node)
        return self._assembled(self._node)

    def _assembled(self, node: Node) -> Any:
        pieces = [
            (part, self._source.members(node, part) if part.inner is None else self._assembled(part.inner))
            for part in node.parts
        ]
        if node.is_list:
            return [item for part, found in pieces for item in (found if part.inner is None else [found])]
        return {
            key: item
            for part, found in pieces
            for key, item in (found.items() if part.inner is None else [(part.keys[0], found)])
        }

    def _child(self, part: Part, key: str | int) -> object:
        assert part.inner is not None
        origin = None if self._origin is None else self._origin.below(key)
        return stored(self._source, part.inner, origin)


class StoredMapping(Stored):
    __slots__ = ()

    def _find(self, key: object) -> object:
        part = self._node.part_of(key) if isinstance(key, str) else None
        if part is None or not isinstance(key, str):
            return MISSING
        return self._source.members(self._node, part)[key] if part.inner is None else self._child(part, key)

    def _place(self, key: object) -> Path | None:
        return (key,) if isinstance(key, str) and self._node.part_of(key) is not None else None

    def __contains__(self, item: object) -> bool:
        return isinstance(item, str) and self._node.part_of(item) is not None

    def __iter__(self) -> Iterator[object]:
        """The keys, for which nothing is read."""
        return (key for part in self._node.parts for key in part.keys)


class StoredList(Stored):
    __slots__ = ()

    def _find(self, key: object) -> object:
        if not isinstance(key, int) or not -self._node.count <= key < self._node.count:
            return MISSING
        index = key % self._node.count
        part = self._node.part_at(index)
        if part.inner is not None:
            return self._child(part, index)
        return self._source.members(self._node, part)[index - part.first]

    def _place(self, key: object) -> Path | None:
        is_index = type(key) is int and -self._node.count <= key < self._node.count
        return (key,) if is_index else None  # type: ignore[return-value]

    def _cut(self, bounds: slice) -> object:
        indexes = range(self._node.count)[bounds]
        parts = {part.offset: part for part in map(self._node.part_at, indexes)}
        self._source.need(self._node, list(parts.values()))
        found = [self._find(index) for index in indexes]
        return [item._plain() if isinstance(item, Stored) else item for item in found]


def stored(source: PartSource, node: Node, origin: Origin | None) -> Stored:
    """The view of a node."""
    return (StoredList if node.is_list else StoredMapping)(source, node, origin)
