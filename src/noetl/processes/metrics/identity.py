"""Which process the numbers come from."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from noetl import __version__
from noetl.ports.data.counters import Sample

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
RUNTIME = f"python{platform.python_version()}"


class ProcessInfo:
    def __init__(self, role: str) -> None:
        self._role = role

    def samples(self) -> Iterator[Sample]:
        yield "noetl_process_info", {"role": self._role, "version": __version__}, 1
        resident = _resident_bytes()
        if resident is not None:
            yield "noetl_process_resident_bytes", {}, resident


def _resident_bytes() -> int | None:
    """None where the system does not tell."""
    try:
        return int(_STATM.read_text("ascii").split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None
