"""What data sources inside Spark reach, opened in whichever process Spark runs them: through the server that the
settings name, or through the files and the database of a home."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from noetl.adapters.crypto.chunks import ChunkSeal
from noetl.adapters.crypto.keys import payload_key
from noetl.adapters.objects.build import StoreKeys, payload_stores, worker_stores
from noetl.adapters.objects.filesystem import INCOMING
from noetl.adapters.postgres.access.data_access import READER
from noetl.adapters.postgres.access.published import PublishedLedger
from noetl.adapters.postgres.embedded import EmbeddedPostgres, dsn
from noetl.adapters.postgres.payloads import PostgresPayloads
from noetl.adapters.postgres.pool import Reader
from noetl.adapters.session.http_ledger import HttpLedger
from noetl.adapters.session.http_stream_link import ServerLink, ServerPlace
from noetl.adapters.session.http_stream_stores import HttpPayloads
from noetl.core.errors import Failure, HostUnavailable, LocatorInvalid, PayloadMissing, ToolFailed
from noetl.core.locator import Kind, Locator, parse
from noetl.core.reference import STORE_ANY, STORE_SMALL, Payload, Reference
from noetl.core.secret import Secret
from noetl.core.storage import FILE, Storage
from noetl.engine.reading.locating import RowsLocated, rows_behind, sniffed, unsized
from noetl.ports.data.payloads import LargePayloadStore
from noetl.ports.data.sources import EventPage, EventWindow, LedgerHeads, LedgerReading, SourceStores
from noetl.settings import Settings, cloud_variables


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SettingsAccess:
    """What opens the stores, as plain values: it is sent to Spark's processes inside the classes of the sources, and
    nowhere else.  It shows nothing."""

    tenant_id: str
    organization_id: str
    home: Path
    storage: Storage
    key: bytes | None
    postgres_dsn: str | None
    postgres_os_user: str | None
    server_url: str | None
    token: str | None
    is_confined: bool = False
    """Whether sources refuse what belongs to another tenant or organization."""
    database_refusal: str | None = None
    """Why the database of the home is not to be used."""

    @property
    def has_files(self) -> bool:
        return self.server_url is None and self.key is None

    @property
    def landing(self) -> Path | None:
        """Where the store itself puts what is being written: what a killed task leaves there goes after a day."""
        is_file = self.server_url is None and self.storage.tier == FILE
        return self.home / "payloads" / INCOMING if is_file else None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[SourceStores]:
        async with AsyncExitStack() as stack:
            if self.server_url is not None:
                link = await stack.enter_async_context(ServerLink(ServerPlace(self.server_url, self.token)))
                yield _ServerStores(self, link)
                return
            stores = _HomeStores(self)
            stack.push_async_callback(stores.close)
            yield stores

    @property
    def keys(self) -> StoreKeys:
        return StoreKeys(key=None if self.key is None else Secret(self.key), seal_of=ChunkSeal)


def source_access(
    settings: Settings,
    *,
    url: str | None = None,
    token: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> SettingsAccess:
    """From the settings of this process.  A worker names the server it works for and its token.  `environment` is where
    a cloud's own variables are, if not in that of this process."""
    key = payload_key(settings.payload_key, settings.payload_key_file)
    return SettingsAccess(
        tenant_id=settings.tenant_id,
        organization_id=settings.organization_id,
        home=settings.home,
        storage=_carrying(settings.storage, environment),
        key=None if key is None else key.reveal(),
        postgres_dsn=settings.postgres_dsn,
        postgres_os_user=settings.postgres_os_user,
        server_url=url or settings.server_url,
        token=token or settings.token or settings.worker_token,
    )


def _carrying(storage: Storage, environment: Mapping[str, str] | None) -> Storage:
    """Executors have an environment of their own."""
    if storage.cloud is None:
        return storage
    return replace(storage, cloud=replace(storage.cloud, opened_by=cloud_variables(storage.cloud.kind, environment)))


