"""Uncompressed files for tables that have no segment: made when another process wants to map one, or when a table is
too large for memory.  They lie in shared memory if there is room, otherwise in a folder on disk whose oldest unused
files make room for new ones."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from noetl.adapters.arrow.codec import schema_digest
from noetl.adapters.arrow.opening.opened import TableContent
from noetl.adapters.arrow.segments.attach import SegmentMiss, Wanted, attach
from noetl.adapters.arrow.segments.folder import SegmentFolder, SegmentRefused, prepare
from noetl.adapters.arrow.segments.shared import Segments
from noetl.adapters.arrow.segments.writer import SegmentIdentity, SegmentWriter
from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import SEGMENT_LEASE_SECONDS, TABLE_SPILL_BYTES_MAX
from noetl.core.reference import Reference

SPILL_REFUSED = "SPILL_REFUSED"
MakeBatches = Callable[[], Iterator[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spilled:
    """What a file must hold."""

    key: str
    reference: Reference
    schema: Any
    batches: MakeBatches
    """From the start each time it is called."""


class Spilling:
    def __init__(self, root: Path | None, segments: Segments | None, *, bytes_max: int = TABLE_SPILL_BYTES_MAX) -> None:
        self._root = root or Path(tempfile.gettempdir()) / f"noetl-{os.getuid()}-spill"
        self._segments = segments
        self._bytes_max = bytes_max
        self._folder: SegmentFolder | None = None
        self._lock = Lock()

    def folder(self) -> SegmentFolder:
        """Made when it is needed: most processes never spill.  Raises SegmentRefused."""
        with self._lock:
            if self._folder is None:
                self._folder = SegmentFolder(
                    self._root, budget_bytes=self._bytes_max, grace_seconds=SEGMENT_LEASE_SECONDS, is_evicting=True
                )
                self._folder.sweep()
            return self._folder

    def incoming(self) -> Path:
        """Raises ToolFailed when there is no folder to write to."""
        try:
            folder = self.folder()
            prepare(folder.root)
        except SegmentRefused as error:
            raise self._no_folder(error) from error
        return folder.new_path()

    def find(self, reference: Reference, key: str) -> TableContent | None:
        """A file that some process of this machine spilled before."""
        try:
            if not self._root.exists():
                return None
            folder = self.folder()
        except (OSError, SegmentRefused):
            return None  # a copy that cannot be had is none
        for name in folder.find(key):
            try:
                return attach(folder, name, Wanted(key=key, reference=reference))
            except SegmentMiss:
                continue
        return None

    def spill(self, wanted: Spilled) -> TableContent:
        """Write a file and map it.  Raises ToolFailed."""
        if self._segments is not None:
            content, _ = _written(self._segments.folder, wanted)
            if content is not None:
                return content
        try:
            folder = self.folder()
        except SegmentRefused as error:
            raise self._no_folder(error) from error
        content, refusal = _written(folder, wanted)
        if content is not None:
            return content
        raise no_room(refusal)

    def _no_folder(self, refused: SegmentRefused) -> ToolFailed:
        message = (
            f"{self._root} cannot take the rows of a table ({refused.reason}): it must be a folder that belongs to the "
            "user of this process, with mode 0700"
        )
        return ToolFailed(Failure(kind="storage_quota", code=SPILL_REFUSED, message=message))


def no_room(reason: object) -> ToolFailed:
    message = f"no room for the rows of a table in the files of this machine ({reason}): free some, or try again"
    return ToolFailed(Failure(kind="storage_quota", code=SPILL_REFUSED, message=message, retryable=True))


def _written(folder: SegmentFolder, wanted: Spilled) -> tuple[TableContent | None, str | None]:
    writer = SegmentWriter(folder)
    row_count = 0
    try:
        writer.begin(wanted.schema)
        for batch in wanted.batches():
            writer.write(batch)
            row_count += batch.num_rows
            if writer.refusal is not None:
                return None, writer.refusal
        identity = SegmentIdentity(
            key=wanted.key,
            sha256=wanted.reference.sha256,
            schema_digest=schema_digest(wanted.schema),
            row_count=row_count,
        )
        published = writer.publish(identity, lease_seconds=SEGMENT_LEASE_SECONDS)
    finally:
        writer.drop()
    if published is None:
        return None, writer.refusal
    try:
        return attach(folder, published.name, Wanted(key=wanted.key, reference=wanted.reference)), None
    except SegmentMiss as miss:
        return None, miss.reason
