"""The JSON of a large value, written piece by piece, with an index of where its parts lie.

The JSON stays one payload that anybody can read.  The index says for every large list or mapping in it which members
stand in which bytes, so that `rows[1100][0]` costs one part and not the whole.  A part that is read is checked against
its digest: the digest of the payload covers the whole only."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from noetl.core import limits
from noetl.core.codec import ordered_bytes, parse_json
from noetl.core.errors import EnvelopeInvalid

INDEX_VERSION = 1
KEYS_MAX = 65_536
"""A mapping of more keys is not divided: an index that lists them all would be as large as the mapping."""
_HEAVY_MEMBERS = 4_096
"""A container with so many members is written part by part at once, instead of being tried as a whole first."""
_BATCH_MEMBERS_MAX = 4_096


class Part(NamedTuple):
    """Consecutive members of a container: the index of the first, or their keys; where they are; their digest.  A
    member that is itself large stands alone and has a node instead of a digest."""

    first: int
    keys: tuple[str, ...]
    offset: int
    length: int
    sha256: str | None
    inner: Node | None


@dataclass(frozen=True, slots=True)
class Node:
    """A list or mapping of so many members that is read in parts."""

    is_list: bool
    count: int
    offset: int
    length: int
    parts: tuple[Part, ...]
    _by_key: dict[str, Part] = field(default_factory=dict, compare=False, repr=False)

    def part_at(self, index: int) -> Part:
        """The part of a list in which an index stands; it must be one of the list's."""
        return self.parts[bisect_right(self.parts, index, key=lambda part: part.first) - 1]

    def part_of(self, key: str) -> Part | None:
        """The part of a mapping in which a key stands."""
        if not self._by_key:
            self._by_key.update((one, part) for part in self.parts for one in part.keys)
        return self._by_key.get(key)

    def leaves(self) -> Iterator[Part]:
        """Every part that has bytes of its own."""
        for part in self.parts:
            if part.inner is None:
                yield part
            else:
                yield from part.inner.leaves()


def parsed_part(node_is_list: bool, content: bytes) -> Any:
    """The members of a part as a list or mapping."""
    return parse_json(b"[%b]" % content if node_is_list else b"{%b}" % content)


# --- writing ---------------------------------------------------------------------------------------------


