"""Ownership of shards.  The epoch rises with every claim: whatever an earlier owner still tries fails on the fence."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from noetl.ports.ledger import ShardHead


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedShard:
    """A shard with its owner; `lease_seconds` is what is left of the owner's lease, None when there is no owner."""

    head: ShardHead
    owner_runtime_id: int | None
    owner_instance: str | None
    owner_url: str | None
    lease_seconds: float | None
    projected_position: int | None = None
    """Up to here events are shown; None when nobody projects."""

    @property
    def is_free(self) -> bool:
        return self.lease_seconds is None or self.lease_seconds <= 0


class Shards(Protocol):
    async def claim(self, runtime_id: int, *, count: int) -> list[ShardHead]:
        """Take up to so many shards that nobody owns or whose owner's lease has run out."""
        ...

    async def hand_over(self, runtime_id: int, shards: Collection[int]) -> list[int]:
        """Let shards go, if they are still this process'."""
        ...

    async def look(self) -> list[OwnedShard]: ...
