"""Credentials for data sources of sessions that are nobody's task: a notebook, a program of somebody's own.

Spark plans in a process that has none of our settings, so what finds a credential travels there by value.  The key that
opens all of them does not: it is read from its file, or the credentials are opened when the sources are registered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from noetl.adapters.crypto.aes import AesGcmCipher
from noetl.adapters.crypto.keys import file_key, given_key, home_key, no_key
from noetl.adapters.postgres.embedded import EmbeddedPostgres, ServerAddress, dsn
from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.registry.credentials import PostgresCredentials
from noetl.adapters.session.http_stream_link import ServerLink, ServerPlace
from noetl.adapters.session.http_stream_stores import HttpCredentials
from noetl.adapters.system.clock import SystemClock
from noetl.core.errors import Failure, HostUnavailable, ToolFailed
from noetl.core.secret import Secret
from noetl.engine.credentials import CredentialOpener
from noetl.ports.secrets import Credential, SealedCredentials
from noetl.settings import Settings, environment_text
from noetl.wiring.credentials import built_in_credentials

_KEY = "credential.key"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RegisteredCredentials:
    """Where credentials are registered.  It can be pickled, holds no key, and shows nothing."""

    tenant_id: str
    organization_id: str
    home: Path
    postgres_dsn: str | None
    postgres_os_user: str | None
    server_url: str | None
    token: str | None
    key_file: Path | None
    has_key_elsewhere: bool
    """The key is in a variable, which the processes of Spark do not get."""

    def __call__(self, where: Literal["auth", "environment"], name: str, /) -> Credential:
        """Raises ToolFailed."""
        return self.found(where, name, key=None)

    def found(self, where: Literal["auth", "environment"], name: str, *, key: Secret[bytes] | None) -> Credential:
        if where == "environment":
            return _in_environment(name)
        try:
            return asyncio.run(self._opened(name, key))
        except HostUnavailable as error:
            raise _unresolved(f"credential {name!r} cannot be looked up: {error}") from error

    def embedded(self) -> ServerAddress | None:
        """The private server, if this is its machine and it runs."""
        if self.postgres_dsn is not None or self.server_url is not None:
            return None
        return EmbeddedPostgres(self.home, os_user=self.postgres_os_user).running()

    async def _opened(self, name: str, key: Secret[bytes] | None) -> Credential:
        server = await asyncio.to_thread(self.embedded)
        built_in = built_in_credentials(server)
        if name in built_in:
            return built_in[name]
        async with AsyncExitStack() as stack:
            store = await self._store(stack, server)
            opener = CredentialOpener(store, self._cipher(name, key), clock=SystemClock())
            return await opener.open(name, tenant_id=self.tenant_id, organization_id=self.organization_id)

    async def _store(self, stack: AsyncExitStack, server: ServerAddress | None) -> SealedCredentials:
        if self.server_url is not None:
            link = await stack.enter_async_context(ServerLink(ServerPlace(self.server_url, self.token)))
            return HttpCredentials(link)
        address = self.postgres_dsn
        if address is None and server is not None:
            address = dsn(server, database="noetl", user="noetl")
        if address is None:
            raise HostUnavailable(
                f"the private Postgres of {self.home} does not run: start a host with `noetl up`, or set "
                "NOETL_SERVER_URL or NOETL_POSTGRES_DSN"
            )
        reader = Reader(address, size_max=1)
        stack.push_async_callback(reader.close)
        await reader.open()
        return PostgresCredentials(reader)

    def _cipher(self, name: str, key: Secret[bytes] | None) -> AesGcmCipher:
        if key is not None:
            return AesGcmCipher(given_key(key))
        if self.has_key_elsewhere:
            raise _unresolved(
                f"credential {name!r} cannot be opened inside Spark, for the key is in NOETL_CREDENTIAL_KEY: name it "
                f"at the registration, as in noetl.spark.register(spark, credentials=[{name!r}])"
            )
        if self.key_file is not None:
            return AesGcmCipher(file_key(self.key_file))
        return AesGcmCipher(home_key(self.home / _KEY) if self.postgres_dsn is None else no_key)


def registered_credentials(settings: Settings) -> RegisteredCredentials:
    return RegisteredCredentials(
        tenant_id=settings.tenant_id,
        organization_id=settings.organization_id,
        home=settings.home,
        postgres_dsn=settings.postgres_dsn,
        postgres_os_user=settings.postgres_os_user,
        server_url=settings.server_url,
        token=settings.worker_token or settings.token,
        key_file=settings.credential_key_file,
        has_key_elsewhere=settings.credential_key is not None,
    )


def opened_credentials(settings: Settings, names: Iterable[str]) -> list[Credential]:
    """These credentials, opened in this process, with the key of its settings.  Raises ToolFailed."""
    registered = registered_credentials(settings)
    return [registered.found("auth", name, key=settings.credential_key) for name in names]


def _in_environment(name: str) -> Credential:
    if name.startswith("NOETL_"):
        raise _unresolved(f"dsn_env names {name}: the settings of NoETL are not for data sources")
    text = environment_text(name)
    if not text:
        raise _unresolved(
            f"dsn_env names {name}, which is not set in the environment of Spark: set it before the session starts"
        )
    return Credential(name=name, type="postgres", data=Secret({"dsn": text}))


def _unresolved(message: str) -> ToolFailed:
    return ToolFailed(Failure(kind="auth", code="AUTH_UNRESOLVED", message=message))
