"""What only one process at a time may do, by lease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleLease:
    """A role that a process has.  The epoch rises with every new holder, and when a lease had run out."""

    role: str
    runtime_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleHolder:
    """What others see of a role; a lease without seconds left is nobody's."""

    role: str
    runtime_id: int | None
    epoch: int
    seconds_left: float


class RoleLeases(Protocol):
    """Only the clock of the database says what has run out."""

    async def hold(self, roles: Sequence[str], *, runtime_id: int, lease_seconds: float) -> list[RoleLease]:
        """Renew what this process has of these roles and take what nobody has.  Returns all it has now."""
        ...

    async def release(self, leases: Sequence[RoleLease]) -> None:
        """Let go at once, so that nobody waits for a lease to run out.  What somebody else has stays theirs."""
        ...

    async def holders(self) -> list[RoleHolder]: ...
