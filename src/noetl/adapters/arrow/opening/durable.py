"""Reading a table from the store that must have it: whole when it is small, batch by batch when it has an index, and
otherwise by way of a file, so that memory stays bounded."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa
from pyarrow import ipc

from noetl.adapters.arrow.codec import DAMAGE, first_line
from noetl.adapters.arrow.opening.opened import TableContent
from noetl.adapters.arrow.opening.ranges import HELD_BATCHES, RangedBatches, TableIndex, parsed_index
from noetl.adapters.arrow.segments.spill import no_room
from noetl.adapters.arrow.soundness import batch_bytes, check_batch, check_schema
from noetl.adapters.arrow.threads import in_thread
from noetl.core.errors import PayloadCorrupt, PayloadMissing
from noetl.core.limits import TABLE_DECODED_BYTES_MAX, TABLE_WHOLE_BYTES_MAX
from noetl.core.reference import MEDIA_INDEX, Reference
from noetl.ports.data.payloads import LargePayloadStore

T = TypeVar("T")
_WRITE_BYTES = 1024 * 1024

Spill = Callable[[Any, Callable[[], Iterator[Any]]], TableContent]
"""Writes a table to a file and maps it: the schema, and batches from the start each time they are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableTables:
    """`incoming` names a file for bytes on their way."""

    store: LargePayloadStore
    incoming: Callable[[], Path]

    async def read(self, reference: Reference, *, spill: Spill, **owner: str) -> TableContent:
        """Raises PayloadMissing or PayloadCorrupt."""
        if reference.bytes <= TABLE_WHOLE_BYTES_MAX:
            content = await self.store.get(reference, **owner)
            return await in_thread(decoded_or_spilled, content, reference, spill)
        index = await self._index(reference, **owner)
        if index is not None:
            return self._ranged(index, reference, **owner)
        path = await self.fetched(reference, **owner)
        try:
            return await in_thread(_from_file, path, reference, spill)
        finally:
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def _index(self, reference: Reference, **owner: str) -> TableIndex | None:
        """A hint: one that is lost or damaged means that the table is read whole."""
        if reference.index is None:
            return None
        sha256, size = reference.index.get("sha256"), reference.index.get("bytes")
        if not isinstance(sha256, str) or not isinstance(size, int):
            return None
        named = replace(reference, sha256=sha256, bytes=size, media_type=MEDIA_INDEX, index=None)
        try:
            return parsed_index(await self.store.get(named, **owner))
        except (PayloadMissing, PayloadCorrupt):
            return None

    def _ranged(self, index: TableIndex, reference: Reference, **owner: str) -> TableContent:
        async def fetch(offset: int, length: int) -> bytes:
            return await self.store.get_range(reference, offset=offset, length=length, **owner)

        batches = RangedBatches(index, fetch, uri=reference.uri)
        try:
            schema = batches.schema()
            check_schema(schema)
        except DAMAGE as error:
            raise PayloadCorrupt(f"{reference.uri}: the index has no readable schema") from error
        size = HELD_BATCHES * max((size for size, _, _ in index.parts), default=0)
        content = TableContent(schema=schema, batches=batches, size=size, counts=batches.counts)
        if reference.row_count is not None and content.row_count != reference.row_count:
            raise PayloadCorrupt(f"{reference.uri}: the index is of a table with {content.row_count:,} rows")
        return content

    async def fetched(self, reference: Reference, **owner: str) -> Path:
        """The durable bytes as a file.  Nothing is made of them before the store has checked the last one."""
        path = await asyncio.to_thread(self.incoming)
        is_whole = False
        try:
            file = await _at_file(_create, path)
            try:
                await self._write(file, reference, **owner)
            finally:
                with suppress(OSError):  # it would try to write once more, and hide why that is not possible
                    file.close()
            is_whole = True
        finally:
            if not is_whole:
                path.unlink(missing_ok=True)
        return path

    async def _write(self, file: BinaryIO, reference: Reference, **owner: str) -> None:
        waiting: list[bytes] = []
        size = 0
        async for chunk in self.store.get_stream(reference, **owner):
            waiting.append(chunk)
            size += len(chunk)
            if size >= _WRITE_BYTES:
                await _at_file(file.writelines, waiting)
                waiting, size = [], 0
        await _at_file(file.writelines, waiting)
        await _at_file(file.flush)


async def _at_file(call: Callable[..., T], *arguments: Any) -> T:
    """Raises ToolFailed, as spilling does, when the file takes no more."""
    try:
        return await asyncio.to_thread(call, *arguments)
    except OSError as error:
        raise no_room(errno.errorcode.get(error.errno or 0, "system")) from error


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb")


def decoded_or_spilled(content: bytes, reference: Reference, spill: Spill) -> TableContent:
    """In memory, or in a file when decompression makes too much of it."""
    held: list[Any] = []
    size = 0
    try:
        with ipc.open_stream(content) as reader:
            schema = reader.schema
            check_schema(schema)
            for batch in _checked(reader):
                held.append(batch)
                size += batch_bytes(batch)
                if size > TABLE_DECODED_BYTES_MAX:
                    held = []
                    break
            else:
                return _agreed(TableContent(schema=schema, batches=held, size=size), reference)
        return _agreed(spill(schema, lambda: _checked(ipc.open_stream(content))), reference)
    except DAMAGE as error:
        raise _unreadable(reference, error) from error


def _from_file(path: Path, reference: Reference, spill: Spill) -> TableContent:
    try:
        with pa.memory_map(str(path)) as file:
            schema = ipc.open_stream(file).schema
            check_schema(schema)

            def batches() -> Iterator[Any]:
                file.seek(0)
                return _checked(ipc.open_stream(file))

            return _agreed(spill(schema, batches), reference)
    except DAMAGE as error:
        raise _unreadable(reference, error) from error


def _checked(reader: Any) -> Iterator[Any]:
    """The digest says that these are the bytes that were stored, not that somebody stored a sound table."""
    for batch in reader:
        check_batch(batch)
        yield batch


def _agreed(content: TableContent, reference: Reference) -> TableContent:
    if reference.row_count is not None and content.row_count != reference.row_count:
        raise PayloadCorrupt(f"{reference.uri} has {content.row_count:,} rows and not {reference.row_count:,}")
    return content


def _unreadable(reference: Reference, error: BaseException) -> PayloadCorrupt:
    return PayloadCorrupt(f"{reference.uri} is no readable table: {first_line(error)}")
