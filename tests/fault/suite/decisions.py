"""Who decides about an execution, and when somebody else does.

Any server records what workers say, and gives a frame out again that a dead worker held.  Only the owner of a shard
decides: what it appends then is what tells that a loop goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Any

from tests.fault.suite.cluster import Cluster, Node
from tests.fault.suite.nemesis import asked

DECIDE_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.02
_OWNER = """
SELECT r.instance FROM noetl.stream AS s JOIN noetl.execution_shard AS t USING (shard_id)
JOIN noetl.runtime AS r ON r.runtime_id = t.owner_runtime_id WHERE s.execution_id = $1
"""
# The first attempt at a frame is decided; a later one follows from the claim of whoever takes it over.
_DECIDED = """
SELECT producer, event_type FROM noetl.event WHERE execution_id = $1 AND position > $2
AND (event_type IN ('step.decided', 'command.issued', 'stage.opened', 'loop.started', 'loop.done', 'stage.closed',
                    'playbook.completed')
     OR (event_type = 'frame.dispatched' AND meta ->> 'attempt' = '1'))
ORDER BY position
"""
_HEAD = "SELECT max(position) AS n FROM noetl.event WHERE execution_id = $1"
_HELD = """
SELECT DISTINCT b.frame_id FROM noetl.event AS b
WHERE b.execution_id = $1 AND b.event_type = 'frame.started' AND b.meta ->> 'session' = ANY ($2::text[])
AND NOT EXISTS (
    SELECT 1 FROM noetl.event AS a WHERE a.execution_id = $1 AND a.frame_id = b.frame_id AND a.position > b.position
    AND (a.event_type IN ('frame.committed', 'frame.failed', 'frame.started')))
"""


async def owner_of(cluster: Cluster, execution_id: int) -> Node | None:
    """The server that owns the shard of an execution now."""
    rows = await asked(cluster, _OWNER, execution_id)
    instances = {row["instance"] for row in rows or ()}
    return next((node for node in cluster.of("server") if node.is_alive and node.instance in instances), None)


async def deciders_of(cluster: Cluster, execution_id: int, *, after: int = 0) -> list[str]:
    """Who made the decisions about an execution behind a position of its shard, in their order."""
    rows = await asked(cluster, _DECIDED, execution_id, after)
    return [row["producer"] for row in rows or ()]


async def head_of(cluster: Cluster, execution_id: int) -> int:
    rows: list[Any] | None = None
    while not rows:
        rows = await asked(cluster, _HEAD, execution_id)
    return int(rows[0]["n"])


async def until_decided(cluster: Cluster, execution_id: int, dead: Collection[str], since: float) -> float:
    """Seconds from the kill until a process that lives has decided about the execution.  What a dead one had sent to
    the database may still be committed: that is not it."""
    before = await head_of(cluster, execution_id)
    while time.monotonic() - since < DECIDE_SECONDS_MAX:
        deciders = await deciders_of(cluster, execution_id, after=before)
        if any(not is_of(producer, dead) for producer in deciders):
            return time.monotonic() - since
        await asyncio.sleep(LOOK_SECONDS)
    return float("inf")


def is_of(producer: str, instances: Collection[str]) -> bool:
    return producer.rpartition("/")[2] in instances


async def frames_held(cluster: Cluster, execution_id: int, sessions: Collection[int]) -> list[str] | None:
    """Frames that these sessions have begun, and that nobody has ended or begun again; None while nobody can tell."""
    rows = await asked(cluster, _HELD, execution_id, [str(one) for one in sessions])
    return None if rows is None else [row["frame_id"] for row in rows]


async def until_begun_again(cluster: Cluster, execution_id: int, sessions: Collection[int], since: float) -> float:
    """Seconds from the kill until others have every frame that the dead held."""
    while time.monotonic() - since < DECIDE_SECONDS_MAX:
        if await frames_held(cluster, execution_id, sessions) == []:
            return time.monotonic() - since
        await asyncio.sleep(LOOK_SECONDS)
    return float("inf")
