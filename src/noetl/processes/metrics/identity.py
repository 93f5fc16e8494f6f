"""Which process the numbers come from."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from noetl import __version__
from noetl.ports.data.counters import Sample

RUNTIME = f"python{platform.python_version()}"


class ProcessInfo:
    def __init__(self, role: str) -> None:
        self._role = role

    def samples(self) -> Iterator[Sample]:
        yield "noetl_process_info", {"role": self._role, "version": __version__}, 1
