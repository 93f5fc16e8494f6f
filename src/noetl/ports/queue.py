"""The command queue and the timers: tables derived from events."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from noetl.ports.ledger import ExecutionRow, IdempotencyRow, QueuedCommand


@dataclass(frozen=True, slots=True)
class DueTimer:
    execution_id: int
    name: str
    shard_id: int


class Taken(NamedTuple):
    """A row that a session takes with an attempt whose claim is yet to be recorded."""

    execution_id: int
    command_id: str
    attempt: int
    session_id: int


class Queue(Protocol):
    """Reads of the derived tables.  Their writes travel with the commit that causes them; only a claim in a shard of
    somebody else takes its row first, so that two servers do not give the same command away."""

    async def waiting(self, *, pool: str, limit: int, kinds: Sequence[str] | None = None) -> list[QueuedCommand]:
        """Commands that nobody holds and that are due, best first; with `kinds` only those that need no other tools."""
        ...

    async def release_all(self, *, except_sessions: Sequence[int]) -> int:
        """Give back what dead sessions hold."""
        ...

    async def release(
        self,
        session_id: int,
        *,
        commands: Sequence[tuple[int, str]] | None = None,
        untaken: Sequence[int] | None = None,
    ) -> int:
        """Give back what one session holds, all of it or these commands.  `untaken` are the attempts of commands whose
        claims are in no ledger, and never will be: these rows are as before `take`.  One that stays ahead would look as
        if its next attempt had died."""
        ...

    async def take(self, rows: Sequence[Taken]) -> set[tuple[int, str]]:
        """Take rows that nobody holds; returns those that could be taken, now or by the same question before."""
        ...

    async def free(self, execution_id: int) -> Mapping[str, int]:
        """The commands of an execution that nobody holds and that are due, with the attempts of their rows."""
        ...

    async def commands_of(self, execution_id: int) -> list[QueuedCommand]: ...

    async def due_timers(self, *, limit: int, shards: Collection[int] | None = None) -> list[DueTimer]:
        """The timers of these shards, or of all, whose time has passed."""
        ...

    async def next_due_in(self, *, shards: Collection[int] | None = None) -> float | None:
        """Seconds until the next timer by the database's clock; None without timers."""
        ...


class Executions(Protocol):
    """The projection that lists and status views read."""

    async def find(self, execution_id: int, *, tenant_id: str, organization_id: str) -> ExecutionRow | None: ...

    async def newest(
        self, *, tenant_id: str, organization_id: str, limit: int, before: int | None = None, status: str | None = None
    ) -> list[ExecutionRow]:
        """Newest first; with `before` those with a smaller id, with `status` only those in it."""
        ...

    async def open_ids(self, *, shards: Collection[int] | None = None) -> list[int]:
        """The executions of these shards, or of all, that have not ended."""
        ...

    async def idempotent(
        self, *, tenant_id: str, organization_id: str, idempotency_key: str
    ) -> IdempotencyRow | None: ...
