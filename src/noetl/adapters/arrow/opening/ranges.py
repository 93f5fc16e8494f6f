"""Single batches of a large durable table: an index says where each one is, and each is fetched when it is looked at.

The index is a payload beside the table and named by the table's reference.  It holds the stream's first message, the
schema, and of every batch its size, its rows and its SHA-256: what was fetched is checked as the whole would be."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import json
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock
from typing import Any, overload

import pyarrow as pa
from pyarrow import ipc

from noetl.adapters.arrow.codec import DAMAGE, first_line
from noetl.adapters.arrow.opening.waiting import awaited, check_thread
from noetl.adapters.arrow.soundness import check_batch
from noetl.core.codec import canonical_bytes
from noetl.core.errors import PayloadCorrupt

HELD_BATCHES = 4
AHEAD_BATCHES = 2
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"

Fetch = Callable[[int, int], Coroutine[Any, Any, bytes]]
"""Some of the durable bytes, by offset and length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIndex:
    head: bytes
    parts: Sequence[tuple[int, int, str]]
    """Bytes, rows and digest of each batch."""


class IndexBuilder:
    """Grows with the table."""

    def __init__(self) -> None:
        self.row_count = 0
        self._head = b""
        self._parts: list[list[object]] = []
        self._is_ranged = True

    def begin(self, schema: Any) -> None:
        # A batch with a dictionary can only be read behind the dictionary, which may stand anywhere before it.
        self._is_ranged = not any(_has_dictionary(field.type) for field in schema)

    def add(self, piece: bytes, rows: int) -> None:
        self.row_count += rows
        if not self._head:
            # The schema is written with the first batch: a mark, the size of a message, and the message.
            self._head, piece = _split(piece, 8 + int.from_bytes(piece[4:8], "little"))
        if self._is_ranged:
            self._parts.append([len(piece), rows, hashlib.sha256(piece).hexdigest()])

    def content(self) -> bytes | None:
        if not self._is_ranged or len(self._parts) < 2:
            return None
        return canonical_bytes({"schema": b64encode(self._head).decode("ascii"), "parts": self._parts})


def _split(content: bytes, place: int) -> tuple[bytes, bytes]:
    return content[:place], content[place:]


def _has_dictionary(kind: Any) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(place).type) for place in range(kind.num_fields))


def parsed_index(content: bytes) -> TableIndex | None:
    """None for one that this version does not know: then the table is read whole."""
    try:
        document = json.loads(content)
        parts = [(int(size), int(rows), str(digest)) for size, rows, digest in document["parts"]]
        return TableIndex(head=b64decode(document["schema"], validate=True), parts=parts)
    except (ValueError, KeyError, TypeError):
        return None


class RangedBatches(Sequence[Any]):
    """The batches of a table that is elsewhere.  Whoever looks waits for the loop that can fetch, in a
    thread that this loop does not need (`in_waiting_thread`)."""

    def __init__(self, index: TableIndex, fetch: Fetch, *, uri: str) -> None:
        self._index = index
        self._fetch = fetch
        self._uri = uri
        self._loop = asyncio.get_running_loop()
        self._offsets = list(accumulate((size for size, _, _ in index.parts), initial=len(index.head)))
        self._held: OrderedDict[int, concurrent.futures.Future[bytes]] = OrderedDict()
        self._last = -1
        self._lock = Lock()

    @property
    def counts(self) -> list[int]:
        return [rows for _, rows, _ in self._index.parts]

    def schema(self) -> Any:
        with ipc.open_stream(self._index.head + _END) as reader:
            return reader.schema

    def __len__(self) -> int:
        return len(self._index.parts)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        check_thread()
        with self._lock:
            is_scan, self._last = place == self._last + 1, place
            found = self._started(place)
            for one in range(place + 1, min(place + 1 + (AHEAD_BATCHES if is_scan else 0), len(self))):
                self._started(one)  # who reads on finds the next ones under way
        return self._decoded(place, self._awaited(found))

    def _started(self, place: int) -> concurrent.futures.Future[bytes]:
        found = self._held.get(place)
        if found is None or (found.done() and (found.cancelled() or found.exception() is not None)):
            size = self._index.parts[place][0]
            found = asyncio.run_coroutine_threadsafe(self._fetch(self._offsets[place], size), self._loop)
            self._held[place] = found
        self._held.move_to_end(place)
        while len(self._held) > HELD_BATCHES:
            self._held.popitem(last=False)
        return found

    def _awaited(self, found: concurrent.futures.Future[bytes]) -> bytes:
        return awaited(found, self._loop, self._uri)

    def _decoded(self, place: int, content: bytes) -> Any:
        _, rows, digest = self._index.parts[place]
        if hashlib.sha256(content).hexdigest() != digest:
            raise PayloadCorrupt(f"{self._uri}: batch {place} has another digest than the index says")
        try:
            with ipc.open_stream(pa.py_buffer(self._index.head + content + _END)) as reader:
                (batch,) = list(reader)
            check_batch(batch)
        except DAMAGE as error:
            raise PayloadCorrupt(f"{self._uri}: batch {place} cannot be read: {first_line(error)}") from error
        if batch.num_rows != rows:
            raise PayloadCorrupt(f"{self._uri}: batch {place} has another number of rows than the index says")
        return batch