class IndexedJson:
    """Writes a container.  `pieces` gives the bytes in order; afterwards there is a `root`."""

    def __init__(self, value: Mapping[str, object] | Sequence[object], *, part_bytes: int | None = None) -> None:
        self._value = value
        self._part_bytes = limits.INDEX_PART_BYTES if part_bytes is None else part_bytes
        self._offset = 0
        self.root: Node | None = None

    def pieces(self) -> Iterator[bytes]:
        self.root = yield from self._container(self._value)

    def made(self) -> Node:
        """The root, behind the last piece."""
        assert self.root is not None
        return self.root

    def _container(self, value: Any) -> Generator[bytes, None, Node]:
        members = _Members(value)
        start = self._offset
        yield self._written(b"[" if members.is_list else b"{")
        parts = yield from self._parts(members)
        yield self._written(b"]" if members.is_list else b"}")
        return Node(members.is_list, members.count, start, self._offset - start, tuple(parts))

    def _parts(self, members: _Members) -> Generator[bytes, None, list[Part]]:
        collected = Collected(self._part_bytes)
        number, batch = 0, 16
        while number < members.count:
            separator = b"," if number else b""
            if members.is_heavy(number):
                yield self._written(separator + members.prefix(number))
                inner = yield from self._container(members.item(number))
                collected.stand_alone(number, members.keys(number, 1), inner)
                number += 1
                continue
            taken = members.light(number, batch)
            content = members.encoded(number, taken)
            if len(content) > self._part_bytes and members.is_divisible(number, taken):
                batch = members.divide(number, taken)
                continue
            collected.add(number, members.keys(number, taken), self._offset, separator + content)
            yield self._written(separator + content)
            number += taken
            batch = max(1, min(self._part_bytes * taken // (2 * len(content)), _BATCH_MEMBERS_MAX))
        return collected.all()

    def _written(self, content: bytes) -> bytes:
        self._offset += len(content)
        return content


class Collected:
    """The parts of one container while it is written."""

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._parts: list[Part] = []
        self._first = self._offset = self._length = 0
        self._keys: list[str] = []
        self._digest = hashlib.sha256()

    def add(self, first: int, keys: Sequence[str], offset: int, content: bytes) -> None:
        """Members that are about to be written at an offset, behind a comma unless they are the very first; they join
        those before if there is room."""
        if self._length and self._length + len(content) > self._part_bytes:
            self._close()
        if not self._length:
            # What stands between two parts belongs to neither.
            comma = 1 if first else 0
            self._first, self._offset, content = first, offset + comma, content[comma:]
            self._digest = hashlib.sha256()
        self._keys += keys
        self._digest.update(content)
        self._length += len(content)

    def stand_alone(self, first: int, keys: Sequence[str], inner: Node) -> None:
        self._close()
        self._parts.append(Part(first, tuple(keys), inner.offset, inner.length, None, inner))

    def all(self) -> list[Part]:
        self._close()
        return self._parts

    def _close(self) -> None:
        if self._length:
            digest = self._digest.hexdigest()
            self._parts.append(Part(self._first, tuple(self._keys), self._offset, self._length, digest, None))
            self._length = 0
            self._keys = []


class _Members:
    """The members of a container in their order."""

    def __init__(self, value: Any) -> None:
        self.is_list = not isinstance(value, Mapping)
        self._value = value
        self._keys: list[str] = [] if self.is_list else list(value)
        if not all(type(key) is str for key in self._keys):
            raise EnvelopeInvalid("a key of a mapping is no text")
        self.count = len(value)
        self._heavy: set[int] = set()

    def keys(self, number: int, taken: int) -> Sequence[str]:
        return self._keys[number : number + taken]

    def item(self, number: int) -> Any:
        return self._value[number if self.is_list else self._keys[number]]

    def prefix(self, number: int) -> bytes:
        return b"" if self.is_list else ordered_bytes(self._keys[number]) + b":"

    def is_divisible(self, number: int, taken: int) -> bool:
        return taken > 1 or (_can_have_parts(self.item(number)) and len(self.item(number)) > 0)

    def divide(self, number: int, taken: int) -> int:
        """Some members are too large for one part: fewer are tried, and one alone is written part by part."""
        if taken == 1:
            self._heavy.add(number)
        return max(taken // 2, 1)

    def is_heavy(self, number: int) -> bool:
        item = self.item(number)
        return number in self._heavy or (_can_have_parts(item) and len(item) >= _HEAVY_MEMBERS)

    def light(self, number: int, most: int) -> int:
        """How many members from here on may be written together."""
        end = min(number + most, self.count)
        taken = number + 1
        while taken < end and not self.is_heavy(taken):
            taken += 1
        return taken - number

    def encoded(self, number: int, taken: int) -> bytes:
        """Some members without the brackets around them."""
        if self.is_list:
            return ordered_bytes(self._value[number : number + taken])[1:-1]
        return ordered_bytes({key: self._value[key] for key in self.keys(number, taken)})[1:-1]


def _can_have_parts(value: object) -> bool:
    return isinstance(value, list) or (isinstance(value, dict) and len(value) <= KEYS_MAX)


def is_indexable(value: object) -> bool:
    """Whether a value can be read in parts."""
    return _can_have_parts(value) and len(value) > 0  # type: ignore[arg-type]


def seems_large(value: object) -> bool:
    """A guess, made without walking through the value, whether it takes more than one part."""
    if isinstance(value, str):
        return len(value) > limits.INDEX_PART_BYTES
    if not isinstance(value, dict | list):
        return False
    if len(value) >= _HEAVY_MEMBERS:
        return True
    members = value.values() if isinstance(value, dict) else value
    return any(isinstance(item, dict | list | str) and len(item) >= _HEAVY_MEMBERS for item in members)


# --- the index as a document -----------------------------------------------------------------------------


def index_document(root: Node) -> list[object]:
    return [INDEX_VERSION, _node_document(root)]


def _node_document(node: Node) -> list[object]:
    parts = [
        [
            part.first if node.is_list else list(part.keys),
            part.offset,
            part.length,
            part.sha256 if part.inner is None else _node_document(part.inner),
        ]
        for part in node.parts
    ]
    return [1 if node.is_list else 0, node.count, node.offset, node.length, parts]


def index_from_document(document: Any) -> Node | None:
    """The root of an index; None for one that another version wrote: then the payload is read whole."""
    version, root = document
    return _node(root) if version == INDEX_VERSION else None


def _node(document: Any) -> Node:
    is_list, count, offset, length, documents = document
    parts, first = [], 0
    for told, start, size, what in documents:
        keys = () if is_list else tuple(told)
        inner = None if isinstance(what, str) else _node(what)
        digest = what if inner is None else None
        parts.append(Part(told if is_list else first, keys, start, size, digest, inner))
        first += len(keys)
    return Node(bool(is_list), count, offset, length, tuple(parts))
