"""Opening a segment: everything its header promises is looked at before a row of it is believed."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from noetl.adapters.arrow.codec import DAMAGE, schema_digest
from noetl.adapters.arrow.opening.opened import TableContent
from noetl.adapters.arrow.plainfiles import open_plain
from noetl.adapters.arrow.segments.folder import SegmentFolder, locked
from noetl.adapters.arrow.segments.header import HEADER_BYTES, HeaderInvalid, SegmentHeader, content_digest, unpacked
from noetl.core.reference import Reference
from noetl.ports.data.tables import MappedFile


class SegmentMiss(Exception):
    """There is no such segment, or it is not what it should be; `reason` is for the counters."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a segment must stand for."""

    key: str
    reference: Reference

    def check(self, header: SegmentHeader, size: int) -> None:
        if header.key != bytes.fromhex(self.key) or header.sha256 != bytes.fromhex(self.reference.sha256):
            raise SegmentMiss("stale")
        digest = self.reference.schema_digest
        if digest is not None and header.schema_digest.hex() != digest:
            raise SegmentMiss("schema")
        if self.reference.row_count is not None and header.row_count != self.reference.row_count:
            raise SegmentMiss("stale")
        if HEADER_BYTES + header.length > size:
            raise SegmentMiss("truncated")
        if header.until_us < time.time_ns() // 1000:
            raise SegmentMiss("expired")


def attach(folder: SegmentFolder, name: str, wanted: Wanted) -> TableContent:
    """A segment as a table's content, mapped and locked for as long as anything of it is used.  Raises SegmentMiss."""
    if "/" in name or not name.startswith(f"{wanted.key}."):
        raise SegmentMiss("stale")
    path = folder.root / name
    try:
        descriptor = open_plain(path)
    except OSError as error:
        raise SegmentMiss("missing") from error
    try:
        if not locked(descriptor, fcntl.LOCK_SH):
            raise SegmentMiss("busy")
        header = unpacked(os.pread(descriptor, HEADER_BYTES, 0))
        wanted.check(header, os.fstat(descriptor).st_size)
        # The mapping has its own copy of the descriptor, and with it the lock, until the last batch is gone.
        mapped = mmap.mmap(descriptor, HEADER_BYTES + header.length, prot=mmap.PROT_READ)
    except HeaderInvalid as error:
        raise SegmentMiss(error.reason) from error
    except (OSError, ValueError) as error:
        raise SegmentMiss("missing") from error
    finally:
        os.close(descriptor)
    content = pa.py_buffer(mapped).slice(HEADER_BYTES)
    _verify(content, header)
    schema, batches = _read(content, header)
    file = MappedFile(path=path, offset=HEADER_BYTES, length=header.length)
    return TableContent(schema=schema, batches=batches, size=header.length, file=file, until_us=header.until_us)


def _verify(content: Any, header: SegmentHeader) -> None:
    digest = content_digest()
    digest.update(content)
    if digest.digest() != header.content_digest:
        raise SegmentMiss("digest")


def _read(content: Any, header: SegmentHeader) -> tuple[Any, list[Any]]:
    try:
        with ipc.open_stream(content) as reader:
            schema, batches = reader.schema, list(reader)
    except DAMAGE as error:
        raise SegmentMiss("digest") from error
    if schema_digest(schema) != header.schema_digest.hex() or sum(map(len, batches)) != header.row_count:
        raise SegmentMiss("schema")
    return schema, batches
