"""Files of the file store that are no payloads: uploads whose process ended before they had their name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from noetl.adapters.objects.filesystem import INCOMING
from noetl.ports.data.collection import Leftover


class FileLeftovers:
    def __init__(self, root: Path) -> None:
        self._root = root

    def find(self, *, before: float) -> Iterator[Leftover]:
        for path in (self._root / INCOMING).glob("*"):
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue
            if found.st_mtime < before:
                yield Leftover(str(path), found.st_size, found.st_mtime)

    def remove(self, leftover: Leftover) -> None:
        Path(leftover.path).unlink(missing_ok=True)
