"""Load on a real server from the test's own process: requests at a rate, whatever the answers are, and what came back.

Open loop: a generator that waits for answers slows down with the server and hides what a flood does to it."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from noetl.adapters.session.http_stream_connection import Connection, connect
from noetl.core.errors import HostUnavailable

UNANSWERED = 0


@dataclass(frozen=True, slots=True)
class Reply:
    sent_at: float
    seconds: float
    status: int
    content: bytes = b""
    retry_after: str | None = None

    @property
    def execution_id(self) -> int:
        return int(json.loads(self.content)["execution_id"])


@dataclass(slots=True)
class Replies:
    all: list[Reply] = field(default_factory=list)

    def of(self, status: int) -> list[Reply]:
        return [one for one in self.all if one.status == status]

    @property
    def statuses(self) -> Counter[int]:
        return Counter(one.status for one in self.all)

    def quantile(self, share: float, status: int = 201) -> float:
        """Seconds that this share of the answers with a status took at most."""
        times = sorted(one.seconds for one in self.of(status))
        return times[min(int(len(times) * share), len(times) - 1)] if times else 0.0

    def median(self, status: int = 201) -> float:
        return statistics.median([one.seconds for one in self.of(status)] or [0.0])


@dataclass(slots=True)
class Client:
    """POSTs of one body over as many kept connections as are needed at a time."""

    url: str
    headers: dict[str, str]
    path: str
    body: bytes
    replies: Replies = field(default_factory=Replies)
    _idle: list[Connection] = field(default_factory=list)

    async def post(self) -> Reply:
        begun = time.monotonic()
        connection: Connection | None = None
        try:
            connection = self._idle.pop() if self._idle else await connect(self.url, self.headers)
            status, content = await connection.ask("POST", self.path, self.body)
            reply = Reply(begun, time.monotonic() - begun, status, content, connection.retry_after)
        except HostUnavailable:
            reply = Reply(begun, time.monotonic() - begun, UNANSWERED)
        if connection is not None and connection.is_open:
            self._idle.append(connection)
        self.replies.all.append(reply)
        return reply

    async def closed_loop(self, callers: int, seconds: float) -> float:
        """Accepted requests per second when each caller waits for its answer."""
        end = time.monotonic() + seconds
        before = len(self.replies.of(201))

        async def call() -> None:
            while time.monotonic() < end:
                await self.post()

        begun = time.monotonic()
        await asyncio.gather(*(call() for _ in range(callers)))
        return (len(self.replies.of(201)) - before) / (time.monotonic() - begun)

    async def open_loop(self, rate: float, seconds: float, *, at_once_max: int = 512) -> None:
        """So many requests per second whatever is answered, over no more connections than a crowd of clients has, and
        all their answers."""
        begun, sent = time.monotonic(), 0
        room = asyncio.Semaphore(at_once_max)

        async def one() -> None:
            try:
                await self.post()
            finally:
                room.release()

        async with asyncio.TaskGroup() as group:
            while (passed := time.monotonic() - begun) < seconds:
                while sent < passed * rate:
                    await room.acquire()
                    group.create_task(one())
                    sent += 1
                await asyncio.sleep(0.002)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no memory")


@contextmanager
def sampled(read: Callable[[], float], *, every_seconds: float = 0.1) -> Iterator[list[float]]:
    """What a gauge says while the block runs."""
    found, is_over = [read()], Event()

    def run() -> None:
        while not is_over.wait(every_seconds):
            found.append(read())

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()
        found.append(read())
