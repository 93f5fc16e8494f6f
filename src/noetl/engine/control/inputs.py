"""What a decider can be told, and what each of them does to a commit in the making.  Synchronous and free of I/O:
all that must be read was read before."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from noetl.core import kinds
from noetl.core.codec import canonical_json
from noetl.core.errors import ExecutionClosed, ExecutionUnknown, LeaseLost
from noetl.core.event import Draft, Event
from noetl.core.execution.context import command_body
from noetl.core.execution.decide import decide
from noetl.core.execution.evolve import evolve
from noetl.core.execution.lifecycle import CANCELLED, cancel_requested, failed_draft, limited_draft, limited_loop
from noetl.core.execution.lineage import with_known_inputs
from noetl.core.execution.placing.places import NO_PLACES
from noetl.core.execution.state import Command, CommandStatus, ExecutionState
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.reference import Payload
from noetl.engine.control.batch import Batch, Cause, Delivery
from noetl.engine.control.facts import (
    DRAINED,
    GIVES_OUT,
    LETS_GO,
    abandoned,
    attempts_max,
    claim_draft,
    exhausted,
    fact_draft,
    is_draining,
    is_stopped_for_nothing,
    is_told_again,
)
from noetl.engine.control.sessions import Sessions, demand_of
from noetl.engine.control.states import Held
from noetl.engine.placing.wishes import Wish, wish_of
from noetl.engine.projecting.rows import execution_row
from noetl.ports.ledger import IdempotencyRow, QueuedCommand
from noetl.ports.session import CommandMessage, Fact, Stop


class Work(NamedTuple):
    """What is given out: a command with what it carries, and where it would best run."""

    command: Command
    body: Mapping[str, object]
    wish: Wish | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What an input works on: the batch, the playbook of its execution, the sessions, the time, and the pools in which
    older commands wait for a slot."""

    batch: Batch
    playbook: CompiledPlaybook
    sessions: Sessions
    now: str
    backlog: Collection[str] = ()

    # --- following an event ------------------------------------------------------------------------------

    def follow(self, held: Held, event: Event) -> None:
        """Decide what comes after an event that the held state contains, and assign new commands."""
        decision = decide(held.state, event, self.playbook)
        cause = cause_of(held, event.event_time)
        state, last = decision.state, event
        # Behind all that the state contains, which may be more than the event when others appended.
        for version, draft in enumerate(decision.drafts, start=held.state.version + 1):
            last = self.batch.add(cause, draft, stream_version=version, causation_id=event.event_id)
        if decision.drafts:
            state = state.changed({"last_event_id": last.event_id})
        position = max(held.position, last.position)
        for draft in decision.drafts:
            if draft.event_type in GIVES_OUT:
                new_id = draft.frame_id or draft.command_id
                assert new_id is not None
                state, position = self.assign(state, cause, new_id, position)
        self.batch.keep(state, held.shard_id, position)
        if held.state.version == 1:
            self.show(state.execution_id)

    def show(self, execution_id: int) -> None:
        """So that whoever started it finds it; the rest of its projection is the projector's."""
        held = self.batch.states[execution_id]
        self.batch.executions.append(execution_row(held.state, held.shard_id, held.position))

    def assign(self, state: ExecutionState, cause: Cause, command_id: str, position: int) -> tuple[ExecutionState, int]:
        """Queue a command that nobody holds: claimed at once for a session with a free slot, else waiting.  Behind
        others that wait it waits too: a chain must not keep its slot for ever."""
        work = self.work(state, state.commands[command_id])
        command, session_id = work.command, None
        demand = demand_of(command, self.playbook)
        if demand.pool not in self.backlog:
            session_id = self.sessions.reserve(demand.kinds, pool=demand.pool, wish=work.wish)
        if session_id is not None:
            attempt = command.attempt + 1
            state, position = self.claim(state, cause, work, attempt=attempt, session_id=session_id)
        else:
            attempt = command.attempt
        self.batch.queue.append(self.row(cause, work, attempt=attempt, session_id=session_id))
        return state, position

    def work(self, state: ExecutionState, command: Command) -> Work:
        body = command_body(state, self.playbook, command)
        return Work(command, body, wish_of(state, command, body))

    def claim(
        self, state: ExecutionState, cause: Cause, work: Work, *, attempt: int, session_id: int
    ) -> tuple[ExecutionState, int]:
        """Record a claim and plan its delivery for after the commit."""
        held = self.sessions.connected.get(session_id)
        where = self.sessions.nearness.told(held, work.wish, cause.tenant_id, cause.organization_id)
        draft = claim_draft(work.command, attempt, session_id, where)
        event = self.batch.add(cause, draft, stream_version=state.version + 1, causation_id=state.last_event_id)
        message = CommandMessage(
            execution_id=cause.execution_id,
            tenant_id=cause.tenant_id,
            organization_id=cause.organization_id,
            command_id=work.command.command_id,
            attempt=attempt,
            body=work.body,
        )
        self.batch.deliveries.append(Delivery(session_id, message))
        return evolve(state, event), event.position

    def row(self, cause: Cause, work: Work, *, attempt: int, session_id: int | None) -> QueuedCommand:
        demand = demand_of(work.command, self.playbook)
        return QueuedCommand(
            execution_id=cause.execution_id,
            command_id=work.command.command_id,
            shard_id=cause.shard_id,
            tenant_id=cause.tenant_id,
            organization_id=cause.organization_id,
            pool=demand.pool,
            tool_kind="+".join(sorted(demand.kinds)),
            attempt=attempt,
            session_id=session_id,
            body=canonical_json(work.body),
            locality=None if work.wish is None else work.wish.text,
        )

    def reported(self, session_id: int, fact: Fact, held: Held | None) -> tuple[Held, Command]:
        """The command that a fact is about.  Refused when somebody else, or nobody, holds it."""
        if fact.event_type in LETS_GO:
            self.sessions.finish(session_id, fact.execution_id, fact.command_id, fact.attempt)
        if held is None:
            raise ExecutionUnknown(f"there is no execution {fact.execution_id}")
        if held.state.is_terminal:
            raise ExecutionClosed(f"execution {fact.execution_id} has ended: a late fact is refused")
        command = held.state.commands.get(fact.command_id)
        if command is None or command.attempt != fact.attempt or command.status is not CommandStatus.CLAIMED:
            raise LeaseLost(f"attempt {fact.attempt} of {fact.command_id} is not the one that holds the command")
        return held, command

    def resume(self, execution_id: int, command_id: str) -> None:
        """Give out a command that waited and may go on now."""
        held = self.batch.states[execution_id]
        command = held.state.commands.get(command_id)
        if command is not None and command.status is CommandStatus.ISSUED:
            state, position = self.assign(held.state, cause_of(held, self.now), command_id, held.position)
            self.batch.keep(state, held.shard_id, position)

    def record(self, held: Held, draft: Draft, *, event_time: str, causation_id: int | None) -> tuple[Held, Event]:
        """Append one draft to an execution and fold it."""
        cause = cause_of(held, event_time)
        event = self.batch.add(cause, draft, stream_version=held.state.version + 1, causation_id=causation_id)
        held = Held(evolve(held.state, event), held.shard_id, event.position)
        self.batch.states[event.execution_id] = held
        return held, event


