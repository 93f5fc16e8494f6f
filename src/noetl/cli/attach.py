"""Getting to a host: be a client of the one that runs, or become it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from noetl.cli.client import Client
from noetl.core.errors import HostUnavailable
from noetl.processes.host.host import Host
from noetl.processes.host.lock import HostLock
from noetl.processes.host.places import Places, make_home, places_of
from noetl.settings import Settings

ATTACH_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.02


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


def attach(settings: Settings, *, resume: bool = True) -> Attachment:
    """Connect to the running host, or take the lock and be it.  `resume` False hosts for reading only."""
    places = places_of(settings.home)
    make_home(places)
    lock = HostLock(places.lock)
    deadline = time.monotonic() + ATTACH_SECONDS_MAX
    while True:
        if lock.acquire():
            return _hosting(settings, places, lock, resume=resume)
        client = Client(places.socket)
        if _is_good(client, resume=resume):
            return Attachment(client)
        client.close()
        if time.monotonic() > deadline:
            raise HostUnavailable(f"process {lock.holder()} holds {places.lock} but does not answer: see {places.log}")
        time.sleep(LOOK_SECONDS)


def _hosting(settings: Settings, places: Places, lock: HostLock, *, resume: bool) -> Attachment:
    host = Host(settings, places, resume=resume)
    attachment = None
    try:
        host.start()
        attachment = Attachment(Client(places.socket), host, lock)
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
