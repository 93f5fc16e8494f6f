"""Projections: rows that are folded from events, how far they are, and who keeps them.

A shard of the projections is owned by lease and epoch, apart from who decides it.  Rows and watermark are one commit,
refused when somebody else owns the shard, when the ledger is another one, or when the watermark is not where its owner
left it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from noetl.core.event import Event
from noetl.ports.ledger import ExecutionRow


class ProjectionShard(NamedTuple):
    """A shard in somebody's hands: by this epoch, projected up to this position of that incarnation of the ledger."""

    shard_id: int
    epoch: int
    position: int
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A process that projects.  Those that do nothing else go first: while one is there, the others stand by."""

    runtime_id: int
    instance: str
    is_dedicated: bool
    lease_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a member stands among the others: between how many the shards are shared, whether it is one of them, how many
    there are, and which it holds."""

    sharers: int
    is_sharer: bool
    shards: int
    held: Sequence[ProjectionShard] = ()

    @property
    def share(self) -> int:
        return -(-self.shards // max(self.sharers, 1)) if self.is_sharer else 0


class ProjectionLeases(Protocol):
    """Who projects which shard.  Only the database's clock decides what has run out."""

    async def heartbeat(self, member: Member) -> Standing:
        """Be there for another lease, with all that is held."""
        ...

    async def claim(self, member: Member, *, limit: int, by_force: bool = False) -> list[ProjectionShard]:
        """Take shards that nobody holds, and raise their epoch; by force also those of others, who write nothing from
        then on."""
        ...

    async def let_go(self, shards: Sequence[ProjectionShard]) -> None:
        """Hand shards over: whoever looks next may take them."""
        ...

    async def leave(self, runtime_id: int) -> None:
        """Hand over everything and be gone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Move:
    """A watermark goes on from where it was seen.  `ingest_time` is that of the oldest event of this step; without one
    `waited_ms` says how long it waited in this process."""

    shard_id: int
    epoch: int
    seen: int
    position: int
    last_event_id: int
    ingest_time: str | None = None
    waited_ms: int = 0


class ShardProgress(NamedTuple):
    """How far the projection of a shard is behind the ledger.  `incarnation` and `epoch` are the projection's own, None
    and 0 when nobody has ever projected it."""

    shard_id: int
    head: int
    ledger_incarnation: str
    position: int
    incarnation: str | None
    epoch: int
    owner: int | None
    is_held: bool
    lag_ms: int | None


class Projections(Protocol):
    """Writing them."""

    async def project(
        self, moves: Sequence[Move], rows: Sequence[ExecutionRow], *, incarnation: str
    ) -> Mapping[int, int]:
        """Write rows and move watermarks.  Returns the shards whose move held, each with its lag in milliseconds by the
        database's clock; nothing is written for the others.  A row never goes back to an older position."""
        ...

    async def progress(self) -> list[ShardProgress]: ...

    async def rebuild(self, shard: ProjectionShard, *, incarnation: str) -> ProjectionShard | None:
        """Forget all rows of a shard, a bounded number at a time, and then begin at its first event.  Interrupted, the
        watermark still is of the ledger that is gone.  None when somebody else owns the shard."""
        ...

    async def quarantined(self, shard_ids: Sequence[int], *, limit: int) -> list[int]:
        """Executions that could not be folded, oldest first."""
        ...

    async def heal(self, row: ExecutionRow) -> bool:
        """Replace the row of a quarantined execution; False when it is not one, or is further by now."""
        ...


class Unreadable(NamedTuple):
    """An event whose bytes cannot be read as one: what is left to tell about it."""

    execution_id: int
    event_id: int
    tenant_id: str
    organization_id: str
    event_type: str
    event_time: str
    shard_id: int
    position: int
    stream_version: int
    ingest_time: str
    reason: str


class Tail(Protocol):
    """Reading the ledger without giving up at an event that cannot be read."""

    async def read(self, after: Mapping[int, int], *, limit: int) -> list[Event | Unreadable]:
        """Events of several shards behind the position of each, in order of shard and position; at most `limit` of
        each."""
        ...

    async def story(self, execution_id: int, *, after_position: int, limit: int) -> list[Event | Unreadable]:
        """Those of one execution."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownExecution:
    """A row with its document, and how far the projection of its shard is."""

    row: ExecutionRow
    watermark: int

    @property
    def position(self) -> int:
        """Every event of its shard up to here is in this answer."""
        return max(self.row.applied_position, self.watermark)


class ExecutionViews(Protocol):
    """Reading what people are shown."""

    async def find(self, execution_id: int, *, tenant_id: str, organization_id: str) -> ShownExecution | None: ...

    async def is_recorded(self, execution_id: int, *, tenant_id: str, organization_id: str) -> bool:
        """Whether the ledger has such an execution, shown or not."""
        ...

    async def positions(self, execution_ids: Sequence[int]) -> dict[int, tuple[int, str]]:
        """How far the rows of these executions are, and their status."""
        ...
