"""Logs in memory."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.adapters.memory.faults import Faults
from noetl.ports.data.logs import LogChunk, StoredChunk


class MemoryLogs:
    """Sink and reader."""

    def __init__(self, faults: Faults | None = None) -> None:
        self._chunks: dict[tuple[int, str, int, int], StoredChunk] = {}
        self._faults = faults or Faults()

    async def write(self, chunks: Sequence[LogChunk]) -> None:
        await self._faults.around("write_logs", lambda: self._write(chunks))

    def _write(self, chunks: Sequence[LogChunk]) -> None:
        for chunk in chunks:
            key = (chunk.execution_id, chunk.command_id, chunk.attempt, chunk.seq)
            self._chunks.setdefault(key, StoredChunk(len(self._chunks) + 1, chunk))

    async def read(
        self, execution_id: int, *, tenant_id: str, organization_id: str, after: int, step: str | None, limit: int
    ) -> list[StoredChunk]:
        found = [
            stored
            for stored in self._chunks.values()
            if stored.log_id > after
            and (stored.chunk.execution_id, stored.chunk.tenant_id, stored.chunk.organization_id)
            == (execution_id, tenant_id, organization_id)
            and step in (None, stored.chunk.step)
        ]
        return found[:limit]
