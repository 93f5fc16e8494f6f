"""A real embedded Postgres for tests.

`shared_server()` is one server for the whole session and the right choice for most tests: make your own
database or schema in it.  `embedded_server()` is a fresh one, for tests that break it.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from noetl.adapters.postgres.embedded import EmbeddedPostgres, ServerAddress, dsn
from noetl.adapters.postgres.locations import existing_place, server_user

SYSTEM_ROOT = Path("/var/lib/noetl")
_PREFIX = "noetl-test-"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    postgres: EmbeddedPostgres
    address: ServerAddress
    home: Path

    def dsn(self, *, database: str = "noetl", user: str = "noetl") -> str:
        return dsn(self.address, database=database, user=user)


@contextmanager
def embedded_server(*, version: str = "18") -> Iterator[RunningServer]:
    """A fresh server in a home of its own; stopped and removed at the end."""
    with temporary_home() as home:
        postgres = EmbeddedPostgres(home, version=version)
        yield RunningServer(postgres=postgres, address=postgres.start(), home=home)


@functools.cache
def shared_server() -> RunningServer:
    """The server of this test session: started when first asked for, stopped when Python ends."""
    held = ExitStack()
    atexit.register(held.close)
    return held.enter_context(embedded_server())


@pytest.fixture(scope="session")
def postgres_server() -> RunningServer:
    return shared_server()


@contextmanager
def temporary_home(name: str = "home") -> Iterator[Path]:
    """A home that any server user can reach, so that root's tests need nothing below /var/lib."""
    sweep_abandoned()
    directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    directory.chmod(0o711)
    home = directory / name
    home.mkdir(mode=0o755, parents=True)
    try:
        yield home
    finally:
        dispose(home)
        shutil.rmtree(directory)


def dispose(home: Path, *, system_root: Path = SYSTEM_ROOT) -> None:
    """Stop the server of `home` and remove all that it made outside of it."""
    EmbeddedPostgres(home, system_root=system_root).stop()
    place = existing_place(home.resolve(), system_root)
    with suppress(FileNotFoundError):
        uid = place.data.lstat().st_uid
        shutil.rmtree(place.directory)
        for socket_dir in Path(tempfile.gettempdir()).glob(f"noetl-{uid}-{place.title.removeprefix('noetl-')}"):
            shutil.rmtree(socket_dir)


def sweep_abandoned() -> None:
    """Stop the servers of test sessions that were killed before they could do it."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = directory.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdecimal() and not os.path.exists(f"/proc/{owner}") and os.access(directory, os.W_OK):
            for lock in directory.rglob("postgres.lock"):
                dispose(lock.parent)
            shutil.rmtree(directory, ignore_errors=True)


def server_uid() -> int:
    return server_user(None).uid
