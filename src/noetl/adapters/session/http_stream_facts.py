"""Facts on their way up: those that come while a request is under way travel together in the next one."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from noetl.adapters.session.http_stream_connection import OK, Connection, connect
from noetl.adapters.session.http_stream_lease import Key, Lease, pause
from noetl.adapters.session.http_stream_link import (
    ANSWER_SECONDS_MAX,
    JSON_BODY,
    Refused,
    ServerLink,
    error_of,
    refusal,
)
from noetl.adapters.session.http_stream_wire import answers_of, batch_bytes, fact_bytes
from noetl.core.errors import EnvelopeInvalid, HostUnavailable, LeaseLost, NoetlError, Transient
from noetl.core.sessions.pace import SLOW_SECONDS
from noetl.points import point
from noetl.ports.session import Fact

BATCH_FACTS_MAX = 200
BATCH_BYTES_MAX = 4_000_000
POSTS_AT_ONCE = 2


@dataclass(slots=True)
class _Outgoing:
    content: bytes
    key: Key
    lease: Lease
    answer: asyncio.Future[None]


class FactsUp:
    """`run` belongs to the caller's task group.  `on_ended` is called when a command is not held any more, `on_lost`
    when the server does not know the session, `on_slow` when it cannot keep up, with the moment of the request."""

    def __init__(
        self,
        link: ServerLink,
        *,
        on_ended: Callable[[Key, Lease], None],
        on_lost: Callable[[Lease, str], None],
        on_slow: Callable[[float], None],
    ) -> None:
        self._link = link
        self._on_slow = on_slow
        self._on_ended = on_ended
        self._on_lost = on_lost
        self._outgoing: list[_Outgoing] = []
        self._has_outgoing = asyncio.Event()
        self._numbers = itertools.count(1)

    async def report(self, fact: Fact, key: Key, lease: Lease) -> None:
        """Send a fact and wait for its own answer."""
        content = fact_bytes(fact, str(next(self._numbers)))
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outgoing.append(_Outgoing(content, key, lease, answer))
        self._has_outgoing.set()
        await answer

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(POSTS_AT_ONCE):
                group.create_task(self._send())

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
        for failures in itertools.count():
            body = batch_bytes(lease.session_id, [one.content for one in batch])
            try:
                if lease.lost.is_set():
                    raise LeaseLost("the session was lost before the server answered")
                batch, refused = self._answered(batch, await self._measured(sender, body))
                if refused is None:
                    return
                await pause(failures, "facts not recorded yet", "facts.unanswered", refused)
            except NoetlError as error:
                if isinstance(error, Transient) or (isinstance(error, Refused) and error.is_denied):
                    await pause(failures, "facts not answered yet", "facts.unanswered", error)
                    continue
                await self._failed(batch, error, sender)
                return

    async def _measured(self, sender: _Sender, body: bytes) -> bytes:
        """The answer; one that comes late, or says that it is too much now, is a reason to take less."""
        begun = time.monotonic()
        is_slow = False
        try:
            return await sender.post(body)
        except Transient as error:
            is_slow = error.retry_after_seconds is not None
            raise
        finally:
            if is_slow or time.monotonic() - begun > SLOW_SECONDS:
                self._on_slow(begun)

    async def _failed(self, batch: list[_Outgoing], error: NoetlError, sender: _Sender) -> None:
        """The request itself was refused.  When it was not about the session, each fact learns its own fate alone."""
        if isinstance(error, LeaseLost):
            self._on_lost(batch[0].lease, str(error))
        elif len(batch) > 1:
            for one in batch:
                await self._post([one], sender)
            return
        elif isinstance(error, Refused):
            error = EnvelopeInvalid(str(error))
        for one in batch:
            _settle(one.answer, error)

    def _answered(self, batch: list[_Outgoing], content: bytes) -> tuple[list[_Outgoing], Transient | None]:
        """Settle what has its answer; returns what was refused only for now, which must be said again, and why."""
        again: list[_Outgoing] = []
        refused: Transient | None = None
        for one, answer in zip(batch, answers_of(content, len(batch)), strict=True):
            is_held = bool(answer.get("is_held", False))
            is_ok = answer.get("status") == "ok"
            error = None if is_ok else error_of(answer.get("code"), answer.get("detail"))
            if isinstance(error, Transient) and is_held:
                again.append(one)
                refused = error
                continue
            if not is_held:
                self._on_ended(one.key, one.lease)
            _settle(one.answer, error)
        return again, refused


class _Sender:
    """A connection for facts, opened when it is needed and again after it broke."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link
        self._place = link.place
        self._connection: Connection | None = None

    async def post(self, body: bytes) -> bytes:
        if self._place != self._link.place:
            self.close()
            self._place, self._connection = self._link.place, None
        if self._connection is None or not self._connection.is_open:
            self._connection = await connect(self._place.url, {**self._place.headers, **JSON_BODY})
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                point("worker.sending")
                status, content = await self._connection.ask("POST", "/api/events/batch", body)
                point("worker.answered")
        except TimeoutError as error:
            raise HostUnavailable("the server did not answer") from error
        if status != OK:
            raise refusal(status, content, self._connection.retry_after)
        return content

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _settle(answer: asyncio.Future[None], error: NoetlError | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)
