"""A projector that does nothing else: over a database, and without an engine."""

from __future__ import annotations

import asyncio
import contextlib

from noetl.adapters.postgres.durability.snapshots import PostgresSnapshots
from noetl.adapters.postgres.leases import PostgresLeases
from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.system.background import ThreadBackground
from noetl.adapters.system.clock import SystemClock
from noetl.core.errors import LeaseLost, LedgerUnavailable, SettingsInvalid
from noetl.engine.control.states import States
from noetl.engine.durability.snapshotter import Snapshotter
from noetl.engine.projecting.projector import Projector
from noetl.ports.data.counters import Counted
from noetl.ports.serving.runtimes import NodeLease, Profile
from noetl.settings import Settings
from noetl.wiring.databases import prepare_database
from noetl.wiring.projections.inside import ProjectionSide

CONNECTIONS_MAX = 3
NODE_LEASE_SECONDS = 60.0


class ProjectorProcess:
    """`open`, then `run` until it is cancelled, then `close`, which hands everything over."""

    def __init__(self, settings: Settings, *, instance: str, version: str) -> None:
        if settings.postgres_dsn is None:
            raise SettingsInvalid(
                "noetl projector needs NOETL_POSTGRES_DSN, the database of its servers: "
                "the embedded one is projected by the process that has it"
            )
        self._settings = settings
        self._database = settings.postgres_dsn
        self._profile = Profile(instance=instance, kind="projector", version=version)
        self._reader = Reader(self._database, size_max=CONNECTIONS_MAX)
        # Never commits anything: a projector writes projections only.
        self._ledger_writer = Writer(self._database)
        self._leases = PostgresLeases(self._reader)
        self._side = ProjectionSide(settings.control, self._database, reader=self._reader, clock=SystemClock())
        snapshots = PostgresSnapshots(self._reader)
        self._states = States(PostgresLedger(self._ledger_writer, self._reader), snapshots)
        self._snapshotter = Snapshotter(
            snapshots, background=ThreadBackground(), interval_events=settings.control.snapshot_interval_events
        )
        self._side.observers.append(self._snapshotter.observe)
        self._node: NodeLease | None = None

    async def open(self) -> None:
        await prepare_database(self._settings, self._database, is_embedded=False)
        await self._reader.open()
        self._node = await self._leases.register(self._profile, lease_seconds=NODE_LEASE_SECONDS)
        member = self._side.member(self._node.runtime_id, self._profile.instance, is_dedicated=True)
        self._side.prepare(member, self._states, by_force=False)

    @property
    def projector(self) -> Projector:
        assert self._side.projector is not None
        return self._side.projector

    @property
    def counted(self) -> tuple[Counted, ...]:
        return self.projector.counts, self._snapshotter

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.projector.run())
            group.create_task(self._snapshotter.run())
            group.create_task(self._renew())

    async def _renew(self) -> None:
        assert self._node is not None
        while True:
            await asyncio.sleep(NODE_LEASE_SECONDS / 4)
            try:
                found = await self._leases.renew(self._node.runtime_id, last_id=0, lease_seconds=NODE_LEASE_SECONDS)
            except LedgerUnavailable:
                continue  # only the database can say that it is lost, and only when it is back
            if found is None:
                raise LeaseLost("this process is not known any more: it was silent for too long")

    async def close(self) -> None:
        await self._side.close()
        if self._node is not None:
            with contextlib.suppress(LedgerUnavailable):
                await self._leases.leave(self._node.runtime_id, last_id=0)
        await self._ledger_writer.close()
        await self._reader.close()
