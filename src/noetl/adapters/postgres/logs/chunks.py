"""Chunks of logs in `noetl.log_chunk`."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.statements import query
from noetl.core.codec import canonical_json, parse_json
from noetl.ports.data.logs import LogChunk, StoredChunk

FILE = "logs.sql"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


class PostgresLogs:
    """Sink and reader."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def write(self, chunks: Sequence[LogChunk]) -> None:
        if not chunks:
            return
        columns = {
            name: [getattr(chunk, name) for chunk in chunks]
            for name in (
                *("tenant_id", "organization_id", "execution_id", "step", "command_id", "attempt", "seq"),
                *("lines", "size_bytes", "content"),
            )
        }
        await self._reader.fetch(
            query(FILE, "write_chunks"),
            **columns,
            first_at=[_moment(chunk.first_at_ms) for chunk in chunks],
            last_at=[_moment(chunk.last_at_ms) for chunk in chunks],
            reference=[None if chunk.reference is None else canonical_json(chunk.reference) for chunk in chunks],
        )

    async def read(
        self, execution_id: int, *, tenant_id: str, organization_id: str, after: int, step: str | None, limit: int
    ) -> list[StoredChunk]:
        rows = await self._reader.fetch(
            query(FILE, "chunks"),
            execution_id=execution_id,
            tenant_id=tenant_id,
            organization_id=organization_id,
            after=after,
            step=step,
            rows=limit,
        )
        return [_stored(row) for row in rows]


def _stored(row: Any) -> StoredChunk:
    values = dict(row)
    log_id, reference = values.pop("log_id"), values.pop("reference")
    values["first_at_ms"] = _milliseconds(values.pop("first_at"))
    values["last_at_ms"] = _milliseconds(values.pop("last_at"))
    values["reference"] = None if reference is None else parse_json(reference)
    return StoredChunk(log_id, LogChunk(**values))


def _moment(milliseconds: int) -> datetime.datetime:
    return _EPOCH + milliseconds * _MILLISECOND


def _milliseconds(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND
