"""Files below the folders that the installation names, and nowhere else.  All of this blocks: run it in a thread."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import RESULT_BYTES_MAX

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class Files:
    def __init__(self, roots: tuple[str, ...]) -> None:
        self._roots = tuple(Path(root) for root in roots)

    def read(self, text: str) -> bytes:
        """The bytes of a file.  Raises ToolFailed."""
        with _told(text):
            path = self._below(Path(text).resolve(strict=True), text)
            descriptor = os.open(path, os.O_RDONLY | _NO_LINK | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                content = file.read(RESULT_BYTES_MAX + 1)
        if len(content) > RESULT_BYTES_MAX:
            message = f"artifact: {text} has more than {RESULT_BYTES_MAX:,} bytes"
            raise ToolFailed(Failure(kind="storage_quota", message=message))
        return content

    def write(self, text: str, content: bytes) -> None:
        """Put a file in its place, whole or not at all; folders on the way are made.  Raises ToolFailed."""
        with _told(text):
            path = Path(text)
            self._below(_existing(path.parent).resolve(strict=True), text)
            path.parent.mkdir(parents=True, exist_ok=True)
            folder = self._below(path.parent.resolve(strict=True), text)
            # A name of its own beside the place: two may write the same file at the same moment.
            descriptor, name = tempfile.mkstemp(prefix=".artifact.", dir=folder)
            try:
                with open(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).replace(folder / path.name)
            finally:
                Path(name).unlink(missing_ok=True)

    def _below(self, path: Path, text: str) -> Path:
        """The path, with links resolved, if it is below one of the folders."""
        for root in self._roots:
            with contextlib.suppress(OSError):
                if path.is_relative_to(root.resolve(strict=True)):
                    return path
        folders = "none is set" if not self._roots else "it is in none of them"
        message = f"artifact: {text} is not below the folders of NOETL_ARTIFACT_ROOTS: {folders}"
        raise ToolFailed(Failure(kind="storage_access", code="OUTSIDE_ROOTS", message=message))


def _existing(path: Path) -> Path:
    """The nearest folder above a path that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


class _Told(contextlib.AbstractContextManager[None]):
    """Failures of the file system as failures of the task."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise ToolFailed(Failure(kind="not_found", message=f"artifact: there is no file {self._text}")) from error
        if isinstance(error, OSError):
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = os.strerror(error.errno) if error.errno else "it cannot be used"
            raise ToolFailed(
                Failure(
                    kind="storage_quota" if is_full else "storage_access",
                    message=f"artifact: {self._text}: {reason}",
                )
            ) from error


def _told(text: str) -> _Told:
    return _Told(text)
