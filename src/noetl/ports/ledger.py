"""The ledger: append-only, gap-free position per shard, one transition once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from noetl.core.event import Event, Sealed
from noetl.core.reference import Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The decider's claim on a shard: it owns it by this epoch and has seen all events below `next_position`."""

    shard_id: int
    epoch: int
    next_position: int
    decided_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedCommand:
    """A row of the queue.  `locality` says, as JSON, where its data is and how far from there it may run."""

    execution_id: int
    command_id: str
    shard_id: int
    tenant_id: str
    organization_id: str
    tool_kind: str
    body: str
    attempt: int = 0
    session_id: int | None = None
    pool: str = "default"
    locality: str | None = None


@dataclass(frozen=True, slots=True)
class StopWord:
    """A word to whoever holds an attempt at a command: `cancel` or `drain`."""

    execution_id: int
    command_id: str
    attempt: int
    word: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRow:
    """A row of the projection `noetl.execution`: what lists show.  `state` is the document that a status view shows, as
    JSON, and is left out of lists; `quarantine` says, as JSON, why its events could not be folded any further."""

    execution_id: int
    tenant_id: str
    organization_id: str
    shard_id: int
    path: str
    playbook_digest: str
    status: str
    started_at: str
    ended_at: str | None
    last_step: str | None
    last_event_id: int
    applied_position: int
    parent_execution_id: int | None = None
    version: int = 0
    retry_of: int | None = None
    state: str | None = field(default=None, repr=False)
    quarantine: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyRow:
    tenant_id: str
    organization_id: str
    idempotency_key: str
    request_digest: str
    execution_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """One commit of a decider: fences, events with their positions, and everything derived from them."""

    fences: Sequence[Fence]
    events: Sequence[Sealed]
    versions: Sequence[tuple[int, int, int]] = ()
    """Shard, execution and the version that it must be at, also of executions without an event in this commit."""
    payloads: Sequence[Payload] = ()
    queue: Sequence[QueuedCommand] = ()
    claims: Sequence[QueuedCommand] = ()
    stops: Sequence[StopWord] = ()
    dequeue: Sequence[tuple[int, str]] = ()
    timers: Sequence[tuple[int, str, int, str]] = ()
    timers_gone: Sequence[tuple[int, str]] = ()
    executions: Sequence[ExecutionRow] = ()
    idempotency: Sequence[IdempotencyRow] = ()

    @property
    def versions_seen(self) -> list[tuple[int, int, int]]:
        """All of `versions`, and those that the events themselves say.  A stream that begins has none yet."""
        found = {execution_id: (shard_id, execution_id, version) for shard_id, execution_id, version in self.versions}
        for sealed in self.events:
            event = sealed.event
            if event.execution_id not in found:
                found[event.execution_id] = (event.shard_id, event.execution_id, event.stream_version - 1)
        return [one for one in found.values() if one[2] > 0]


@dataclass(frozen=True, slots=True)
class Appended:
    """How one event of an append ended: at a position, or as a duplicate of what was already there."""

    position: int
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Events that one caller wants appended together, with the payloads they name.  `expected_versions` are those of
    several streams, by execution; the others are at `expected_version`, if that is given."""

    shard_id: int
    events: Sequence[Sealed]
    payloads: Sequence[Payload] = ()
    expected_version: int | None = None
    expected_versions: Mapping[int, int] = field(default_factory=dict)

    def expects(self, execution_id: int) -> int | None:
        return self.expected_versions.get(execution_id, self.expected_version)


@dataclass(frozen=True, slots=True)
class ShardHead:
    shard_id: int
    next_position: int
    decided_position: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Why an append left one event out: its transition is stored, the stream is closed or at another version."""

    number: int
    position: int | None
    is_same: bool
    is_closed: bool
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOutcome:
    """First free position per shard before the append, and the events that were left out, by their number."""

    first_positions: Mapping[int, int]
    left_out: Mapping[int, LeftOut] = field(default_factory=dict)


class ShardLocks(Protocol):
    def hold(self, shards: Collection[int]) -> AbstractAsyncContextManager[None]:
        """Nobody else appends to these shards meanwhile: they wait, or are told LedgerBusy.  What the same task commits
        with `advance` inside is durable when this ends, and may be unknown by then (LedgerUnavailable)."""
        ...

    async def locked(self, shards: Collection[int]) -> frozenset[int]:
        """Those of the shards that nobody can write to now, because somebody holds a lock on them."""
        ...


class Ledger(ShardLocks, Protocol):
    """Appending and reading events.  Every method is one statement."""

    async def append(self, offers: Sequence[Offer]) -> AppendOutcome:
        """Append the events of several callers in one commit, leaving out what is already stored.

        Raises TransitionConflict on a concurrent duplicate (nothing was written; try again), EnvelopeInvalid when
        the database refuses a row, LedgerUnavailable when the outcome is unknown, LedgerBusy when somebody held a lock
        for too long (nothing was written)."""
        ...

    async def advance(self, advance: Advance) -> frozenset[int]:
        """Commit a decision.  Returns the shards whose fence held; nothing is written for the others.  Raises as
        `append` does."""
        ...

    async def read_execution(
        self, execution_id: int, *, after_position: int = 0, limit: int = 10_000
    ) -> list[Event]: ...

    async def read_shard(self, shard_id: int, *, after_position: int, limit: int = 10_000) -> list[Event]: ...

    async def heads(self) -> list[ShardHead]: ...

    async def shard_of(self, execution_id: int) -> int | None:
        """The shard that an execution was created in; None when there is no such execution."""
        ...

    async def incarnation(self) -> str: ...
