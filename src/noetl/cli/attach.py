"""Getting to a host: be a client of the server that is configured, of the host that runs, or become it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from noetl.cli.client import Client
from noetl.core.errors import HostUnavailable
from noetl.processes.host.lock import HostLock
from noetl.processes.host.places import Places, make_home, places_of
from noetl.processes.server.tokens import is_loopback, read_token_file
from noetl.settings import Settings

if TYPE_CHECKING:
    from noetl.processes.host.host import Host

ATTACH_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.02
SERVER_LOOK_SECONDS = 0.2


@dataclass(slots=True)
class Attachment:
    """A client, and the host behind it when this process is the host."""

    client: Client
    host: Host | None = None
    lock: HostLock | None = None

    def leave(self) -> None:
        """End being a client, and the hosting with it."""
        self.client.close()
        try:
            if self.host is not None:
                self.host.stop()
        finally:
            if self.lock is not None:
                self.lock.release()


def attach(settings: Settings, *, resume: bool = True, patience_seconds: float = 0.0) -> Attachment:
    """Connect to the configured server, which may be away for so long, or to the running host; or take the lock and be
    it.  `resume` False hosts for reading only."""
    if settings.server_url is not None:
        return Attachment(_server_client(settings, patience_seconds))
    places = places_of(settings.home)
    make_home(places)
    lock = HostLock(places.lock)
    deadline = time.monotonic() + ATTACH_SECONDS_MAX
    while True:
        if lock.acquire():
            return _hosting(settings, places, lock, resume=resume)
        client = Client(places.socket, owner=owner_of(settings))
        if _is_good(client, resume=resume):
            return Attachment(client)
        client.close()
        if time.monotonic() > deadline:
            raise HostUnavailable(f"process {lock.holder()} holds {places.lock} but does not answer: see {places.log}")
        time.sleep(LOOK_SECONDS)


def _hosting(settings: Settings, places: Places, lock: HostLock, *, resume: bool) -> Attachment:
    from noetl.processes.host.host import Host  # noqa: PLC0415 - a client needs no engine

    host = Host(settings, places, resume=resume)
    attachment = None
    try:
        host.start()
        attachment = Attachment(Client(places.socket, owner=owner_of(settings)), host, lock)
    finally:
        if attachment is None:
            lock.release()
    return attachment


def _is_good(client: Client, *, resume: bool) -> bool:
    """Whether a host answers that can do what we want; one that only reads leaves in a moment."""
    try:
        health = client.health()
    except HostUnavailable:
        return False
    return not (resume and health["only_reads"])


def _server_client(settings: Settings, patience_seconds: float) -> Client:
    """Of the first server that answers."""
    urls = settings.server_urls or (settings.server_url or "",)
    deadline = time.monotonic() + patience_seconds
    while True:
        for url in urls:
            client = Client(url, token=token_for(settings, url), owner=owner_of(settings))
            try:
                client.request("GET", "/livez")
            except HostUnavailable as error:
                client.close()
                cause = error
            else:
                return client
        if time.monotonic() >= deadline:
            places = " or ".join(urls)
            raise HostUnavailable(f"no server answers at {places}: start it with `noetl server`") from cause
        time.sleep(SERVER_LOOK_SECONDS)


def token_for(settings: Settings, url: str, *, name: str = "token") -> str | None:
    """The configured token; for a server of this machine also the one that it left in the home."""
    configured = settings.worker_token if name == "worker_token" else None
    if configured or settings.token:
        return configured or settings.token
    if is_loopback(urlsplit(url).hostname or ""):
        return read_token_file(settings.home).get(name)
    return None


def owner_of(settings: Settings) -> tuple[str, str] | None:
    """Named to the server only when the environment names it; otherwise the server's own settings count."""
    return (settings.tenant_id, settings.organization_id) if settings.is_owner_named else None
