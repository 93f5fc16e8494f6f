"""Putting the parts together: the only module that sees both the engine and the adapters."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

from noetl.adapters.crypto.aes import AesGcmCipher
from noetl.adapters.crypto.keys import file_key, given_key, home_key, no_key
from noetl.adapters.objects.filesystem import FilePayloads
from noetl.adapters.objects.scripts import RootedScripts, read_script
from noetl.adapters.postgres.access.data_access import built_in_fields, ensure_access
from noetl.adapters.postgres.embedded import EmbeddedPostgres, ServerAddress, dsn
from noetl.adapters.postgres.leases import NODE_LEASE_SECONDS, NodeLease, PostgresLeases
from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.migrate import check_schema, migrate
from noetl.adapters.postgres.payloads import PostgresPayloads
from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.postgres.queue import PostgresExecutions, PostgresQueue
from noetl.adapters.postgres.registry.catalog import PostgresCatalog
from noetl.adapters.postgres.registry.credentials import PostgresCredentials
from noetl.adapters.session.http_stream import HttpSession, WorkerProfile
from noetl.adapters.session.http_stream_link import ServerLink, ServerPlace
from noetl.adapters.session.http_stream_stores import HttpCredentials, HttpPayloads
from noetl.adapters.session.in_process import InProcessSession
from noetl.adapters.system.background import ThreadBackground
from noetl.adapters.system.chance import pick_below
from noetl.adapters.system.clock import SystemClock
from noetl.adapters.system.ids import SnowflakeIds
from noetl.core.errors import HostUnavailable, LeaseLost, LedgerUnavailable, SettingsInvalid
from noetl.core.locator import producer_locator
from noetl.core.secret import Secret
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
from noetl.engine.payloads import Payloads
from noetl.engine.pinning.pinner import Pinner
from noetl.engine.pinning.scripts import ScriptPinner
from noetl.engine.playbooks import Playbooks
from noetl.engine.sessions.keeper import Keeper
from noetl.engine.starting import Starter
from noetl.engine.work.parts import WorkerParts
from noetl.engine.work.worker import Worker
from noetl.ports.secrets import Credential
from noetl.ports.tool import Renderer, Tool, ToolSettings
from noetl.settings import Settings

POSTGRES_LOOK_SECONDS = 0.5
READY_SECONDS_MAX = 2.0
log = logging.getLogger("noetl.host")


def tools_of(settings: Settings, *, server: ServerAddress | None = None, is_laptop: bool = True) -> dict[str, Tool]:
    """Every installed tool, found through its entry point.  On a laptop the user's own services are on loopback.
    `server` is the private Postgres, where the postgres tool may only be one of the users' roles."""
    allowed = settings.http_allow
    if allowed is None:
        allowed = ("loopback",) if is_laptop else ()
    made = ToolSettings(
        python_children=settings.python_children,
        python_memory_bytes=settings.python_memory_bytes,
        http_allow=allowed,
        postgres_private_hosts=(str(server.socket_dir),) if server is not None else (),
        artifact_roots=tuple(str(root) for root in settings.artifact_roots),
    )
    return {entry.name: entry.load()(made) for entry in entry_points(group="noetl.tools")}


def tool_kinds() -> frozenset[str]:
    return frozenset(entry.name for entry in entry_points(group="noetl.tools"))


def built_in_credentials(server: ServerAddress | None) -> dict[str, Credential]:
    """Credentials that nobody has to set: the users' own database, and the published views of the control plane."""
    fields = built_in_fields(server) if server is not None else {}
    return {name: Credential(name=name, type="postgres", data=Secret(one)) for name, one in fields.items()}


