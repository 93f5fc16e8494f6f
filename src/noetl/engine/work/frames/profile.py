"""What the rows of a frame cost, measured while they run."""

from __future__ import annotations

from typing import NamedTuple


class Cost(NamedTuple):
    """One call, in seconds: its fields, the tool, and the wait for a permit before it."""

    render: float
    tool: float
    limit: float = 0.0


class FrameProfile:
    """By task: adding to it is all that a row pays."""

    __slots__ = ("_kinds", "_tasks")

    def __init__(self) -> None:
        self._tasks: dict[str, list[float]] = {}
        self._kinds: dict[str, str] = {}

    def add(self, task: str, kind: str, cost: Cost, *, has_failed: bool) -> None:
        known = self._tasks.get(task)
        if known is None:
            known = self._tasks[task] = [0, 0, 0.0, 0.0, 0.0]
            self._kinds[task] = kind
        known[0] += 1
        known[1] += has_failed
        for number, seconds in enumerate(cost, 2):
            known[number] += seconds

    def to_json(self) -> dict[str, dict[str, object]]:
        return {
            task: {
                "kind": self._kinds[task],
                "calls": int(calls),
                "failed": int(failed),
                "render_ms": round(render * 1000, 3),
                "tool_ms": round(tool * 1000, 3),
                # Most tasks have no limit, and what they say is kept for ever.
                **({"limit_ms": round(limit * 1000, 3)} if limit else {}),
            }
            for task, (calls, failed, render, tool, limit) in self._tasks.items()
        }
