"""What a benchmark reports, and how time and CPU are read."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure with its unit and, where there is one, the limit it is compared with."""

    value: float
    unit: str
    limit: float | None = None

    def to_json(self) -> dict[str, object]:
        ratio = round(self.value / self.limit, 3) if self.limit else None
        limit = round(self.limit, 3) if self.limit is not None else None
        return {"value": round(self.value, 3), "unit": self.unit, "limit": limit, "ratio": ratio}


@dataclass(frozen=True, slots=True)
class Report:
    name: str
    metrics: dict[str, Metric] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "metrics": {key: metric.to_json() for key, metric in self.metrics.items()},
            "machine": machine(),
        }


def machine() -> dict[str, object]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 1024**3, 1),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def cpu_seconds(roots: list[int]) -> float:
    """CPU time of processes and all their descendants, those that have ended included."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    todo, total = list(roots), 0.0
    seen: set[int] = set()
    while todo:
        pid = todo.pop()
        if pid not in seen:
            seen.add(pid)
            total += _process_seconds(pid)
            todo.extend(children.get(pid, ()))
    return total


def _process_seconds(pid: int) -> float:
    """A live process to the nanosecond; its ended children as its parent counts them."""
    total = 0.0
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total = (int(stat[13]) + int(stat[14])) / os.sysconf("SC_CLK_TCK")
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError, ValueError):
        return total
    return total
