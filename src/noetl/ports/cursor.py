"""Claiming rows in a database of the user so that none can be lost.

A claim is a transaction that stays open until its rows are recorded elsewhere.  Its number is known before it commits,
so that whoever takes over can ask the database what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from noetl.ports.secrets import Credential


class TransactionStatus(StrEnum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    IN_PROGRESS = "in progress"
    FORGOTTEN = "forgotten"
    """So long ago that the database does not know any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCall:
    """Where rows are claimed, and by which statement.  All claims of one loop have the same `mark`, those of one frame
    also the same `frame`."""

    statement: str
    mark: str
    frame: int
    auth: Credential | Mapping[str, Credential] | None
    tenant_id: str
    organization_id: str
    timeout_seconds: float


class OpenClaim(Protocol):
    """Rows that are taken as soon as this commits, and not before."""

    @property
    def rows(self) -> Sequence[object]: ...

    @property
    def transaction_id(self) -> str: ...

    @property
    def place(self) -> str:
        """A mark of the database: the number of a transaction means nothing in another one."""
        ...

    async def commit(self) -> None:
        """Raises ToolFailed.  When that is retryable, only `status` says whether the rows are taken."""
        ...


@runtime_checkable
class Claims(Protocol):
    """What a tool also is when its kind can be the `kind` of a cursor.  Everything raises ToolFailed."""

    def claim(self, call: ClaimCall) -> AbstractAsyncContextManager[OpenClaim]:
        """Run the statement.  Leaving without a commit gives the rows back."""
        ...

    async def status(self, call: ClaimCall, transaction_id: str, place: str | None) -> TransactionStatus: ...

    async def others(self, call: ClaimCall) -> Set[str]:
        """Claims of the same loop that are open now: their rows are locked, and may be free again in a moment."""
        ...

    async def end(self, call: ClaimCall) -> None:
        """End the connections that hold claims of the same frame open: whoever they were for has lost it."""
        ...
