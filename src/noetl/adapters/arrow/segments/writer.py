"""Writing a segment while its table is made durable, and publishing it afterwards.

The content comes first, the header when the digest of the durable payload is known, the name last: nobody finds half a
segment.  Whatever goes wrong only means that there is no segment."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from noetl.adapters.arrow.plainfiles import open_plain
from noetl.adapters.arrow.segments.folder import SegmentFolder, SegmentRefused, locked
from noetl.adapters.arrow.segments.header import HEADER_BYTES, SegmentHeader, content_digest, packed
from noetl.adapters.arrow.soundness import batch_bytes

STEP_BYTES_MIN = 1024 * 1024
STEP_BYTES_MAX = 256 * 1024 * 1024
GATHERED_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentIdentity:
    """The durable payload that a segment stands for."""

    key: str
    """Of tenant, organization and digest; the names of equal content of two tenants differ."""
    sha256: str
    schema_digest: str
    row_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    name: str
    until_us: int
    size: int


class SegmentWriter:
    """Takes the batches of one table.  After a refusal it takes nothing any more and says why (`refusal`)."""

    def __init__(self, folder: SegmentFolder, *, bytes_min: int = 0, bytes_expected: int = 0) -> None:
        self.refusal: str | None = None
        self._folder = folder
        self._bytes_min = bytes_min
        self._bytes_expected = bytes_expected
        self._held: list[Any] = []
        self._held_bytes = 0
        self._schema: Any = None
        self._file: _SegmentFile | None = None
        self._stream: Any = None

    def begin(self, schema: Any) -> None:
        self._schema = schema

    def write(self, batch: Any) -> None:
        """Small tables get no file: reading them again costs less than looking for a copy."""
        if self.refusal is not None:
            return
        self._held.append(batch)
        self._held_bytes += batch_bytes(batch)
        if self._file is None and self._held_bytes < self._bytes_min:
            return
        try:
            self._flush()
        except SegmentRefused as error:
            self._refuse(error.reason)
        except OSError:
            self._refuse("system")

    def publish(self, identity: SegmentIdentity, *, lease_seconds: float) -> Published | None:
        """Let others find the segment; None when there is none."""
        if self.refusal is None and self._file is None and self._held_bytes < self._bytes_min:
            self._refuse("small")
        if self.refusal is not None:
            return None
        try:
            self._flush()
            self._stream.close()
            assert self._file is not None
            published = self._file.publish(identity, lease_seconds=lease_seconds)
        except SegmentRefused as error:
            self._refuse(error.reason)
            return None
        except OSError:
            self._refuse("system")
            return None
        self._file = None
        return published

    def drop(self) -> None:
        """Leave nothing behind of a table that was not kept; a published one stays."""
        self._held = []
        if self._file is not None:
            self._file.drop()
            self._file = None

    def _flush(self) -> None:
        if self._file is None:
            self._file = _SegmentFile(self._folder, HEADER_BYTES + max(self._held_bytes, self._bytes_expected))
            self._stream = ipc.new_stream(pa.PythonFile(self._file, mode="w"), self._schema)
        held, self._held = self._held, []
        for batch in held:
            self._stream.write_batch(batch)

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        self.drop()


class _SegmentFile:
    """A file object for Arrow, over a file of the folder that grows within the budget."""

    closed = False

    def __init__(self, folder: SegmentFolder, size: int) -> None:
        self._folder = folder
        self._path, self._descriptor = folder.create(size)
        self._room = os.fstat(self._descriptor).st_size
        self._length = 0
        self._digest = content_digest()
        self._small: list[bytes] = []
        self._small_bytes = 0

    def write(self, piece: Any) -> int:
        """Arrow writes many small pieces; a call of the system for each would cost more than the copying."""
        size = len(piece)
        if size < GATHERED_BYTES // 16:
            self._small.append(bytes(piece))
            self._small_bytes += size
            if self._small_bytes < GATHERED_BYTES:
                return size
            self._write_small()
        else:
            self._write_small()
            self._append(memoryview(piece).cast("B"))
        return size

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def _write_small(self) -> None:
        if self._small:
            gathered, self._small, self._small_bytes = b"".join(self._small), [], 0
            self._append(memoryview(gathered))

    def _append(self, piece: memoryview) -> None:
        end = HEADER_BYTES + self._length + len(piece)
        if end > self._room:
            self._grow(end)
        self._digest.update(piece)
        while piece:
            # By a call and never through a mapping: a full file system then is an error and not the end of a process.
            written = os.pwrite(self._descriptor, piece, HEADER_BYTES + self._length)
            self._length += written
            piece = piece[written:]

    def _grow(self, size: int) -> None:
        """Twice as much, so that a long table asks seldom; near the end of the budget just what is needed."""
        wanted = max(self._room + min(max(self._room, STEP_BYTES_MIN), STEP_BYTES_MAX), size)
        try:
            self._folder.grow(self._descriptor, wanted)
        except SegmentRefused as error:
            if error.reason != "budget" or wanted == size:
                raise
            wanted = size
            self._folder.grow(self._descriptor, wanted)
        self._room = wanted

    def publish(self, identity: SegmentIdentity, *, lease_seconds: float) -> Published:
        self._write_small()
        return publish(
            self._folder,
            self._path,
            self._descriptor,
            identity,
            length=self._length,
            digest=self._digest.digest(),
            lease_seconds=lease_seconds,
        )

    def drop(self) -> None:
        self._path.unlink(missing_ok=True)
        with suppress(OSError):
            os.close(self._descriptor)


def publish(
    folder: SegmentFolder,
    path: Path,
    descriptor: int,
    identity: SegmentIdentity,
    *,
    length: int,
    digest: bytes,
    lease_seconds: float,
) -> Published:
    """Header, then name; the descriptor is closed, which ends the exclusive lock."""
    name = folder.segment_path(identity.key, path)
    until_us = time.time_ns() // 1000 + int(lease_seconds * 1_000_000)
    header = SegmentHeader(
        length=length,
        row_count=identity.row_count,
        sha256=bytes.fromhex(identity.sha256),
        schema_digest=bytes.fromhex(identity.schema_digest),
        content_digest=digest,
        key=bytes.fromhex(identity.key),
        until_us=until_us,
        epoch=int(name.name.rpartition(".")[2]),
        pid=os.getpid(),
    )
    os.ftruncate(descriptor, HEADER_BYTES + length)
    os.pwrite(descriptor, packed(header), 0)
    path.rename(name)
    os.close(descriptor)
    return Published(name=name.name, until_us=until_us, size=HEADER_BYTES + length)


def adopt(
    folder: SegmentFolder, path: Path, identity: SegmentIdentity, *, length: int, lease_seconds: float
) -> Published:
    """Make a segment of a file that a child process wrote, behind room for the header.  Raises SegmentRefused.

    Its content was looked through, so nobody may be able to change it any more."""
    try:
        if not has_no_writer(path):
            raise SegmentRefused("still_written")
        descriptor = open_plain(path, os.O_RDWR)
    except OSError as error:
        raise SegmentRefused("system") from error
    try:
        digest = _adopted_digest(folder, descriptor, length)
        return publish(folder, path, descriptor, identity, length=length, digest=digest, lease_seconds=lease_seconds)
    except (OSError, ValueError) as error:
        os.close(descriptor)
        raise SegmentRefused("system") from error
    except SegmentRefused:
        os.close(descriptor)
        raise


def _adopted_digest(folder: SegmentFolder, descriptor: int, length: int) -> bytes:
    if not locked(descriptor, fcntl.LOCK_EX):
        raise SegmentRefused("busy")
    # It was written without asking for room.
    if folder.bytes_in_use() > folder.budget_bytes:
        raise SegmentRefused("budget")
    digest, read = content_digest(), 0
    # Read and not mapped: the table is mapped already, and a second mapping would count as memory of this process too.
    while read < length:
        piece = os.pread(descriptor, min(GATHERED_BYTES, length - read), HEADER_BYTES + read)
        if not piece:
            raise SegmentRefused("system")
        digest.update(piece)
        read += len(piece)
    return digest.digest()


def has_no_writer(path: Path) -> bool:
    """Whether no process has a file open for writing; the system gives a read lease only then.  Where it knows no
    leases, the answer is no."""
    if not hasattr(fcntl, "F_SETSIG"):
        return False
    descriptor = open_plain(path)
    try:
        # Who opens it for writing in between makes the system send a signal; the usual one would end the process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
