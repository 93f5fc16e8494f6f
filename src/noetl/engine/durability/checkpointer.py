"""The checkpointer: once per interval it states for every shard with activity how far its projections are.

The statement is an event in the reserved execution of the shard.  It covers what was applied, never what was merely
appended; checkpoints are no reason for a checkpoint, so an idle system appends nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator

from noetl.core import kinds
from noetl.core.errors import LedgerUnavailable, TransitionConflict
from noetl.core.event import Event, seal
from noetl.core.ids import system_execution_of
from noetl.points import point
from noetl.ports.clock import Clock, IdSource
from noetl.ports.data.counters import Sample
from noetl.ports.durability.checkpoints import Barrier, Checkpoint, Checkpoints
from noetl.ports.durability.roles import RoleLease

SYSTEM_TENANT = SYSTEM_ORGANIZATION = "noetl-system"
"""Whose the reserved executions are: nobody's who could ask for them."""
log = logging.getLogger("noetl.checkpoints")


class Checkpointer:
    def __init__(
        self,
        checkpoints: Checkpoints,
        *,
        ids: IdSource,
        clock: Clock,
        producer: str,
        interval_seconds: float,
        on_commit: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._checkpoints = checkpoints
        self._ids = ids
        self._clock = clock
        self._producer = producer
        self._interval = interval_seconds
        # A decider in this process need not run into a fence to learn that its shards have grown.
        self._on_commit = on_commit
        self._ages: dict[int, float] = {}
        self._committed = 0
        self._has_left = False

    async def run(self, lease: RoleLease) -> None:
        try:
            while True:
                due_at = self._clock.monotonic() + self._interval
                self._has_left = False
                try:
                    await self.look(lease)
                except LedgerUnavailable as error:
                    log.warning("checkpoints wait", extra={"event": "checkpoint.unavailable", "reason": str(error)})
                except TransitionConflict:
                    # Somebody was faster, or our own commit whose answer was lost: the next look sees it.
                    log.info("a checkpoint is there already", extra={"event": "checkpoint.conflict"})
                pause = max(0.0, due_at - self._clock.monotonic())
                # A row that was locked just then is mostly free a moment later: a whole interval would be too late.
                await asyncio.sleep(min(pause, self._interval / 10) if self._has_left else pause)
        finally:
            # Whoever has the role now knows the ages; ours would stand still.
            self._ages.clear()

    async def look(self, lease: RoleLease) -> frozenset[int]:
        """Commit what is due; returns the shards that have a new checkpoint."""
        barriers = await self._checkpoints.barriers()
        due = [self._checkpoint(barrier) for barrier in barriers if barrier.is_due]
        if due:
            point("checkpoint.due")
        done = await self._checkpoints.commit(due, lease=lease) if due else frozenset()
        self._has_left = len(done) < len(due)
        if done:
            point("checkpoint.committed")
        self._committed += len(done)
        if done and self._on_commit is not None:
            # A courtesy: whoever is too busy to hear it must not make the next checkpoint late.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval / 4):
                    await self._on_commit()
        self._ages = {barrier.shard_id: barrier.uncovered_ms or 0.0 for barrier in barriers}
        return done

    def _checkpoint(self, barrier: Barrier) -> Checkpoint:
        execution_id, epoch = system_execution_of(barrier.shard_id), barrier.epoch + 1
        event = Event(
            execution_id=execution_id,
            event_id=self._ids.next_id(),
            tenant_id=SYSTEM_TENANT,
            organization_id=SYSTEM_ORGANIZATION,
            event_type=kinds.CHECKPOINT_COMMITTED,
            event_time=self._clock.now(),
            producer=self._producer,
            transition_key=kinds.checkpoint_key(epoch),
            correlation_id=str(execution_id),
            meta={
                "epoch": epoch,
                "shard": barrier.shard_id,
                "position": barrier.applied_position,
                "last_event_id": str(barrier.last_event_id),
            },
        )
        return Checkpoint(
            shard_id=barrier.shard_id,
            epoch=epoch,
            position=barrier.applied_position,
            last_event_id=barrier.last_event_id,
            event=seal(event),
        )

    def samples(self) -> Iterator[Sample]:
        """How long the first event behind the last checkpoint of a shard had been there when that was last looked at;
        0 where there is none.  Only whoever has the role knows."""
        for shard_id, age in sorted(self._ages.items()):
            yield "noetl_checkpoint_age_ms", {"shard": str(shard_id)}, age
        yield "noetl_checkpoints_total", {}, self._committed
