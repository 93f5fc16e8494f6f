"""The bytes of a payload, for a task that reads them from any place.

Checked against the digest before anybody sees one of them: as a file of the store, or as a copy that was fetched.  Who
does not want that pays only for the bytes that are looked at."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import BinaryIO

import pyarrow as pa

from noetl.adapters.spark.sources.payloads.finding import Owner
from noetl.adapters.spark.sources.waiting import waited
from noetl.core.reference import Reference
from noetl.ports.data.payloads import HasFiles
from noetl.ports.data.sources import SourceAccess, SourceStores

MEMORY_BYTES_MAX = 32 * 1024**2
"""What is larger waits in a file, so that a task needs no more memory than others."""


@contextmanager
def opened_bytes(access: SourceAccess, reference: Reference, owner: Owner) -> Iterator[pa.NativeFile]:
    """Verified.  Raises PayloadMissing or PayloadCorrupt, with the name of the payload."""
    with tempfile.TemporaryFile() as spool:

        async def fetch(stores: SourceStores) -> pa.NativeFile | None:
            large, names = stores.large, owner.names()
            path = await large.file_of(reference, **names) if isinstance(large, HasFiles) else None
            if path is not None:
                return pa.memory_map(str(path)) if reference.bytes else pa.BufferReader(b"")
            if reference.bytes <= MEMORY_BYTES_MAX:
                return pa.BufferReader(await stores.content(reference, **names))
            await _spooled(stores, reference, owner, spool)
            return None

        found = waited(access, fetch)
        with pa.PythonFile(spool, mode="r") if found is None else found as file:
            yield file


async def _spooled(stores: SourceStores, reference: Reference, owner: Owner, spool: BinaryIO) -> None:
    async for chunk in stores.large.get_stream(reference, **owner.names()):
        await asyncio.to_thread(spool.write, chunk)
    spool.seek(0)


@contextmanager
def opened_ranges(access: SourceAccess, reference: Reference, owner: Owner) -> Iterator[pa.NativeFile]:
    """Not verified: only what is looked at is fetched."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        stores = runner.run(stack.enter_async_context(access.opened()))
        try:
            with pa.PythonFile(_Ranges(runner, stores, reference, owner), mode="r") as file:
                yield file
        finally:
            runner.run(stack.aclose())


class _Ranges:
    """A file for reading of which nothing is here."""

    closed = False

    def __init__(self, runner: asyncio.Runner, stores: SourceStores, reference: Reference, owner: Owner) -> None:
        self._runner = runner
        self._stores = stores
        self._reference = reference
        self._owner = owner
        self._place = 0

    def read(self, size: int = -1) -> bytes:
        left = max(self._reference.bytes - self._place, 0)
        length = left if size < 0 else min(size, left)
        if length == 0:
            return b""
        offset, self._place = self._place, self._place + length
        return self._runner.run(
            self._stores.large.get_range(self._reference, offset=offset, length=length, **self._owner.names())
        )

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = offset + (0, self._place, self._reference.bytes)[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def size(self) -> int:
        return self._reference.bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
