"""A dataset as files of this machine, in the layout that Hive and Spark read."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import suppress
from pathlib import Path

from noetl.adapters.arrow.codec import first_line
from noetl.adapters.arrow.datasets.partitions import folder_of
from noetl.core.dataset import DatasetPart, Manifest
from noetl.core.errors import Failure, ToolFailed
from noetl.ports.data.payloads import HasFiles, LargePayloadStore

_FULL = (errno.ENOSPC, errno.EDQUOT)
_OTHER_DEVICE = (errno.EXDEV, errno.EMLINK, errno.EPERM)
_WRITE_BYTES = 1024 * 1024


class Layout:
    """One dataset in one new folder."""

    def __init__(
        self, store: LargePayloadStore, root: Path, manifest: Manifest, *, tenant_id: str, organization_id: str
    ) -> None:
        self._store = store
        self._root = root
        self._manifest = manifest
        self._owner = {"tenant_id": tenant_id, "organization_id": organization_id}

    def prepare(self) -> None:
        """Make the folders.  Raises ToolFailed."""
        try:
            folders = {self._folder(part) for part in self._manifest.parts}
            for folder in {self._root, *folders}:
                folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise _failed(error) from error

    async def place(self, number: int, part: DatasetPart) -> None:
        """Put one part there, linked or copied; its bytes have been verified when this returns."""
        target = self._folder(part) / f"part-{number:05d}-{part.reference.sha256[:8]}.parquet"
        held = await self._store.file_of(part.reference, **self._owner) if isinstance(self._store, HasFiles) else None
        try:
            if held is None:
                await self._copy(part, target)
            else:
                await asyncio.to_thread(_link, held, target)
        except OSError as error:
            raise _failed(error) from error

    def _folder(self, part: DatasetPart) -> Path:
        return self._root / folder_of(part.partition, self._manifest.partition_by)

    async def _copy(self, part: DatasetPart, target: Path) -> None:
        """Nobody sees the file under its name before the store has checked its last byte."""
        incoming = target.with_name(f".{target.name}.incoming")
        file = await asyncio.to_thread(incoming.open, "xb")
        is_whole = False
        try:
            try:
                waiting: list[bytes] = []
                size = 0
                async for chunk in self._store.get_stream(part.reference, **self._owner):
                    waiting.append(chunk)
                    size += len(chunk)
                    if size >= _WRITE_BYTES:
                        await asyncio.to_thread(file.writelines, waiting)
                        waiting, size = [], 0
                await asyncio.to_thread(file.writelines, waiting)
                await asyncio.to_thread(file.flush)
            finally:
                with suppress(OSError):  # on a full disk it would try to write once more
                    file.close()
            incoming.rename(target)
            is_whole = True
        finally:
            if not is_whole:
                incoming.unlink(missing_ok=True)


def _link(held: Path, target: Path) -> None:
    try:
        os.link(held, target)
    except OSError as error:
        if error.errno not in _OTHER_DEVICE:
            raise
        target.symlink_to(held.resolve())


def _failed(error: OSError | ValueError) -> ToolFailed:
    is_full = isinstance(error, OSError) and error.errno in _FULL
    kind = "storage_quota" if is_full else "storage_access"
    reason = (error.strerror or first_line(error)) if isinstance(error, OSError) else first_line(error)
    message = f"the files of a dataset cannot be laid out for the job: {reason}"
    return ToolFailed(Failure(kind=kind, code="DATASET_NOT_LAID_OUT", message=message, retryable=is_full))
