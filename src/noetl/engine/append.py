"""Group commit: callers hand in offers, one writer commits them together and answers everyone.

Idle it adds no wait; under load one commit carries hundreds of events.  A poisoned offer fails alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from noetl.core.errors import (
    AppendOverloaded,
    EnvelopeInvalid,
    ExecutionClosed,
    NoetlError,
    TransitionConflict,
    VersionConflict,
)
from noetl.core.kinds import KINDS
from noetl.core.limits import (
    APPEND_BATCH_EVENTS_MAX,
    APPEND_QUEUE_BYTES_MAX,
    APPEND_QUEUE_EVENTS_MAX,
    APPEND_QUEUE_SECONDS_MAX,
)
from noetl.ports.ledger import Appended, AppendOutcome, Ledger, Offer

_CONCURRENT_DUPLICATES_MAX = 5


@dataclass(frozen=True, slots=True)
class _Waiting:
    offer: Offer
    answer: asyncio.Future[list[Appended]]
    size: int
    since: float

    @property
    def keys(self) -> set[tuple[int, str]]:
        return {(sealed.event.execution_id, sealed.event.transition_key) for sealed in self.offer.events}

    @property
    def streams(self) -> set[int]:
        return {sealed.event.execution_id for sealed in self.offer.events}

    @property
    def is_expecting(self) -> bool:
        return self.offer.expected_version is not None or bool(self.offer.expected_versions)

    @property
    def closes(self) -> set[int]:
        """The streams that this offer ends."""
        return {s.event.execution_id for s in self.offer.events if KINDS[s.event.event_type].closes}


class GroupAppender:
    """`append` may be called by many; `run` holds the writers and belongs to the caller's task group.

    There is one writer per ledger given, each for its own share of the shards: while one waits for its commit, the
    callers of another can prepare.  Two commits of different shards do not wait for each other."""

    def __init__(self, *ledgers: Ledger) -> None:
        assert ledgers, "an appender needs a ledger"
        self._lanes = [_Lane(ledger) for ledger in ledgers]

    async def append(self, offer: Offer) -> list[Appended]:
        """Append the events of one offer, all or none.  Equal duplicates succeed with their old position."""
        return await self._lanes[offer.shard_id % len(self._lanes)].append(offer)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for lane in self._lanes:
                group.create_task(lane.run())


class _Lane:
    """One queue and its one writer."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._queue: deque[_Waiting] = deque()
        self._queued_events = 0
        self._queued_bytes = 0
        self._wake = asyncio.Event()

    async def append(self, offer: Offer) -> list[Appended]:
        loop = asyncio.get_running_loop()
        size = sum(len(sealed.text) for sealed in offer.events) + sum(len(one.content) for one in offer.payloads)
        oldest = loop.time() - self._queue[0].since if self._queue else 0.0
        if (
            self._queued_events + len(offer.events) > APPEND_QUEUE_EVENTS_MAX
            or self._queued_bytes + size > APPEND_QUEUE_BYTES_MAX
            or oldest > APPEND_QUEUE_SECONDS_MAX
        ):
            waiting = f"{self._queued_events} events of {self._queued_bytes:,} bytes"
            error = AppendOverloaded(f"{waiting} wait to be appended, the oldest for {oldest:.1f} s: try again later")
            error.retry_after_seconds = max(1.0, oldest)
            raise error
        answer: asyncio.Future[list[Appended]] = loop.create_future()
        self._queue.append(_Waiting(offer, answer, size, loop.time()))
        self._queued_events += len(offer.events)
        self._queued_bytes += size
        self._wake.set()
        return await answer

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await self._commit(self._take())
                # Callers that were just answered come back at once: their next offers belong into the next commit
                # and not behind it.
                await asyncio.sleep(0)

    def _take(self) -> list[_Waiting]:
        """The next batch.  The statement judges an offer by what is stored before it, so an offer waits for
        the next one when this one has its key, closes its stream, or moves the version that it expects."""
        batch: list[_Waiting] = []
        keys: set[tuple[int, str]] = set()
        moved: set[int] = set()
        closed: set[int] = set()
        events = 0
        while self._queue and events < APPEND_BATCH_EVENTS_MAX:
            waiting = self._queue[0]
            own = waiting.keys
            streams = waiting.streams
            is_judged_wrong = (
                not keys.isdisjoint(own)
                or not closed.isdisjoint(streams)
                or (waiting.is_expecting and not moved.isdisjoint(streams))
            )
            if batch and is_judged_wrong:
                break
            self._queue.popleft()
            self._queued_events -= len(waiting.offer.events)
            self._queued_bytes -= waiting.size
            keys |= own
            moved |= streams
            closed |= waiting.closes
            events += len(waiting.offer.events)
            batch.append(waiting)
        return batch

    async def _commit(self, batch: list[_Waiting]) -> None:
        if not batch:
            return
        for _ in range(_CONCURRENT_DUPLICATES_MAX):
            try:
                outcome = await self._ledger.append([waiting.offer for waiting in batch])
            except TransitionConflict as conflict:
                # Another writer stored one of these keys after our snapshot: now it is found and left out.
                last: NoetlError = conflict
                continue
            except EnvelopeInvalid as refused:
                culprit = _named(batch, refused)
                if culprit is None:
                    last = refused
                    break
                _refuse([culprit], refused)
                batch = [waiting for waiting in batch if waiting is not culprit]
                await self._commit(batch)
                return
            except NoetlError as error:
                _refuse(batch, error)
                return
            _answer(batch, outcome)
            return
        if len(batch) == 1:
            _refuse(batch, last)
            return
        middle = len(batch) // 2
        await self._commit(batch[:middle])
        await self._commit(batch[middle:])


