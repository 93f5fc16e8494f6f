"""Numbers that parts of a process count about themselves, in the form that metrics are made of."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

Sample = tuple[str, Mapping[str, str], float]
"""Name, labels, value.  A histogram is its `_bucket` (with `le`), `_sum` and `_count`."""


@runtime_checkable
class Counted(Protocol):
    """Something that counts.  Asked when somebody looks, never told to report."""

    def samples(self) -> Iterable[Sample]: ...


@runtime_checkable
class Refreshed(Counted, Protocol):
    """Something that must ask somebody else before it can tell."""

    async def refresh(self) -> None: ...


class Histogram:
    """How often a number was at most this much.  Adding to it costs one search in a short list."""

    __slots__ = ("_bounds", "_counts", "_labels", "_name", "_sum")

    def __init__(self, name: str, bounds: Sequence[float], labels: Mapping[str, str] | None = None) -> None:
        assert list(bounds) == sorted(set(bounds)), "bounds grow"
        self._name = name
        self._labels = dict(labels or {})
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> Iterator[Sample]:
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            yield (
                f"{self._name}_bucket",
                {**self._labels, "le": "+Inf" if bound == float("inf") else f"{bound:g}"},
                total,
            )
        yield f"{self._name}_sum", self._labels, self._sum
        yield f"{self._name}_count", self._labels, total
