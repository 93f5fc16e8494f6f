"""One commit of a decider in the making: events with their positions and everything derived from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from noetl.core.event import Draft, Event, Sealed, seal
from noetl.core.execution.state import CommandStatus, ExecutionState
from noetl.core.reference import Payload, parent_of
from noetl.engine.control.states import Held
from noetl.engine.payloads import STORE_SMALL
from noetl.ports.clock import IdSource
from noetl.ports.ledger import Advance, ExecutionRow, Fence, IdempotencyRow, QueuedCommand, ShardHead, StopWord
from noetl.ports.session import CommandMessage, Stop


class Cause(NamedTuple):
    """What every event that follows from one input has in common."""

    execution_id: int
    tenant_id: str
    organization_id: str
    shard_id: int
    event_time: str
    parent_execution_id: int | None = None


class Delivery(NamedTuple):
    session_id: int
    message: CommandMessage


class FollowUp(Protocol):
    """What one input causes in another execution of its shard: an input of its own, in the same commit."""

    @property
    def execution_id(self) -> int: ...

    def apply(self, turn: Any, held: Held | None) -> None: ...


@dataclass(slots=True)
class Batch:
    """Collects; `mark` and `roll_back` undo one input without touching the others."""

    ids: IdSource
    producer: str
    heads: Mapping[int, ShardHead]
    next_positions: dict[int, int] = field(default_factory=dict)
    states: dict[int, Held] = field(default_factory=dict)
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of each execution that it goes on with, the shard and the version that it goes on from."""
    events: list[Sealed] = field(default_factory=list)
    payloads: list[Payload] = field(default_factory=list)
    queue: list[QueuedCommand] = field(default_factory=list)
    claims: list[QueuedCommand] = field(default_factory=list)
    dequeue: list[tuple[int, str]] = field(default_factory=list)
    timers: list[tuple[int, str, int, str]] = field(default_factory=list)
    timers_gone: list[tuple[int, str]] = field(default_factory=list)
    executions: list[ExecutionRow] = field(default_factory=list)
    idempotency: list[IdempotencyRow] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    follow_ups: list[FollowUp] = field(default_factory=list)
    touched_shards: set[int] = field(default_factory=set)

    _LISTS = (
        "events",
        "payloads",
        "queue",
        "claims",
        "dequeue",
        "timers",
        "timers_gone",
        "executions",
        "idempotency",
        "deliveries",
        "stops",
        "follow_ups",
    )

    def add(
        self,
        cause: Cause,
        draft: Draft,
        *,
        stream_version: int,
        causation_id: int | None,
        idempotency_key: str | None = None,
    ) -> Event:
        """Seal a draft as the next event of its shard."""
        shard_id = cause.shard_id
        position = self.next_positions.get(shard_id) or self.heads[shard_id].next_position
        event = Event(
            execution_id=cause.execution_id,
            event_id=self.ids.next_id(),
            tenant_id=cause.tenant_id,
            organization_id=cause.organization_id,
            event_type=draft.event_type,
            event_time=cause.event_time,
            producer=self.producer,
            transition_key=draft.transition_key,
            correlation_id=str(cause.execution_id),
            causation_id=causation_id,
            idempotency_key=idempotency_key,
            command_id=draft.command_id,
            stage_id=draft.stage_id,
            frame_id=draft.frame_id,
            parent_event_id=parent_of(draft.result),
            parent_execution_id=cause.parent_execution_id,
            payload_ref=draft.payload_ref,
            result=draft.result,
            writes=draft.writes,
            meta=draft.meta,
            shard_id=shard_id,
            position=position,
            stream_version=stream_version,
        )
        self.events.append(seal(event))
        self.next_positions[shard_id] = position + 1
        self.touched_shards.add(shard_id)
        return event

    def carry(self, payloads: Iterable[Payload]) -> None:
        """Payloads that become durable with this commit; the others were stored before their fact."""
        self.payloads.extend(payload for payload in payloads if payload.reference.store == STORE_SMALL)

    def keep(self, state: ExecutionState, shard_id: int, position: int) -> None:
        self.states[state.execution_id] = Held(state, shard_id, position)

    def mark(self) -> tuple[dict[str, int], dict[int, int], dict[int, Held]]:
        sizes = {name: len(getattr(self, name)) for name in self._LISTS}
        return sizes, dict(self.next_positions), dict(self.states)

    def roll_back(self, mark: tuple[dict[str, int], dict[int, int], dict[int, Held]]) -> list[Delivery]:
        """Undo to a mark; returns the deliveries whose slots were reserved and are free again."""
        sizes, positions, states = mark
        undone = self.deliveries[sizes["deliveries"] :]
        for name, size in sizes.items():
            del getattr(self, name)[size:]
        self.next_positions, self.states = positions, states
        return undone

    def split(self, missed: Collection[int]) -> tuple[Batch, Batch]:
        """What was done and what was not, when the fences of some shards did not hold: of both what is to be told."""
        done, left = (Batch(self.ids, self.producer, self.heads) for _ in range(2))

        def part(shard_id: int) -> Batch:
            return left if shard_id in missed else done

        done.seen = left.seen = self.seen
        for execution_id, held in self.states.items():
            part(held.shard_id).states[execution_id] = held
        for sealed in self.events:
            part(sealed.event.shard_id).events.append(sealed)
        for row in self.queue:
            part(row.shard_id).queue.append(row)
        for delivery in self.deliveries:
            part(self._shard_of(delivery.message.execution_id)).deliveries.append(delivery)
        for stop in self.stops:
            part(self._shard_of(stop.execution_id)).stops.append(stop)
        for shard_id in self.touched_shards:
            part(shard_id).touched_shards.add(shard_id)
        for shard_id, position in self.next_positions.items():
            part(shard_id).next_positions[shard_id] = position
        return done, left

    def _shard_of(self, execution_id: int) -> int:
        held = self.states.get(execution_id)
        return held.shard_id if held is not None else self.seen[execution_id][0]

    @property
    def is_empty(self) -> bool:
        return not self.touched_shards and not any(getattr(self, name) for name in self._LISTS)

    @property
    def shards(self) -> set[int]:
        """Every shard that this commit needs the fence of."""
        queued = {row.shard_id for row in (*self.queue, *self.claims)}
        shown = {row.shard_id for row in self.executions}
        told = {self.states[stop.execution_id].shard_id for stop in self.stops if stop.execution_id in self.states}
        return self.touched_shards | queued | shown | told | {shard_id for _, _, shard_id, _ in self.timers}

    def advance(self, is_near: Callable[[int, str, int], bool]) -> Advance:
        """Everything as one statement's arguments.  All events of these shards are decided by it.  Whoever holds
        something and is not near, in this process, is told to stop by the row."""
        shards = sorted(self.shards)
        fences = [
            Fence(
                shard_id=shard,
                epoch=self.heads[shard].epoch,
                next_position=self.heads[shard].next_position,
                decided_position=self.next_positions.get(shard, self.heads[shard].next_position) - 1,
            )
            for shard in shards
        ]
        rows = self.queue, self.claims, self.dequeue
        queue, claims, dequeue = self._rows() if sum(map(bool, rows)) > 1 else rows
        timers, timers_gone = self.timers, self.timers_gone
        if timers and timers_gone:
            timers = [timer for timer in timers if self._is_ticking(*timer[:2])]
            timers_gone = [timer for timer in timers_gone if not self._is_ticking(*timer)]
        return Advance(
            fences=fences,
            versions=[(shard, one, version) for one, (shard, version) in self.seen.items() if shard in shards],
            events=self.events,
            payloads=self.payloads,
            queue=queue,
            claims=claims,
            dequeue=dequeue,
            stops=self._words(is_near, {*_keys(queue), *_keys(claims), *dequeue}) if self.stops else (),
            timers=timers,
            timers_gone=timers_gone,
            executions=list({row.execution_id: row for row in self.executions}.values()),
            idempotency=self.idempotency,
        )

    def _words(self, is_near: Callable[[int, str, int], bool], changed: set[tuple[int, str]]) -> list[StopWord]:
        """A row that goes, or goes to somebody else, tells by that."""
        words = {
            (stop.execution_id, stop.command_id): StopWord(
                stop.execution_id, stop.command_id, stop.attempt, "drain" if stop.drain else "cancel"
            )
            for stop in self.stops
            if not is_near(stop.execution_id, stop.command_id, stop.attempt)
        }
        return [word for key, word in words.items() if key not in changed]

    # --- several inputs about one row: the state after all of them says what becomes of it -----------------

    def _rows(self) -> tuple[list[QueuedCommand], list[QueuedCommand], list[tuple[int, str]]]:
        queue = {(row.execution_id, row.command_id): row for row in self.queue}
        claims = {(row.execution_id, row.command_id): row for row in self.claims}
        # Queued and then claimed, or claimed and then queued again: every claim is an attempt more.
        queue = {
            key: row
            for key, row in queue.items()
            if self._is_open(*key) and not (key in claims and claims[key].attempt > row.attempt)
        }
        claims = {key: row for key, row in claims.items() if key not in queue and self._is_open(*key)}
        gone = [key for key in self.dequeue if key not in queue and key not in claims]
        return list(queue.values()), list(claims.values()), gone

    def _is_open(self, execution_id: int, command_id: str) -> bool:
        command = self.states[execution_id].state.commands.get(command_id)
        return command is not None and command.status is not CommandStatus.WAITING

    def _is_ticking(self, execution_id: int, name: str) -> bool:
        held = self.states.get(execution_id)
        return held is not None and name in held.state.timers


def _keys(rows: Iterable[QueuedCommand]) -> set[tuple[int, str]]:
    return {(row.execution_id, row.command_id) for row in rows}
