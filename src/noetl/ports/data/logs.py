"""Logs of tools and user code: chunks of lines, beside the ledger and never in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """Some lines of one attempt at a command or frame.  Their bytes are here, or where `reference` says."""

    tenant_id: str
    organization_id: str
    execution_id: int
    step: str
    command_id: str
    attempt: int
    seq: int
    """Ordinal within the attempt."""
    first_at_ms: int
    last_at_ms: int
    lines: int
    size_bytes: int
    """Of the text, before it was packed."""
    content: bytes | None = field(default=None, repr=False)
    reference: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """`log_id` rises in the order in which chunks of one execution become visible: who remembers the last one misses
    none."""

    log_id: int
    chunk: LogChunk


class LogSink(Protocol):
    """Where a worker puts its logs."""

    async def write(self, chunks: Sequence[LogChunk]) -> None:
        """Make chunks durable.  Writing one again changes nothing.  Raises a Transient error when it may be tried
        again."""
        ...


class LogReader(Protocol):
    async def read(
        self, execution_id: int, *, tenant_id: str, organization_id: str, after: int, step: str | None, limit: int
    ) -> list[StoredChunk]:
        """Chunks of an execution behind a log id, in order."""
        ...
