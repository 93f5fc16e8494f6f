"""A crash at every await: a small playbook runs once in peace, which counts the awaits of all adapters, and then again
for each of them with a process that dies there and another one that takes over."""

from __future__ import annotations

import functools
import json
import random
from typing import Any

from noetl.core.ids import is_system
from tests.simulation.cluster import Cluster, ClusterSetting, spread
from tests.simulation.faults import CountedFaults, Weather
from tests.simulation.loop import run_simulated
from tests.simulation.world import Outcome, Setting, World, set_up

CALM = Setting(shards=1, slots=2, batch_inputs_max=128, weather=Weather(seconds_max=0.02))
_ERROR = "{{ output.status == 'error' }}"


def _tool(**given: object) -> dict[str, Any]:
    return {"kind": "python", "code": "work", "input": given}


def _text(*steps: dict[str, Any]) -> str:
    document = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "awaited", "path": "simulation/awaited"},
        "workflow": list(steps),
    }
    return json.dumps(document)


def _retried() -> dict[str, Any]:
    rule = {"when": _ERROR, "then": {"do": "retry", "attempts": 2, "delay": 5, "backoff": "fixed"}}
    return {**_tool(fails=1, attempt="{{ _attempt }}"), "spec": {"policy": {"rules": [rule]}}}


def _both(*names: str) -> dict[str, Any]:
    return {"spec": {"mode": "inclusive"}, "arcs": [{"step": name} for name in names]}


STORIES: dict[str, str] = {
    "fork": _text(
        {"step": "start", "tool": _tool(n=1), "next": _both("left", "right")},
        {"step": "left", "tool": _tool(n="{{ start.value }}"), "next": "join"},
        {"step": "right", "tool": _tool(big=70_000), "next": "join"},
        {"step": "join", "tool": _tool(left="{{ left.value }}", right="{{ right.value }}")},
    ),
    "loop": _text(
        {"step": "start", "tool": _tool(n=2), "next": "rows"},
        {
            "step": "rows",
            "loop": {
                "in": "{{ start.items }}",
                "iterator": "item",
                "spec": {"mode": "parallel", "max_in_flight": 2, "frame": {"max_rows": 2}},
            },
            "tool": _tool(item="{{ iter.item }}", index="{{ loop.index }}"),
            "next": {"arcs": [{"step": "end", "set": {"ctx.stats": "{{ rows.stats }}"}}]},
        },
        {"step": "end", "tool": _tool(all="{{ rows.data }}")},
    ),
    "retry": _text(
        {"step": "start", "tool": _retried(), "next": "end"},
        {"step": "end", "tool": _tool(n="{{ start.value }}")},
    ),
    "asked": _text(
        {
            "step": "start",
            "tool": _tool(n=3),
            "next": {
                "arcs": [
                    {"step": "odd", "when": "{{ steps[ctx.absent | default('start')].items[1] % 2 == 1 }}"},
                    {"step": "even", "set": {"ctx.even": "{{ start.value }}"}},
                ]
            },
        },
        {"step": "odd", "tool": _tool(n=1)},
        {"step": "even", "tool": _tool(n="{{ ctx.even }}")},
    ),
    "handled": _text(
        {
            "step": "start",
            "tool": _tool(fails=9),
            "next": {"arcs": [{"step": "handler", "when": _ERROR}, {"step": "end"}]},
        },
        {"step": "handler", "tool": _tool(n=4), "next": "end"},
        {"step": "end", "tool": _tool(n=5)},
    ),
    "child": _text(
        {"step": "start", "tool": {"kind": "playbook", "path": "child", "return_step": "start"}, "next": "end"},
        {"step": "end", "tool": _tool(n=6)},
    ),
}
CHILD = _text({"step": "start", "tool": _tool(n=7)})


class AwaitedWorld(World):
    def __init__(self, story: str, crash_at: int | None) -> None:
        super().__init__(0, CALM)
        self._story = story
        self.playbooks = [STORIES[story]]
        self.shelf = {"child": CHILD}
        self.counted = CountedFaults(crash_at=crash_at, crash=self._crash)
        self.faults = self.counted

    async def _result(self, execution_id: int) -> dict[str, object]:
        """The result of a child names it, and its id is another one in every run."""
        outcome = await super()._result(execution_id)
        if self._story == "child":
            steps: Any = outcome["steps"]
            steps["start"] = steps["start"][:2]
        return outcome

    def _is_over(self) -> bool:
        streams = self.database.tables.streams
        return super()._is_over() and all(stream.closed for e, stream in streams.items() if not is_system(e))


def crashed_at(story: str, number: int | None) -> tuple[Outcome, int]:
    """The outcome with a death at this await, and how many awaits there were."""
    world = AwaitedWorld(story, number)
    with set_up(CALM):
        outcome = run_simulated(world.run(), world.clock, random.Random("awaits"))
    return outcome, world.counted.awaits


@functools.cache
def clean(story: str) -> tuple[Outcome, int]:
    return crashed_at(story, None)


PAIR = ClusterSetting(one=CALM, servers=2)


class AwaitedPair(Cluster):
    """Two servers, of which one dies; nobody joins but for it, and nobody leaves."""

    def __init__(self, story: str, crash_at: int | None) -> None:
        super().__init__(0, PAIR)
        self.playbooks = [STORIES[story]]
        self.counted = CountedFaults(crash_at=crash_at, crash=self._crash)
        self.faults = self.counted

    def _change_size(self) -> None:
        return


def crashed_pair(story: str, number: int | None) -> tuple[Outcome, int]:
    """As above with two servers: the other one takes over when the lease has run out."""
    world = AwaitedPair(story, number)
    with spread(PAIR):
        outcome = run_simulated(world.run(), world.clock, random.Random("awaits"))
    return outcome, world.counted.awaits
