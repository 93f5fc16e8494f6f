"""Script files below their roots.  Nothing outside a root is ever read, whatever a path or a link says.

A path is resolved first, and must then lie below the resolved root: links inside a root work, as in a mounted
configuration, where every file is one.  What was resolved is opened part by part without following any link: a link
that is put there in between leads nowhere."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from noetl.core.errors import ScriptUnavailable
from noetl.core.limits import SCRIPT_BYTES_MAX

_SCHEME = "file://"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking: what is opened may be a pipe that nobody writes to.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class RootedScripts:
    def __init__(self, roots: Iterable[Path]) -> None:
        self._roots = tuple(roots)

    @property
    def roots(self) -> tuple[str, ...]:
        return tuple(map(str, self._roots))

    async def read(self, uri: str) -> bytes:
        return await asyncio.to_thread(read_script, uri, self._roots)


def read_script(uri: str, roots: Iterable[Path]) -> bytes:
    """The first file of this path below one of the roots.  Raises ScriptUnavailable with what stands in the way."""
    path = uri.removeprefix(_SCHEME).strip()
    if not path or "\0" in path:
        raise ScriptUnavailable("it has no path")
    outside, is_link = False, False
    for root in roots:
        try:
            if not _says_below(path, root):
                outside = True
                continue
            parts = _below(path, root)
            if parts is not None:
                return _content(root, parts)
            outside = is_link = True
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise ScriptUnavailable(f"it cannot be read below {root}: {error.strerror}") from error
    raise ScriptUnavailable(
        "it leads outside of every root" if outside else "there is no such file", is_absent=not is_link
    )


def _says_below(path: str, root: Path) -> bool:
    """Whether a path, as it is written, stays below the root; told before anything is looked at, because whether there
    is a file out there is nobody's business."""
    if Path(os.path.normpath(root / path)).is_relative_to(root):
        return True
    home = _resolved(root) if root.exists() else root
    return Path(os.path.normpath(home / path)).is_relative_to(home)


def _below(path: str, root: Path) -> tuple[str, ...] | None:
    """The parts of the resolved path below the resolved root; None when a link leads out of it."""
    home = _resolved(root)
    found = _resolved(home / path)
    return found.relative_to(home).parts if found.is_relative_to(home) and found != home else None


def _resolved(path: Path) -> Path:
    # Not `Path.resolve`, which answers links that go round in a circle with an error of another kind.
    return Path(os.path.realpath(path, strict=True))


def _content(root: Path, parts: tuple[str, ...]) -> bytes:
    folder = os.open(_resolved(root), _FOLDER)
    try:
        for name in parts[:-1]:
            inner = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        handle = os.open(parts[-1], _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ScriptUnavailable("it is no file")
        with open(handle, "rb", closefd=False) as file:
            content = file.read(SCRIPT_BYTES_MAX + 1)
    finally:
        os.close(handle)
    if len(content) > SCRIPT_BYTES_MAX:
        raise ScriptUnavailable(f"it has more than {SCRIPT_BYTES_MAX:,} bytes")
    return content
