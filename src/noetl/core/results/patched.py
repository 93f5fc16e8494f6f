"""A value of the context of which parts were written anew: the rest may lie in a payload, and so may the parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noetl.core.execution.writes import nested
from noetl.core.expression import Lazy, View, bare, find
from noetl.core.expression.views import MISSING
from noetl.core.expression.views.absence import put
from noetl.core.expression.views.pipelines import with_parts
from noetl.core.expression.views.results import is_mapping

Patch = tuple[tuple[str, ...], object]
"""The keys below a value, and what stands there."""


class Patched(Lazy):
    """`base` with patches in the order in which they were written.  Either may be lazy."""

    __slots__ = ("_base", "_patches")
    _base: object
    _patches: Sequence[Patch]

    def __init__(self, base: object, patches: Sequence[Patch]) -> None:
        put(self, "_base", base)
        put(self, "_patches", patches)

    def _inner(self) -> Any:
        return self._plain()

    def _plain(self) -> object:
        value = bare(self._base)
        for path, item in self._patches:
            value = nested(value, path, bare(item))
        return value

    def _holds_parts(self) -> bool:
        return any(isinstance(one, View) and one._holds_parts() for one in (self._base, *self._items()))

    def _parted(self) -> object:
        value = with_parts(self._base)
        for path, item in self._patches:
            value = nested(value, path, with_parts(item))
        return value

    def _items(self) -> list[object]:
        return [item for _, item in self._patches]

    def _sample(self) -> object:
        return {}

    def _is_keyed(self) -> bool:
        return True

    def _loaded(self) -> object:
        return self._plain()

    def _find(self, key: object) -> object:
        found = find(self._base, key) if is_mapping(self._base) else MISSING
        deeper: list[Patch] = []
        for path, item in self._patches:
            if path[0] != key:
                continue
            if len(path) == 1:
                found, deeper = item, []
            else:
                deeper.append((path[1:], item))
        if not deeper:
            return found
        return Patched({} if found is MISSING else found, deeper)
