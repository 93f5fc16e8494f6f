"""Values of which parts are payloads of their own: rows in columns, and whatever a tool stored before it answered.

A part is a view: who looks at it reads it, who stores or hands on the value around it keeps its reference.  Parts stand
at the root of a value, or in a `Parted` there; deeper data is never searched for them, except by `split`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from noetl.core.execution.writes import nested
from noetl.core.expression import Lazy, View, bare, data_of, find
from noetl.core.expression.views import MISSING, Path, place_of, sample
from noetl.core.expression.views.absence import put
from noetl.core.expression.views.pipelines import with_parts

Parts = Mapping[Path, "StoredPart"]


class StoredPart(Lazy):
    """A value behind a reference of its own."""

    __slots__ = ("_reference",)
    _reference: Mapping[str, Any]

    def __init__(self, reference: Mapping[str, Any]) -> None:
        put(self, "_reference", reference)

    def _holds_parts(self) -> bool:
        return True

    def _parted(self) -> object:
        return self


class RowSource(Protocol):
    """Where the rows of one table come from."""

    def rows(self, first: int, count: int) -> list[Any]:
        """Some rows as plain data.  Raises Absent."""
        ...


class Table(StoredPart):
    """Rows in columns: a list of mappings for whoever looks, of which only the rows are read that are looked at."""

    __slots__ = ("_count", "_source")
    _source: RowSource
    _count: int

    def __init__(self, source: RowSource, reference: Mapping[str, Any]) -> None:
        super().__init__(reference)
        put(self, "_source", source)
        put(self, "_count", int(reference["row_count"]))

    def _inner(self) -> Any:
        return self._plain()

    def _plain(self) -> object:
        return self._source.rows(0, self._count) if self._count else []

    def _loaded(self) -> object:
        return self._plain()

    def _sample(self) -> object:
        return []

    def _is_keyed(self) -> bool:
        return False

    def _bytes_min(self) -> int:
        return plain_bytes(self._reference)

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def _find(self, key: object) -> object:
        if not isinstance(key, int) or not -self._count <= key < self._count:
            return MISSING
        return self._source.rows(key % self._count, 1)[0]

    def _place(self, key: object) -> Path | None:
        is_index = type(key) is int and -self._count <= key < self._count
        return (key,) if is_index else None  # type: ignore[return-value]

    def _cut(self, bounds: slice) -> object:
        indexes = range(self._count)[bounds]
        if not indexes:
            return []
        first, last = min(indexes[0], indexes[-1]), max(indexes[0], indexes[-1])
        rows = self._source.rows(first, last - first + 1)
        return [rows[index - first] for index in indexes]


class Parted(Lazy):
    """A mapping or list, perhaps lazy, with parts at some places in it: null stands there in `base`."""

    __slots__ = ("_base", "_parts")
    _base: object
    _parts: Parts

    def __init__(self, base: object, parts: Parts) -> None:
        put(self, "_base", base)
        put(self, "_parts", parts)

    def _holds_parts(self) -> bool:
        return True

    def _inner(self) -> Any:
        return self._plain()

    def _plain(self) -> object:
        return placed(bare(self._base), {place: bare(part) for place, part in self._parts.items()})

    def _parted(self) -> object:
        return placed(bare(self._base), self._parts)

    def _loaded(self) -> object:
        return self._plain()

    def _sample(self) -> object:
        return sample(self._base) if isinstance(self._base, View) else type(self._base)()

    def _is_keyed(self) -> bool:
        return isinstance(self._sample(), dict)

    def _bytes_min(self) -> int:
        return sum(plain_bytes(one) for one in unique(self._parts))

    def __len__(self) -> int:
        return len(self._base)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return len(self) > 0

    def __iter__(self) -> Iterator[object]:
        base: Any = self._base
        return iter(base) if self._is_keyed() else (self._find(index) for index in range(len(self)))

    def __contains__(self, item: object) -> bool:
        members: Any = self._base if self._is_keyed() else self._plain()
        return item in members

    def _find(self, key: object) -> object:
        if isinstance(key, int) and not isinstance(key, bool) and key < 0:
            key += len(self)
        deeper: dict[Path, StoredPart] = {}
        for place, part in self._parts.items():
            if place[0] == key:
                if len(place) == 1:
                    return part
                deeper[place[1:]] = part
        found = find(self._base, key)
        return Parted(found, deeper) if deeper and found is not MISSING else found

    def _cut(self, bounds: slice) -> object:
        return [bare(self._find(index)) for index in range(len(self))[bounds]]

    def _place(self, key: object) -> Path | None:
        return place_of(self._base, key)


def parted(document: object, parts: Parts) -> object:
    """A value from its document and its parts: the part itself, when the value is nothing else."""
    if not parts:
        return document
    return parts[()] if () in parts else Parted(document, parts)


def holds_parts(value: object) -> bool:
    """Whether a value has parts that are stored on their own.  Raises Absent when that is not known yet."""
    return isinstance(value, View) and value._holds_parts()


def split(value: object) -> tuple[object, dict[Path, StoredPart]]:
    """The plain data of a value with null at the places of its parts, and these.  Raises Absent."""
    found: dict[Path, StoredPart] = {}
    return _without(value, (), found), found


def _without(value: object, place: Path, found: dict[Path, StoredPart]) -> object:
    if isinstance(value, StoredPart):
        found[place] = value
        return None
    if isinstance(value, Parted):
        found.update({(*place, *below): part for below, part in value._parts.items()})
        return bare(value._base)
    if isinstance(value, View):
        data = data_of(value)
        if isinstance(data, Parted | StoredPart):
            return _without(data, place, found)
        return _without(value._parted(), place, found) if value._holds_parts() else bare(value)
    if isinstance(value, dict):
        return {key: _without(item, (*place, key), found) for key, item in value.items()}
    if isinstance(value, list):
        return [_without(item, (*place, number), found) for number, item in enumerate(value)]
    return value


def joined(document: object, views: Mapping[Path, View]) -> object:
    """A value from a document that has null where views of values with parts belong.  Raises Absent."""
    parts: dict[Path, StoredPart] = {}
    for place, view in views.items():
        below, found = split(view)
        document = _with(document, place, below)
        parts.update({(*place, *deeper): part for deeper, part in found.items()})
    return parted(document, parts)


def rooted(value: object) -> object:
    """A value whose parts stand at its root, from data in which they stand anywhere."""
    return parted(*split(value))


def written(mapping: Mapping[str, object], path: Sequence[str], value: object) -> dict[str, object]:
    """A copy of a mapping of values with one written at a path.  What stands beside it stays, also in a value with
    parts.  Raises Absent when that is not here."""
    name, *below = path
    base = mapping.get(name)
    if not below or not (isinstance(base, View) or isinstance(value, View)):
        return nested(dict(mapping), path, value)
    return {**mapping, name: rooted(nested(with_parts(base), below, value))}


def primed(value: object) -> None:
    """Raises Absent as long as it is not known of what type a value and its parts are."""
    if isinstance(value, View):
        sample(value)
    if isinstance(value, Parted):
        for part in value._parts.values():
            sample(part)


def placed(document: Any, parts: Mapping[Path, object]) -> Any:
    """A document with values at some places; what is not on the way to one of them is shared."""
    for place, part in parts.items():
        document = _with(document, place, part)
    return document


def _with(document: Any, place: Path, part: object) -> Any:
    if not place:
        return part
    changed: Any = dict(document) if isinstance(document, dict) else list(document)
    changed[place[0]] = _with(changed[place[0]], place[1:], part)
    return changed


def unique(parts: Parts) -> list[Mapping[str, Any]]:
    """The references of parts, each payload once."""
    return list({part._reference["sha256"]: part._reference for part in parts.values()}.values())


def plain_bytes(reference: Mapping[str, Any]) -> int:
    """How many bytes the JSON of a part has, as far as that is known without reading it."""
    known = reference.get("plain_bytes")
    return int(reference["bytes"] if known is None else known)
