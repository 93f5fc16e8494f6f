"""The one way between the control plane and a worker: commands down, facts up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from noetl.core.reference import Payload


class CommandMessage(NamedTuple):
    """A claimed command on its way to a worker.  `attempt` is the fencing token of everything it reports."""

    execution_id: int
    tenant_id: str
    organization_id: str
    command_id: str
    attempt: int
    body: Mapping[str, object]


class Fact(NamedTuple):
    """What a worker says about a command: completed, failed, or waiting for its next attempt."""

    execution_id: int
    command_id: str
    attempt: int
    event_type: str
    result: Mapping[str, object] | None = None
    writes: Sequence[Mapping[str, object]] | None = None
    meta: Mapping[str, object] = {}
    payload_ref: Mapping[str, object] | None = None
    payloads: Sequence[Payload] = ()


class Stop(NamedTuple):
    """A word about work that a worker holds.  `drain` starts no further rows and lets the running ones end; otherwise
    the work is ended at once and reported as cancelled."""

    execution_id: int
    command_id: str
    attempt: int
    drain: bool = False


class ClaimWithdrawn(Exception):
    """The claim behind an announced command was not committed: forget the command."""


class ControlPlane(Protocol):
    """What a session adapter needs of the server side."""

    async def report(self, session_id: int, fact: Fact) -> None:
        """Record a fact.  Raises LeaseLost for a stale attempt, ExecutionClosed after the end."""
        ...


class WorkerSession(Protocol):
    """The worker's end of a session."""

    async def next_command(self) -> CommandMessage:
        """Wait for a command.  It may be prepared at once and begun when `confirmed` returns."""
        ...

    async def confirmed(self, message: CommandMessage) -> None:
        """Wait until the claim is in the ledger.  Raises ClaimWithdrawn when it never will be."""
        ...

    async def report(self, fact: Fact) -> None: ...

    async def next_stop(self) -> Stop:
        """Wait for a word to stop something.  About work that is not held it says nothing."""
        ...


class CommandSink(Protocol):
    """The control plane's end of a session."""

    @property
    def session_id(self) -> int: ...

    @property
    def slots(self) -> int: ...

    def announce(self, message: CommandMessage) -> None:
        """Show a command whose claim is being committed, so that a worker can prepare it meanwhile.  Never blocks."""
        ...

    def deliver(self, message: CommandMessage) -> None:
        """Hand over a command whose claim was committed, announced or not.  Never blocks."""
        ...

    def withdraw(self, message: CommandMessage) -> None:
        """Take back an announced command."""
        ...

    def stop(self, stop: Stop) -> None:
        """Tell the worker to stop something that it holds.  Never blocks."""
        ...
