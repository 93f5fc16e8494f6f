"""Worker sessions of all servers on one ledger, and what they hold.

The rows of the queue say who holds a command; the sessions here say whether that somebody is alive.  A server vouches
for its own sessions; those of a dead one run out, and what they held goes back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from noetl.core.locator.locality import NOWHERE, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    session_id: int
    worker_id: str
    pool: str
    kinds: frozenset[str] | None
    slots: int
    place: Place = NOWHERE


class HeldCommand(NamedTuple):
    """A row of the queue that a session holds.  `stop` is a word to it: `cancel` or `drain`."""

    execution_id: int
    command_id: str
    attempt: int
    session_id: int
    stop: str | None = None


class Roster(Protocol):
    async def keep(self, runtime_id: int, sessions: Sequence[SessionRow], *, lease_seconds: float) -> None:
        """These sessions of a server are alive for so long."""
        ...

    async def end(self, session_id: int, *, worker_id: str | None = None) -> int:
        """The session is over; returns how many commands went back.  With `worker_id` only if it is that worker's."""
        ...

    async def release_dead(self) -> int:
        """Give back what sessions hold that nobody vouches for any more."""
        ...

    async def held(self, sessions: Collection[int]) -> list[HeldCommand]: ...

    async def held_elsewhere(self, shards: Collection[int], *, runtime_id: int) -> list[HeldCommand]:
        """What living sessions of other servers hold in these shards."""
        ...

    async def living(self) -> list[SessionRow]: ...
