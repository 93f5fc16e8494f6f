"""Where the bytes of a dataset's parts are on this machine: in the store's own files, in memory, or in a file that was
fetched.  Whichever it is, their digest was checked before anybody reads a row."""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from noetl.adapters.arrow.codec import DAMAGE, first_line
from noetl.adapters.arrow.opening.waiting import awaited
from noetl.core.dataset import DatasetPart
from noetl.core.errors import PayloadCorrupt, PayloadMissing
from noetl.core.limits import DATASET_PARTS_HELD_MAX, TABLE_WHOLE_BYTES_MAX
from noetl.core.reference import Reference
from noetl.ports.data.payloads import HasFiles, LargePayloadStore

READ_BYTES = 1024 * 1024
Fetch = Callable[[Reference], Awaitable[Path]]
"""The verified bytes of a payload in a new file, which the caller removes."""


@dataclass(slots=True, weakref_slot=True)
class Source:
    """The bytes of one part."""

    path: Path | None = None
    content: bytes | None = None
    metadata: Any = None
    """Of its footer, when that was read once."""

    def reader(self) -> Any:
        given = pa.OSFile(str(self.path)) if self.content is None else pa.BufferReader(self.content)
        return pq.ParquetFile(
            given,
            metadata=self.metadata,
            page_checksum_verification=True,
            coerce_int96_timestamp_unit="us",
            # A row group may be large: its columns are read piece by piece.
            pre_buffer=False,
            buffer_size=READ_BYTES,
        )


class PartFiles:
    """The parts of one owner's datasets.  `reader` is for threads; what it has to wait for happens in the event loop
    in which this was made."""

    def __init__(self, store: LargePayloadStore, *, fetch: Fetch, tenant_id: str, organization_id: str) -> None:
        self._store = store
        self._fetch = fetch
        self._owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        self._loop = asyncio.get_running_loop()
        self._held: OrderedDict[str, Source] = OrderedDict()
        self._lock = Lock()

    def reader(self, part: DatasetPart) -> Any:
        """A reader of the part of its own.  Raises PayloadMissing or PayloadCorrupt."""
        uri, source = part.reference.uri, self._source(part.reference)
        try:
            reader = source.reader()
        except FileNotFoundError as error:
            self._forget(part.reference)
            raise PayloadMissing(f"{uri} was there, and is not any more") from error
        except DAMAGE as error:
            raise PayloadCorrupt(f"{uri} is no readable part of a dataset: {first_line(error)}") from error
        source.metadata = reader.metadata
        if reader.metadata.num_rows != part.row_count:
            raise PayloadCorrupt(f"{uri} has {reader.metadata.num_rows:,} rows and not {part.row_count:,}")
        return reader

    def _source(self, reference: Reference) -> Source:
        with self._lock:
            found = self._held.get(reference.sha256)
            if found is not None:
                self._held.move_to_end(reference.sha256)
        if found is None or (found.path is not None and not found.path.exists()):
            future = asyncio.run_coroutine_threadsafe(self._found(reference), self._loop)
            found = awaited(future, self._loop, reference.uri)
            with self._lock:
                self._held[reference.sha256] = found
                while len(self._held) > DATASET_PARTS_HELD_MAX:
                    self._held.popitem(last=False)
        return found

    def _forget(self, reference: Reference) -> None:
        with self._lock:
            self._held.pop(reference.sha256, None)

    async def _found(self, reference: Reference) -> Source:
        path = await self._store.file_of(reference, **self._owner) if isinstance(self._store, HasFiles) else None
        if path is not None:
            return Source(path=path)
        if reference.bytes <= TABLE_WHOLE_BYTES_MAX:
            return Source(content=await self._store.get(reference, **self._owner))
        fetched = await self._fetch(reference)
        source = Source(path=fetched)
        weakref.finalize(source, fetched.unlink, missing_ok=True)
        return source
