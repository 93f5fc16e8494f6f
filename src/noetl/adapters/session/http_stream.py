"""A worker's session with a server over HTTP: commands down one long answer, facts up in batches.

Losing the server is normal: the session is registered anew, what the old one held is gone, and work that still runs for
it is told to stop.  Only a session that can be trusted to be alive begins work."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from noetl.adapters.session.http_stream_connection import OK, Connection, connect
from noetl.adapters.session.http_stream_heart import Heart
from noetl.adapters.session.http_stream_link import (
    ANSWER_SECONDS_MAX,
    JSON_BODY,
    Refused,
    ServerLink,
    error_of,
    refusal,
)
from noetl.adapters.session.http_stream_wire import answers_of, batch_bytes, fact_bytes, word_of
from noetl.core.errors import EnvelopeInvalid, HostUnavailable, LeaseLost, NoetlError, Transient
from noetl.ports.session import ClaimWithdrawn, CommandMessage, Fact, Stop

AGAIN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0)
BATCH_FACTS_MAX = 200
BATCH_BYTES_MAX = 4_000_000
POSTS_AT_ONCE = 2
WARN_EVERY = 30
log = logging.getLogger("noetl.worker")
Key = tuple[int, str, int]


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


@dataclass(slots=True, eq=False)
class _Lease:
    """One registration.  What it holds it holds until a fact was answered or the lease is lost."""

    session_id: str
    beat_seconds: float
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    holds: set[Key] = field(default_factory=set)
    heart: Heart | None = None

    @property
    def is_good(self) -> bool:
        return not self.lost.is_set() and self.heart is not None and self.heart.is_trusted


@dataclass(slots=True)
class _Outgoing:
    content: bytes
    key: Key
    lease: _Lease
    answer: asyncio.Future[None]


class _Sender:
    """A connection for facts, opened when it is needed and again after it broke."""

    def __init__(self, link: ServerLink) -> None:
        self._place = link.place
        self._connection: Connection | None = None

    async def post(self, body: bytes) -> bytes:
        if self._connection is None or not self._connection.is_open:
            self._connection = await connect(self._place.url, {**self._place.headers, **JSON_BODY})
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                status, content = await self._connection.ask("POST", "/api/events/batch", body)
        except TimeoutError as error:
            raise HostUnavailable("the server did not answer") from error
        if status != OK:
            raise refusal(status, content)
        return content

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class HttpSession:
    """`run` belongs to the caller's task group and lives as long as the worker."""

    def __init__(self, link: ServerLink, profile: WorkerProfile) -> None:
        self._link = link
        self._profile = profile
        self._lease: _Lease | None = None
        self._leases: dict[Key, _Lease] = {}
        self._commands: asyncio.Queue[CommandMessage] = asyncio.Queue()
        self._stops: asyncio.Queue[Stop] = asyncio.Queue()
        self._outgoing: list[_Outgoing] = []
        self._has_outgoing = asyncio.Event()
        self._numbers = itertools.count(1)
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

    async def next_stop(self) -> Stop:
        return await self._stops.get()

    async def report(self, fact: Fact) -> None:
        """Send a fact and wait for its own answer; those that come meanwhile travel together."""
        key = (fact.execution_id, fact.command_id, fact.attempt)
        lease = self._leases.get(key)
        if lease is None or lease.lost.is_set():
            raise LeaseLost(f"the session that held attempt {fact.attempt} of {fact.command_id} is lost")
        content = fact_bytes(fact, str(next(self._numbers)))
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outgoing.append(_Outgoing(content, key, lease, answer))
        self._has_outgoing.set()
        await answer

    # --- the connection --------------------------------------------------------------------------------------

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(POSTS_AT_ONCE):
                group.create_task(self._send())
            while not self._is_draining:
                lease = await self._register()
                self._lease = lease
                try:
                    await self._follow(lease)
                finally:
                    self._let_go(lease)

    async def _register(self) -> _Lease:
        """A new session, for as long as it takes.  A token that was never good is the user's mistake and ends it."""
        for failures in itertools.count():
            body = self._profile.to_json() | {"replaces": self._replaced}
            try:
                found: dict[str, Any] = await self._link.ask("POST", "/api/worker/sessions", body=body)
            except NoetlError as error:
                if isinstance(error, Refused) and error.is_denied and self._replaced is None:
                    raise
                _warn(failures, "no session yet", "session.refused", error)
                await asyncio.sleep(AGAIN_SECONDS[min(failures, len(AGAIN_SECONDS) - 1)])
                continue
            lease = _Lease(str(found["session_id"]), float(found["heartbeat_seconds"]))
            self._start_heart(lease, float(found["lease_seconds"]))
            log.info("session registered", extra={"event": "session.registered", "reason": lease.session_id})
            return lease
        raise AssertionError("unreachable")

    def _start_heart(self, lease: _Lease, lease_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        lease.heart = Heart(
            self._link.place,
            lease.session_id,
            lease_seconds=lease_seconds,
            beat_seconds=lease.beat_seconds,
            on_lost=lambda reason: _from_thread(loop, self._lost, lease, reason),
        )
        lease.heart.start()

    async def _follow(self, lease: _Lease) -> None:
        """Hear commands until the lease is lost.  A connection that breaks is opened again under the same lease."""
        async with asyncio.TaskGroup() as group:
            hearing = group.create_task(self._hear(lease))
            await lease.lost.wait()
            hearing.cancel()

    async def _hear(self, lease: _Lease) -> None:
        failures = 0
        while True:
            try:
                await self._listen(lease)
                failures = 0
            except LeaseLost as error:
                self._lost(lease, str(error))
                return
            except NoetlError as error:
                _warn(failures, "command stream broken", "session.broken", error)
            await asyncio.sleep(AGAIN_SECONDS[min(failures, len(AGAIN_SECONDS) - 1)])
            failures += 1

    async def _listen(self, lease: _Lease) -> None:
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

    def _take(self, lease: _Lease, line: bytes) -> None:
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

    # --- facts up --------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        """One of the senders, each with a connection of its own."""
        sender = _Sender(self._link)
        try:
            while True:
                await self._has_outgoing.wait()
                batch = self._next_batch()
                if batch:
                    await self._post(batch, sender)
        finally:
            sender.close()

    def _next_batch(self) -> list[_Outgoing]:
        """What waits, as far as it is of one session and fits into one request."""
        batch: list[_Outgoing] = []
        size = 0
        for one in self._outgoing:
            if batch and (one.lease is not batch[0].lease or size + len(one.content) > BATCH_BYTES_MAX):
                break
            if len(batch) == BATCH_FACTS_MAX:
                break
            batch.append(one)
            size += len(one.content)
        del self._outgoing[: len(batch)]
        if not self._outgoing:
            self._has_outgoing.clear()
        return batch

    async def _post(self, batch: list[_Outgoing], sender: _Sender) -> None:
        """Send until there is an answer or the lease is lost.  The same facts have the same names each time."""
        lease = batch[0].lease
        body = batch_bytes(lease.session_id, [one.content for one in batch])
        for failures in itertools.count():
            try:
                if lease.lost.is_set():
                    raise LeaseLost("the session was lost before the server answered")
                self._answered(batch, await sender.post(body))
            except Transient as error:
                _warn(failures, "facts not answered yet", "facts.unanswered", error)
                await asyncio.sleep(AGAIN_SECONDS[min(failures, len(AGAIN_SECONDS) - 1)])
                continue
            except Refused as refused:
                await self._refused(batch, refused, sender)
            except NoetlError as error:
                if isinstance(error, LeaseLost):
                    self._lost(lease, str(error))
                for one in batch:
                    _settle(one.answer, error)
            return

    async def _refused(self, batch: list[_Outgoing], refused: Refused, sender: _Sender) -> None:
        """The request itself was refused: alone, each fact learns its own fate."""
        if len(batch) == 1:
            _settle(batch[0].answer, EnvelopeInvalid(str(refused)))
            return
        for one in batch:
            await self._post([one], sender)

    def _answered(self, batch: list[_Outgoing], content: bytes) -> None:
        for one, answer in zip(batch, answers_of(content, len(batch)), strict=True):
            if not answer.get("is_held", False):
                self._forget(one.key, one.lease)
            is_ok = answer.get("status") == "ok"
            _settle(one.answer, None if is_ok else error_of(answer.get("code"), answer.get("detail")))

    # --- letting go ------------------------------------------------------------------------------------------

    def _forget(self, key: Key, lease: _Lease) -> None:
        lease.holds.discard(key)
        if self._leases.get(key) is lease:
            del self._leases[key]
        if not self._leases:
            self._is_idle.set()

    def _lost(self, lease: _Lease, reason: str) -> None:
        if not lease.lost.is_set():
            level = logging.INFO if self._is_draining else logging.WARNING
            log.log(level, "session lost", extra={"event": "session.lost", "reason": reason})
            lease.lost.set()

    def _let_go(self, lease: _Lease) -> None:
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
    loop: asyncio.AbstractEventLoop, call: Callable[[_Lease, str], None], lease: _Lease, reason: str
) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended, and with it everything that could be lost
        loop.call_soon_threadsafe(call, lease, reason)


def _warn(failures: int, message: str, event: str, error: NoetlError) -> None:
    """The first time, and now and then: a server that is away for an hour is one story and not thousands."""
    if failures % WARN_EVERY == 0:
        log.warning(message, extra={"event": event, "reason": str(error)})


def _settle(answer: asyncio.Future[None], error: NoetlError | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)