@dataclass(frozen=True, slots=True, kw_only=True)
class StartInput:
    """A new execution.  `seeds` are the events that bring the state it begins with, when that is another one's."""

    execution_id: int
    shard_id: int
    tenant_id: str
    organization_id: str
    draft: Draft
    payloads: tuple[Payload, ...]
    idempotency: IdempotencyRow | None = None
    seeds: tuple[Draft, ...] = ()

    def apply(self, turn: Turn, held: Held | None) -> None:
        if held is not None:
            return
        cause = Cause(self.execution_id, self.tenant_id, self.organization_id, self.shard_id, turn.now)
        key = self.idempotency.idempotency_key if self.idempotency else None
        draft = limited_draft(self.draft, turn.playbook.playbook, turn.now)
        event = turn.batch.add(cause, draft, stream_version=1, causation_id=None, idempotency_key=key)
        turn.batch.carry(self.payloads)
        if self.idempotency is not None:
            turn.batch.idempotency.append(self.idempotency)
        held = Held(evolve(None, event), self.shard_id, event.position)
        for seed in self.seeds:
            draft = limited_loop(seed, turn.playbook, turn.now)
            held, event = turn.record(held, draft, event_time=turn.now, causation_id=event.event_id)
        turn.follow(held, event)
        if self.seeds:
            turn.show(self.execution_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class FactInput:
    """A worker's word about a command it holds."""

    execution_id: int
    session_id: int
    fact: Fact

    def apply(self, turn: Turn, held: Held | None) -> None:
        fact = self.fact
        held, command = turn.reported(self.session_id, fact, held)
        if is_told_again(command, fact):
            return
        if is_stopped_for_nothing(held.state, command, fact):
            raise LeaseLost(f"{fact.command_id} was given up, and nobody asked for its end: it goes to another attempt")
        meta = with_known_inputs(held.state, fact.meta)
        draft = fact_draft(command, fact if meta is fact.meta else fact._replace(meta=meta), turn.now)
        turn.batch.carry(fact.payloads)
        if fact.event_type in LETS_GO:
            turn.batch.dequeue.append((fact.execution_id, fact.command_id))
        held, event = turn.record(held, draft, event_time=turn.now, causation_id=held.state.last_event_id)
        turn.follow(held, event)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerInput:
    """A timer whose due time has passed."""

    execution_id: int
    name: str

    def apply(self, turn: Turn, held: Held | None) -> None:
        turn.batch.timers_gone.append((self.execution_id, self.name))
        if held is None or held.state.is_terminal or self.name not in held.state.timers:
            if held is not None:
                turn.batch.touched_shards.add(held.shard_id)
            return
        draft = Draft(
            event_type=kinds.TIMER_FIRED,
            transition_key=kinds.timer_key(self.name),
            meta={"name": self.name},
        )
        held, event = turn.record(held, draft, event_time=turn.now, causation_id=held.state.last_event_id)
        turn.follow(held, event)
        kind, _, rest = self.name.partition("/")
        if kind == "retry":
            turn.resume(self.execution_id, rest.rpartition("/")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimInput:
    """A waiting command of the queue, for whichever session has a free slot.  With other servers a row may be ahead of
    the ledger: given back by one whose claim was not recorded, and taken again since the look, with the attempt that it
    already had.  Unless it `is_sure` that nobody holds it, a claim that the ledger knows is left: its attempt is
    `doubted`, and what was decided last counts.  So is one made since the look, of which the row knows nothing."""

    execution_id: int
    row: QueuedCommand
    is_sure: bool = True
    doubted: list[int] = field(default_factory=list)

    @property
    def shard_id(self) -> int:
        return self.row.shard_id

    def apply(self, turn: Turn, held: Held | None) -> None:
        row = self.row
        command = held.state.commands.get(row.command_id) if held is not None else None
        if held is None or held.state.is_terminal or command is None or command.status is CommandStatus.WAITING:
            # The ledger knows better than the queue: nothing is left to do for this row.
            turn.batch.dequeue.append((row.execution_id, row.command_id))
            turn.batch.touched_shards.add(row.shard_id)
            return
        if turn.sessions.holds(row.execution_id, row.command_id, command.attempt):
            return
        is_unsure = not self.is_sure and command.status is CommandStatus.CLAIMED and row.attempt == command.attempt
        if is_unsure or row.attempt < command.attempt:
            self.doubted.append(command.attempt)
            return
        if held.state.cancelling is not None:
            # Whoever held it is gone, and nothing of it runs any more.
            self._give_up(turn, held, failed_draft(command, CANCELLED, is_skipped=True))
            return
        if is_draining(held.state, command):
            self._give_up(turn, held, failed_draft(command, DRAINED, is_skipped=True))
            return
        if command.attempt >= attempts_max(held.state, command):
            self._give_up(turn, held, exhausted(command))
            return
        demand = demand_of(command, turn.playbook)
        if row.pool != demand.pool:
            # Left where it is, it would stand before all that this pool can run.
            self._queue_again(turn, held, turn.work(held.state, command))
            return
        attempt = command.attempt + 1
        # Nothing is given up as deadly that never was alone: it may have died of what ran beside it.
        is_last = command.attempt > command.base and attempt >= attempts_max(held.state, command)
        alone = (self.execution_id, row.command_id) if is_last else None
        # Mostly nobody knows of places, and then nothing is computed for them.
        work = None if held.state.places is NO_PLACES else turn.work(held.state, command)
        wish = None if work is None else work.wish
        session_id = turn.sessions.reserve(demand.kinds, pool=demand.pool, alone=alone, wish=wish)
        if session_id is None:
            if work is not None and alone is None:
                self._wait(turn, held, work)
            return
        for draft in abandoned(held.state, command):
            held, _ = turn.record(held, draft, event_time=turn.now, causation_id=held.state.last_event_id)
        cause = cause_of(held, turn.now)
        work = turn.work(held.state, command)
        state, position = turn.claim(held.state, cause, work, attempt=attempt, session_id=session_id)
        turn.batch.claims.append(replace(row, attempt=attempt, session_id=session_id))
        turn.batch.keep(state, held.shard_id, position)

    def _wait(self, turn: Turn, held: Held, work: Work) -> None:
        """Left to somebody nearer, or to whoever is free first.  The wish may be younger than the row: by that one it
        would stand before all others, and its patience would never begin."""
        if work.wish is not None:
            turn.sessions.nearness.wait(self.row.pool, work.wish.key)
        if self.row.locality != (None if work.wish is None else work.wish.text):
            self._queue_again(turn, held, work)

    def _queue_again(self, turn: Turn, held: Held, work: Work) -> None:
        """The row as the ledger has it; never with an earlier attempt, for a claim may still come late."""
        queued = turn.row(cause_of(held, turn.now), work, attempt=self.row.attempt, session_id=None)
        turn.batch.queue.append(queued)
        turn.batch.keep(held.state, held.shard_id, held.position)

    def _give_up(self, turn: Turn, held: Held, draft: Draft) -> None:
        """What ended its worker again and again ends itself."""
        turn.batch.dequeue.append((self.execution_id, self.row.command_id))
        held, event = turn.record(held, draft, event_time=turn.now, causation_id=held.state.last_event_id)
        turn.follow(held, event)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreInput:
    """An open execution after a start: what the ledger says is open must be in the queue and among the timers.  `stops`
    may not have been said.  What sessions of other servers hold is left alone (`elsewhere`)."""

    execution_id: int
    undecided: tuple[Event, ...] = ()
    stops: tuple[Stop, ...] = ()
    elsewhere: frozenset[tuple[str, int]] = frozenset()

    def apply(self, turn: Turn, held: Held | None) -> None:
        if held is not None:
            turn.batch.stops.extend(stop for stop in self.stops if not _is_held(held.state, stop))
            if self.undecided:  # also of one that has ended: nobody need look at it again
                turn.batch.touched_shards.add(held.shard_id)
        if held is None or held.state.is_terminal:
            return
        for event in self.undecided:
            ended = event.frame_id or event.command_id
            if event.event_type in LETS_GO and ended is not None:
                turn.batch.dequeue.append((self.execution_id, ended))
            turn.follow(turn.batch.states.get(self.execution_id, held), event)
        held = self._confirm(turn, turn.batch.states.get(self.execution_id, held))
        state, position = held.state, held.position
        cause = cause_of(held, turn.now)
        for name, due_at in state.timers.items():
            turn.batch.timers.append((self.execution_id, name, held.shard_id, due_at))
        # What this commit has queued or claimed is not delivered yet, and a row of the queue is changed only once.
        rows = (*turn.batch.queue, *turn.batch.claims)
        changed = {row.command_id for row in rows if row.execution_id == self.execution_id}
        for command in held.state.commands.values():
            if command.status is CommandStatus.WAITING or command.command_id in changed:
                continue
            if self._is_taken(turn, command):
                continue
            work = turn.work(state, command)
            turn.batch.queue.append(turn.row(cause, work, attempt=command.attempt, session_id=None))
        turn.batch.keep(state, held.shard_id, position)

    def _is_taken(self, turn: Turn, command: Command) -> bool:
        is_away = (command.command_id, command.attempt) in self.elsewhere
        return is_away or turn.sessions.holds(self.execution_id, command.command_id, command.attempt)

    def _confirm(self, turn: Turn, held: Held) -> Held:
        """When an execution is being cancelled, whoever still holds something is told again, and what nobody holds any
        more cannot run any more: it is taken back and not run again."""
        if held.state.cancelling is None:
            return held
        for command in held.state.commands.values():
            if command.status is not CommandStatus.CLAIMED:
                continue
            if self._is_taken(turn, command):
                turn.batch.stops.append(Stop(self.execution_id, command.command_id, command.attempt))
                continue
            draft = failed_draft(command, CANCELLED, is_skipped=True)
            held, event = turn.record(held, draft, event_time=turn.now, causation_id=held.state.last_event_id)
            turn.follow(held, event)
            held = turn.batch.states[self.execution_id]
        return held


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideInput:
    """Facts that others recorded in a shard of ours, decided like our own.  The state contains all of them already, for
    what is decided stands behind everything that the ledger has; `before` is the state without them."""

    execution_id: int
    undecided: tuple[Event, ...]
    before: ExecutionState | None

    def apply(self, turn: Turn, held: Held | None) -> None:
        assert held is not None
        turn.batch.keep(*held)
        turn.batch.touched_shards.add(held.shard_id)
        for event in self.undecided:
            ended = event.frame_id or event.command_id
            if event.event_type in LETS_GO and ended is not None:
                turn.batch.dequeue.append((self.execution_id, ended))
            if held.state.is_terminal:
                continue  # nothing follows
            turn.follow(turn.batch.states[self.execution_id], event)
            if event.event_type in _GOES_ON and ended is not None:
                turn.resume(self.execution_id, ended)


# A task that started another playbook, or learned why it cannot, may go on at once.
_GOES_ON = frozenset((kinds.CHILD_STARTED, kinds.CHILD_TERMINAL))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingTurn(Turn):
    """For an input about an execution in a shard of somebody else: its facts are recorded, and nothing is decided or
    given out.  The owner of the shard does that when it finds them."""

    def follow(self, held: Held, event: Event) -> None:  # noqa: ARG002 - nothing follows from it here
        self.batch.keep(held.state, held.shard_id, held.position)

    def assign(
        self,
        state: ExecutionState,
        cause: Cause,  # noqa: ARG002 - nothing is given out
        command_id: str,  # noqa: ARG002
        position: int,
    ) -> tuple[ExecutionState, int]:
        return state, position

    def resume(self, execution_id: int, command_id: str) -> None:
        """Nothing: the owner gives it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelInput:
    """Somebody wants an execution to end.  Asking again changes nothing."""

    execution_id: int
    reason: str
    cause: str

    def apply(self, turn: Turn, held: Held | None) -> None:
        if held is None:
            raise ExecutionUnknown(f"there is no execution {self.execution_id}")
        if held.state.is_terminal:
            raise ExecutionClosed(f"execution {self.execution_id} has ended: it cannot be cancelled")
        if held.state.cancelling is not None:
            return
        draft = cancel_requested(held.state, now=turn.now, reason=self.reason, cause=self.cause)
        held, event = turn.record(held, draft, event_time=turn.now, causation_id=held.state.last_event_id)
        turn.follow(held, event)


class Input(Protocol):
    """What a decider can be told about one execution."""

    @property
    def execution_id(self) -> int: ...

    def apply(self, turn: Turn, held: Held | None) -> None:
        """Put what follows into the batch.  Raises why it is refused."""
        ...


def _is_held(state: ExecutionState, stop: Stop) -> bool:
    """Whether somebody may go on with what a word to stop is about."""
    command = state.commands.get(stop.command_id)
    return command is not None and command.attempt == stop.attempt and state.cancelling is None


def cause_of(held: Held, event_time: str) -> Cause:
    state = held.state
    return Cause(
        state.execution_id,
        state.tenant_id,
        state.organization_id,
        held.shard_id,
        event_time,
        state.parent_execution_id,
    )
