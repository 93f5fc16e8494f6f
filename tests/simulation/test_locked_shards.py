"""Somebody outside holds a lock on a shard: all that is in other shards comes to its end while it is held."""

from __future__ import annotations

import asyncio

import pytest

from noetl.core.execution.state import Status
from tests.simulation.checks import check_end
from tests.simulation.life import Life
from tests.simulation.test_recovery import RULES, Scene, ended, start, step

LOCKED_SECONDS = 300


async def one_each(scene: Scene, life: Life, count: int, *steps: dict[str, object]) -> dict[int, list[int]]:
    """Executions in both shards, at least so many in each."""
    found: dict[int, list[int]] = {0: [], 1: []}
    while min(map(len, found.values())) < count:
        execution_id = await start(life, *steps)
        found[scene.shard_of(execution_id)].append(execution_id)
    return found


@pytest.mark.parametrize("slots", [1, 8])
@pytest.mark.parametrize(
    "steps",
    [
        (step("start", "next", seconds=2), step("next", seconds=1)),
        # The second attempt is due while the shard is locked.
        (step("start", "next", policy=RULES, fails=1, attempt="{{ _attempt }}"), step("next", seconds=1)),
    ],
    ids=["queued", "timers"],
)
def test_what_is_in_other_shards_does_not_wait(slots: int, steps: tuple[dict[str, object], ...]) -> None:
    scene = Scene(slots=slots, shards=2)

    async def story() -> None:
        async with scene.process() as life:
            found = await one_each(scene, life, 3, *steps)
            await asyncio.sleep(1)
            scene.database.tables.locked = frozenset((0,))
            for execution_id in found[1]:
                assert (await ended(life, execution_id, within=LOCKED_SECONDS)).status is Status.COMPLETED
            assert all(scene.state(one).status is Status.RUNNING for one in found[0])
            scene.database.tables.locked = frozenset()
            for execution_id in (*found[0], *found[1]):
                assert (await ended(life, execution_id, within=LOCKED_SECONDS)).status is Status.COMPLETED
        check_end(scene.database)

    scene.play(story())
