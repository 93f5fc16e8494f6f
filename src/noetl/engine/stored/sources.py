"""Payloads that are read while templates look at them.

A look at something that is not here raises Absent with an object of this module; `settled` fetches it and looks again.
Templates are pure, so looking twice gives the same."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from noetl.core import limits
from noetl.core.expression import Absent, Lazy, bare, data_of, find
from noetl.core.expression.views import sample
from noetl.core.expression.views.absence import put
from noetl.core.reference import is_parted
from noetl.core.results.index import Node, Part
from noetl.core.results.parts import StoredPart, parted
from noetl.core.results.stored import Origin, stored
from noetl.engine.payloads import Payloads

T = TypeVar("T")
_UNREAD = object()


@runtime_checkable
class Fetchable(Protocol):
    async def fetch(self) -> None: ...


async def settled(look: Callable[[], T]) -> T:
    """What a look gives when everything that it looks at is here."""
    while True:
        try:
            return look()
        except Absent as absent:
            part = absent.part
            assert isinstance(part, Fetchable)
        await part.fetch()


class Together:
    """Several things that are missing at once."""

    def __init__(self, parts: Sequence[Fetchable]) -> None:
        self._parts = parts

    async def fetch(self) -> None:
        """A few at a time: for a worker that is far from the store each of them is a way there and back."""
        waiting = iter(self._parts)

        async def lane() -> None:
            for part in waiting:
                await part.fetch()

        async with asyncio.TaskGroup() as group:
            for _ in range(min(limits.STORED_FETCHES_MAX, len(self._parts))):
                group.create_task(lane())


class StoredPayload:
    """One payload of a command: its value when it was read whole, or a view of it by its index.

    Parts are held up to a bound, the longest unused go first.  A part that is missed again shows that one look needs
    more than the bound: then it grows, so that every look ends."""

    def __init__(
        self,
        payloads: Payloads,
        reference: Mapping[str, Any],
        *,
        origin: bool,
        open_part: Callable[[Mapping[str, Any]], StoredPart],
        **owner: str,
    ) -> None:
        """`origin` says that a path below the stored value is a path below the result that playbooks see; `open_part`
        gives the view of a payload that this one names."""
        self._payloads = payloads
        self._reference = reference
        self._open_part = open_part
        self._origin = Origin(reference, ()) if origin else None
        self._owner = owner
        known = payloads.known(reference, **owner) if "index" not in reference else None
        self._root: object = _UNREAD if known is None else self._whole(known[0])
        self._held: OrderedDict[int, tuple[int, Any]] = OrderedDict()
        self._held_bytes = 0
        self._bytes_max = limits.STORED_HELD_BYTES
        self._dropped: set[int] = set()
        self._missing: list[tuple[bool, Part]] = []

    @property
    def is_read(self) -> bool:
        return self._root is not _UNREAD

    def root(self) -> Any:
        """The value, or a view of it.  Raises Absent."""
        if self._root is _UNREAD:
            raise Absent(self)
        return self._root

    async def fetch(self) -> None:
        if self._root is _UNREAD:
            node = await self._payloads.read_index(self._reference, **self._owner)
            if node is None:
                root = await self._payloads.read_json(self._reference, **self._owner)
            else:
                root = stored(self, node, self._origin)
            self._root = self._whole(root)
        missing, self._missing = self._missing, []
        if missing:
            found = await self._payloads.read_parts(self._reference, missing, **self._owner)
            self._hold([part for _, part in missing], found)

    def _whole(self, root: Any) -> object:
        """The value of a document, with the views of what is stored apart from it."""
        if not is_parted(self._reference["media_type"]):
            return root
        # Lazily: which parts there are may stand behind a large document.
        return _PartedRoot(root, self._open_part)

    # --- the parts of a large one --------------------------------------------------------------------------

    def members(self, node: Node, part: Part) -> Any:
        held = self._held.get(part.offset)
        if held is None:
            self._missing.append((node.is_list, part))
            raise Absent(self)
        self._held.move_to_end(part.offset)
        return held[1]

    def need(self, node: Node, parts: Sequence[Part] | None = None) -> None:
        missing = [one for one in _leaves(node, parts) if one[1].offset not in self._held]
        if missing:
            self._missing += missing
            raise Absent(self)

    def _hold(self, parts: Sequence[Part], found: Sequence[Any]) -> None:
        news = {part.offset: part.length for part in parts}
        if not self._dropped.isdisjoint(news):
            self._bytes_max *= 2
        self._bytes_max = max(self._bytes_max, sum(news.values()))
        for part, members in zip(parts, found, strict=True):
            if part.offset not in self._held:
                self._held_bytes += part.length
            self._held[part.offset] = (part.length, members)
            self._held.move_to_end(part.offset)
        while self._held_bytes > self._bytes_max:
            offset, (length, _) = self._held.popitem(last=False)
            self._held_bytes -= length
            self._dropped.add(offset)


class _PartedRoot(Lazy):
    """The value of a parted document, which may itself be too large to be here."""

    __slots__ = ("_made", "_open_part", "_root")
    _root: object
    _open_part: Callable[[Mapping[str, Any]], StoredPart]
    _made: list[object]

    def __init__(self, root: object, open_part: Callable[[Mapping[str, Any]], StoredPart]) -> None:
        put(self, "_root", root)
        put(self, "_open_part", open_part)
        put(self, "_made", [])

    def _inner(self) -> Any:
        if not self._made:
            named: Any = bare(find(self._root, "parts"))
            parts = {tuple(place): self._open_part(reference) for place, reference in named}
            self._made.append(parted(find(self._root, "value"), parts))
        return self._made[0]

    def _data(self) -> object:
        return data_of(self._inner())

    def _sample(self) -> object:
        return sample(self._inner())

    def __iter__(self) -> Iterator[object]:
        return iter(self._inner())


def _leaves(node: Node, parts: Sequence[Part] | None = None) -> list[tuple[bool, Part]]:
    """Every part below some parts of a node that has bytes of its own, with whether it is of a list."""
    found: list[tuple[bool, Part]] = []
    for part in node.parts if parts is None else parts:
        found += [(node.is_list, part)] if part.inner is None else _leaves(part.inner)
    return found
