"""Faults by chance and by seed, and how long it took until nothing was held by the dead any more."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.fault.suite.cluster import Cluster, Node

RECOVERY_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.05


@dataclass(slots=True)
class Strike:
    """One fault that was done to one process."""

    component: str
    moment: str
    seconds: float | None = None
    """Until everything that the process held had found another owner; None when it held nothing."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a process has a lease for, by numbers that nobody else ever gets."""

    runtimes: list[int]
    sessions: list[int]


# A projector inside of a server has the server's number; one of its own may have another.
_RUNTIMES = """
SELECT runtime_id FROM noetl.runtime WHERE instance = $1
UNION SELECT runtime_id FROM noetl.projector WHERE instance = $1
"""
_HELD = """
SELECT (SELECT count(*) FROM noetl.execution_shard WHERE owner_runtime_id = ANY ($1::bigint[]))
     + (SELECT count(*) FROM noetl.projection_checkpoint WHERE owner_runtime_id = ANY ($1::bigint[]))
     + (SELECT count(*) FROM noetl.command WHERE session_id = ANY ($2::bigint[]))
"""


async def asked(cluster: Cluster, text: str, *values: object) -> list[Any] | None:
    """Rows of the control database; None while it does not answer."""
    return await cluster.look.rows(text, *values)


async def holdings(cluster: Cluster, instance: str) -> Holdings:
    runtimes = await asked(cluster, _RUNTIMES, instance)
    sessions = await asked(cluster, "SELECT session_id FROM noetl.session WHERE worker_id = $1", instance)
    return Holdings([row[0] for row in runtimes or ()], [row[0] for row in sessions or ()])


async def held(cluster: Cluster, what: Holdings) -> int | None:
    rows = await asked(cluster, _HELD, what.runtimes, what.sessions)
    return None if rows is None else int(rows[0][0])


async def until_let_go(cluster: Cluster, what: Holdings, since: float) -> float | None:
    """Seconds from the fault until nothing is held in the old name; None when nothing was."""
    was_held = False
    while time.monotonic() - since < RECOVERY_SECONDS_MAX:
        count = await held(cluster, what)
        if count == 0:
            return time.monotonic() - since if was_held else None
        was_held = was_held or bool(count)
        await asyncio.sleep(LOOK_SECONDS)
    return float("inf")


@dataclass(slots=True)
class Nemesis:
    """Kills processes and brings them back, as whatever supervises them would."""

    cluster: Cluster
    chance: random.Random
    strikes: list[Strike] = field(default_factory=list)

    async def kill(self, node: Node, moment: str) -> Strike:
        """SIGKILL, and a new process in its place; returns when both are known to have gone well."""
        what = await holdings(self.cluster, node.instance)
        strike = Strike(node.role, moment)
        self.strikes.append(strike)
        node.kill()
        since = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again(node))
            letting_go = group.create_task(until_let_go(self.cluster, what, since))
        strike.seconds = letting_go.result()
        return strike

    async def _again(self, node: Node) -> None:
        await asyncio.sleep(self.chance.uniform(0.0, 0.3))
        await node.start()

    async def at_random(self, counts: dict[str, int], *, pause: tuple[float, float]) -> None:
        """So many kills of each role, at random moments; several processes may be down at a time."""
        left = dict(counts)
        async with asyncio.TaskGroup() as group:
            down: set[int] = set()
            while any(left.values()):
                await asyncio.sleep(self.chance.uniform(*pause))
                victims = [
                    node for node in self.cluster.nodes if left.get(node.role) and id(node) not in down and node.is_up()
                ]
                if not victims:
                    continue
                node = self.chance.choice(victims)
                left[node.role] -= 1
                down.add(id(node))
                task = group.create_task(self.kill(node, "at random"))
                task.add_done_callback(_discarding(down, id(node)))


def _discarding(down: set[int], key: int) -> Callable[[asyncio.Task[Any]], None]:
    return lambda _: down.discard(key)
