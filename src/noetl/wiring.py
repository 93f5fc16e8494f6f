"""Putting the parts together: the only module that sees both the engine and the adapters."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from importlib.metadata import entry_points

from noetl.adapters.objects.filesystem import FilePayloads
from noetl.adapters.postgres.embedded import EmbeddedPostgres, ServerAddress, dsn
from noetl.adapters.postgres.leases import NODE_LEASE_SECONDS, NodeLease, PostgresLeases
from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.migrate import check_schema, migrate
from noetl.adapters.postgres.payloads import PostgresPayloads
from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.postgres.queue import PostgresExecutions, PostgresQueue
from noetl.adapters.session.in_process import InProcessSession
from noetl.adapters.system.clock import SystemClock
from noetl.adapters.system.ids import SnowflakeIds
from noetl.core.errors import HostUnavailable, LeaseLost, LedgerUnavailable, SettingsInvalid
from noetl.core.locator import producer_locator
from noetl.engine.control.commands import Dispatcher
from noetl.engine.control.decider import Decider
from noetl.engine.control.parts import ControlParts
from noetl.engine.control.sessions import Sessions
from noetl.engine.control.states import States
from noetl.engine.control.timers import Timers
from noetl.engine.control.watch import Watchers
from noetl.engine.executions import ExecutionService
from noetl.engine.payloads import Payloads
from noetl.engine.playbooks import Playbooks
from noetl.engine.work.parts import WorkerParts
from noetl.engine.work.worker import Worker
from noetl.ports.tool import Renderer, Tool, ToolSettings
from noetl.settings import Settings

POSTGRES_LOOK_SECONDS = 0.5
log = logging.getLogger("noetl.host")


def tools_of(settings: Settings) -> dict[str, Tool]:
    """Every installed tool, found through its entry point."""
    made = ToolSettings(python_children=settings.python_children, python_memory_bytes=settings.python_memory_bytes)
    return {entry.name: entry.load()(made) for entry in entry_points(group="noetl.tools")}


def tool_kinds() -> frozenset[str]:
    return frozenset(entry.name for entry in entry_points(group="noetl.tools"))


def embedded_postgres(settings: Settings) -> EmbeddedPostgres:
    return EmbeddedPostgres(settings.home, os_user=settings.postgres_os_user)


def control_dsn(address: ServerAddress) -> str:
    return dsn(address, database="noetl", user="noetl")


async def keep_alive(postgres: EmbeddedPostgres, address: ServerAddress) -> None:
    """Start the private Postgres again when it died.  Meanwhile the engine waits; it has lost nothing."""
    while True:
        await asyncio.sleep(POSTGRES_LOOK_SECONDS)
        if not postgres.has_ended(address):
            continue
        log.error("Postgres ended, starting it again", extra={"event": "postgres.ended"})
        started = await asyncio.to_thread(postgres.start)
        if control_dsn(started) != control_dsn(address):
            raise HostUnavailable("Postgres came back at another address: start the host again")
        address = started


async def prepare_database(settings: Settings, address: str, *, is_embedded: bool) -> None:
    """The embedded database migrates itself; any other is only checked."""
    if is_embedded:
        await migrate(address, shard_count=settings.shard_count, now=SystemClock().moment())
    else:
        await check_schema(address)


async def migrate_database(settings: Settings, address: str) -> list[str]:
    return await migrate(address, shard_count=settings.shard_count, now=SystemClock().moment())


class Engine:
    """One embedded engine: decider, queue, timers, and a worker in the same process."""

    def __init__(self, settings: Settings, database: str, *, instance: str) -> None:
        self._settings = settings
        self._instance = instance
        self._clock = SystemClock()
        self._writer = Writer(database)
        self._reader = Reader(database, size_max=settings.reader_connections)
        self._leases = PostgresLeases(self._reader)
        self.ledger = PostgresLedger(self._writer, self._reader)
        self.queue = PostgresQueue(self._reader)
        self.executions = PostgresExecutions(self._reader)
        self.payloads = Payloads(small=PostgresPayloads(self._reader), large=FilePayloads(settings.home / "payloads"))
        self.tools: Mapping[str, Tool] = tools_of(settings)
        renderer = self.tools["python"]
        assert isinstance(renderer, Renderer)
        self._renderer = renderer
        self.playbooks = Playbooks(self.payloads, kinds=frozenset(self.tools))
        self.states = States(self.ledger)
        self.sessions = Sessions()
        self.watchers = Watchers()
        self.resumed: list[int] = []
        self.is_restored = asyncio.Event()
        self._node: NodeLease | None = None

    async def open(self, *, resume: bool = True) -> None:
        """Connect, lease a node number, take the shards; with `resume` also bring open executions back."""
        await self._reader.open()
        self._node = await self._leases.lease_node(instance=self._instance, kind="host")
        self._ids = SnowflakeIds(node=self._node.node_number, last_id=self._node.last_id)
        tenant, organization = self._settings.tenant_id, self._settings.organization_id
        parts = ControlParts(
            ledger=self.ledger,
            states=self.states,
            playbooks=self.playbooks,
            sessions=self.sessions,
            watchers=self.watchers,
            ids=self._ids,
            clock=self._clock,
        )
        self.decider = Decider(parts, producer=producer_locator(tenant, organization, "host", self._instance))
        self.service = ExecutionService(
            parts,
            decider=self.decider,
            executions=self.executions,
            payloads=self.payloads,
            renderer=self._renderer,
            shard_count=self._settings.shard_count,
        )
        self.dispatcher = Dispatcher(
            decider=self.decider,
            sessions=self.sessions,
            queue=self.queue,
            executions=self.executions,
            ledger=self.ledger,
        )
        self._resumes = resume
        if resume:
            for tool in self.tools.values():
                await tool.start()
            await self._leases.refresh_incarnation()
            heads = await self._leases.own_shards(runtime_id=self._node.runtime_id, instance=self._instance)
            if len(heads) < self._settings.shard_count:
                raise SettingsInvalid(
                    f"NOETL_SHARD_COUNT is {self._settings.shard_count}, the database has {len(heads)} shards: "
                    "run `noetl migrate` with this setting first"
                )
            self.decider.own(heads)
            self.session = InProcessSession(
                session_id=self._ids.next_id(), slots=self._settings.worker_slots, control=self.decider
            )
            self.sessions.connect(self.session)

    async def run(self) -> None:
        """Everything that must run while the engine is open.  Ends by cancellation."""
        if not self._resumes:
            self.is_restored.set()
            await self._renew()
            return
        worker = Worker(
            WorkerParts(
                session=self.session,
                playbooks=self.playbooks,
                payloads=self.payloads,
                tools=self.tools,
                renderer=self._renderer,
                clock=self._clock,
            )
        )
        timers = Timers(decider=self.decider, queue=self.queue)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.decider.run())
            group.create_task(worker.run())
            self.resumed = await self.dispatcher.restore()
            self.is_restored.set()
            group.create_task(self.dispatcher.run())
            group.create_task(timers.run())
            group.create_task(self._renew())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(NODE_LEASE_SECONDS / 4)
            assert self._node is not None
            try:
                is_held = await self._leases.renew_node(self._node.runtime_id, last_id=self._ids.last_id)
            except LedgerUnavailable:
                continue  # only the database can say that it is lost, and only when it is back
            if not is_held:
                raise LeaseLost("this process lost its node number")

    async def close(self) -> None:
        """Let go of everything, also when Postgres is away: then the lease ends by itself."""
        try:
            if self._node is not None:
                with contextlib.suppress(LedgerUnavailable):
                    await self._leases.release_node(self._node.runtime_id, last_id=self._ids.last_id)
        finally:
            if getattr(self, "_resumes", False):
                for tool in self.tools.values():
                    await tool.close()
            await self._writer.close()
            await self._reader.close()
