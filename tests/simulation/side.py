"""What a process does beside deciding: projections, snapshots, and the roles that only one process at a time has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.durability.checkpoints import MemoryCheckpoints
from noetl.adapters.memory.durability.leftovers import MemoryQueueLeftovers
from noetl.adapters.memory.durability.roles import MemoryRoleLeases
from noetl.adapters.memory.durability.snapshots import MemorySnapshots
from noetl.adapters.memory.faults import Faults
from noetl.adapters.memory.projecting.projections import MemoryProjectionLeases, MemoryProjections
from noetl.adapters.memory.projecting.reading import MemoryExecutionViews, MemoryTail
from noetl.engine.control.states import States
from noetl.engine.durability.checkpointer import Checkpointer
from noetl.engine.durability.reaper import DeadSessions, Reaper
from noetl.engine.durability.roles import CHECKPOINTER, REAPER, Roles, RoleWork
from noetl.engine.durability.snapshotter import Snapshotter
from noetl.engine.projecting.feed import Feed
from noetl.engine.projecting.folder import Folder
from noetl.engine.projecting.ownership import Ownership
from noetl.engine.projecting.projector import Pace, Projector, ProjectorParts
from noetl.engine.projecting.watching import Watched
from noetl.ports.projections import Member

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Settings that a seed may make as bad as it likes."""

    lease_seconds: float = 6.0
    heartbeat_seconds: float = 2.0
    window_seconds: float = 0.1
    poll_seconds: float = 1.0
    batch_events: int = 500
    checkpoint_seconds: float = 1.0
    snapshot_events: int = 10
    first_page_events: int = 500
    """So many events of an execution are read before anybody asks for a snapshot of it."""
    is_spread: bool = False
    """Workers stand in different places, and servers want work near its data."""


class Inline:
    """Background work of a process that has one thread."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await asyncio.sleep(0)
        return function(*args, **kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every part of a process is made of."""

    database: MemoryDatabase
    faults: Faults
    clock: VirtualClock
    tuning: Tuning = field(default_factory=Tuning)


class Side:
    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self.snapshots = MemorySnapshots(around.database, around.faults)
        self.feed = Feed(around.clock, full_at=around.tuning.batch_events)
        self.projector: Projector | None = None
        self.roles: Roles | None = None

    async def run(
        self,
        runtime_id: int,
        *,
        ids: VirtualIds,
        states: States,
        sessions: DeadSessions | None = None,
        on_checkpoint: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Ends with its process."""
        tuning = self._around.tuning
        snapshotter = Snapshotter(self.snapshots, background=Inline(), interval_events=tuning.snapshot_events)
        watched = Watched(
            MemoryExecutionViews(self._around.database, self._around.faults), poll_seconds=tuning.poll_seconds
        )
        # Without other servers whoever was there before is dead.
        self.projector = self._projector(runtime_id, states, watched, snapshotter, by_force=sessions is None)
        self.roles = self._roles(runtime_id, ids, sessions, on_checkpoint)
        async with asyncio.TaskGroup() as group:
            for work in (snapshotter, watched, self.projector, self.roles):
                group.create_task(work.run())

    def _projector(
        self, runtime_id: int, states: States, watched: Watched, snapshotter: Snapshotter, *, by_force: bool
    ) -> Projector:
        around, tuning = self._around, self._around.tuning
        member = Member(
            runtime_id=runtime_id,
            instance=f"process {runtime_id}",
            is_dedicated=False,
            lease_seconds=tuning.lease_seconds,
        )
        tail = MemoryTail(around.database, around.faults)
        parts = ProjectorParts(
            ownership=Ownership(
                MemoryProjectionLeases(around.database, around.faults),
                member,
                clock=around.clock,
                heartbeat_seconds=tuning.heartbeat_seconds,
                by_force=by_force,
            ),
            projections=MemoryProjections(around.database, around.faults),
            tail=tail,
            folder=Folder(states, tail),
            feed=self.feed,
            watched=watched,
            clock=around.clock,
            observers=[snapshotter.observe],
        )
        pace = Pace(
            window_seconds=tuning.window_seconds, batch_events=tuning.batch_events, poll_seconds=tuning.poll_seconds
        )
        return Projector(parts, pace=pace)

    def _roles(
        self,
        runtime_id: int,
        ids: VirtualIds,
        sessions: DeadSessions | None,
        on_checkpoint: Callable[[], Awaitable[None]] | None,
    ) -> Roles:
        around, tuning = self._around, self._around.tuning
        checkpointer = Checkpointer(
            MemoryCheckpoints(around.database, around.faults),
            ids=ids,
            clock=around.clock,
            producer="noetl://tenant/acme/org/sales/host/simulated",
            interval_seconds=tuning.checkpoint_seconds,
            on_commit=on_checkpoint,
        )
        works: dict[str, RoleWork] = {CHECKPOINTER: checkpointer}
        if sessions is not None:
            works[REAPER] = Reaper(sessions, MemoryQueueLeftovers(around.database, around.faults))
        return Roles(
            MemoryRoleLeases(around.database, around.faults),
            works,
            runtime_id=runtime_id,
            lease_seconds=tuning.lease_seconds,
            heartbeat_seconds=tuning.heartbeat_seconds,
            clock=around.clock,
        )
