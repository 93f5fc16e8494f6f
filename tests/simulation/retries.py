"""Families whose executions are retried when they have ended, while everything goes wrong; and the retries once more.

How such a run ends is a matter of luck.  What must hold all the same: no retry runs an item that another execution has
brought to a good end, a request is one execution, and the ledger of each alone gives its state."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from noetl.core import kinds
from noetl.core.errors import LedgerUnavailable, NothingToRetry
from noetl.core.event import Event
from noetl.core.execution.forking.folding import OUTPUT, ranges_of
from noetl.core.execution.looping.windows import merged, rows_in
from noetl.core.execution.state import ExecutionState
from noetl.engine.forking.retrying import RetryRequest
from tests.simulation.checks import digest_of, require
from tests.simulation.families import FamilyWorld
from tests.simulation.loop import run_simulated
from tests.simulation.world import HOURS_MAX, OWNER, Setting, set_up, setting_of

TIMES = 2


class RetryWorld(FamilyWorld):
    """`told` is how each attempt at a retry ended: the new execution, or None when there was nothing to retry."""

    def __init__(self, seed: int, setting: Setting) -> None:
        super().__init__(seed, setting)
        self.told: dict[str, int | None] = {}

    async def story(self) -> str:
        async with asyncio.timeout(HOURS_MAX * 3600):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_alive())
                for number in range(len(self.playbooks)):
                    group.create_task(self._client(number))
                    group.create_task(self._retrier(number))
                    if self.chance.random() < 0.4:
                        group.create_task(self._canceller(number))
        self._check_end()
        return digest_of(self.database)

    def _is_over(self) -> bool:
        return all(map(self._is_done, range(len(self.playbooks)))) and super()._is_over()

    def _told_of(self, number: int) -> list[int | None]:
        return [self.told[f"{number}/{turn}"] for turn in range(TIMES) if f"{number}/{turn}" in self.told]

    def _is_done(self, number: int) -> bool:
        told = self._told_of(number)
        return len(told) == TIMES or None in told

    async def _retrier(self, number: int) -> None:
        """Retry an execution when it has ended, and that retry; after an unknown outcome the same key again."""
        while number not in self.started:
            await asyncio.sleep(0.25)
        execution_id: int | None = self.started[number]
        for turn in range(TIMES):
            if execution_id is None:
                return
            while not self.database.tables.streams[execution_id].closed:
                await asyncio.sleep(0.25)
            execution_id = self.told[f"{number}/{turn}"] = await self._retried(execution_id, f"retry {number}/{turn}")

    async def _retried(self, execution_id: int, key: str) -> int | None:
        request = RetryRequest(execution_id=execution_id, idempotency_key=key, **OWNER)
        while True:
            life = self._life
            if life is None or not life.is_open.is_set() or self._crashed.is_set():
                await asyncio.sleep(0.25)
                continue
            asked = await self._asked(life, life.retries.failed_items(request))
            error = None if asked is None else asked.exception()
            if asked is None or isinstance(error, LedgerUnavailable):
                continue
            if isinstance(error, NothingToRetry):
                self.marks["nothing"] += 1
                return None
            require(error is None, f"retry: {error!r}")
            self.marks["retried"] += 1
            return asked.result().execution_id

    def _check_execution(self, state: ExecutionState, events: list[Event]) -> None:
        super()._check_execution(state, events)
        if state.retry_of is None:
            return
        require(not state.is_seeding, f"{state.execution_id} has not got all of its state")
        kept: dict[str, list[tuple[int, int]]] = {}
        for event in events:
            outputs = event.meta.get("outputs") if event.event_type == kinds.EXECUTION_SEEDED else None
            if isinstance(outputs, list) and event.stage_id is not None:
                found = [one for output in outputs for one in ranges_of(OUTPUT.decode(output))]
                kept.setdefault(event.stage_id, []).extend(found)
            if event.event_type == kinds.FRAME_DISPATCHED and event.stage_id in kept:
                first, rows = int(str(event.meta["first"])), int(str(event.meta["rows"]))
                known = merged(kept[event.stage_id])
                both = rows_in(known) + rows - rows_in(merged([*known, (first, first + rows)]))
                require(both == 0, f"{event.frame_id} of {state.execution_id} runs {both} rows that were kept")
                self.marks["rows again"] += rows
        self.marks["rows kept"] += sum(rows_in(merged(ranges)) for ranges in kept.values())


def simulate_retries(seed: int, setting: Setting | None = None) -> tuple[str, Counter[str]]:
    """One run: the digest of its ledger, and what happened in it."""
    chosen = setting or setting_of(seed)
    world = RetryWorld(seed, chosen)
    with set_up(chosen):
        digest = run_simulated(world.story(), world.clock, random.Random(f"loop {seed}"))
    return digest, world.marks + world.faults.seen