def _named(batch: Sequence[_Waiting], error: EnvelopeInvalid) -> _Waiting | None:
    """The offer whose event the database named; None when it named none."""
    if error.event_id is None:
        return None
    named = (w for w in batch if any(sealed.event.event_id == error.event_id for sealed in w.offer.events))
    return next(named, None)


def _refuse(batch: Sequence[_Waiting], error: NoetlError) -> None:
    for waiting in batch:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)


def _answer(batch: Sequence[_Waiting], outcome: AppendOutcome) -> None:
    free = dict(outcome.first_positions)
    number = 0
    for waiting in batch:
        offer = waiting.offer
        numbers = range(number, number + len(offer.events))
        number += len(offer.events)
        error = _error_of(offer, numbers, outcome)
        if error is not None:
            _refuse([waiting], error)
            continue
        appended = []
        for n in numbers:
            left_out = outcome.left_out.get(n)
            if left_out is not None:
                assert left_out.position is not None
                appended.append(Appended(left_out.position, is_duplicate=True))
            else:
                appended.append(Appended(free[offer.shard_id]))
                free[offer.shard_id] += 1
        if not waiting.answer.done():
            waiting.answer.set_result(appended)


def _error_of(offer: Offer, numbers: range, outcome: AppendOutcome) -> NoetlError | None:
    """Why an offer was refused as a whole; None when it was appended or is an equal duplicate."""
    for n, sealed in zip(numbers, offer.events, strict=True):
        left_out = outcome.left_out.get(n)
        if left_out is None:
            continue
        event = sealed.event
        if left_out.position is not None:
            if left_out.is_same:
                continue
            return TransitionConflict(
                f"{event.transition_key} of execution {event.execution_id} is recorded with other content"
            )
        if left_out.is_closed:
            return ExecutionClosed(f"execution {event.execution_id} has ended: {event.transition_key} is refused")
        return VersionConflict(
            f"execution {event.execution_id} is at version {left_out.version}, not {offer.expects(event.execution_id)}"
        )
    return None
