"""Recovery over one database: snapshots, checkpoints and the roles, on a small pool of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from noetl.adapters.postgres.durability.checkpoints import PostgresCheckpoints
from noetl.adapters.postgres.durability.leftovers import PostgresQueueLeftovers
from noetl.adapters.postgres.durability.partitions import PostgresPartitions
from noetl.adapters.postgres.durability.roles import PostgresRoleLeases
from noetl.adapters.postgres.durability.snapshots import PostgresSnapshots
from noetl.adapters.postgres.pool import Reader
from noetl.engine.durability.checkpointer import Checkpointer
from noetl.engine.durability.partitions import PartitionKeeper
from noetl.engine.durability.reaper import DeadSessions, Reaper
from noetl.engine.durability.roles import CHECKPOINTER, PARTITION_KEEPER, REAPER, Roles, RoleWork
from noetl.engine.durability.snapshotter import Snapshotter
from noetl.ports.background import Background
from noetl.ports.clock import Clock, IdSource
from noetl.ports.data.counters import Counted
from noetl.settings import ControlSettings


class Durability:
    """What nobody waits for.  The pool is opened and closed by whoever wires the process."""

    def __init__(self, settings: ControlSettings, database: str, *, background: Background) -> None:
        self._settings = settings
        self._database = database
        self.pool = Reader(database, size_max=settings.background_connections)
        self.snapshotter = Snapshotter(
            PostgresSnapshots(self.pool), background=background, interval_events=settings.snapshot_interval_events
        )
        self._counted: list[Counted] = [self.snapshotter]

    def roles(
        self,
        *,
        runtime_id: int,
        ids: IdSource,
        clock: Clock,
        producer: str,
        sessions: DeadSessions | None = None,
        on_checkpoint: Callable[[], Awaitable[None]] | None = None,
    ) -> Roles:
        """The roles that a server may have."""
        settings = self._settings
        checkpointer = Checkpointer(
            PostgresCheckpoints(self.pool),
            ids=ids,
            clock=clock,
            producer=producer,
            interval_seconds=settings.checkpoint_interval_ms / 1000,
            on_commit=on_checkpoint,
        )
        partitions = PostgresPartitions(self._database, self.pool)
        keeper = PartitionKeeper(partitions, clock=clock, retention_days=settings.retention_days)
        works: dict[str, RoleWork] = {CHECKPOINTER: checkpointer, PARTITION_KEEPER: keeper}
        if sessions is not None:
            # Only where every live session has its row: whoever has none counts as dead.
            reaper = works[REAPER] = Reaper(sessions, PostgresQueueLeftovers(self.pool))
            self._counted.append(reaper)
        roles = Roles(
            PostgresRoleLeases(self.pool),
            works,
            runtime_id=runtime_id,
            lease_seconds=settings.shard_lease_seconds,
            heartbeat_seconds=settings.shard_heartbeat_seconds,
            clock=clock,
        )
        self._counted += [checkpointer, keeper, roles]
        return roles

    @property
    def counted(self) -> tuple[Counted, ...]:
        return tuple(self._counted)
