"""A worker that knows its server and no database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

from noetl.adapters.objects.build import worker_stores
from noetl.adapters.objects.scripts import RootedScripts
from noetl.adapters.session.http_stream import HttpSession, WorkerProfile
from noetl.adapters.session.http_stream_link import ServerLink, ServerPlace
from noetl.adapters.session.http_stream_logs import HttpLogs
from noetl.adapters.session.http_stream_permits import HttpPermits
from noetl.adapters.session.http_stream_stores import HttpCredentials, HttpPayloads
from noetl.adapters.system.background import ThreadBackground
from noetl.adapters.system.chance import pick_below
from noetl.adapters.system.clock import SystemClock
from noetl.engine.credentials import CredentialOpener
from noetl.engine.payloads import Payloads
from noetl.engine.permits.taking import Permits
from noetl.engine.playbooks import Playbooks
from noetl.engine.work.jobs import JobCounts
from noetl.engine.work.logs.shipper import WorkerLogs
from noetl.engine.work.parts import WorkerParts
from noetl.engine.work.worker import Worker
from noetl.ports.data.counters import Counted
from noetl.ports.tool import Renderer
from noetl.settings import Settings
from noetl.wiring.credentials import built_in_credentials, credential_cipher
from noetl.wiring.databases import embedded_postgres
from noetl.wiring.spark import spark_compute
from noetl.wiring.stores import datasets_over, payload_keys, tables_over
from noetl.wiring.tools import tools_of

Kinds = tuple[str, ...] | None


class RemoteWorker:
    """A worker in a process of its own.  All it knows of the control plane are the addresses of its servers."""

    def __init__(
        self, settings: Settings, *, urls: Sequence[str], token: str | None, worker_id: str, kinds: Kinds = None
    ) -> None:
        url, *others = urls
        self._settings = settings
        self._job_counts = JobCounts()
        self._link = ServerLink(ServerPlace(url, token, tuple(others)))
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
        self._store = HttpPayloads(self._link, name=lambda: self._session.large_store)
        self._stores = worker_stores(settings.storage, server=self._store, keys=payload_keys(settings))
        self._tables = tables_over(self._stores.large, settings)
        # On one machine with its server, a worker is as trusted as an embedded one.
        self._server = embedded_postgres(settings).running() if settings.postgres_dsn is None else None
        is_laptop = urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost")
        self._spark = spark_compute(settings)
        # A worker beside its server that has the same home has its payloads too.
        has_home = is_laptop and self._server is not None
        self._tools = tools_of(settings, server=self._server, is_laptop=is_laptop, spark=self._spark, has_home=has_home)

    @property
    def counted(self) -> tuple[Counted, ...]:
        return self._tables, self._stores, self._job_counts, self._session

    async def run(self) -> None:
        """Take commands until cancelled."""
        clock = SystemClock()
        await self._stores.prepare()
        large, name = self._stores.large, self._stores.name or (lambda: self._session.large_store)
        payloads = Payloads(
            small=self._store,
            large=large,
            large_name=name,
            tables=self._tables,
            datasets=datasets_over(large),
            small_bytes_max=self._settings.payload_inline_bytes,
        )
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
                permits=Permits(HttpPermits(self._link, lambda: self._session.lease), clock),
                job_counts=self._job_counts,
                shares_frame_rows=self._settings.shares_frame_rows,
                logs=WorkerLogs(HttpLogs(self._link, self._session.session_of), payloads, clock),
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
                await self._spark.close()

    async def drain(self, seconds: float) -> bool:
        """Take nothing more, end what is held, and leave; True when all of it ended in time.  The rest goes back."""
        is_done = await self._session.drain(seconds)
        await self._session.leave()
        return is_done