def credential_cipher(settings: Settings, *, is_embedded: bool) -> AesGcmCipher:
    """The cipher with the key that was set; only an embedded home makes one of its own."""
    if settings.credential_key is not None:
        return AesGcmCipher(given_key(settings.credential_key))
    if settings.credential_key_file is not None:
        return AesGcmCipher(file_key(settings.credential_key_file))
    return AesGcmCipher(home_key(settings.home / "credential.key") if is_embedded else no_key)


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
        server = await asyncio.to_thread(embedded_postgres(settings).running)
        if server is not None:
            await ensure_access(server)
        await migrate(address, shard_count=settings.shard_count, now=SystemClock().moment())
    else:
        await check_schema(address)


async def migrate_database(settings: Settings, address: str) -> list[str]:
    return await migrate(address, shard_count=settings.shard_count, now=SystemClock().moment())


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
        self.large_payloads = FilePayloads(settings.home / "payloads")
        self.small_payloads = PostgresPayloads(self._reader)
        self.payloads = Payloads(small=self.small_payloads, large=self.large_payloads)
        self.tools: Mapping[str, Tool] = tools_of(settings, server=server)
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
            states=self.states,
            playbooks=self.playbooks,
            payloads=self.payloads,
            starter=starter,
            finder=self.catalog,
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
            has_backlog=self.decider.has_backlog,
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
                group.create_task(self._worker().run())
            self.resumed = await self.dispatcher.restore()
            self.is_restored.set()
            group.create_task(self.dispatcher.run())
            group.create_task(timers.run())
            group.create_task(self.keeper.run())
            group.create_task(self._renew())

    def _worker(self) -> Worker:
        session = InProcessSession(
            session_id=self._ids.next_id(), slots=self._settings.worker_slots, control=self.decider
        )
        self.sessions.connect(session)
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
            await self._writer.close()
            await self._reader.close()


class RemoteWorker:
    """A worker in a process of its own.  All it knows of the control plane is the address of a server."""

    def __init__(
        self, settings: Settings, *, url: str, token: str | None, worker_id: str, kinds: tuple[str, ...] | None = None
    ) -> None:
        self._settings = settings
        self._link = ServerLink(ServerPlace(url, token))
        self._session = HttpSession(
            self._link,
            WorkerProfile(
                worker_id=worker_id,
                slots=settings.worker_slots,
                pool=settings.worker_pool,
                kinds=kinds,
                place=settings.place,
            ),
        )
        # On one machine with its server, a worker is as trusted as an embedded one.
        self._server = embedded_postgres(settings).running() if settings.postgres_dsn is None else None
        is_laptop = urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost")
        self._tools = tools_of(settings, server=self._server, is_laptop=is_laptop)

    async def run(self) -> None:
        """Take commands until cancelled."""
        clock = SystemClock()
        store = HttpPayloads(self._link)
        payloads = Payloads(small=store, large=store)
        renderer = self._tools["python"]
        assert isinstance(renderer, Renderer)
        cipher = credential_cipher(self._settings, is_embedded=self._settings.postgres_dsn is None)
        worker = Worker(
            WorkerParts(
                session=self._session,
                playbooks=Playbooks(payloads, kinds=frozenset(self._tools), background=ThreadBackground()),
                payloads=payloads,
                tools=self._tools,
                renderer=renderer,
                clock=clock,
                credentials=CredentialOpener(
                    HttpCredentials(self._link), cipher, clock=clock, built_in=built_in_credentials(self._server)
                ),
                environment=self._settings.auth_environment,
                pick_below=pick_below,
                scripts=RootedScripts(self._settings.script_roots),
            )
        )
        async with self._link:
            for tool in self._tools.values():
                await tool.start()
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._session.run())
                    group.create_task(worker.run())
            finally:
                for tool in self._tools.values():
                    await tool.close()

    async def drain(self, seconds: float) -> bool:
        """Take nothing more, end what is held, and leave; True when all of it ended in time.  The rest goes back."""
        is_done = await self._session.drain(seconds)
        await self._session.leave()
        return is_done


def local_script(uri: str, roots: tuple[Path, ...]) -> bytes:
    """A script of this machine, for a client that sends it along.  Raises ScriptUnavailable."""
    return read_script(uri, roots)
