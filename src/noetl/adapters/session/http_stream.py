"""A worker's session with a server over HTTP: commands down one long answer, facts up in batches.

Losing the server is normal: the session is registered anew, what the old one held is gone, and work that still runs for
it is told to stop.  Only a session that can be trusted to be alive begins work."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from noetl.adapters.session.http_stream_connection import OK, connect
from noetl.adapters.session.http_stream_facts import FactsUp
from noetl.adapters.session.http_stream_heart import Heart
from noetl.adapters.session.http_stream_lease import AGAIN_SECONDS, Key, Lease, pause
from noetl.adapters.session.http_stream_link import Refused, ServerLink, refusal
from noetl.adapters.session.http_stream_wire import word_of
from noetl.core.errors import HostUnavailable, LeaseLost, NoetlError
from noetl.core.reference import STORE_LARGE
from noetl.core.sessions.pace import Pace
from noetl.ports.data.counters import Sample
from noetl.ports.session import ClaimWithdrawn, CommandMessage, Fact, Stop

REGISTER_SECONDS_MAX = 2.0
log = logging.getLogger("noetl.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProfile:
    """What a worker says of itself when it registers."""

    worker_id: str
    slots: int
    pool: str
    kinds: tuple[str, ...] | None
    place: Mapping[str, str]

    def to_json(self) -> dict[str, object]:
        return {
            "worker_id": self.worker_id,
            "slots": self.slots,
            "pool": self.pool,
            "kinds": None if self.kinds is None else list(self.kinds),
            "place": dict(self.place),
        }


class HttpSession:
    """`run` belongs to the caller's task group and lives as long as the worker."""

    def __init__(self, link: ServerLink, profile: WorkerProfile) -> None:
        self._link = link
        self._profile = profile
        self._lease: Lease | None = None
        self._leases: dict[Key, Lease] = {}
        self._commands: asyncio.Queue[CommandMessage] = asyncio.Queue()
        self._stops: asyncio.Queue[Stop] = asyncio.Queue()
        self._facts = FactsUp(link, on_ended=self._forget, on_lost=self._lost, on_slow=self._slow)
        self._pace = Pace.full(profile.slots)
        self._slowed = 0
        self.large_store = STORE_LARGE
        """What the server calls the store that takes large payloads; told with every session."""
        self._is_draining = False
        self._replaced: str | None = None
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    # --- the worker's end ------------------------------------------------------------------------------------

    async def next_command(self) -> CommandMessage:
        while True:
            message = await self._commands.get()
            if self._is_held(message):
                return message

    async def confirmed(self, message: CommandMessage) -> None:
        """What arrives here was claimed; but a lease that cannot be trusted any more begins nothing."""
        if not self._is_held(message):
            raise ClaimWithdrawn(message.command_id)

    def _is_held(self, message: CommandMessage) -> bool:
        lease = self._leases.get((message.execution_id, message.command_id, message.attempt))
        if lease is None:
            return False
        if not lease.is_good:
            # For good: a command that is not begun now is never begun under this lease.
            self._lost(lease, "the lease can no longer be trusted")
            return False
        return True

    def session_of(self, key: Key) -> str | None:
        """The session that holds an attempt at a command; None when it is lost."""
        lease = self._leases.get(key)
        return None if lease is None or lease.lost.is_set() else lease.session_id

    @property
    def lease(self) -> Lease | None:
        """The session that counts now."""
        return self._lease

    async def next_stop(self) -> Stop:
        return await self._stops.get()

    async def report(self, fact: Fact) -> None:
        """Send a fact and wait for its own answer; those that come meanwhile travel together."""
        key = (fact.execution_id, fact.command_id, fact.attempt)
        lease = self._leases.get(key)
        if lease is None or lease.lost.is_set():
            raise LeaseLost(f"the session that held attempt {fact.attempt} of {fact.command_id} is lost")
        await self._facts.report(fact, key, lease)

    # --- the connection --------------------------------------------------------------------------------------

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._facts.run())
            while not self._is_draining:
                lease = await self._register()
                self._lease = lease
                try:
                    await self._follow(lease)
                finally:
                    self._let_go(lease)
                # Any server takes it up; the one that was lost may stand still and keep us waiting.
                self._link.turn()

    async def _register(self) -> Lease:
        """A new session, for as long as it takes.  A token that was never good is the user's mistake and ends it."""
        for failures in itertools.count():
            body = self._profile.to_json() | {"replaces": self._replaced}
            try:
                found: dict[str, Any] = await self._asked(body)
            except NoetlError as error:
                if isinstance(error, Refused) and error.is_denied and self._replaced is None:
                    raise
                self._link.turn()
                await pause(failures, "no session yet", "session.refused", error)
                continue
            lease = Lease(str(found["session_id"]), float(found["heartbeat_seconds"]))
            self.large_store = str(found.get("store", STORE_LARGE))
            self._start_heart(lease, float(found["lease_seconds"]))
            log.info("session registered", extra={"event": "session.registered", "reason": lease.session_id})
            return lease
        raise AssertionError("unreachable")

    async def _asked(self, body: object) -> dict[str, Any]:
        """A server that takes the call and says nothing, because it stands still, is as good as away."""
        try:
            async with asyncio.timeout(REGISTER_SECONDS_MAX if self._link.place.others else None):
                return await self._link.ask("POST", "/api/worker/sessions", body=body)
        except TimeoutError as error:
            raise HostUnavailable(f"the server at {self._link.place.url} does not answer") from error

    def _start_heart(self, lease: Lease, lease_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        lease.heart = Heart(
            self._link.place,
            lease.session_id,
            lease_seconds=lease_seconds,
            beat_seconds=lease.beat_seconds,
            on_lost=lambda reason: _from_thread(loop, self._lost, lease, reason),
            slots=self._slots,
        )
        lease.heart.start()
        if self._slots() < self._profile.slots:
            lease.heart.hurry()

    def _slots(self) -> int:
        """How many commands this worker wants under way now."""
        return self._pace.slots(time.monotonic())

    def _slow(self, begun: float) -> None:
        """The server cannot keep up: take less, and tell it so at once."""
        before, now = self._slots(), time.monotonic()
        self._pace = self._pace.slowed(begun=begun, now=now)
        if self._slots() < before:
            self._slowed += 1
            log.info("taking less", extra={"event": "worker.slowed", "slots": self._slots()})
            if self._lease is not None and self._lease.heart is not None:
                self._lease.heart.hurry()

    def samples(self) -> Iterator[Sample]:
        yield "noetl_worker_concurrency", {}, self._slots()
        yield "noetl_worker_slowed_total", {}, self._slowed

    async def _follow(self, lease: Lease) -> None:
        """Hear commands until the lease is lost.  A connection that breaks is opened again under the same lease."""
        async with asyncio.TaskGroup() as group:
            hearing = group.create_task(self._hear(lease))
            await lease.lost.wait()
            hearing.cancel()

    async def _hear(self, lease: Lease) -> None:
        failures = 0
        while True:
            try:
                await self._listen(lease)
                failures = 0
                await asyncio.sleep(AGAIN_SECONDS[0])
            except LeaseLost as error:
                self._lost(lease, str(error))
                return
            except NoetlError as error:
                await pause(failures, "command stream broken", "session.broken", error)
                failures += 1

    async def _listen(self, lease: Lease) -> None:
        """One connection's worth of commands.  A stream without a sign of life is as good as broken."""
        rest = b""
        loop = asyncio.get_running_loop()
        patience = 4 * lease.beat_seconds

        def take(piece: bytes) -> None:
            nonlocal rest
            quiet.reschedule(loop.time() + patience)
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._take(lease, line)

        connection = await connect(self._link.place.url, self._link.place.headers)
        path = f"/api/worker/sessions/{lease.session_id}/commands"
        try:
            async with asyncio.timeout(patience) as quiet:
                status, content = await connection.ask("GET", path, on_piece=take)
        except TimeoutError as error:
            raise HostUnavailable("the command stream is silent") from error
        finally:
            connection.close()
        if status != OK:
            raise refusal(status, content)

    def _take(self, lease: Lease, line: bytes) -> None:
        word = word_of(line)
        if isinstance(word, CommandMessage):
            key = (word.execution_id, word.command_id, word.attempt)
            if key not in lease.holds:  # a stream that was opened again begins with all that is held
                lease.holds.add(key)
                self._leases[key] = lease
                self._is_idle.clear()
                self._commands.put_nowait(word)
        elif isinstance(word, Stop):
            if (word.execution_id, word.command_id, word.attempt) in lease.holds:
                self._stops.put_nowait(word)
        elif word is not None:
            self._lost(lease, f"the server ended the stream: {word}")

    # --- letting go ------------------------------------------------------------------------------------------

    def _forget(self, key: Key, lease: Lease) -> None:
        lease.holds.discard(key)
        if self._leases.get(key) is lease:
            del self._leases[key]
        if not self._leases:
            self._is_idle.set()

    def _lost(self, lease: Lease, reason: str) -> None:
        if not lease.lost.is_set():
            level = logging.INFO if self._is_draining else logging.WARNING
            log.log(level, "session lost", extra={"event": "session.lost", "reason": reason})
            lease.lost.set()

    def _let_go(self, lease: Lease) -> None:
        """The lease is over: what it held is somebody else's now, and what runs of it must stop."""
        lease.lost.set()
        if lease.heart is not None:
            lease.heart.stop()
        for key in sorted(lease.holds):
            self._stops.put_nowait(Stop(*key))
            self._forget(key, lease)
        self._lease, self._replaced = None, lease.session_id

    async def drain(self, seconds: float) -> bool:
        """Take nothing more and end what is held; True when all of it ended in time."""
        self._is_draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._end("?drain=true")
                await self._is_idle.wait()
        except TimeoutError:
            return False
        return True

    async def leave(self) -> None:
        """End the session: whatever it still holds goes back at once."""
        await self._end()

    async def _end(self, how: str = "") -> None:
        if self._lease is not None:
            try:
                await self._link.ask("DELETE", f"/api/worker/sessions/{self._lease.session_id}{how}")
            except NoetlError as error:
                log.warning("the server was not told", extra={"event": "session.left", "reason": str(error)})


def _from_thread(
    loop: asyncio.AbstractEventLoop, call: Callable[[Lease, str], None], lease: Lease, reason: str
) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended, and with it everything that could be lost
        loop.call_soon_threadsafe(call, lease, reason)
