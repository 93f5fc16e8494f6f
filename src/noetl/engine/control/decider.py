"""The decider: the one writer of its shards.  Takes inputs, folds, decides for all of them, commits once, then answers
everyone and hands claimed commands to their sessions."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import chain, repeat
from typing import ParamSpec, TypeVar

from noetl.core import kinds
from noetl.core.errors import (
    AppendOverloaded,
    EnvelopeInvalid,
    ExecutionClosed,
    ExecutionUnknown,
    LeaseLost,
    LedgerCorrupt,
    LedgerUnavailable,
    NoetlError,
    Terminal,
    TransitionConflict,
)
from noetl.core.event import Event
from noetl.core.limits import DECIDE_INPUTS_WAITING_MAX
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.engine.children.inputs import CHILD_REPORTED, ChildSource, ChildStartInput, look_around
from noetl.engine.control.batch import Batch
from noetl.engine.control.facts import check_context
from noetl.engine.control.inputs import CancelInput, FactInput, Input, RestoreInput, StartInput, Turn
from noetl.engine.control.parts import ControlParts
from noetl.engine.control.reconcile import reconcile
from noetl.engine.control.states import Held, undecided_events
from noetl.ports.ledger import ShardHead
from noetl.ports.session import Fact

BATCH_INPUTS_MAX = 128
RETRY_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0)
log = logging.getLogger("noetl.decider")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class _Waiting:
    input: Input
    answer: asyncio.Future[None]
    is_uncertain: bool = False


class Decider:
    """`run` belongs to the caller's task group; every other method may be called from any task of the loop."""

    def __init__(self, parts: ControlParts, *, producer: str, children: ChildSource | None = None) -> None:
        self._ledger = parts.ledger
        self._states = parts.states
        self._playbooks = parts.playbooks
        self._sessions = parts.sessions
        self._watchers = parts.watchers
        self._ids = parts.ids
        self._clock = parts.clock
        self._context_bytes_max = parts.context_bytes_max
        self._producer = producer
        self._children = children
        self._heads: dict[int, ShardHead] = {}
        self._inputs: deque[_Waiting] = deque()
        self._wake = asyncio.Event()

    def own(self, heads: list[ShardHead]) -> None:
        self._heads = {head.shard_id: head for head in heads}

    async def tell(self, one: Input) -> None:
        """Apply one input and return when its consequences are committed.

        Facts are bounded by the slots; new executions are refused when too much waits already."""
        if isinstance(one, StartInput) and len(self._inputs) >= DECIDE_INPUTS_WAITING_MAX:
            raise AppendOverloaded(f"{len(self._inputs)} inputs are waiting to be decided: try again later")
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inputs.append(_Waiting(one, answer))
        self._wake.set()
        await answer

    async def report(self, session_id: int, fact: Fact) -> None:
        check_context(fact, self._context_bytes_max)
        if fact.event_type == kinds.CHILD_STARTED and self._children is not None:
            child = await _patiently(self._children.prepare, fact)
            one: Input = ChildStartInput(execution_id=fact.execution_id, session_id=session_id, fact=fact, child=child)
        else:
            one = FactInput(execution_id=fact.execution_id, session_id=session_id, fact=fact)
        await self.tell(one)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._inputs:
                taken = [self._inputs.popleft() for _ in range(min(len(self._inputs), BATCH_INPUTS_MAX))]
                await self._commit(taken)

    # --- one commit ----------------------------------------------------------------------------------------

    async def _commit(self, taken: list[_Waiting]) -> None:
        """Commit inputs together; on trouble alone, again after a miss, or for as long as Postgres is away."""
        tries = 0
        while taken:
            batch, taken = await self._decide(taken)
            if not taken:
                return
            if batch.is_empty:
                self._answer(taken)
                return
            advance = batch.advance()
            for delivery in batch.deliveries:
                self._sessions.announce(delivery.session_id, delivery.message)
            try:
                held = await self._ledger.advance(advance)
            except LedgerUnavailable as error:
                log.warning("commit outcome unknown", extra={"event": "ledger.unavailable", "reason": str(error)})
                taken += await self._recover(batch, taken, RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)])
            except (TransitionConflict, EnvelopeInvalid) as error:
                self._release(batch)
                if len(taken) == 1:
                    _refuse(taken[0], error)
                    return
                for waiting in taken:
                    await self._commit([waiting])
                return
            else:
                if held >= batch.shards:
                    self._done(batch, taken)
                    return
                # Someone appended meanwhile: look again and decide again.
                taken += await self._recover(batch, taken, 0.0)
            tries += 1

    async def _decide(self, taken: list[_Waiting]) -> tuple[Batch, list[_Waiting]]:
        """Fold and decide every input into one batch.  An input that is refused leaves no trace in it."""
        batch = Batch(ids=self._ids, producer=self._producer, heads=self._heads)
        now = self._clock.now()
        kept = []
        for waiting in taken:
            try:
                refusal = await self._try(batch, waiting, now)
            except Terminal as error:  # an execution that cannot be read stops nobody else
                _refuse(waiting, error)
                continue
            is_late = waiting.is_uncertain and isinstance(refusal, Terminal)
            if refusal is None:
                kept.append(waiting)
                await self._follow_up(batch, now)
            elif is_late and await _patiently(self._is_recorded, waiting.input):
                _succeed(waiting)
            else:
                _refuse(waiting, refusal)
        return batch, kept

    async def _try(self, batch: Batch, waiting: _Waiting, now: str) -> NoetlError | None:
        """Apply one input; returns why it was refused.  Raises when its execution cannot be read."""
        held, playbook = await _patiently(self._load, batch, waiting)
        mark = batch.mark()
        backlog = self._sessions.pools.backlog
        turn = Turn(batch=batch, playbook=playbook, sessions=self._sessions, now=now, backlog=backlog)
        refusal = _applied(waiting.input, turn, held)
        if refusal is not None:
            for delivery in batch.roll_back(mark):
                self._sessions.unreserve(delivery.session_id)
        return refusal

    async def _follow_up(self, batch: Batch, now: str) -> None:
        """Apply what an input causes in other executions.  They are in its shard: all of it is one commit, or none."""
        loop = asyncio.get_running_loop()
        while batch.follow_ups:
            waiting = _Waiting(batch.follow_ups.pop(0), _unheard(loop))
            try:
                refusal = await self._try(batch, waiting, now)
            except Terminal as error:
                refusal = error
            if refusal is not None and not isinstance(refusal, ExecutionClosed):
                log.error(
                    "a parent and its child cannot be brought together",
                    extra={"event": "follow_up.refused", "execution_id": waiting.input.execution_id},
                )

    async def _load(self, batch: Batch, waiting: _Waiting) -> tuple[Held | None, CompiledPlaybook]:
        one = waiting.input
        held = batch.states.get(one.execution_id) or self._states.cached(one.execution_id)
        # The id of a new execution was just made: only a start that was tried before can be in the ledger.
        if held is None and (waiting.is_uncertain or not isinstance(one, StartInput)):
            try:
                held = await self._states.load(one.execution_id)
            except ExecutionUnknown:
                if not isinstance(one, StartInput):
                    raise
        if held is None:
            assert isinstance(one, StartInput)
            reference = one.draft.meta["playbook"]
            assert isinstance(reference, dict)
        else:
            reference = held.state.playbook
        playbook = self._playbooks.cached(reference)
        if playbook is None:
            playbook = await self._playbooks.pinned(
                reference, tenant_id=_owner(one, held)[0], organization_id=_owner(one, held)[1]
            )
        return held, playbook

    def _done(self, batch: Batch, taken: list[_Waiting]) -> None:
        for shard_id in batch.touched_shards:
            head = self._heads[shard_id]
            following = batch.next_positions.get(shard_id, head.next_position)
            self._heads[shard_id] = ShardHead(shard_id, following, following - 1, head.epoch)
        for execution_id, held in batch.states.items():
            self._states.keep(execution_id, held)
        for delivery in batch.deliveries:
            self._sessions.deliver(delivery.session_id, delivery.message)
        for stop in batch.stops:
            self._sessions.stop(stop)
        for row in batch.queue:
            if row.session_id is None:
                self._sessions.pools.expect(row.pool)
        self._answer(taken)
        ended = [execution_id for execution_id, held in batch.states.items() if held.state.is_terminal]
        self._watchers.notify(batch.states, ended)

    def _answer(self, taken: list[_Waiting]) -> None:
        for waiting in taken:
            _succeed(waiting)

    # --- trouble -------------------------------------------------------------------------------------------

    def _release(self, batch: Batch) -> None:
        for delivery in batch.deliveries:
            self._sessions.withdraw(delivery.session_id, delivery.message)

    async def _recover(self, batch: Batch, taken: list[_Waiting], wait_seconds: float) -> list[_Waiting]:
        """Forget what was assumed and read again what is true, however long that takes.

        Returns inputs that must go into the next commit: events that others appended and nobody decided, and the
        executions of this batch, whose claims may have been committed without being delivered."""
        self._release(batch)
        uncertain = {*batch.states, *(waiting.input.execution_id for waiting in taken)}
        for execution_id in uncertain:
            self._states.drop(execution_id)
        for waiting in taken:
            waiting.is_uncertain = True
        while True:
            await asyncio.sleep(wait_seconds)
            try:
                undecided = await self._look_again()
                break
            except LedgerUnavailable:
                wait_seconds = RETRY_SECONDS[-1]
        # What was committed without our knowing may be what somebody waits for, and no later commit would tell them.
        self._watchers.notify(uncertain, uncertain)
        loop = asyncio.get_running_loop()
        restored = {
            execution_id: RestoreInput(
                execution_id=execution_id,
                undecided=tuple(undecided.get(execution_id, ())),
                stops=tuple(stop for stop in batch.stops if stop.execution_id == execution_id),
            )
            for execution_id in sorted({*uncertain, *undecided})
        }
        for waiting in taken:
            # One that already waits takes over what is undecided now: the rest may have been decided meanwhile.
            if isinstance(waiting.input, RestoreInput):
                waiting.input = restored.pop(waiting.input.execution_id, waiting.input)
        return [_Waiting(one, _unheard(loop)) for one in restored.values()]

    async def _look_again(self) -> dict[int, list[Event]]:
        """Read the heads of the owned shards; returns what was appended there and not decided, by execution."""
        undecided: dict[int, list[Event]] = {}
        for head in await self._ledger.heads():
            known = self._heads.get(head.shard_id)
            if known is None:
                continue
            if known.epoch != head.epoch:
                raise LeaseLost(f"shard {head.shard_id} belongs to another process (epoch {head.epoch})")
            self._heads[head.shard_id] = head
            for event in await undecided_events(self._ledger, head):
                undecided.setdefault(event.execution_id, []).append(event)
                self._states.drop(event.execution_id)
        return undecided

    async def _is_recorded(self, one: Input) -> bool:
        """Whether the ledger already holds what an uncertain commit tried to write."""
        if not isinstance(one, FactInput | ChildStartInput | CancelInput):
            return False
        events = await self._ledger.read_execution(one.execution_id)
        if isinstance(one, CancelInput):
            return any(event.event_type == kinds.CANCEL_REQUESTED for event in events)
        kind = CHILD_REPORTED if isinstance(one, ChildStartInput) else (one.fact.event_type,)
        return any(
            (event.frame_id or event.command_id) == one.fact.command_id
            and event.event_type in kind
            and event.meta.get("attempt") == one.fact.attempt
            # Of several words of one kind about an attempt, this one; the others number themselves.
            and event.meta.get("n") == one.fact.meta.get("n", event.meta.get("n"))
            for event in events
        )


