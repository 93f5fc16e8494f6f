"""What dead processes left in the shared memory of this node, for whoever has no tables itself."""

from __future__ import annotations

from pathlib import Path

from noetl.adapters.arrow.segments.folder import SegmentFolder, SegmentRefused
from noetl.adapters.arrow.segments.places import segment_root

_KEEP_SECONDS = 1e9


class NodeSegments:
    """Looks at folders that are there and makes none.  What is leased or in its grace is left alone: only whoever
    knows the budget may judge that."""

    def __init__(self, *, node_id: str, home: Path) -> None:
        self._node_id = node_id
        self._home = home

    def stale(self) -> tuple[int, int]:
        """How many segments, and their bytes."""
        sizes = [size for folder in self._folders() for size in folder.stale_sizes()]
        return len(sizes), sum(sizes)

    def sweep(self) -> None:
        for folder in self._folders():
            folder.sweep()

    def _folders(self) -> list[SegmentFolder]:
        found = []
        for root in {segment_root(self._node_id, self._home), self._home / "segments"}:
            if root.is_dir():
                try:
                    found.append(SegmentFolder(root, budget_bytes=0, grace_seconds=_KEEP_SECONDS))
                except SegmentRefused:
                    continue  # somebody else's
        return found
