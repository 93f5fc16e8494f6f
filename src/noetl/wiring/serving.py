"""One server among several: its lease, its shards, its sessions, and the way to the shards of others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

from noetl import __version__
from noetl.adapters.postgres.leases import PostgresLeases
from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.pool import Reader, Transactions, Writer
from noetl.adapters.postgres.serving.permits import PostgresPermits
from noetl.adapters.postgres.serving.roster import PostgresRoster
from noetl.adapters.postgres.serving.shards import PostgresShards
from noetl.adapters.system.ids import SnowflakeIds
from noetl.core.errors import LedgerUnavailable, SettingsInvalid
from noetl.core.limits import PERMIT_TURNS_AT_ONCE_MAX
from noetl.engine.control.commands import Dispatcher
from noetl.engine.control.decider import Decider
from noetl.engine.control.parts import ControlParts
from noetl.engine.sharing.ids import OwnIds
from noetl.engine.sharing.neighbours import Neighbours
from noetl.engine.sharing.recorder import Recorder
from noetl.engine.sharing.shards import ShardKeeper, SharingParts
from noetl.ports.queue import Queue
from noetl.ports.serving.roster import SessionRow
from noetl.ports.serving.runtimes import NodeLease, Profile
from noetl.settings import Settings


class Serving:
    """Background work has connections of its own (`pool`): a heartbeat does not wait for readers."""

    def __init__(self, settings: Settings, database: str, *, pool: Reader, reader: Reader) -> None:
        self._settings = settings
        self.runtimes = PostgresLeases(pool)
        self.shards = PostgresShards(pool)
        self.roster = PostgresRoster(pool)
        # Opened with the first task that has a limit.
        self._turns = Transactions(database, size_max=PERMIT_TURNS_AT_ONCE_MAX)
        self.permits = PostgresPermits(self._turns, reader)
        # Opened with the first fact for a shard of somebody else: a commit there must not hold up ours.
        self._writer = Writer(database)
        self._ledger = PostgresLedger(self._writer, reader)
        self.node: NodeLease | None = None
        self._ids: SnowflakeIds | None = None

    @property
    def lease_seconds(self) -> float:
        return self._settings.control.shard_lease_seconds

    async def register(self, *, instance: str, kind: str, url: str | None = None, seat: str | None = None) -> NodeLease:
        profile = Profile(instance=instance, kind=kind, url=url, version=__version__, seat=seat)
        self.node = await self.runtimes.register(profile, lease_seconds=self.lease_seconds)
        return self.node

    async def check_shards(self) -> None:
        found = len(await self.shards.look())
        if found < self._settings.shard_count:
            raise SettingsInvalid(
                f"NOETL_SHARD_COUNT is {self._settings.shard_count}, the database has {found} shards: "
                "run `noetl migrate` with this setting first"
            )

    def prepare(self, parts: ControlParts, *, queue: Queue, producer: str) -> Neighbours:
        assert self.node is not None
        self.recorder = Recorder(parts, ledger=self._ledger, queue=queue, producer=producer)
        return Neighbours(roster=self.roster, runtime_id=self.node.runtime_id, clock=parts.clock, outward=self.recorder)

    def keeper(
        self,
        parts: ControlParts,
        ids: SnowflakeIds,
        *,
        decider: Decider,
        dispatcher: Dispatcher,
        neighbours: Neighbours,
    ) -> ShardKeeper:
        self._ids = ids
        return ShardKeeper(
            SharingParts(
                runtimes=self.runtimes,
                shards=self.shards,
                roster=self.roster,
                ledger=parts.ledger,
                decider=decider,
                dispatcher=dispatcher,
                sessions=parts.sessions,
                watchers=parts.watchers,
                neighbours=neighbours,
                ids=ids,
                clock=parts.clock,
                lease_seconds=self.lease_seconds,
                heartbeat_seconds=self._settings.control.shard_heartbeat_seconds,
            )
        )

    def own_ids(self, ids: SnowflakeIds, owned: Callable[[], Collection[int]]) -> OwnIds:
        return OwnIds(ids, owned=owned, shard_count=self._settings.shard_count)

    async def vouch(self, *sessions: SessionRow) -> None:
        """Before a session gets anything: what a session holds that nobody knows goes back at once."""
        assert self.node is not None
        await self.roster.keep(self.node.runtime_id, sessions, lease_seconds=self.lease_seconds)

    async def add(self, row: SessionRow) -> None:
        await self.vouch(row)

    async def end(self, session_id: int, *, worker_id: str | None = None) -> int:
        return await self.roster.end(session_id, worker_id=worker_id)

    async def leave(self) -> None:
        """Let go of everything, also when Postgres is away: then the lease ends by itself."""
        if self.node is not None:
            last_id = self._ids.last_id if self._ids is not None else self.node.last_id
            with contextlib.suppress(LedgerUnavailable):
                await self.runtimes.leave(self.node.runtime_id, last_id=last_id)

    async def close(self) -> None:
        await self._turns.close()
        await self._writer.close()
