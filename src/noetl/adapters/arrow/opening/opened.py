"""A table that is open: its batches lie in memory or in a mapped file, and nothing is copied before somebody looks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol, TypeVar

from noetl.adapters.arrow.rows import rows_of
from noetl.adapters.arrow.threads import in_waiting_thread
from noetl.ports.data.tables import MappedFile

T = TypeVar("T")


class Content(Protocol):
    """What several open tables of one process share, wherever the rows are."""

    @property
    def schema(self) -> Any: ...

    @property
    def row_count(self) -> int: ...

    @property
    def size(self) -> int:
        """How many bytes of memory, ours or shared, it holds."""
        ...

    @property
    def file(self) -> MappedFile | None: ...

    @property
    def until_us(self) -> int | None: ...

    @property
    def holds_files(self) -> bool: ...

    def each(self, columns: Sequence[str] | None, first: int, count: int) -> Iterator[Any]:
        """Batches that hold some rows, cut to size."""
        ...

    def window(self, first: int, count: int) -> Iterator[Any]:
        """The same with all columns, for a reader who will ask for the next rows, or for these again."""
        ...


@dataclass(slots=True, kw_only=True)
class TableContent:
    """What several open tables of one process share: the batches, and what keeps their bytes in place."""

    schema: Any
    batches: Sequence[Any]
    size: int
    """How many bytes of memory, ours or shared, it holds."""
    file: MappedFile | None = None
    until_us: int | None = None
    """When the lease of the segment ends in which it lies, if it lies in one."""
    counts: Sequence[int] | None = None
    """How many rows each batch has, where the batches are not at hand."""
    starts: list[int] = field(init=False)
    row_count: int = field(init=False)

    def __post_init__(self) -> None:
        counts = self.counts if self.counts is not None else [batch.num_rows for batch in self.batches]
        ends = list(accumulate(counts))
        self.row_count = ends[-1] if ends else 0
        self.starts = [0, *ends[:-1]]

    @property
    def holds_files(self) -> bool:
        return self.file is not None

    def each(self, columns: Sequence[str] | None, first: int, count: int) -> Iterator[Any]:
        for batch in self.window(first, count):
            yield batch if columns is None else batch.select(list(columns))

    def window(self, first: int, count: int) -> Iterator[Any]:
        last = min(first + count, self.row_count)
        place = bisect_right(self.starts, first) - 1
        while first < last:
            batch, start = self.batches[place], self.starts[place]
            taken = min(batch.num_rows - (first - start), last - first)
            if taken == batch.num_rows:
                yield batch
            elif taken > 0:
                yield batch.slice(first - start, taken)
            first += taken
            place += 1


class OpenedTable:
    """One view of a table's content."""

    def __init__(self, content: Content, *, tier: str, spill: Callable[[Content], Content]) -> None:
        self._content: Content | None = content
        self._tier = tier
        self._spill = spill

    @property
    def row_count(self) -> int:
        return self._open().row_count

    @property
    def columns(self) -> Sequence[str]:
        return tuple(self._open().schema.names)

    @property
    def schema(self) -> Any:
        return self._open().schema

    @property
    def tier(self) -> str:
        return self._tier

    def rows(self, first: int, count: int) -> list[dict[str, object]]:
        """Rows that do not exist are left out, as in a slice of a list."""
        found: list[dict[str, object]] = []
        for batch in self._open().window(max(first, 0), max(count, 0)):
            found += rows_of(batch)
        return found

    def batches(
        self, columns: Sequence[str] | None = None, *, first: int = 0, count: int | None = None
    ) -> Iterator[Any]:
        content = self._open()
        left = max(content.row_count - first, 0)
        yield from content.each(columns, first, left if count is None else min(count, left))

    def mapped(self) -> MappedFile:
        content = self._open()
        if content.file is None or not content.file.path.exists():
            # A file that is gone is still mapped here, and nowhere else any more.
            content = self._content = self._spill(content)
        assert content.file is not None
        return content.file

    async def looked(self, call: Callable[..., T], *arguments: Any) -> T:
        return await in_waiting_thread(call, *arguments)

    def close(self) -> None:
        self._content = None

    def _open(self) -> Content:
        if self._content is None:
            raise ValueError("the table is closed")
        return self._content
