"""Recording facts in shards of others.

Appending needs no ownership, only the version of the stream: the same inputs are applied as by the owner, with a turn
that decides nothing.  When somebody else was faster, what is true is read again and the input applied again.  The owner
finds the events behind its last decision and decides them."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from noetl.core.errors import (
    EnvelopeInvalid,
    LedgerBusy,
    LedgerUnavailable,
    NoetlError,
    ShardMoved,
    Terminal,
    TransitionConflict,
)
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.engine.control.batch import Batch, Delivery
from noetl.engine.control.inputs import Input, RecordingTurn, StartInput
from noetl.engine.control.parts import ControlParts
from noetl.engine.control.reconcile import supervised
from noetl.engine.control.states import PAGE_EVENTS, Held, folded
from noetl.engine.sharing.aside import Aside
from noetl.engine.sharing.waiting import RETRY_SECONDS, Waiting, is_recorded, patiently
from noetl.ports.ledger import AppendOutcome, Ledger, Offer, ShardHead
from noetl.ports.queue import Queue, Taken

INPUTS_AT_ONCE = 128
STATES_KEPT_MAX = 500
AGAIN_SECONDS, AGAIN_STEPS_MAX = 0.002, 25
log = logging.getLogger("noetl.recorder")


@dataclass(slots=True, eq=False)
class _Entry:
    """The inputs about one execution: recorded together or not at all."""

    execution_id: int
    waiting: list[Waiting]
    held: Held | None = None
    playbook: CompiledPlaybook | None = None
    batch: Batch | None = None
    kept: list[tuple[Waiting, list[Delivery]]] = field(default_factory=list)
    taken: set[tuple[int, str]] = field(default_factory=set)

    @property
    def shard_id(self) -> int:
        assert self.held is not None
        return self.held.shard_id

    @property
    def deliveries(self) -> list[Delivery]:
        return self.batch.deliveries if self.batch is not None else []

    def offer(self) -> Offer:
        assert self.batch is not None
        first: dict[int, int] = {}
        for sealed in self.batch.events:
            first.setdefault(sealed.event.execution_id, sealed.event.stream_version - 1)
        return Offer(
            shard_id=self.shard_id,
            events=self.batch.events,
            payloads=self.batch.payloads,
            expected_versions=first,
        )


class Recorder:
    """`run` belongs to the caller's task group; the other methods may be called from any task of the loop."""

    def __init__(self, parts: ControlParts, *, ledger: Ledger, queue: Queue, producer: str) -> None:
        """`ledger` has a connection of its own: waiting for another owner's commit must not delay ours."""
        self._ledger = ledger
        self._queue = queue
        self._states = parts.states
        self._playbooks = parts.playbooks
        self._sessions = parts.sessions
        self._counts = parts.counts
        self._watchers = parts.watchers
        self._ids = parts.ids
        self._clock = parts.clock
        self._producer = producer
        self._known: OrderedDict[int, Held] = OrderedDict()
        self._inputs: deque[Waiting] = deque()
        self._wake = asyncio.Event()
        self._aside = Aside(ledger, self._ring)
        self._is_rung = False

    @property
    def set_aside(self) -> Aside:
        return self._aside

    async def tell(self, one: Input) -> None:
        """Record one input; returns when it is in the ledger."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.take(Waiting(one, answer))
        await answer

    def take(self, waiting: Waiting) -> None:
        self._inputs.append(waiting)
        self._wake.set()

    def _ring(self) -> None:
        self._is_rung = True
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._inputs or self._is_rung:
                if self._is_rung:
                    self._is_rung = False
                    for kept in (await self._aside.freed()).values():
                        self._inputs.extendleft(reversed(kept))
                    self._sessions.pools.expect()
                count = min(len(self._inputs), INPUTS_AT_ONCE)
                await self._record([self._inputs.popleft() for _ in range(count)])

    # --- one append ------------------------------------------------------------------------------------------

    async def _record(self, taken: list[Waiting]) -> None:
        tries = 0
        while taken:
            again: list[Waiting] = []
            entries = await self._entries(taken)
            again += await self._take_rows(entries)
            entries = [entry for entry in entries if entry.batch is not None and entry.batch.events]
            if entries:
                again += await self._append(entries, RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)])
            taken = again
            tries += 1
            if taken:
                # Somebody else was faster, and may be again.
                await asyncio.sleep(AGAIN_SECONDS * min(tries, AGAIN_STEPS_MAX))

    async def _append(self, entries: list[_Entry], wait_seconds: float) -> list[Waiting]:
        """Returns what must be tried again."""
        try:
            outcome = await self._ledger.append([entry.offer() for entry in entries])
        except LedgerBusy:
            return await self._set_aside(entries, wait_seconds)
        except LedgerUnavailable as error:
            log.warning("append outcome unknown", extra={"event": "ledger.unavailable", "reason": str(error)})
            again = await self._undo(entries)
            for waiting in again:
                waiting.is_uncertain = True
            await asyncio.sleep(wait_seconds)
            return again
        except TransitionConflict:
            return await self._undo(entries)
        except EnvelopeInvalid as error:
            again = await self._undo(entries)
            if len(again) == 1:
                again[0].refuse(error)
                return []
            for waiting in again:
                await self._record([waiting])
            return []
        behind = [entry for entry, is_in in zip(entries, _recorded(entries, outcome), strict=True) if not is_in]
        for entry in entries:
            if entry not in behind:
                self._done(entry)
        return await self._undo(behind, is_behind=True)

    async def _set_aside(self, entries: list[_Entry], wait_seconds: float) -> list[Waiting]:
        """Nothing was written, because somebody holds a lock: what is about their shards waits for them, and nothing
        else does."""
        locked = await patiently(self._ledger.locked, {entry.shard_id for entry in entries})
        log.warning("shards locked", extra={"event": "shards.locked", "reason": ", ".join(map(str, sorted(locked)))})
        if not locked:
            await asyncio.sleep(wait_seconds)
        again = []
        for entry in entries:
            waiting = await self._undo([entry])
            if entry.shard_id in locked:
                self._aside.put(entry.shard_id, waiting)
            else:
                again += waiting
        return again

    def _done(self, entry: _Entry) -> None:
        self._counts.recorded += len(entry.kept)
        self._counts.frames.see(entry.batch.events if entry.batch is not None else ())
        for delivery in entry.deliveries:
            self._sessions.deliver(delivery.session_id, delivery.message)
        for waiting, _ in entry.kept:
            waiting.succeed()
        self._watchers.notify([entry.execution_id], ())

    async def _undo(self, entries: Iterable[_Entry], *, is_behind: bool = False) -> list[Waiting]:
        """Give back slots and rows; returns the inputs.  With `is_behind` the streams have gone on: what was tried from
        an earlier version of them, by whomever, cannot come any more."""
        again = []
        for entry in entries:
            again += [waiting for waiting, _ in entry.kept]
            now = await patiently(self._current, entry.execution_id) if is_behind and entry.taken else None
            await self._give_back(entry.deliveries, entry.taken, now)
        return again

    async def _give_back(
        self, deliveries: Iterable[Delivery], taken: set[tuple[int, str]], now: Held | None = None
    ) -> None:
        """A row whose claim may be in the ledger, or come into it late, stays ahead: it is claimed with the attempt
        behind.  One that were behind the ledger would never be claimed."""
        for delivery in deliveries:
            self._sessions.unreserve(delivery.session_id)
            message = delivery.message
            key = (message.execution_id, message.command_id)
            command = now.state.commands.get(message.command_id) if now is not None else None
            is_untaken = command is not None and command.attempt < message.attempt
            if key in taken:
                untaken = [message.attempt] if is_untaken else None
                await patiently(self._queue.release, delivery.session_id, commands=[key], untaken=untaken)

    # --- applying --------------------------------------------------------------------------------------------

    async def _entries(self, taken: list[Waiting]) -> list[_Entry]:
        grouped: OrderedDict[int, _Entry] = OrderedDict()
        for waiting in taken:
            if isinstance(waiting.input, StartInput):
                await self._refuse_start(waiting)
                continue
            execution_id = waiting.input.execution_id
            grouped.setdefault(execution_id, _Entry(execution_id, [])).waiting.append(waiting)
        entries = list(grouped.values())
        await asyncio.gather(*(self._load(entry) for entry in entries))
        for entry in entries:
            if entry.held is not None and entry.shard_id in self._aside.shards:
                self._aside.put(entry.shard_id, entry.waiting)
            elif entry.held is not None:
                await self._apply(entry)
        return entries

    async def _refuse_start(self, waiting: Waiting) -> None:
        """A new execution is begun by the owner of its shard; here it may at most have been begun already."""
        if waiting.is_uncertain and await patiently(is_recorded, self._ledger, waiting.input):
            waiting.succeed()
        else:
            waiting.refuse(ShardMoved("the shard of this new execution went to another server: try again"))

    async def _load(self, entry: _Entry) -> None:
        try:
            entry.held = await patiently(self._current, entry.execution_id)
            state = entry.held.state
            entry.playbook = self._playbooks.cached(state.playbook) or await patiently(
                self._playbooks.pinned,
                state.playbook,
                tenant_id=state.tenant_id,
                organization_id=state.organization_id,
            )
        except Terminal as error:  # an execution that cannot be read stops nobody else
            entry.held = None
            for waiting in entry.waiting:
                waiting.refuse(error)

    async def _current(self, execution_id: int) -> Held:
        """The state as of now: what was known, and the events behind it."""
        held = self._known.pop(execution_id, None)
        if held is None:
            held = await self._states.fold(execution_id)
        else:
            while True:
                events = await self._ledger.read_execution(
                    execution_id, after_position=held.position, limit=PAGE_EVENTS
                )
                held = folded(held, events) or held
                if len(events) < PAGE_EVENTS:
                    break
        self._known[execution_id] = held
        while len(self._known) > STATES_KEPT_MAX:
            self._known.popitem(last=False)
        return held

    async def _apply(self, entry: _Entry) -> None:
        held, playbook = entry.held, entry.playbook
        assert held is not None
        assert playbook is not None
        # Positions are the ledger's to give; any will do until then.
        heads = {held.shard_id: ShardHead(held.shard_id, held.position + 1, held.position, 0)}
        batch = entry.batch = Batch(ids=self._ids, producer=self._producer, heads=heads)
        turn = RecordingTurn(batch=batch, playbook=playbook, sessions=self._sessions, now=self._clock.now())
        for waiting in entry.waiting:
            mark, events, before = batch.mark(), len(batch.events), len(batch.deliveries)
            refusal = supervised(
                waiting.input, partial(waiting.input.apply, turn, batch.states.get(entry.execution_id, held))
            )
            if refusal is not None:
                for delivery in batch.roll_back(mark):
                    self._sessions.unreserve(delivery.session_id)
                await self._answer_refused(waiting, refusal)
            elif len(batch.events) == events:
                waiting.succeed()
            else:
                entry.kept.append((waiting, batch.deliveries[before:]))

    async def _answer_refused(self, waiting: Waiting, refusal: NoetlError) -> None:
        is_late = waiting.is_uncertain and isinstance(refusal, Terminal)
        if is_late and await patiently(is_recorded, self._ledger, waiting.input):
            waiting.succeed()
        else:
            self._counts.refuse(waiting, refusal)

    async def _take_rows(self, entries: Iterable[_Entry]) -> list[Waiting]:
        """Take the rows of what is being claimed.  A claim whose row somebody else has is given up; what else there is
        about its execution is tried again without it."""
        entries = [entry for entry in entries if entry.deliveries]
        if not entries:
            return []
        rows = [
            Taken(d.message.execution_id, d.message.command_id, d.message.attempt, d.session_id)
            for entry in entries
            for d in entry.deliveries
        ]
        taken = await patiently(self._queue.take, rows)
        again: list[Waiting] = []
        for entry in entries:
            keys = {(d.message.execution_id, d.message.command_id) for d in entry.deliveries}
            entry.taken = keys & taken
            if keys <= taken:
                continue
            await self._give_back(entry.deliveries, entry.taken)
            for waiting, deliveries in entry.kept:
                is_whole = all((d.message.execution_id, d.message.command_id) in taken for d in deliveries)
                if is_whole:
                    again.append(waiting)
                else:
                    getattr(waiting.input, "found", []).clear()
                    waiting.succeed()
            entry.batch = None
        return again


def _recorded(entries: Iterable[_Entry], outcome: AppendOutcome) -> list[bool]:
    """Whether each entry is in the ledger: all of it was appended, or was there with the same content.  A claim
    that was there may be that of another session: whose it is, is no content."""
    found, number = [], 0
    for entry in entries:
        assert entry.batch is not None
        numbers = range(number, number + len(entry.batch.events))
        number += len(entry.batch.events)
        left_out = [outcome.left_out[n] for n in numbers if n in outcome.left_out]
        is_there = all(one.position is not None and one.is_same for one in left_out)
        found.append(is_there and not (left_out and entry.deliveries))
    return found
