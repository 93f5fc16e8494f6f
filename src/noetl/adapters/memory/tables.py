"""The tables of the database in memory, by the key of their real ones."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from noetl.core.codec import canonical_json, parse_json
from noetl.core.errors import EnvelopeInvalid, LedgerCorrupt
from noetl.core.event import Event, Sealed
from noetl.core.ids import Quarter
from noetl.core.reference import check_result, check_result_size
from noetl.core.snapshot.snapshot import Snapshot
from noetl.ports.durability.checkpoints import Checkpoint
from noetl.ports.ledger import ExecutionRow, IdempotencyRow, QueuedCommand, ShardHead

INCARNATION = "00000000-0000-4000-8000-000000000001"


class StoredEvent(NamedTuple):
    """A row of the ledger: the exact bytes, their checksum, and what the ledger gave."""

    text: str
    checksum: str
    event_type: str
    transition_key: str
    shard_id: int
    position: int
    stream_version: int
    ingest_time: str


class Stream(NamedTuple):
    shard_id: int
    version: int
    closed: bool


class QueueRow(NamedTuple):
    command: QueuedCommand
    available_at: str
    stop: str | None = None


class Timer(NamedTuple):
    shard_id: int
    due_at: str


class Request(NamedTuple):
    """An idempotency row with its primary key."""

    row: IdempotencyRow

    @property
    def key(self) -> tuple[str, str, str]:
        return self.row.tenant_id, self.row.organization_id, self.row.idempotency_key


class RoleRow(NamedTuple):
    """Who has a role, until when by the clock of the database."""

    runtime_id: int | None
    epoch: int
    leased_until: float


class ProjectorRow(NamedTuple):
    """A process that projects, until when by the clock of the database."""

    is_dedicated: bool
    leased_until: float


class ProjectionRow(NamedTuple):
    """How far the projection of a shard is, and whose it is."""

    position: int
    incarnation: str
    epoch: int = 0
    owner: int | None = None
    leased_until: float = float("-inf")
    lag_ms: int | None = None


class Hold(NamedTuple):
    """Ends with the task that has it, or when the database loses patience: a process that stands still, or is gone,
    gives nothing back."""

    holder: object
    until: float


@dataclass(slots=True)
class Tables:
    """Everything that a committed statement leaves behind."""

    heads: dict[int, ShardHead]
    locked: frozenset[int]
    """Shards that somebody outside holds a lock on."""
    held: dict[int, Hold]
    """Shards that a decider has to itself for one commit."""
    shards: dict[int, list[StoredEvent]]
    events: dict[int, list[StoredEvent]] = field(default_factory=dict)
    transitions: dict[tuple[int, str], StoredEvent] = field(default_factory=dict)
    streams: dict[int, Stream] = field(default_factory=dict)
    payloads: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    payload_times: dict[tuple[str, str, str], float] = field(default_factory=dict)
    commands: dict[tuple[int, str], QueueRow] = field(default_factory=dict)
    timers: dict[tuple[int, str], Timer] = field(default_factory=dict)
    executions: dict[int, ExecutionRow] = field(default_factory=dict)
    idempotency: dict[tuple[str, str, str], IdempotencyRow] = field(default_factory=dict)
    snapshots: dict[int, dict[int, Snapshot]] = field(default_factory=dict)
    checkpoints: dict[int, list[Checkpoint]] = field(default_factory=dict)
    roles: dict[str, RoleRow] = field(default_factory=dict)
    quarters: set[Quarter] = field(default_factory=set)
    projectors: dict[int, ProjectorRow] = field(default_factory=dict)
    projections: dict[int, ProjectionRow] = field(default_factory=dict)
    incarnation: str = INCARNATION

    def insert(self, execution_id: int, row: StoredEvent) -> None:
        """Append one event.  Positions without a gap are what the whole design rests on."""
        assert row.position == len(self.shards[row.shard_id]) + 1, "a position is not the next of its shard"
        self.shards[row.shard_id].append(row)
        self.events.setdefault(execution_id, []).append(row)
        self.transitions[execution_id, row.transition_key] = row

    def drop_derived(self) -> None:
        """Lose what can be rebuilt from the ledger."""
        self.commands.clear()
        self.timers.clear()


def same_content(stored: StoredEvent, sealed: Sealed) -> bool:
    """Whether a stored event says the same as an offered one.  Ids, times and producer are not content."""
    one: Any = parse_json(stored.text)
    other: Any = parse_json(sealed.text)
    return all(
        canonical_json(one.get(name)) == canonical_json(other.get(name)) for name in ("event_type", "result", "writes")
    )


def check_row(sealed: Sealed) -> None:
    """What the CHECKs and the types of the real table refuse, looking only at the bytes."""
    document: Any = parse_json(sealed.text)
    result = document.get("result")
    if result is not None:
        check_result(result)
        check_result_size(result)
        if not _is_verbatim(sealed.text, "result", canonical_json(result)):
            raise EnvelopeInvalid("the ledger refused a row: the result is not canonical")
    for name in ("transition_key", "tenant_id", "organization_id"):
        if not document.get(name):
            raise EnvelopeInvalid(f"the ledger refused a row: {name} is missing")
    for name, value in document.items():
        if isinstance(value, str) and "\0" in value:
            raise EnvelopeInvalid(f"the ledger refused a row: {name} contains a NUL character")


def _is_verbatim(text: str, name: str, value: str) -> bool:
    return f'"{name}":{value}' in text


def event_of(row: StoredEvent) -> Event:
    """A stored row as an event, refused when its bytes do not have the recorded checksum."""
    if hashlib.sha256(row.text.encode("utf-8")).hexdigest() != row.checksum:
        raise LedgerCorrupt(f"the event at position {row.position} of shard {row.shard_id} is damaged")
    document: Any = parse_json(row.text)
    fields = {name: document[name] for name in Event._fields if name in document}
    return Event(
        **fields,
        shard_id=row.shard_id,
        position=row.position,
        stream_version=row.stream_version,
        ingest_time=row.ingest_time,
    )
