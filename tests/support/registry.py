"""The routes of credentials and catalog behind the API's own door, over a real Postgres, on a Unix socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from noetl.adapters.objects.filesystem import FilePayloads
from noetl.adapters.objects.scripts import RootedScripts
from noetl.adapters.postgres.payloads import PostgresPayloads
from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.registry.catalog import PostgresCatalog
from noetl.adapters.postgres.registry.credentials import PostgresCredentials
from noetl.adapters.system.ids import SnowflakeIds
from noetl.cli.client import Client
from noetl.engine.catalog import CatalogService
from noetl.engine.credentials import CredentialService
from noetl.engine.payloads import Payloads
from noetl.engine.pinning.pinner import Pinner
from noetl.engine.pinning.scripts import ScriptPinner
from noetl.engine.playbooks import Playbooks
from noetl.processes.server import problems
from noetl.processes.server.auth import EVERYTHING, Doorkeeper
from noetl.processes.server.owners import Owner
from noetl.processes.server.routes import catalog, credentials
from noetl.processes.server.routing import API, install
from noetl.settings import Settings
from noetl.wiring.credentials import credential_cipher

KINDS = frozenset({"noop", "python", "playbook", "postgres"})


@dataclass(frozen=True, slots=True)
class Registry:
    """The two services over one database."""

    reader: Reader
    credentials: CredentialService
    catalog: CatalogService


def registry_of(address: str, settings: Settings) -> Registry:
    reader = Reader(address, size_max=4)
    payloads = Payloads(small=PostgresPayloads(reader), large=FilePayloads(settings.home / "payloads"))
    cipher = credential_cipher(settings, is_embedded=settings.postgres_dsn is None)
    catalog, sealed = PostgresCatalog(reader), PostgresCredentials(reader)
    scripts = ScriptPinner(RootedScripts(settings.script_roots), payloads)
    return Registry(
        reader,
        CredentialService(sealed, cipher),
        CatalogService(
            catalog,
            playbooks=Playbooks(payloads, kinds=KINDS),
            payloads=payloads,
            pinner=Pinner(scripts, catalog=catalog, credentials=sealed),
            ids=SnowflakeIds(node=0),
        ),
    )


def application_of(registry: Registry) -> FastAPI:
    app = FastAPI(redirect_slashes=False)
    problems.install(app)
    install(app, credentials.router(registry.credentials).routes, API)
    install(app, catalog.router(registry.catalog).routes, API)
    return app


@dataclass(slots=True)
class Serving:
    socket: Path
    server: uvicorn.Server | None = None
    failure: list[BaseException] = field(default_factory=list)

    def client(self) -> Client:
        return Client(self.socket)


@contextmanager
def serving_registry(address: str, settings: Settings) -> Iterator[Serving]:
    """A server in a thread of its own; the pool lives in its loop."""
    serving = Serving(settings.home / "registry.sock")
    is_ready = threading.Event()

    async def serve() -> None:
        registry = registry_of(address, settings)
        await registry.reader.open()
        door = Doorkeeper(
            application_of(registry),
            identify=lambda _token: EVERYTHING,
            owner=Owner(settings.tenant_id, settings.organization_id),
            open_paths=frozenset(),
        )
        config = uvicorn.Config(door, uds=str(serving.socket), log_config=None, lifespan="off", ws="none")
        serving.server = uvicorn.Server(config)
        task = asyncio.ensure_future(serving.server.serve())
        try:
            while not serving.server.started and not task.done():
                await asyncio.sleep(0.002)
            is_ready.set()
            await task
        finally:
            await registry.reader.close()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            serving.failure.append(error)
        finally:
            is_ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    is_ready.wait(20)
    try:
        assert not serving.failure, serving.failure
        yield serving
    finally:
        if serving.server is not None:
            serving.server.should_exit = True
        thread.join(20)
    assert not serving.failure, serving.failure
