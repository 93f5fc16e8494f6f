"""The one way between the control plane and a worker: commands down, facts up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from noetl.core.reference import Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandMessage:
    """A claimed command on its way to a worker.  `attempt` is the fencing token of everything it reports."""

    execution_id: int
    tenant_id: str
    organization_id: str
    command_id: str
    attempt: int
    body: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What a worker says about a command: completed, failed, or waiting for its next attempt."""

    execution_id: int
    command_id: str
    attempt: int
    event_type: str
    result: Mapping[str, object] | None = None
    writes: Sequence[Mapping[str, object]] | None = None
    meta: Mapping[str, object] = field(default_factory=dict)
    payload_ref: Mapping[str, object] | None = None
    payloads: Sequence[Payload] = ()


class ControlPlane(Protocol):
    """What a session adapter needs of the server side."""

    async def report(self, session_id: int, fact: Fact) -> None:
        """Record a fact.  Raises LeaseLost for a stale attempt, ExecutionClosed after the end."""
        ...


class WorkerSession(Protocol):
    """The worker's end of a session."""

    async def next_command(self) -> CommandMessage:
        """Wait for a command that was claimed for this session."""
        ...

    async def report(self, fact: Fact) -> None: ...


class CommandSink(Protocol):
    """The control plane's end of a session."""

    @property
    def session_id(self) -> int: ...

    @property
    def slots(self) -> int: ...

    def deliver(self, message: CommandMessage) -> None:
        """Hand over a command after its claim was committed.  Never blocks."""
        ...
