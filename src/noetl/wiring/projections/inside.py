"""Reading projections, and keeping them unless other processes do."""

from __future__ import annotations

import asyncio
import contextlib

from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.postgres.projecting.leases import PostgresProjectionLeases
from noetl.adapters.postgres.projecting.projections import PostgresProjections
from noetl.adapters.postgres.projecting.tail import PostgresTail
from noetl.adapters.postgres.projecting.views import PostgresExecutionViews
from noetl.adapters.postgres.queue import PostgresExecutions
from noetl.core.errors import LedgerUnavailable
from noetl.engine.control.states import States
from noetl.engine.projecting.feed import Feed
from noetl.engine.projecting.folder import Folder
from noetl.engine.projecting.ownership import Ownership
from noetl.engine.projecting.projector import Observer, Pace, Projector, ProjectorParts
from noetl.engine.projecting.status import StatusService
from noetl.engine.projecting.watching import Watched
from noetl.ports.clock import Clock
from noetl.ports.projections import Member
from noetl.settings import ControlSettings

LOOK_SECONDS = 0.005


class ProjectionSide:
    """`feed` gets what this process commits; `status` is what the API reads."""

    def __init__(self, settings: ControlSettings, database: str, *, reader: Reader, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._leases = PostgresProjectionLeases(reader)
        self._writer = Writer(database, is_derived=True)
        self.projections = PostgresProjections(self._writer, reader)
        self.tail = PostgresTail(reader)
        self.feed = Feed(clock, full_at=settings.projection_batch_events)
        views = PostgresExecutionViews(reader)
        self.watched = Watched(views, poll_seconds=settings.projection_poll_ms / 1000)
        executions = PostgresExecutions(reader)
        self.status = StatusService(views, executions, watched=self.watched, feed=self.feed, clock=clock)
        self.observers: list[Observer] = []
        self.projector: Projector | None = None

    def prepare(self, member: Member, states: States, *, by_force: bool) -> Projector:
        """The projector of this process.  By force when nobody else can be there."""
        settings = self._settings
        parts = ProjectorParts(
            ownership=Ownership(
                self._leases,
                member,
                clock=self._clock,
                heartbeat_seconds=settings.shard_heartbeat_seconds,
                by_force=by_force,
            ),
            projections=self.projections,
            tail=self.tail,
            folder=Folder(states, self.tail),
            feed=self.feed,
            watched=self.watched,
            clock=self._clock,
            observers=self.observers,
        )
        pace = Pace(
            window_seconds=settings.projection_window_ms / 1000,
            batch_events=settings.projection_batch_events,
            poll_seconds=settings.projection_poll_ms / 1000,
        )
        self.projector = Projector(parts, pace=pace)
        return self.projector

    def member(self, runtime_id: int, instance: str, *, is_dedicated: bool = False) -> Member:
        return Member(
            runtime_id=runtime_id,
            instance=instance,
            is_dedicated=is_dedicated,
            lease_seconds=self._settings.shard_lease_seconds,
        )

    async def run(self) -> None:
        """Project, and look for what others project.  Ends by cancellation."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watched.run())
            if self.projector is not None:
                group.create_task(self.projector.run())

    async def caught_up(self, *, seconds: float) -> bool:
        """Wait until everything that was in the ledger is projected, but no longer than this."""
        heads = {one.shard_id: one.head for one in await self.projections.progress()}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    found = await self.projections.progress()
                    if all(one.position >= heads[one.shard_id] for one in found):
                        return True
                    await asyncio.sleep(LOOK_SECONDS)
        return False

    async def close(self) -> None:
        """Hand everything over, also when Postgres is away: then the leases run out."""
        if self.projector is not None:
            with contextlib.suppress(LedgerUnavailable):
                await self.projector.leave()
        await self._writer.close()
