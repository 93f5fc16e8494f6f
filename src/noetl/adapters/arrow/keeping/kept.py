"""One table that is being kept, and everything that must not stay behind when that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

from noetl.adapters.arrow.keeping.encoding import Encoding, Source, encoded_chunks
from noetl.adapters.arrow.keeping.scrubbing import Scrubbing
from noetl.adapters.arrow.segments.header import HEADER_BYTES
from noetl.adapters.arrow.segments.shared import Segments
from noetl.adapters.arrow.segments.writer import Published, SegmentIdentity, SegmentWriter
from noetl.core.errors import Transient
from noetl.core.limits import TABLE_BATCH_BYTES_AIM
from noetl.ports.data.tables import LandedTable, Scrub

MESSAGES_PER_BATCH = 8
"""A file with many more messages than a table of its size needs is copied: a reader would spend its time on them."""


class Keeping:
    def __init__(self, source: object, *, scrub: Scrub | None, segments: Segments | None) -> None:
        self._source = Source(source)
        self._segments = segments
        self._scrubbing = Scrubbing(scrub) if scrub is not None else None
        self._adopted = self._adoptable(source)
        self._writer: SegmentWriter | None = None
        if segments is not None and self._adopted is None:
            self._writer = SegmentWriter(
                segments.folder, bytes_min=segments.bytes_min, bytes_expected=_expected_bytes(source)
            )
        self.encoding = Encoding(scrubbing=self._scrubbing, sink=self._writer)
        self.chunks = encoded_chunks(self._source, self.encoding)

    async def __aenter__(self) -> Keeping:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.chunks.aclose()
        # What a store could not take for the moment is handed over again.
        await asyncio.to_thread(self._clear, is_needed=isinstance(error, Transient))

    async def head(self, bytes_max: int) -> bytes:
        """The first bytes: all of them, or more than so many."""
        head = b""
        if bytes_max >= 0:
            async for chunk in self.chunks:
                head += chunk
                if len(head) > bytes_max:
                    break
        return head

    async def joined(self, head: bytes) -> AsyncIterator[bytes]:
        if head:
            yield head
        async for chunk in self.chunks:
            yield chunk

    def publish(self, identity: SegmentIdentity) -> Published | None:
        """Let others on this machine find the table; None when they will have to read it."""
        if self._segments is None:
            return None
        if self._writer is not None:
            return self._segments.publish(self._writer, identity)
        landed = self._source.landed
        if self._adopted is None or landed is None or (self._scrubbing is not None and self._scrubbing.has_changed):
            return None
        if landed.length < self._segments.bytes_min:
            return None
        if landed.messages > MESSAGES_PER_BATCH * (2 + landed.length // TABLE_BATCH_BYTES_AIM):
            return None
        return self._segments.adopt(self._adopted.path, identity, landed.length)

    def _adoptable(self, source: object) -> LandedTable | None:
        """A file in the folder of segments, with room for the header, becomes a segment without being copied."""
        if self._segments is None or not isinstance(source, LandedTable) or source.offset != HEADER_BYTES:
            return None
        return source if source.path.parent == self._segments.folder.root else None

    def _clear(self, *, is_needed: bool) -> None:
        if self._writer is not None:
            self._writer.drop()
        if not is_needed:
            self._source.remove()


def _expected_bytes(source: object) -> int:
    """How large a segment will be, where that can be told: then its room is taken at once, or refused at once."""
    if not isinstance(source, LandedTable):
        return 0
    try:
        return source.path.stat().st_size
    except OSError:
        return 0  # whoever opens it says so
