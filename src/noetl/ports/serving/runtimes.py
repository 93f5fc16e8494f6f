"""Processes on one ledger: each has a node number for the ids that it makes, and a lease on what it owns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

SERVER_KINDS = ("host", "server")
"""The kinds of processes that own shards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a process says of itself.  `seat` names a lock that it holds: whoever had it before is dead."""

    instance: str
    kind: str
    url: str | None = None
    version: str | None = None
    seat: str | None = None


@dataclass(frozen=True, slots=True)
class NodeLease:
    runtime_id: int
    node_number: int
    last_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A process as others see it.  `lease_seconds` is what is left of its lease, negative when that has run out."""

    runtime_id: int
    node_number: int
    instance: str
    kind: str
    url: str | None
    version: str | None
    started_at: str
    heartbeat_at: str
    lease_seconds: float


class Runtimes(Protocol):
    """Only the database's clock says what has run out."""

    async def register(self, profile: Profile, *, lease_seconds: float) -> NodeLease:
        """A node number and a lease.  What whoever had the same seat still owned is free at once."""
        ...

    async def renew(self, runtime_id: int, *, last_id: int, lease_seconds: float) -> int | None:
        """Live on.  How many servers are alive, this one counted; None when the node number is somebody else's."""
        ...

    async def leave(self, runtime_id: int, *, last_id: int) -> None:
        """Let go of everything: shards, sessions, the node number."""
        ...

    async def known(self) -> list[Runtime]:
        """Every process that is alive, and those that died lately, newest first."""
        ...