async def _patiently(read: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Read for as long as Postgres is away: a decider outlives its database."""
    for seconds in chain(RETRY_SECONDS, repeat(RETRY_SECONDS[-1])):
        try:
            return await read(*args, **kwargs)
        except LedgerUnavailable as error:
            log.warning("read failed", extra={"event": "ledger.unavailable", "reason": str(error)})
            await asyncio.sleep(seconds)
    raise AssertionError("unreachable")


def _applied(one: Input, turn: Turn, held: Held | None) -> NoetlError | None:
    """Apply one input; returns why it was refused.  A defect of ours stops this execution and nobody else."""
    try:
        one.apply(turn, held)
        after = turn.batch.states.get(one.execution_id)
        if after is not None:
            reconcile(turn.batch, held.state if held else None, after.state, after.shard_id)
            if isinstance(one, RestoreInput):
                look_around(turn.batch, after.state)
        born = turn.batch.states.get(one.child_id or 0) if isinstance(one, ChildStartInput) else None
        if born is not None:
            reconcile(turn.batch, None, born.state, born.shard_id)
    except NoetlError as error:
        return error
    except Exception as error:  # task supervision: the decider must outlive what it cannot decide
        log.exception("an execution cannot be decided", extra={"event": "execution.quarantined"})
        return LedgerCorrupt(f"execution {one.execution_id} cannot be decided: {error!r}")
    return None


def _unheard(loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """An answer that nobody waits for; a refusal is not an unhandled error."""
    future: asyncio.Future[None] = loop.create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


def _owner(one: Input, held: Held | None) -> tuple[str, str]:
    if held is not None:
        return held.state.tenant_id, held.state.organization_id
    assert isinstance(one, StartInput)
    return one.tenant_id, one.organization_id


def _succeed(waiting: _Waiting) -> None:
    if not waiting.answer.done():
        waiting.answer.set_result(None)


def _refuse(waiting: _Waiting, error: NoetlError) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