class _HomeStores:
    """The stores of the settings, and the database only when something asks for it."""

    def __init__(self, access: SettingsAccess) -> None:
        self._access = access
        self._stores = payload_stores(access.storage, files=access.home / "payloads", keys=access.keys)
        self.large = self._stores.large
        self._readers: dict[str, Reader] = {}
        self._lock = asyncio.Lock()

    @property
    def ledger(self) -> LedgerReading:
        return _LateLedger(self)

    async def content(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        store = await self._small() if reference.store == STORE_SMALL else self.large
        return await store.get(reference, tenant_id=tenant_id, organization_id=organization_id)

    async def located(self, locator: str, path: str) -> RowsLocated:
        named, owner = _owned(locator)
        if named.kind is Kind.RESULT:
            step, execution_id = named["step"], named.number("execution_id")
            reference = await (await self.published()).result(execution_id, step, **owner)
        else:
            reference = await self._payload(unsized(named, locator), **owner)
        return await rows_behind(_Both(self), self.large, reference, path, **owner)

    async def _payload(self, bare: Reference, *, tenant_id: str, organization_id: str) -> Reference:
        """A locator says neither where the bytes are nor what they are."""
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        for name in self._stores.durable:
            found = await sniffed(self.large, replace(bare, store=name), **owner)
            if found is not None:
                return found
        small = await (await self._small()).find(bare.sha256, **owner)
        if small is None:
            raise PayloadMissing(f"{bare.uri} is not in a store of {self._access.home}")
        return Reference(
            kind=bare.kind,
            uri=bare.uri,
            sha256=bare.sha256,
            media_type=small[1],
            bytes=len(small[0]),
            store=STORE_SMALL,
        )

    async def _small(self) -> PostgresPayloads:
        return PostgresPayloads(await self._reader("noetl"))

    async def published(self) -> PublishedLedger:
        return PublishedLedger(await self._reader(READER))

    async def _reader(self, role: str) -> Reader:
        if self._access.database_refusal is not None:
            message = f"this needs the database of the control plane: {self._access.database_refusal}"
            raise ToolFailed(Failure(kind="auth", code="SOURCE_ACCESS", message=message))
        async with self._lock:
            found = self._readers.get(role)
            if found is None:
                address = self._access.postgres_dsn
                if address is None:
                    address = await asyncio.to_thread(self._embedded, role)
                found = self._readers[role] = Reader(address, size_max=1)
                await found.open()
            return found

    def _embedded(self, role: str) -> str:
        access = self._access
        server = EmbeddedPostgres(access.home, os_user=access.postgres_os_user).running()
        if server is None:
            raise HostUnavailable(
                f"the private Postgres of {access.home} does not run, and what is asked for is in it: start a host "
                "with `noetl up`, or set NOETL_SERVER_URL or NOETL_POSTGRES_DSN"
            )
        return dsn(server, database="noetl", user=role)

    async def close(self) -> None:
        for reader in self._readers.values():
            await reader.close()


class _LateLedger:
    """The ledger of a home, opened with the first question."""

    def __init__(self, stores: _HomeStores) -> None:
        self._stores = stores

    async def heads(self) -> LedgerHeads:
        return await (await self._stores.published()).heads()

    async def events(self, window: EventWindow, *, rows_max: int) -> EventPage:
        return await (await self._stores.published()).events(window, rows_max=rows_max)


class _ServerStores:
    """Everything by the API, except a bucket that the settings of this process name."""

    def __init__(self, access: SettingsAccess, link: ServerLink) -> None:
        self._http = HttpPayloads(link, name=lambda: STORE_ANY)
        self.large: LargePayloadStore = worker_stores(access.storage, server=self._http, keys=access.keys).large
        self.ledger: HttpLedger = HttpLedger(link)

    async def content(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        store = self._http if reference.store == STORE_SMALL else self.large
        return await store.get(reference, tenant_id=tenant_id, organization_id=organization_id)

    async def located(self, locator: str, path: str) -> RowsLocated:
        named, owner = _owned(locator)
        if named.kind is Kind.RESULT:
            reference = await self.ledger.result(named.number("execution_id"), named["step"], **owner)
        else:
            found = await sniffed(self._http, unsized(named, locator), **owner)
            if found is None:
                raise PayloadMissing(f"{locator} is not in a store of the server")
            reference = found
        return await rows_behind(_Both(self), self.large, reference, path, **owner)


def _owned(locator: str) -> tuple[Locator, dict[str, str]]:
    """What a locator names, and whose it is.  Raises LocatorInvalid."""
    named = parse(locator)
    if named.tenant_id is None or named.organization_id is None:
        raise LocatorInvalid(f"{locator} names neither a payload nor a result: these have a tenant and an organization")
    return named, {"tenant_id": named.tenant_id, "organization_id": named.organization_id}


class _Both:
    """The small store of whoever reads results: in these, small and large payloads are read alike."""

    def __init__(self, stores: _HomeStores | _ServerStores) -> None:
        self._stores = stores

    async def put(self, payload: Payload) -> None:
        raise AssertionError(f"nothing is written here: {payload.reference.uri}")

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        return await self._stores.content(reference, tenant_id=tenant_id, organization_id=organization_id)
