"""What the rows of a loop cost: rendering, tools and wall time, by task and by kind of tool."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

# A frame whose rows wait for permits takes at most so many times as long as others.
_WAITING_SHARE = 20


class TaskCost(NamedTuple):
    """All calls of one task."""

    kind: str
    calls: int = 0
    failed: int = 0
    render_ms: float = 0.0
    tool_ms: float = 0.0
    limit_ms: float = 0.0
    """Waited for permits of a shared limit."""


class Profile(NamedTuple):
    """`wall_ms` is that of whole frames: of rows that ran side by side it counts once."""

    wall_ms: float = 0.0
    tasks: Mapping[str, TaskCost] = {}


def added(profile: Profile, told: Mapping[str, Any]) -> Profile:
    """With what one more frame says of itself.  Whoever committed it may be no worker of ours: what is no number is
    nothing."""
    tasks = profile.tasks
    given = told.get("tasks")
    if isinstance(given, Mapping) and given:
        tasks = {**tasks, **{name: _sum(tasks.get(name), cost) for name, cost in given.items()}}
    return Profile(round(profile.wall_ms + _number(told.get("wall_ms")), 3), tasks)


def busy_ms(row_ms: float, told: Mapping[str, Any]) -> float:
    """How long the rows of a frame were at work of the time that they took: what they waited for permits makes no row
    a slow one, or each would be a frame of its own."""
    given = told.get("tasks")
    costs = given.values() if isinstance(given, Mapping) else ()
    waited = sum(_number(cost.get("limit_ms")) for cost in costs if isinstance(cost, Mapping))
    return max(row_ms - waited, row_ms / _WAITING_SHARE)


def _sum(known: TaskCost | None, told: Any) -> TaskCost:
    cost = told if isinstance(told, Mapping) else {}
    before = known or TaskCost(str(cost.get("kind", "")))
    return before._replace(
        calls=before.calls + int(_number(cost.get("calls"))),
        failed=before.failed + int(_number(cost.get("failed"))),
        render_ms=round(before.render_ms + _number(cost.get("render_ms")), 3),
        tool_ms=round(before.tool_ms + _number(cost.get("tool_ms")), 3),
        limit_ms=round(before.limit_ms + _number(cost.get("limit_ms")), 3),
    )


def _number(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if is_number else 0.0  # type: ignore[arg-type]


def profile_document(profile: Profile) -> dict[str, Any]:
    """As a status shows it: the sums, each task, and the tasks of each kind together."""
    kinds: dict[str, TaskCost] = {}
    for cost in profile.tasks.values():
        kinds[cost.kind] = _sum(kinds.get(cost.kind, TaskCost(cost.kind)), cost._asdict())
    return {
        "wall_ms": profile.wall_ms,
        "render_ms": round(sum(cost.render_ms for cost in profile.tasks.values()), 3),
        "tool_ms": round(sum(cost.tool_ms for cost in profile.tasks.values()), 3),
        "limit_ms": round(sum(cost.limit_ms for cost in profile.tasks.values()), 3),
        "tasks": {name: cost._asdict() for name, cost in profile.tasks.items()},
        "kinds": {kind: {k: v for k, v in cost._asdict().items() if k != "kind"} for kind, cost in kinds.items()},
    }
