"""The file of a table that begins in the shared place and goes on in the worker's folder when there is no room.

A source of rows can often be read only once, so the stream is not begun anew: what was written moves over."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

COPIED_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A new file in the shared place: where its stream starts, and how many bytes the whole file may have."""

    path: str
    offset: int
    bytes_max: int


class NoRoom(OSError):
    """More bytes than the shared place has for us."""


class TableFile:
    """A file object for Arrow.  Whatever is wrong with the shared place only means that the file is elsewhere."""

    closed = False

    def __init__(self, shared: SharedFile | None, private_path: Callable[[], str], noted: list[str]) -> None:
        """`noted` gets the path of each file before it is made, so that a failure in the middle takes it back."""
        self._private_path = private_path
        self._noted = noted
        self._shared = shared
        self._length = 0
        self._descriptor = -1
        if shared is not None:
            self.path = shared.path
            try:
                self._descriptor = self._opened(shared.path)
            except OSError:
                self._shared = None
        if self._shared is None:
            self.path = private_path()
            self._descriptor = self._opened(self.path)

    @property
    def is_shared(self) -> bool:
        return self._shared is not None

    @property
    def size(self) -> int:
        return self._offset + self._length

    @property
    def _offset(self) -> int:
        return 0 if self._shared is None else self._shared.offset

    def write(self, piece: Any) -> int:
        content = memoryview(piece).cast("B")
        if self._shared is not None:
            try:
                if self.size + len(content) > self._shared.bytes_max:
                    raise NoRoom
                self._put(content)
            except OSError:
                self._move()
            else:
                self._length += len(content)
                return len(content)
        self._put(content)
        self._length += len(content)
        return len(content)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def end(self) -> None:
        """The stream is complete.  A shared file that somebody has removed meanwhile is copied: it is still open."""
        if self._shared is not None and not self._is_in_place():
            self._move()

    def release(self) -> None:
        """Nothing is written any more; the worker makes a segment only of a file that nobody has open."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.lstat(self.path))
        except OSError:
            return False

    def _put(self, content: memoryview) -> None:
        """All of it: a file system that becomes full takes a part of a piece before it says so."""
        start = self.size
        written = 0
        while written < len(content):
            written += os.pwrite(self._descriptor, content[written:], start + written)

    def _move(self) -> None:
        """Go on in the worker's folder, with what was written so far."""
        left, left_path, left_offset = self._descriptor, self.path, self._offset
        self._descriptor, self._shared = -1, None
        try:
            self.path = self._private_path()
            self._descriptor = self._opened(self.path)
            self._copy(left, left_offset)
        finally:
            os.close(left)
            with suppress(OSError):
                os.unlink(left_path)

    def _copy(self, source: int, offset: int) -> None:
        length, self._length = self._length, 0
        while self._length < length:
            piece = os.pread(source, min(COPIED_BYTES, length - self._length), offset + self._length)
            if not piece:
                raise OSError(f"{self.path}: what was written to the shared place cannot be read back")
            self._put(memoryview(piece))
            self._length += len(piece)

    def _opened(self, path: str) -> int:
        self._noted.append(path)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
