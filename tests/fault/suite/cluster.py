"""Servers, workers and projectors as processes of their own, on a Postgres that the suite may break."""

from __future__ import annotations

import asyncio
import atexit
import datetime
import functools
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import asyncpg

from noetl.adapters.postgres.migrate import migrate
from tests.support.postgres import RunningServer, embedded_server, shared_server

ROOT = Path(__file__).parents[3]
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
_numbers = itertools.count(1)
TOKEN = "token-of-the-fault-suite"
SHORT_LEASES = {
    "NOETL_SHARD_LEASE_SEC": "1.5",
    "NOETL_SHARD_HEARTBEAT_SEC": "0.5",
    "NOETL_SESSION_LEASE_SECONDS": "1.5",
}


class Look:
    """A connection of the suite to the control database, opened again after the suite broke it."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: Any = None
        self._lock = asyncio.Lock()

    async def rows(self, text: str, *values: object) -> list[Any] | None:
        """None while the database does not answer."""
        async with self._lock:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await asyncpg.connect(self._dsn, timeout=2)
                return list(await self._connection.fetch(text, *values, timeout=5))
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                self.close()
                return None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many processes of each role."""

    servers: int = 1
    workers: int = 2
    projectors: int = 0
    slots: int = 8
    shards: int = 16
    extra: Mapping[str, str] = field(default_factory=dict)
    has_own_postgres: bool = True
    """Whether the suite may break Postgres; else it is the one of all tests."""


@dataclass(slots=True)
class Node:
    """A place for a process of a role: whatever is killed there is started again there."""

    cluster: Cluster
    role: str
    number: int
    home: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    lives: int = 0
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def instance(self) -> str:
        """What the process calls itself, as worker and as runtime."""
        return instance_of(self.pid)

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> Path:
        return self.home / f"{self.role}-{self.lives}.log"

    def spawn(self, *, spec: str = "-", clock: float = 0.0) -> None:
        assert not self.is_alive, f"{self.role} {self.number} runs"
        self.lives += 1
        environment = {**self.cluster.environment, "NOETL_HOME": str(self.home), **self.extra}
        if self.role == "server":
            environment["NOETL_PORT"] = str(self.port)
        elif self.role == "worker":
            urls, first = self.cluster.worker_urls, self.number % len(self.cluster.worker_urls)
            environment["NOETL_SERVER_URL"] = ",".join((*urls[first:], *urls[:first]))
        marks = str(self.cluster.marks_file)
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.fault.suite.program", marks, spec, str(clock), self.role],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def is_up(self) -> bool:
        """Whether it does its work: a server listens, another has said that it is there."""
        if self.role != "server":
            return self.is_alive
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=0.2):
                return True
        except OSError:
            return False

    async def start(self, *, spec: str = "-", clock: float = 0.0) -> None:
        self.spawn(spec=spec, clock=clock)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.is_up():
            if spec == "-":
                assert self.is_alive, f"{self.role} {self.number} ended by itself:\n{self.text()[-4000:]}"
            elif not self.is_alive:
                return
            assert time.monotonic() < deadline, f"{self.role} {self.number} is not up:\n{self.text()[-4000:]}"
            await asyncio.sleep(0.02)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@dataclass(slots=True)
