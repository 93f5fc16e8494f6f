"""`noetl up`, `down`, `server`, `worker`, `migrate`: the processes of NoETL as services of this machine's user."""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

from noetl.cli.attach import token_for
from noetl.cli.client import Client
from noetl.cli.text import fail, note, out
from noetl.core.errors import HostUnavailable
from noetl.processes.host.host import Host, Shape
from noetl.processes.host.lock import HostLock
from noetl.processes.host.places import Places, make_home, places_of
from noetl.processes.objects import settle_memory
from noetl.processes.projector.projector import run_projector
from noetl.processes.worker.worker import run_worker
from noetl.settings import Settings
from noetl.wiring.databases import embedded_postgres, migrate_database
from noetl.wiring.pools import worker_slots

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.02
SEATS_MAX = 64
SEAT_SECONDS_MAX = 10.0


def up(arguments: argparse.Namespace, settings: Settings) -> int:
    places = places_of(settings.home)
    make_home(places)
    if arguments.foreground:
        return _host(settings, places, shape=Shape(has_tcp=arguments.tcp))
    running = _health(places)
    if running is not None:
        out(f"already up: process {running['pid']}, home {settings.home}")
        return 0
    with places.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "noetl", "up", "--foreground", *(["--tcp"] if arguments.tcp else [])],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        running = _health(places)
        if running is not None:
            out(f"up: process {running['pid']}, home {settings.home}")
            if running["url"]:
                out(f"listening on {running['url']}")
            if running["resumed"]:
                out(f"resumed: {', '.join(running['resumed'])}")
            return 0
        if process.poll() is not None:
            break
        time.sleep(LOOK_SECONDS)
    fail(f"the host did not come up: see {places.log}")
    return 2


def server(arguments: argparse.Namespace, settings: Settings) -> int:
    """Be the server until a signal: the API on TCP, and no work of its own unless asked."""
    places = places_of(settings.home)
    make_home(places)
    has_projector = not arguments.no_projector
    if not has_projector and settings.postgres_dsn is None:
        fail("--no-projector needs NOETL_POSTGRES_DSN: nobody else projects the embedded database")
        return 2
    shape = Shape(has_worker=arguments.with_worker, has_tcp=True, has_projector=has_projector)
    return _host(settings, places, shape=shape)


def projector(_arguments: argparse.Namespace, settings: Settings) -> int:
    """Be a projector until a signal."""
    return run_projector(settings)


def worker(arguments: argparse.Namespace, settings: Settings) -> int:
    """Be a worker until a signal."""
    urls = settings.server_urls or (f"http://127.0.0.1:{settings.port}",)
    if arguments.pool is not None:
        settings = replace(settings, worker_pool=arguments.pool)
    slots = arguments.slots if arguments.slots is not None else worker_slots(settings, settings.worker_pool)
    settings = replace(settings, worker_slots=slots)
    kinds = tuple(sorted(set(arguments.kinds.split(",")))) if arguments.kinds else None
    return run_worker(settings, urls=urls, token=token_for(settings, urls[0], name="worker_token"), kinds=kinds)


def _host(settings: Settings, places: Places, *, shape: Shape) -> int:
    """Be the host until a signal or `noetl down`."""
    is_shared = settings.postgres_dsn is not None and shape.has_tcp
    taken = _shared_seat(settings) if is_shared else _only_seat(settings, places)
    if taken is None:
        return 2
    places = taken
    host = Host(settings, places, shape=shape)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: host.ask_to_stop())
    host.start()
    settle_memory(is_answering=not shape.has_worker)
    note(f"host {settings.home} is up")
    if host.url is not None:
        out(f"listening on {host.url}")
        sys.stdout.flush()
    while not host.wait(0.5):
        pass
    host.stop()
    return 0


def _only_seat(settings: Settings, places: Places) -> Places | None:
    """The embedded database has one host."""
    lock = HostLock(places.lock)
    deadline = time.monotonic() + START_SECONDS_MAX
    while not lock.acquire():
        if _health(places) is not None or time.monotonic() > deadline:
            fail(f"process {lock.holder()} is already the host of {settings.home}")
            return None
        time.sleep(LOOK_SECONDS)
    return places


def _shared_seat(settings: Settings) -> Places | None:
    """Servers of one database may share a home, and with it its payloads and tokens; each has a lock of its own."""
    deadline = time.monotonic() + SEAT_SECONDS_MAX
    for seat in range(SEATS_MAX):
        places = places_of(settings.home, seat=seat)
        lock = HostLock(places.lock)
        while not (is_ours := lock.acquire()):
            # The first seat is where this home's command line looks: somebody who only reads holds it for a moment.
            if seat > 0 or time.monotonic() > deadline or _health(places) is not None:
                break
            time.sleep(LOOK_SECONDS)
        if is_ours:
            return places
    fail(f"{SEATS_MAX} servers are running in {settings.home}: use another NOETL_HOME")
    return None


def down(_arguments: argparse.Namespace, settings: Settings) -> int:
    """Stop every server of this home."""
    if not settings.home.exists():
        out(f"nothing to stop: {settings.home} does not exist")
        return 0
    seats = [places_of(settings.home, seat=seat) for seat in range(SEATS_MAX)]
    seats = [seats[0], *(places for places in seats[1:] if places.lock.exists())]
    # All at once: none of them must take over what another one leaves.
    stopped = sum(_ask_to_stop(places) for places in seats) > 0
    deadline = time.monotonic() + STOP_SECONDS_MAX
    for places in seats:
        lock = HostLock(places.lock)
        while not lock.acquire():
            stopped = _ask_to_stop(places) or stopped
            if time.monotonic() > deadline:
                fail(f"process {lock.holder()} holds {places.lock} and does not stop")
                return 2
            time.sleep(LOOK_SECONDS)
        try:
            if places is seats[0] and settings.postgres_dsn is None:
                # A host that was killed leaves its Postgres running: stop that too.
                stopped = embedded_postgres(settings).stop() or stopped
        finally:
            lock.release()
    out("down" if stopped else "nothing was running")
    return 0


def _ask_to_stop(places: Places) -> bool:
    client = Client(places.socket)
    try:
        client.stop()
    except HostUnavailable:
        return False
    finally:
        client.close()
    return True


def _health(places: Places) -> dict[str, Any] | None:
    client = Client(places.socket)
    try:
        health = client.health()
    except HostUnavailable:
        return None
    finally:
        client.close()
    # Somebody who only looks at runs holds the lock for a moment and is no host.
    return None if health["only_reads"] else health


def migrate(_arguments: argparse.Namespace, settings: Settings) -> int:
    if settings.postgres_dsn is None:
        fail("the embedded database migrates itself; set NOETL_POSTGRES_DSN to migrate another one")
        return 2
    applied = asyncio.run(migrate_database(settings, settings.postgres_dsn))
    out(f"applied: {', '.join(applied)}" if applied else "nothing to apply: the schema is current")
    return 0
