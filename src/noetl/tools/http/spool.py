"""A large body in a temporary file, from which it is read again, piece by piece or as a whole."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from types import TracebackType
from typing import Self

from noetl.clients.http.body import storable
from noetl.core.results.scanned import ScannedJson
from noetl.ports.tool import BodySink
from noetl.tools.patience import patiently

_MOVED_BYTES = 1024 * 1024
_READ_BYTES = 256 * 1024


class BodyFile:
    """Its threads may still be at work when it is closed: a buffered file waits for them."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end of the block

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    async def fill(self, chunks: AsyncIterator[bytes]) -> None:
        # Gathered first: a thread for every small chunk of a network would cost more than the writing.
        waiting: list[bytes] = []
        size = 0
        async for chunk in chunks:
            waiting.append(chunk)
            size += len(chunk)
            if size >= _MOVED_BYTES:
                await asyncio.to_thread(self._file.writelines, waiting)
                waiting, size = [], 0
        await asyncio.to_thread(self._file.writelines, waiting)

    async def keep_json(self, sink: BodySink) -> Mapping[str, object]:
        """Store the JSON with an index of its parts.  Raises NotScanned, and what the sink raises."""
        return await patiently(lambda: self._kept(sink))

    async def _kept(self, sink: BodySink) -> Mapping[str, object]:
        self._file.seek(0)
        writer = ScannedJson(iter(self._chunk, b""), repaired=storable)
        return await sink.keep_json(_moved(writer.pieces()), index=writer.made)

    def _chunk(self) -> bytes:
        return self._file.read(_READ_BYTES)

    def read(self) -> bytes:
        self._file.seek(0)
        return self._file.read()


async def _moved(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(_gathered, pieces):
        yield piece


def _gathered(pieces: Iterator[bytes]) -> bytes:
    found: list[bytes] = []
    size = 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size >= _MOVED_BYTES:
            break
    return b"".join(found)
