"""The decider: the one writer of the shards that it owns.  Takes inputs, folds, decides for all of them, commits once,
then answers everyone and hands claimed commands to their sessions.

Shards come and go while it runs, always between two commits.  What concerns a shard of somebody else is passed on."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

from noetl.core import kinds
from noetl.core.errors import (
    AppendOverloaded,
    EnvelopeInvalid,
    ExecutionClosed,
    ExecutionUnknown,
    LeaseLost,
    LedgerBusy,
    LedgerCorrupt,
    LedgerUnavailable,
    NoetlError,
    Terminal,
    TransitionConflict,
)
from noetl.core.execution.state import ExecutionState
from noetl.core.limits import DECIDE_INPUTS_WAITING_MAX
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.engine.children.inputs import ChildSource, ChildStartInput
from noetl.engine.control.batch import Batch
from noetl.engine.control.facts import check_context
from noetl.engine.control.inputs import (
    DecideInput,
    FactInput,
    Input,
    RestoreInput,
    StartInput,
    TimerInput,
    Turn,
)
from noetl.engine.control.parts import ControlParts
from noetl.engine.control.reconcile import applied
from noetl.engine.control.states import Held
from noetl.engine.sharing.aside import Aside
from noetl.engine.sharing.neighbours import Neighbours
from noetl.engine.sharing.owned import Owned
from noetl.engine.sharing.places import ShardsOf
from noetl.engine.sharing.undecided import Undecided
from noetl.engine.sharing.waiting import (
    RETRY_SECONDS,
    Attempt,
    Turns,
    Waiting,
    apart,
    is_recorded,
    one_each,
    patiently,
    unheard,
)
from noetl.points import point
from noetl.ports.ledger import ShardHead
from noetl.ports.session import Fact, Stop

BATCH_INPUTS_MAX = 128
MISSES_MAX = 5
MISSES_UNHELD_MAX = 3
log = logging.getLogger("noetl.decider")
# Only the owner of the shard has a use for them, and finds out by itself.
_OF_OWNER = (RestoreInput, DecideInput, TimerInput)


class _Elsewhere(Exception):
    """The shard of an input is not, or no longer, owned here."""


class _SetAside(_Elsewhere):
    """Somebody holds a lock on the shard of an input: it waits for that."""


class Decider:
    """`run` belongs to the caller's task group; every other method may be called from any task of the loop."""

    def __init__(
        self,
        parts: ControlParts,
        *,
        producer: str,
        children: ChildSource | None = None,
        neighbours: Neighbours | None = None,
    ) -> None:
        """`neighbours` are the other servers on the ledger; without them every shard is owned here."""
        self._ledger = parts.ledger
        self._states = parts.states
        self._playbooks = parts.playbooks
        self._sessions = parts.sessions
        self._watchers = parts.watchers
        self._on_commit = parts.on_commit
        self._ids = parts.ids
        self._clock = parts.clock
        self._context_bytes_max = parts.context_bytes_max
        self._producer = producer
        self._children = children
        self._neighbours = neighbours
        self._owned = Owned(parts.ledger, parts.states)
        self._shards_of = ShardsOf(parts.ledger, parts.states)
        self._counts = parts.counts
        self._inputs: deque[Waiting] = parts.counts.inputs
        self._orders: deque[tuple[Callable[[], Awaitable[None]], asyncio.Future[None]]] = deque()
        self._unanswered: Counter[int] = Counter()
        self._wake = asyncio.Event()
        self._aside = Aside(parts.ledger, self._ring)
        self._undecided = Undecided(parts.ledger, parts.states, self._owned, neighbours)

    # --- shards ----------------------------------------------------------------------------------------------

    @property
    def heads(self) -> Mapping[int, ShardHead]:
        """The shards that are owned now, as far as they are known."""
        return self._owned.heads

    @property
    def free_shards(self) -> Collection[int]:
        """Those of them that nobody outside has locked."""
        return [shard_id for shard_id in self._owned.heads if shard_id not in self._aside.shards]

    @property
    def set_aside(self) -> list[Aside]:
        """What waits for locked shards, of our own and of others."""
        return [self._aside, *([] if self._neighbours is None else [self._neighbours.outward.set_aside])]

    @property
    def unanswered(self) -> Collection[int]:
        """The executions about which somebody has said something that is not in the ledger yet, wherever it waits."""
        return self._unanswered.keys()

    def own(self, heads: list[ShardHead]) -> None:
        self._owned.heads = {head.shard_id: head for head in heads}

    async def adopt(self, heads: Sequence[ShardHead]) -> None:
        """Own these too, once what others left undecided in them is decided."""
        await self._order(partial(self._adopt, heads))

    async def let_go(self, shards: Collection[int]) -> None:
        """Own these no more; returns when nothing of ours is under way in them."""
        await self._order(partial(self._let_go, shards))

    async def catch_up(self, heads: Sequence[ShardHead] | None = None) -> None:
        """Decide what others recorded in the owned shards.  `heads` are given by whoever has just read them."""
        await self._order(partial(self._catch_up, heads))

    def _ring(self) -> None:
        self._order(self._take_back)

    def _order(self, order: Callable[[], Awaitable[None]]) -> asyncio.Future[None]:
        """Between two commits."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._orders.append((order, done))
        self._wake.set()
        return done

    async def _adopt(self, heads: Sequence[ShardHead]) -> None:
        self._owned.take(heads)
        # In one commit: that of any other execution would move the mark behind which these are found.
        await self._commit(await patiently(self._undecided.of, [head.shard_id for head in heads]))

    async def _let_go(self, shards: Collection[int]) -> None:
        self._owned.let_go(shards)

    async def _catch_up(self, heads: Sequence[ShardHead] | None) -> None:
        if heads is None:
            heads = await patiently(self._ledger.heads)
        grown = self._owned.look_at(heads, self.free_shards)
        found = await patiently(self._undecided.beyond, grown)
        if found and self._neighbours is not None:
            self._neighbours.notice()
        await self._commit(found)

    # --- inputs ----------------------------------------------------------------------------------------------

    async def tell(self, one: Input) -> None:
        """Apply one input and return when its consequences are committed; in a shard of somebody else, when it is
        recorded.

        Facts are bounded by the slots; new executions are refused when too much waits already."""
        waiting = len(self._inputs) + len(self._aside)
        if isinstance(one, StartInput) and waiting >= DECIDE_INPUTS_WAITING_MAX:
            raise AppendOverloaded(f"{waiting} inputs are waiting to be decided: try again later")
        self._unanswered[one.execution_id] += 1
        try:
            await self._told(one)
        finally:
            self._unanswered[one.execution_id] -= 1
            if not self._unanswered[one.execution_id]:
                del self._unanswered[one.execution_id]

    async def _told(self, one: Input) -> None:
        if self._neighbours is not None and not self._neighbours.is_alone:
            shard_id = await self._shards_of.find(one)
            if shard_id is not None and shard_id not in self._owned.heads:
                await self._neighbours.outward.tell(one)
                return
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inputs.append(Waiting(one, answer))
        self._wake.set()
        await answer

    async def report(self, session_id: int, fact: Fact) -> None:
        check_context(fact, self._context_bytes_max)
        if fact.event_type == kinds.CHILD_STARTED and self._children is not None:
            child = await patiently(self._children.prepare, fact)
            one: Input = ChildStartInput(execution_id=fact.execution_id, session_id=session_id, fact=fact, child=child)
        else:
            one = FactInput(execution_id=fact.execution_id, session_id=session_id, fact=fact)
        await self.tell(one)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._inputs or self._orders:
                while self._orders:
                    order, done = self._orders.popleft()
                    await order()
                    if not done.done():
                        done.set_result(None)
                taken = [self._inputs.popleft() for _ in range(min(len(self._inputs), BATCH_INPUTS_MAX))]
                await self._commit(taken)

    # --- one commit ----------------------------------------------------------------------------------------

    async def _commit(self, taken: list[Waiting], alone: int | None = None) -> None:
        """Commit inputs together; on trouble alone, again after a miss, or for as long as Postgres is away.  `alone` is
        the only shard that they are about, and nobody else appends to it meanwhile."""
        tries, unexplained, misses = 0, 0, Counter[int]()
        while taken:
            wait_seconds = RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
            one = Attempt(self._batch(), taken)
            try:
                await (self._attempt(one) if alone is None else self._attempt_alone(one, alone))
            except LedgerBusy:
                self._release(one.batch)
                shards = one.batch.shards or frozenset(() if alone is None else (alone,))
                taken = await self._set_aside(shards, one.taken, wait_seconds)
            except LedgerUnavailable as error:
                self._counts.unknown += 1
                log.warning("commit outcome unknown", extra={"event": "ledger.unavailable", "reason": str(error)})
                taken = one.taken + await self._recover(one.batch, one.taken, wait_seconds)
            except (TransitionConflict, EnvelopeInvalid) as error:
                await self._take_apart(one.batch, one.taken, error)
                return
            else:
                if not one.taken or one.batch.is_empty:
                    self._answer(one.taken)
                    return
                if one.held >= one.batch.shards:
                    self._done(one.batch, one.taken)
                    return
                self._counts.misses += 1
                left, taken = self._part_done(one.batch, one.taken, one.held)
                missed = one.batch.shards - one.held
                misses.update(missed)
                often = {shard for shard in missed if misses[shard] >= MISSES_UNHELD_MAX and alone is None}
                left, taken = await self._insist(often, left, taken)
                missed -= often
                grown = await patiently(self._owned.look_again, missed)
                if grown.keys() >= missed & self.heads.keys():
                    # All that was known is still true: it is decided again behind what somebody has appended.
                    self._release(left)
                    taken = await patiently(self._undecided.join, grown, taken)
                elif not grown and unexplained >= MISSES_MAX:
                    await self._take_apart(left, taken, LedgerCorrupt("a stream is not at the version of its events"))
                    return
                else:
                    # Nothing was appended where something must have been: then a state was wrong.
                    unexplained += not grown
                    taken += await self._recover(left, taken, 0.0)
            tries += 1

    async def _insist(self, shards: Collection[int], batch: Batch, taken: list[Waiting]) -> tuple[Batch, list[Waiting]]:
        """Others append faster than we commit: they wait for one commit of ours, shard by shard.  Returns the rest."""
        rest, again = batch.split(shards)
        self._release(again)
        for shard_id in sorted(shards):
            await self._commit([waiting for waiting in taken if waiting.shard_id == shard_id], alone=shard_id)
        return rest, [waiting for waiting in taken if waiting.shard_id not in shards]

    async def _attempt_alone(self, one: Attempt, shard_id: int) -> None:
        if self._neighbours is not None:
            await self._neighbours.trusted()
        async with self._ledger.hold((shard_id,)):
            one.taken = await self._undecided.join(await self._owned.look_again((shard_id,)), one.taken)
            await self._attempt(one, is_held=True)

    async def _attempt(self, one: Attempt, *, is_held: bool = False) -> None:
        one.batch, one.taken = await self._decide(one.taken)
        if not one.taken or one.batch.is_empty:
            return
        if self._neighbours is not None and not is_held:  # what is held nobody else can own
            await self._neighbours.trusted()
        for delivery in one.batch.deliveries:
            self._sessions.announce(delivery.session_id, delivery.message)
        one.held = await self._ledger.advance(one.batch.advance(self._sessions.holds))

    def _batch(self) -> Batch:
        return Batch(ids=self._ids, producer=self._producer, heads=self._owned.heads)

    async def _decide(self, taken: list[Waiting]) -> tuple[Batch, list[Waiting]]:
        """Fold and decide every input into one batch.  An input that is refused leaves no trace in it."""
        batch = self._batch()
        now = self._clock.now()
        kept = []
        turns = Turns()
        for waiting in taken:
            await turns.take(len(getattr(waiting.input, "undecided", ())) or 1)
            try:
                refusal = await self._try(batch, waiting, now)
            except _SetAside:
                continue
            except _Elsewhere:
                self._pass_on(waiting)
                continue
            except Terminal as error:  # an execution that cannot be read stops nobody else
                self._counts.refuse(waiting, error)
                continue
            is_late = waiting.is_uncertain and isinstance(refusal, Terminal)
            if refusal is None:
                kept.append(waiting)
                await self._follow_up(batch, now)
            elif is_late and await patiently(is_recorded, self._ledger, waiting.input):
                waiting.succeed()
            else:
                self._counts.refuse(waiting, refusal)
        return batch, kept

    def _pass_on(self, waiting: Waiting) -> None:
        """The shard has another owner now."""
        if isinstance(waiting.input, _OF_OWNER):
            waiting.succeed()
        elif self._neighbours is None:
            waiting.refuse(LeaseLost(f"the shard of execution {waiting.input.execution_id} belongs to another process"))
        else:
            self._neighbours.outward.take(waiting)

    async def _try(self, batch: Batch, waiting: Waiting, now: str) -> NoetlError | None:
        """Apply one input; returns why it was refused.  Raises when its execution cannot be read."""
        held, playbook = await patiently(self._load, batch, waiting)
        shard_id = held.shard_id if held is not None else getattr(waiting.input, "shard_id", None)
        waiting.shard_id = shard_id
        if shard_id not in self._owned.heads:
            self._states.drop(waiting.input.execution_id)
            raise _Elsewhere
        if shard_id in self._aside.shards:
            self._aside.put(shard_id, [waiting])
            raise _SetAside
        if held is not None and waiting.input.execution_id not in batch.states:
            batch.seen[waiting.input.execution_id] = (shard_id, held.state.version)
        mark = batch.mark()
        backlog = self._sessions.pools.backlog
        turn = Turn(batch=batch, playbook=playbook, sessions=self._sessions, now=now, backlog=backlog)
        refusal = applied(waiting.input, turn, held)
        if refusal is not None:
            for delivery in batch.roll_back(mark):
                self._sessions.unreserve(delivery.session_id)
        return refusal

    async def _follow_up(self, batch: Batch, now: str) -> None:
        """Apply what an input causes in other executions.  They are in its shard: all of it is one commit, or none."""
        while batch.follow_ups:
            waiting = unheard(batch.follow_ups.pop(0))
            try:
                refusal = await self._try(batch, waiting, now)
            except _Elsewhere:
                continue
            except Terminal as error:
                refusal = error
            if refusal is not None and not isinstance(refusal, ExecutionClosed):
                log.error(
                    "a parent and its child cannot be brought together",
                    extra={"event": "follow_up.refused", "execution_id": waiting.input.execution_id},
                )

    async def _load(self, batch: Batch, waiting: Waiting) -> tuple[Held | None, CompiledPlaybook]:
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
            owner: StartInput | ExecutionState = one
            reference = one.draft.meta["playbook"]
            assert isinstance(reference, dict)
        else:
            owner, reference = held.state, held.state.playbook
        owned = {"tenant_id": owner.tenant_id, "organization_id": owner.organization_id}
        return held, self._playbooks.cached(reference) or await self._playbooks.pinned(reference, **owned)

    def _done(self, batch: Batch, taken: list[Waiting]) -> None:
        self._counts.committed(len(taken), batch.events)
        for shard_id in batch.touched_shards:
            head = self._owned.heads[shard_id]
            following = batch.next_positions.get(shard_id, head.next_position)
            self._owned.heads[shard_id] = ShardHead(shard_id, following, following - 1, head.epoch)
        for execution_id, held in batch.states.items():
            self._states.keep(execution_id, held)
        for delivery in batch.deliveries:
            self._sessions.deliver(delivery.session_id, delivery.message)
        point("server.delivered")
        for stop in batch.stops:
            self._sessions.stop(stop)
        for row in batch.queue:
            if row.session_id is None:
                self._sessions.pools.expect(row.pool)
        self._answer(taken)
        ended = [execution_id for execution_id, held in batch.states.items() if held.state.is_terminal]
        self._watchers.notify(batch.states, ended)
        if self._on_commit is not None:
            self._on_commit(sealed.event for sealed in batch.events)

    def _answer(self, taken: list[Waiting]) -> None:
        for waiting in taken:
            waiting.succeed()

    # --- trouble -------------------------------------------------------------------------------------------

    def _release(self, batch: Batch) -> None:
        for delivery in batch.deliveries:
            self._sessions.withdraw(delivery.session_id, delivery.message)

    async def _take_apart(self, batch: Batch, taken: list[Waiting], error: NoetlError) -> None:
        """The database refuses something of a batch: only that is refused."""
        self._counts.conflicts += 1
        self._release(batch)
        if len(taken) == 1:
            taken[0].refuse(error)
            return
        for part in apart(taken):
            await self._commit(part)

    def _part_done(self, batch: Batch, taken: list[Waiting], held: Collection[int]) -> tuple[Batch, list[Waiting]]:
        """What a commit has done in the shards whose fences held is told; returns the rest."""
        missed = batch.shards - set(held)
        done, left = batch.split(missed)
        if held:
            self._done(done, [waiting for waiting in taken if waiting.shard_id not in missed])
        return left, [waiting for waiting in taken if waiting.shard_id in missed or not held]

    async def _recover(self, batch: Batch, taken: list[Waiting], wait_seconds: float) -> list[Waiting]:
        """Forget what was assumed and read again what is true, however long that takes.

        Returns inputs that must go into the next commit: events that others appended and nobody decided, and the
        executions of this batch, whose claims may have been committed without being delivered."""
        self._release(batch)
        uncertain = {*batch.states, *(waiting.input.execution_id for waiting in taken)}
        for execution_id in uncertain:
            self._states.drop(execution_id)
        for waiting in taken:
            waiting.is_uncertain = True
        await asyncio.sleep(wait_seconds)
        return await self._read_again(taken, uncertain, batch.stops)

    async def _read_again(self, taken: list[Waiting], uncertain: set[int], stops: Sequence[Stop]) -> list[Waiting]:
        await patiently(self._owned.look_again, list(self.heads))
        found = await patiently(self._undecided.again, self.free_shards, uncertain, stops)
        # What was committed without our knowing may be what somebody waits for, and no later commit would tell them.
        self._watchers.notify(uncertain, uncertain)
        for waiting in taken:
            # One that already waits takes over what is undecided now: the rest may have been decided meanwhile.
            if isinstance(waiting.input, RestoreInput | DecideInput):
                waiting.input = found.pop(waiting.input.execution_id, waiting.input)
        return [unheard(found[execution_id]) for execution_id in sorted(found)]

    async def _set_aside(self, shards: Collection[int], taken: list[Waiting], wait_seconds: float) -> list[Waiting]:
        """Nothing was written, because somebody holds a lock: what is about their shards waits for them, and nothing
        else does.  Returns the rest."""
        locked = await patiently(self._ledger.locked, shards)
        log.warning("shards locked", extra={"event": "shards.locked", "reason": ", ".join(map(str, sorted(locked)))})
        if not locked:
            await asyncio.sleep(wait_seconds)
        for shard_id in locked:
            self._aside.put(shard_id, [waiting for waiting in taken if waiting.shard_id == shard_id])
        return [waiting for waiting in taken if waiting.shard_id not in locked]

    async def _take_back(self) -> None:
        """Go on in shards that were locked.  What others recorded there meanwhile is one commit, as when a shard is
        adopted; what was told waits no longer than anything else."""
        freed = await self._aside.freed()
        recorded, others, stops = one_each(waiting for kept in freed.values() for waiting in kept)
        self._states.drop_shards(freed.keys())
        self._inputs.extendleft(reversed(others))
        executions = {waiting.input.execution_id for waiting in recorded}
        if freed:
            await self._commit(recorded + await self._read_again(recorded, executions, stops))
            self._sessions.pools.expect()
