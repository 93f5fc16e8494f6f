"""Rows in columns: Arrow streams that are payloads like any other, and what may be looked at without holding them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from noetl.core.reference import MEDIA_ARROW, Reference

T = TypeVar("T")
Scrub = Callable[[Any], Any]
"""Takes secrets out of a value; gives back the same object when there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedFile:
    """Where the bytes of an open table are, for another process of this machine: an Arrow stream without compression
    at an offset of a file."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedTable:
    """An Arrow stream without compression that a child process of ours wrote into a file.  Whoever keeps it takes the
    file over."""

    path: Path
    offset: int = 0
    """Where the stream starts.  Before it there may be room for a header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingPlace:
    """Where a child process may write tables that need not be copied any more: new files in a folder, whose names are
    a prefix and a number."""

    folder: Path
    prefix: str
    offset: int
    """Where a stream starts in its file."""
    bytes_max: int
    """What all files of one child together may have.  What does not fit is written elsewhere and copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """What a reference says about a table without opening it."""

    row_count: int
    schema_digest: str
    raw_bytes: int
    media_type: str = MEDIA_ARROW
    compression: str = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTable:
    """A small table as bytes."""

    content: bytes
    facts: TableFacts
    plain_bytes: int | None = field(default=None, compare=False)
    """How many bytes its rows have as JSON, if they were counted."""


class OpenTable(Protocol):
    """A table that is open on this machine.  Nothing of it is copied before somebody looks.  Close it when done: a
    leased segment stays for as long as it is open.  Looking (`rows`, `batches`, `mapped`) may read
    files or wait for a store: an event loop does it by way of `looked`."""

    @property
    def row_count(self) -> int: ...

    @property
    def schema(self) -> Any:
        """The Arrow schema, with the names of the columns."""
        ...

    @property
    def tier(self) -> str:
        """Where it was found: `memory`, `ipc`, `disk` or `durable`."""
        ...

    def rows(self, first: int, count: int) -> list[dict[str, object]]:
        """Some rows as plain data by the rules of dsl §8.6."""
        ...

    def batches(
        self, columns: Sequence[str] | None = None, *, first: int = 0, count: int | None = None
    ) -> Iterator[Any]:
        """Record batches in order, all columns or some, of all rows or of some."""
        ...

    def mapped(self) -> MappedFile:
        """A file that another process can map; made if there is none."""
        ...

    async def looked(self, call: Callable[..., T], *arguments: Any) -> T:
        """The result of a call that looks at this table, in a thread that may wait for the event loop.  The loop's own
        threads (`asyncio.to_thread`) may not: the store that is waited for needs them."""
        ...

    def close(self) -> None: ...


class Tables(Protocol):
    """Keeps and opens tables."""

    async def keep(
        self, source: object, *, tenant_id: str, organization_id: str, scrub: Scrub | None = None
    ) -> Reference:
        """Make a table durable, then put it where others on this machine find it without copying.

        `source` is a LandedTable, an async iterator of record batches, or anything with `__arrow_c_stream__`.  The
        reference has row count, schema digest, compression and, if there is a segment, the hint to it (`ipc`)."""
        ...

    async def open(self, reference: Reference, *, tenant_id: str, organization_id: str) -> OpenTable:
        """The nearest copy.  Raises PayloadMissing or PayloadCorrupt when the durable one is no help either."""
        ...

    async def landing_place(self) -> LandingPlace | None:
        """A place for child processes to land tables; None when there is none, or no room in it."""
        ...

    async def keep_unless_small(
        self,
        source: object,
        *,
        tenant_id: str,
        organization_id: str,
        scrub: Scrub | None = None,
        bytes_max: int,
        is_shared: bool = True,
    ) -> Reference | EncodedTable:
        """As `keep`, but a table of at most so many bytes is not stored: its bytes are handed back, for a caller that
        lets them travel with its event.  What is not `is_shared` is durable and nothing else."""
        ...

    async def open_bytes(self, content: bytes, reference: Reference) -> OpenTable:
        """A table whose durable bytes the caller has, and has verified."""
        ...
