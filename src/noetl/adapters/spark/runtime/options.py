"""What a process says about Spark on its machine: plain data, for it travels to drivers and to builders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOCAL_HOST = "127.0.0.1"
_MEMORY_SHARE = 4
_MEMORY_BYTES_MIN, _MEMORY_BYTES_MAX = 1024**3, 8 * 1024**3
# Where a container's limit stands, in both versions of the kernel's interface.
_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    folder: Path
    """Everything of Spark that this machine keeps: archive, shim, event logs, warehouse, scratch."""
    classes: Path
    """The folder of class archives; several homes may share one."""
    master: str = "local[*]"
    driver_memory_bytes: int | None = None
    """None is a share of the machine's memory."""
    has_ui: bool = True
    java_home: Path | None = None
    """What JAVA_HOME says."""

    @property
    def is_local(self) -> bool:
        """Whether driver and executors are one JVM: then nothing has to be reachable or installed elsewhere."""
        return self.master == "local" or self.master.startswith("local[")

    @property
    def memory_bytes(self) -> int:
        return self.driver_memory_bytes or _memory_share()

    @property
    def events(self) -> Path:
        return self.folder / "events"

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    @property
    def crashes(self) -> Path:
        return self.folder / "crashes"

    @property
    def runtimes(self) -> Path:
        return self.folder / "java"

    def to_plain(self) -> dict[str, object]:
        return {
            "folder": str(self.folder),
            "classes": str(self.classes),
            "master": self.master,
            "driver_memory_bytes": self.driver_memory_bytes,
            "has_ui": self.has_ui,
            "java_home": None if self.java_home is None else str(self.java_home),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> SparkOptions:
        java_home = plain["java_home"]
        return cls(
            folder=Path(plain["folder"]),
            classes=Path(plain["classes"]),
            master=plain["master"],
            driver_memory_bytes=plain["driver_memory_bytes"],
            has_ui=plain["has_ui"],
            java_home=None if java_home is None else Path(java_home),
        )


def _memory_share() -> int:
    """A quarter of what the machine or its container has; the rest is for Python workers and everybody else."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _MEMORY_LIMITS:
        try:
            total = min(total, int(path.read_text()))
        except (OSError, ValueError):
            continue
    return min(max(total // _MEMORY_SHARE, _MEMORY_BYTES_MIN), _MEMORY_BYTES_MAX)
