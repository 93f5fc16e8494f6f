"""Where the segments of a node are."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the shared-memory file system, below a folder that is checked to be ours


def segment_root(node_id: str, home: Path) -> Path:
    """Where the segments of a node are: in shared memory if there is such a file system and it lets us."""
    place = hashlib.sha256(f"{node_id}\0{home}".encode()).hexdigest()[:16]
    if os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        return SHARED_MEMORY / f"noetl-{os.getuid()}-{place}"
    return home / "segments"