class Cluster:
    shape: Shape
    postgres: RunningServer
    outer: RunningServer
    folder: Path
    environment: dict[str, str]
    dsn: str
    oracle_dsn: str
    look: Look
    nodes: list[Node] = field(default_factory=list)
    session: aiohttp.ClientSession | None = None
    worker_urls: list[str] = field(default_factory=list)
    """Where workers look for servers; a proxy puts itself here."""

    @property
    def database(self) -> str:
        return urlsplit(self.dsn).path.strip("/")

    @property
    def marks_file(self) -> Path:
        return self.folder / "marks"

    def marks(self) -> list[str]:
        return self.marks_file.read_text().splitlines() if self.marks_file.exists() else []

    def of(self, role: str) -> list[Node]:
        return [node for node in self.nodes if node.role == role]

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.of("server")]

    @property
    def payload_root(self) -> Path:
        return self.folder / "payloads"

    def add(self, role: str, **extra: str) -> Node:
        home = self.folder / f"{role}-{len(self.nodes)}"
        home.mkdir()
        # One store for all servers, as a volume would be.
        (home / "payloads").symlink_to(self.payload_root)
        node = Node(self, role, len(self.of(role)), home, _free_port() if role == "server" else 0, extra=extra)
        self.nodes.append(node)
        return node

    async def start(self) -> None:
        """All processes: servers first, for nothing is done without one."""
        for role, count in (("server", self.shape.servers), ("worker", self.shape.workers)):
            for _ in range(count):
                self.add(role)
        for _ in range(self.shape.projectors):
            self.add("projector")
        if not self.worker_urls:
            self.worker_urls = self.urls
        await asyncio.gather(*(node.start() for node in self.of("server")))
        await asyncio.gather(*(node.start() for node in self.nodes if node.role != "server"))

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        url: str | None = None,
        seconds: float = 5.0,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        assert self.session is not None
        head = {"Authorization": f"Bearer {TOKEN}", **(headers or {})}
        limit = aiohttp.ClientTimeout(total=seconds)
        async with self.session.request(
            method, f"{url or self.urls[0]}{path}", json=body, headers=head, timeout=limit
        ) as answer:
            content = await answer.read()
            is_json = answer.content_type.endswith("json")
            return answer.status, await answer.json(content_type=None) if is_json and content else content

    async def any_server(
        self, method: str, path: str, *, body: object = None, seconds: float = 30.0
    ) -> tuple[int, Any]:
        """Ask whichever server answers."""
        deadline = time.monotonic() + seconds
        last: object = None
        while True:
            for url in self.urls:
                try:
                    status, document = await self.request(method, path, body=body, url=url)
                except (aiohttp.ClientError, TimeoutError) as error:
                    last = error
                    continue
                if status < 500:
                    return status, document
                last = document
            assert time.monotonic() < deadline, (
                f"no server answers {path}: {last}\n{self.of('server')[0].text()[-4000:]}"
            )
            await asyncio.sleep(0.1)

    async def counted(self, name: str, nodes: Sequence[Node]) -> float:
        """A metric of servers, all of its labels together."""
        total = 0.0
        for node in nodes:
            status, content = await self.request("GET", "/metrics", url=node.url)
            assert status == 200, content
            lines = [
                line.split() for line in content.decode().splitlines() if line.startswith((f"{name} ", f"{name}{{"))
            ]
            total += sum(float(line[-1]) for line in lines)
        return total

    def end(self) -> None:
        for node in self.nodes:
            if node.is_alive:
                node.signal(signal.SIGCONT)
                node.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for node in self.nodes:
            if node.process is not None:
                try:
                    node.process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    node.kill()


@functools.cache
def _breakable_server() -> RunningServer:
    """A second server for the whole run: whoever breaks it starts it again."""
    held = ExitStack()
    atexit.register(held.close)
    return held.enter_context(embedded_server())


@asynccontextmanager
async def cluster(shape: Shape) -> AsyncIterator[Cluster]:
    """Everything but the processes; `start` brings them."""
    with ExitStack() as stack:
        postgres, outer = (_breakable_server(), shared_server()) if shape.has_own_postgres else (shared_server(),) * 2
        number = next(_numbers)
        dsn = await _database(postgres, f"control_{number}", shards=shape.shards)
        oracle = await _database(outer, f"oracle_{number}", shards=None)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-fault-")))
        (folder / "payloads").mkdir(parents=True)
        found = Cluster(shape, postgres, outer, folder, _environment(shape, dsn), dsn, oracle, Look(dsn))
        try:
            async with aiohttp.ClientSession() as session:
                found.session = session
                yield found
        finally:
            found.look.close()
            found.end()


def _environment(shape: Shape, dsn: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NOETL_", "PYTHONDONTWRITE"))}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "NOETL_POSTGRES_DSN": dsn,
        "NOETL_SHARD_COUNT": str(shape.shards),
        "NOETL_TOKEN": TOKEN,
        "NOETL_WORKER_TOKEN": f"{TOKEN}-of-workers",
        "NOETL_CREDENTIAL_KEY": b64encode(bytes(range(32))).decode(),
        "NOETL_WORKER_SLOTS": str(shape.slots),
        "NOETL_PYTHON_CHILDREN_MAX": "2",
        **SHORT_LEASES,
        **shape.extra,
    }


async def _database(server: RunningServer, name: str, *, shards: int | None) -> str:
    connection = await asyncpg.connect(server.dsn(database="postgres", user="postgres"))
    try:
        await connection.execute(f"CREATE DATABASE {name} OWNER noetl")
    finally:
        await connection.close()
    dsn = server.dsn(database=name)
    if shards is not None:
        await migrate(dsn, shard_count=shards, now=datetime.datetime.now(datetime.UTC))
    return dsn


def instance_of(pid: int) -> str:
    return f"{socket.gethostname()}-{pid}"


def login(cluster: Cluster) -> dict[str, object]:
    """The oracle as the data of a credential."""
    address = cluster.outer.address
    name = urlsplit(cluster.oracle_dsn).path.strip("/")
    return {"db_host": str(address.socket_dir), "db_port": address.port, "db_user": "noetl", "db_name": name}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
