"""The engine over one database."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from noetl.adapters.arrow.files.later import table_formats
from noetl.adapters.objects.build import payload_stores
from noetl.adapters.objects.scripts import RootedScripts
from noetl.adapters.postgres.access.published import PublishedLedger
from noetl.adapters.postgres.durability.examination import PostgresExamination
from noetl.adapters.postgres.durability.snapshots import PostgresSnapshots
from noetl.adapters.postgres.embedded import ServerAddress
from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.lineage.lineage import PostgresLineage
from noetl.adapters.postgres.logs.chunks import PostgresLogs
from noetl.adapters.postgres.payloads import PostgresPayloads
from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.postgres.queue import PostgresExecutions, PostgresQueue
from noetl.adapters.postgres.registry.catalog import PostgresCatalog
from noetl.adapters.postgres.registry.credentials import PostgresCredentials
from noetl.adapters.session.in_process import InProcessPermits, InProcessSession
from noetl.adapters.system.background import ThreadBackground
from noetl.adapters.system.chance import pick_below
from noetl.adapters.system.clock import SystemClock
from noetl.adapters.system.ids import SnowflakeIds
from noetl.core.errors import LeaseLost, LedgerUnavailable
from noetl.core.locator import distance_named, place_from, producer_locator
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
from noetl.engine.durability.checkpointer import SYSTEM_ORGANIZATION, SYSTEM_TENANT
from noetl.engine.durability.roles import Roles
from noetl.engine.executions import ExecutionService
from noetl.engine.forking.retrying import RetryService
from noetl.engine.frames import FrameService
from noetl.engine.leftovers import Leftovers
from noetl.engine.logs import LogBook
from noetl.engine.payloads import Payloads
from noetl.engine.permits.desk import PermitDesk
from noetl.engine.permits.taking import Permits
from noetl.engine.pinning.pinner import Pinner
from noetl.engine.pinning.scripts import ScriptPinner
from noetl.engine.playbooks import Playbooks
from noetl.engine.reading.encoding import RowEncoder
from noetl.engine.reading.items import ItemService
from noetl.engine.reading.service import ResultService
from noetl.engine.reading.trace import TraceService
from noetl.engine.sessions.keeper import Keeper
from noetl.engine.sharing.gauges import ServerGauges
from noetl.engine.starting import Starter
from noetl.engine.work.jobs import JobCounts
from noetl.engine.work.logs.shipper import WorkerLogs
from noetl.engine.work.parts import WorkerParts
from noetl.engine.work.worker import Worker
from noetl.ports.clock import IdSource
from noetl.ports.data.counters import Counted
from noetl.ports.serving.roster import SessionRow
from noetl.ports.tool import Renderer, Tool
from noetl.settings import Settings
from noetl.wiring.credentials import built_in_credentials, credential_cipher
from noetl.wiring.pools import embedded_slots
from noetl.wiring.projections.inside import ProjectionSide
from noetl.wiring.recovering.durability import Durability
from noetl.wiring.serving import Serving
from noetl.wiring.spark import spark_compute
from noetl.wiring.stores import datasets_over, payload_keys, tables_over
from noetl.wiring.tools import tools_of

READY_SECONDS_MAX = 2.0
# How long a host that only reads lets its client wait for projections that are behind.
CATCH_UP_SECONDS_MAX = 5.0


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
        has_projector: bool = True,
        server: ServerAddress | None = None,
        seat: str | None = None,
    ) -> None:
        """`seat` names the lock that this process holds: whoever had it before is dead."""
        self._settings = settings
        self._seat = seat
        self.url: str | None = None
        self._has_projector = has_projector
        self._has_worker = has_worker
        self._instance = instance
        self._clock = SystemClock()
        self._writer = Writer(database)
        self._reader = Reader(database, size_max=settings.reader_connections)
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
        snapshots = PostgresSnapshots(self._reader)
        self.states = States(self.ledger, snapshots)
        self.durability = Durability(settings.control, database, background=self._background)
        self.serving = Serving(settings, database, pool=self.durability.pool, reader=self._reader)
        self.sessions = Sessions(distance_named(settings.control.locality_preference))
        self._job_counts = JobCounts()
        self.watchers = Watchers()
        self.projecting = ProjectionSide(settings.control, database, reader=self._reader, clock=self._clock)
        self.projecting.observers.append(self.durability.snapshotter.observe)
        self._projected_states = States(self.ledger, snapshots)
        self.status = self.projecting.status
        self._control_counted: tuple[Counted, ...] = ()
        self.resumed: list[int] = []
        self.is_restored = asyncio.Event()

    async def open(self, *, resume: bool = True) -> None:
        """Connect, lease a node number, take the shards; with `resume` also bring open executions back."""
        await self._reader.open()
        await self.durability.pool.open()
        await self.stores.prepare()
        kind = ("host" if self._has_worker else "server") if resume else "reader"
        seat = self._seat if resume else None
        node = await self.serving.register(instance=self._instance, kind=kind, url=self.url, seat=seat)
        self._ids = SnowflakeIds(node=node.node_number, last_id=node.last_id)
        parts = self._control_parts()
        self._prepare_projecting(is_resuming=resume)
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
        tenant, organization = self._settings.tenant_id, self._settings.organization_id
        producer = producer_locator(tenant, organization, "host", self._instance)
        neighbours = self.serving.prepare(parts, queue=self.queue, producer=producer)
        self.decider = Decider(parts, producer=producer, children=children, neighbours=neighbours)
        self.service = ExecutionService(
            parts,
            decider=self.decider,
            executions=self.executions,
            payloads=self.payloads,
            starter=starter,
            shard_count=self._settings.shard_count,
            roster=self.serving.roster,
        )
        self._open_services()
        self.dispatcher = Dispatcher(
            decider=self.decider,
            sessions=self.sessions,
            queue=self.queue,
            executions=self.executions,
            ledger=self.ledger,
            neighbours=neighbours,
        )
        self.shards = self.serving.keeper(
            parts, self._ids, decider=self.decider, dispatcher=self.dispatcher, neighbours=neighbours
        )
        self.keeper = self._keeper()
        self.keeper.counts = parts.counts
        self.frames = FrameService(
            decider=self.decider, keeper=self.keeper, payloads=self.payloads, ledger=self.ledger, queue=self.queue
        )
        self._resumes = resume
        examination = PostgresExamination(self.durability.pool)
        gauges = ServerGauges(examination, self.serving.shards, self.sessions, self._clock)
        self.permits = PermitDesk(self.serving.permits, self._clock, is_alive=self.sessions.connected.__contains__)
        self._control_counted = (parts.counts, self.shards, gauges, self.permits) if resume else (gauges,)
        if resume:
            for tool in self._own_tools:
                await tool.start()
            await self.serving.runtimes.refresh_incarnation()
            await self.serving.check_shards()

    def _keeper(self) -> Keeper:
        return Keeper(
            control=self.decider,
            sessions=self.sessions,
            queue=self.queue,
            ids=self._ids,
            clock=self._clock,
            lease_seconds=self._settings.session_lease_seconds,
            books=self.serving,
        )

    def _control_parts(self) -> ControlParts:
        return ControlParts(
            ledger=self.ledger,
            states=self.states,
            playbooks=self.playbooks,
            sessions=self.sessions,
            watchers=self.watchers,
            ids=self._ids,
            clock=self._clock,
            on_commit=self.projecting.feed.tell,
            context_bytes_max=self._settings.event_result_context_bytes,
        )

    def _prepare_projecting(self, *, is_resuming: bool) -> None:
        """Whoever has the embedded database has it alone.  A host that only reads keeps projections there too: nobody
        else would, and what it shows must be true."""
        is_alone = self._settings.postgres_dsn is None
        if self._has_projector and (is_resuming or is_alone):
            assert self.serving.node is not None
            member = self.projecting.member(self.serving.node.runtime_id, self._instance)
            self.projecting.prepare(member, self._projected_states, by_force=is_alone)

    @property
    def is_deciding(self) -> bool:
        """Whether this process owns shards, or shall; one that only reads does not."""
        return self._resumes

    @property
    def counted(self) -> tuple[Counted, ...]:
        """What counts something that metrics show."""
        projector = self.projecting.projector
        own: tuple[Counted, ...] = (self.tables, self.stores, self.ledger.result_bytes, self._job_counts)
        found = (*own, *self.durability.counted, *self._control_counted)
        return found if projector is None else (*found, projector.counts)

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
            roots=self._root_ids(),
        )

    def _root_ids(self) -> IdSource:
        """The ids of executions that no other one starts: in shards of this process."""
        return self.serving.own_ids(self._ids, lambda: self.decider.free_shards or self.decider.heads)

    def _open_services(self) -> None:
        """What looks at executions, and what begins new ones from old ones."""
        self.published = PublishedLedger(self._reader)
        lineage = PostgresLineage(self._reader)
        self.traces = TraceService(executions=self.service, lineage=lineage)
        self.items = ItemService(executions=self.service, lineage=lineage, payloads=self.payloads)
        self.retries = RetryService(
            executions=self.service,
            ledger=self.ledger,
            payloads=self.payloads,
            playbooks=self.playbooks,
            ids=self._root_ids(),
        )

    @property
    def _own_tools(self) -> list[Tool]:
        """The tools this process runs.  Without a worker it still renders the templates of workloads."""
        return [tool for kind, tool in self.tools.items() if self._has_worker or kind == "python"]

    async def run(self) -> None:
        """Everything that must run while the engine is open.  Ends by cancellation."""
        if not self._resumes:
            await self._read_only()
            return
        timers = Timers(decider=self.decider, queue=self.queue)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.projecting.run())
            group.create_task(self.durability.snapshotter.run())
            group.create_task(self.decider.run())
            if self._has_worker:
                for pool, slots in embedded_slots(self._settings).items():
                    group.create_task((await self._worker(pool, slots)).run())
            group.create_task(self.permits.run())
            group.create_task(self.serving.recorder.run())
            group.create_task(self.shards.run())
            await self.shards.ready.wait()
            self.resumed = self.shards.resumed
            self.is_restored.set()
            group.create_task(self.dispatcher.run())
            group.create_task(self.dispatcher.look_for_others())
            group.create_task(timers.run())
            group.create_task(Leftovers(self.tools.values(), self.executions).run())
            group.create_task(self.keeper.run())
            group.create_task(self._roles().run())

    def _roles(self) -> Roles:
        """What only one server at a time does."""
        assert self.serving.node is not None
        return self.durability.roles(
            runtime_id=self.serving.node.runtime_id,
            ids=self._ids,
            clock=self._clock,
            producer=producer_locator(SYSTEM_TENANT, SYSTEM_ORGANIZATION, "host", self._instance),
            sessions=self.shards,
            on_checkpoint=self.decider.catch_up,
        )

    async def _read_only(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.projecting.run())
            if self.projecting.projector is not None:
                await self.projecting.caught_up(seconds=CATCH_UP_SECONDS_MAX)
            self.is_restored.set()
            group.create_task(self._renew())

    async def _worker(self, pool: str, slots: int) -> Worker:
        session_id, name = self._ids.next_id(), self._instance
        session = InProcessSession(session_id=session_id, slots=slots, control=self.decider)
        place = place_from(self._settings.place)
        row = SessionRow(session_id=session_id, worker_id=name, pool=pool, kinds=None, slots=slots, place=place)
        await self.serving.vouch(row)
        self.sessions.connect(session, pool=pool, worker_id=name, place=place)
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
                permits=Permits(InProcessPermits(self.permits, session_id), self._clock),
                job_counts=self._job_counts,
                shares_frame_rows=self._settings.shares_frame_rows,
                logs=WorkerLogs(self.logs, self.payloads, self._clock),
            )
        )

    async def _renew(self) -> None:
        """Of a process that owns nothing: others may only not make ids with its number."""
        while True:
            await asyncio.sleep(self._settings.control.shard_heartbeat_seconds)
            node = self.serving.node
            assert node is not None
            try:
                is_held = await self.serving.runtimes.renew(
                    node.runtime_id, last_id=self._ids.last_id, lease_seconds=self.serving.lease_seconds
                )
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
            await self.projecting.close()
            await self.serving.leave()
        finally:
            if getattr(self, "_resumes", False):
                for tool in self._own_tools:
                    await tool.close()
            if self._spark is not None:
                await self._spark.close()
            await self._writer.close()
            await self.serving.close()
            await self.durability.pool.close()
            await self._reader.close()
