"""Looking for what went wrong: reads that nobody needs while everything works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class DeadRuntime(NamedTuple):
    """A process that is gone without having said so, and whose node number nobody may use yet."""

    runtime_id: int
    instance: str
    kind: str
    last_id: int
    silent_seconds: float


class QueueRow(NamedTuple):
    """A row of the queue, and who holds it."""

    execution_id: int
    command_id: str
    shard_id: int
    session_id: int | None


class Unprojected(NamedTuple):
    """A shard whose projection is behind; `behind_ms` is how long its first event that is not projected is there."""

    shard_id: int
    behind_ms: float
    is_held: bool
    owner: int | None


class WaitingPool(NamedTuple):
    """Commands that wait although they are due; `is_served` when a living session could take the oldest of them."""

    pool: str
    kinds: str
    commands: int
    waiting_seconds: float
    is_served: bool


class Connections(NamedTuple):
    used: int
    total: int


class Depth(NamedTuple):
    """How much is in the queue of a pool, and how much of it somebody holds."""

    pool: str
    waiting: int
    held: int


class FrameDepth(NamedTuple):
    """How many frames of somebody's loops wait for a worker, and how many somebody holds.  `stage_kind` is what their
    loop is over: `collection` or `cursor`."""

    tenant_id: str
    organization_id: str
    stage_kind: str
    waiting: int
    held: int


class Depths(NamedTuple):
    pools: Sequence[Depth]
    frames: Sequence[FrameDepth]
    timers_due: int


class Examination(Protocol):
    """Every method reads at most `limit` rows, or counts."""

    async def dead_runtimes(self, *, limit: int) -> list[DeadRuntime]: ...

    async def held_by_the_dead(self, *, limit: int) -> list[QueueRow]:
        """Commands that are held by sessions that nobody vouches for."""
        ...

    async def queued_after_the_end(self, *, limit: int) -> list[QueueRow]:
        """Commands of executions that are closed."""
        ...

    async def unprojected(self) -> list[Unprojected]: ...

    async def waiting_pools(self, *, seconds: float) -> list[WaitingPool]:
        """Where the oldest command has waited for at least so long."""
        ...

    async def depths(self) -> Depths:
        """The queue by pool, its frames by owner, and how many timers are due."""
        ...

    async def connections(self) -> Connections:
        """Of the database server, whoever uses them."""
        ...

    async def now(self) -> float:
        """The clock of the database, in seconds since 1970."""
        ...
