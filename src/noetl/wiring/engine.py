"""The engine over one database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from noetl.adapters.arrow.files.later import table_formats
from noetl.adapters.objects.build import payload_stores
from noetl.adapters.objects.scripts import RootedScripts
from noetl.adapters.postgres.access.published import PublishedLedger
from noetl.adapters.postgres.embedded import ServerAddress
from noetl.adapters.postgres.leases import NODE_LEASE_SECONDS, NodeLease, PostgresLeases
from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.lineage.lineage import PostgresLineage
from noetl.adapters.postgres.logs.chunks import PostgresLogs
from noetl.adapters.postgres.payloads import PostgresPayloads
from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.postgres.queue import PostgresExecutions, PostgresQueue
from noetl.adapters.postgres.registry.catalog import PostgresCatalog
from noetl.adapters.postgres.registry.credentials import PostgresCredentials
from noetl.adapters.session.in_process import InProcessSession
from noetl.adapters.system.background import ThreadBackground
from noetl.adapters.system.chance import pick_below
from noetl.adapters.system.clock import SystemClock
from noetl.adapters.system.ids import SnowflakeIds
from noetl.core.errors import LeaseLost, LedgerUnavailable, SettingsInvalid
from noetl.core.locator import producer_locator
from noetl.engine.catalog import CatalogService
from noetl.engine.children.starter import ChildStarter
from noetl.engine.control.commands import Dispatcher
from noetl.engine.control.decider import Decider
from noetl.engine.control.parts import ControlParts
from noetl.engine.control.sessions import Sessions
from noetl.engine.control.states import States
from noetl.engine.control.timers import Timers
from noetl.engine.control.watch import Watchers
from noetl.engine.credentials import CredentialOpener, CredentialService
from noetl.engine.executions import ExecutionService
from noetl.engine.frames import FrameService
from noetl.engine.leftovers import Leftovers
from noetl.engine.logs import LogBook
from noetl.engine.payloads import Payloads
from noetl.engine.pinning.pinner import Pinner
from noetl.engine.pinning.scripts import ScriptPinner
from noetl.engine.playbooks import Playbooks
from noetl.engine.reading.encoding import RowEncoder
from noetl.engine.reading.service import ResultService
from noetl.engine.reading.trace import TraceService
from noetl.engine.sessions.keeper import Keeper
from noetl.engine.starting import Starter
from noetl.engine.work.jobs import JobCounts
from noetl.engine.work.logs.shipper import WorkerLogs
from noetl.engine.work.parts import WorkerParts
from noetl.engine.work.worker import Worker
from noetl.ports.data.counters import Counted
from noetl.ports.tool import Renderer, Tool
from noetl.settings import Settings
from noetl.wiring.credentials import built_in_credentials, credential_cipher
from noetl.wiring.pools import embedded_slots
from noetl.wiring.spark import spark_compute
from noetl.wiring.stores import datasets_over, payload_keys, tables_over
from noetl.wiring.tools import tools_of

READY_SECONDS_MAX = 2.0


class Engine:
    """The engine over one database: decider, queue, timers, the keeper of remote workers, and, in an embedded host, a
    worker in the same process."""

    def __init__(
        self,
        settings: Settings,
        database: str,
        *,
        instance: str,
        has_worker: bool = True,
        server: ServerAddress | None = None,
    ) -> None:
        self._settings = settings
        self._has_worker = has_worker
        self._instance = instance
        self._clock = SystemClock()
        self._writer = Writer(database)
        self._reader = Reader(database, size_max=settings.reader_connections)
        self._leases = PostgresLeases(self._reader)
        self.ledger = PostgresLedger(self._writer, self._reader)
        self.queue = PostgresQueue(self._reader)
        self.executions = PostgresExecutions(self._reader)
        self.stores = payload_stores(settings.storage, files=settings.home / "payloads", keys=payload_keys(settings))
        large = self.large_payloads = self.stores.large
        small = self.small_payloads = PostgresPayloads(self._reader)
        self.tables = tables_over(large, settings)
        self.payloads = Payloads(
            small=small,
            large=large,
            large_name=self.stores.name,
            tables=self.tables,
            datasets=datasets_over(large),
            small_bytes_max=settings.payload_inline_bytes,
        )
        kept = PostgresLogs(self._reader)
        self.logs = LogBook(sink=kept, reader=kept, payloads=self.payloads, clock=self._clock)
        self._spark = spark_compute(settings) if has_worker else None
        self.tools: Mapping[str, Tool] = tools_of(settings, server=server, spark=self._spark)
        renderer = self.tools["python"]
        assert isinstance(renderer, Renderer)
        self._renderer = renderer
        self._background = ThreadBackground()
        self.playbooks = Playbooks(self.payloads, kinds=frozenset(self.tools), background=self._background)
        cipher = credential_cipher(settings, is_embedded=settings.postgres_dsn is None)
        self.sealed_credentials = PostgresCredentials(self._reader)
        built_in = built_in_credentials(server)
        self.credentials = CredentialService(self.sealed_credentials, cipher, reserved=built_in)
        catalog = PostgresCatalog(self._reader)
        scripts = ScriptPinner(RootedScripts(settings.script_roots), self.payloads, background=self._background)
        self._pinner = Pinner(scripts, catalog=catalog, credentials=self.sealed_credentials, built_in=built_in)
        self._catalog = catalog
        self.credential_source = CredentialOpener(self.sealed_credentials, cipher, clock=self._clock, built_in=built_in)
        self.states = States(self.ledger)
        self.sessions = Sessions()
        self._job_counts = JobCounts()
        self.watchers = Watchers()
        self.resumed: list[int] = []
        self.is_restored = asyncio.Event()
        self._node: NodeLease | None = None

    async def open(self, *, resume: bool = True) -> None:
        """Connect, lease a node number, take the shards; with `resume` also bring open executions back."""
        await self._reader.open()
        await self.stores.prepare()
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
            context_bytes_max=self._settings.event_result_context_bytes,
        )
        self.catalog = CatalogService(
            self._catalog,
            playbooks=self.playbooks,
            payloads=self.payloads,
            pinner=self._pinner,
            ids=self._ids,
            background=self._background,
        )
        starter = self._starter()
        children = ChildStarter(
            states=self.states, playbooks=self.playbooks, payloads=self.payloads, starter=starter, finder=self.catalog
        )
        producer = producer_locator(tenant, organization, "host", self._instance)
        self.decider = Decider(parts, producer=producer, children=children)
        self.service = ExecutionService(
            parts,
            decider=self.decider,
            executions=self.executions,
            payloads=self.payloads,
            starter=starter,
            shard_count=self._settings.shard_count,
        )
        self.published = PublishedLedger(self._reader)
        self.traces = TraceService(executions=self.service, lineage=PostgresLineage(self._reader))
        self.dispatcher = Dispatcher(
            decider=self.decider,
            sessions=self.sessions,
            queue=self.queue,
            executions=self.executions,
            ledger=self.ledger,
        )
        self.keeper = Keeper(
            control=self.decider,
            sessions=self.sessions,
            queue=self.queue,
            ids=self._ids,
            clock=self._clock,
            lease_seconds=self._settings.session_lease_seconds,
        )
        self.frames = FrameService(decider=self.decider, keeper=self.keeper, payloads=self.payloads, ledger=self.ledger)
        self._resumes = resume
        if resume:
            for tool in self._own_tools:
                await tool.start()
            await self._leases.refresh_incarnation()
            heads = await self._leases.own_shards(runtime_id=self._node.runtime_id, instance=self._instance)
            if len(heads) < self._settings.shard_count:
                raise SettingsInvalid(
                    f"NOETL_SHARD_COUNT is {self._settings.shard_count}, the database has {len(heads)} shards: "
                    "run `noetl migrate` with this setting first"
                )
            self.decider.own(heads)

    @property
    def counted(self) -> tuple[Counted, ...]:
        """What counts something that metrics show."""
        return self.tables, self.stores, self.ledger.result_bytes, self._job_counts

    @property
    def results(self) -> ResultService:
        encoder = RowEncoder(table_formats)
        return ResultService(
            executions=self.service, payloads=self.payloads, large=self.large_payloads, encoder=encoder
        )

    def _starter(self) -> Starter:
        return Starter(
            payloads=self.payloads,
            renderer=self._renderer,
            pinner=self._pinner,
            ids=self._ids,
            clock=self._clock,
            env=self._settings.env,
        )

    @property
    def _own_tools(self) -> list[Tool]:
        """The tools this process runs.  Without a worker it still renders the templates of workloads."""
        return [tool for kind, tool in self.tools.items() if self._has_worker or kind == "python"]

    async def run(self) -> None:
        """Everything that must run while the engine is open.  Ends by cancellation."""
        if not self._resumes:
            self.is_restored.set()
            await self._renew()
            return
        timers = Timers(decider=self.decider, queue=self.queue)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.decider.run())
            if self._has_worker:
                for pool, slots in embedded_slots(self._settings).items():
                    group.create_task(self._worker(pool, slots).run())
            self.resumed = await self.dispatcher.restore()
            self.is_restored.set()
            group.create_task(self.dispatcher.run())
            group.create_task(timers.run())
            group.create_task(Leftovers(self.tools.values(), self.executions).run())
            group.create_task(self.keeper.run())
            group.create_task(self._renew())

    def _worker(self, pool: str, slots: int) -> Worker:
        session = InProcessSession(session_id=self._ids.next_id(), slots=slots, control=self.decider)
        self.sessions.connect(session, pool=pool)
        return Worker(
            WorkerParts(
                session=session,
                playbooks=self.playbooks,
                payloads=self.payloads,
                tools=self.tools,
                renderer=self._renderer,
                clock=self._clock,
                credentials=self.credential_source,
                environment=self._settings.auth_environment,
                pick_below=pick_below,
                scripts=RootedScripts(self._settings.script_roots),
                job_counts=self._job_counts,
                logs=WorkerLogs(self.logs, self.payloads, self._clock),
            )
        )

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

    async def not_ready(self) -> str | None:
        """Why this engine cannot take work now; None when it can."""
        if not self.is_restored.is_set():
            return "open executions are being resumed"
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                await self.ledger.incarnation()
        except (LedgerUnavailable, TimeoutError):
            return "the database does not answer"
        return None if self._resumes else "this host only reads"

    async def close(self) -> None:
        """Let go of everything, also when Postgres is away: then the lease ends by itself."""
        try:
            if self._node is not None:
                with contextlib.suppress(LedgerUnavailable):
                    await self._leases.release_node(self._node.runtime_id, last_id=self._ids.last_id)
        finally:
            if getattr(self, "_resumes", False):
                for tool in self._own_tools:
                    await tool.close()
            if self._spark is not None:
                await self._spark.close()
            await self._writer.close()
            await self._reader.close()
