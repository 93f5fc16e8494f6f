"""Checkpoints: durable statements that all events of a shard up to a position are applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from noetl.core.event import Sealed
from noetl.ports.durability.roles import RoleLease


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """How far a shard is: what its projector has applied, and the last checkpoint (epoch 0 when there is none).

    `uncovered_ms` is how long the first event behind that checkpoint has been there, by the clock of the database; None
    when there is none.  Checkpoints themselves do not count."""

    shard_id: int
    applied_position: int
    last_event_id: int
    epoch: int
    position: int
    uncovered_ms: float | None
    is_due: bool
    """Whether an event that is no checkpoint was applied since the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One that is to be committed: its row, and the sealed event that says the same."""

    shard_id: int
    epoch: int
    position: int
    last_event_id: int
    event: Sealed


class Checkpoints(Protocol):
    async def barriers(self) -> list[Barrier]:
        """All shards, by number."""
        ...

    async def commit(self, checkpoints: Sequence[Checkpoint], *, lease: RoleLease) -> frozenset[int]:
        """Append the events and write the rows in one commit, at most one for a shard.  Returns the shards that have
        theirs; none when the role is somebody else's by now.

        Raises TransitionConflict when a checkpoint of that epoch is there, LedgerUnavailable when nobody knows."""
        ...
