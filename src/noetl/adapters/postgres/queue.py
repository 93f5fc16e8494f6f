"""Reads of what is derived from events: the command queue, the timers, the list of executions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.rows import iso
from noetl.adapters.postgres.statements import query
from noetl.core.ids import SYSTEM_ID_LIMIT
from noetl.ports.ledger import ExecutionRow, IdempotencyRow, QueuedCommand
from noetl.ports.queue import DueTimer, Taken

ID_MAX = 2**63 - 1


class PostgresQueue:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def waiting(self, *, pool: str, limit: int, kinds: Sequence[str] | None = None) -> list[QueuedCommand]:
        rows = await self._reader.fetch(
            query("reads.sql", "waiting_commands"),
            pool=pool,
            rows=limit,
            kinds=None if kinds is None else list(kinds),
        )
        return [QueuedCommand(**dict(row)) for row in rows]

    async def release_all(self, *, except_sessions: Sequence[int]) -> int:
        rows = await self._reader.fetch(query("reads.sql", "release_commands"), sessions=list(except_sessions))
        return len(rows)

    async def release(
        self,
        session_id: int,
        *,
        commands: Sequence[tuple[int, str]] | None = None,
        untaken: Sequence[int] | None = None,
    ) -> int:
        rows = await self._reader.fetch(
            query("reads.sql", "release_session"),
            session_id=session_id,
            executions=None if commands is None else [execution_id for execution_id, _ in commands],
            commands=None if commands is None else [command_id for _, command_id in commands],
            attempts=None if untaken is None else list(untaken),
        )
        return len(rows)

    async def take(self, rows: Sequence[Taken]) -> set[tuple[int, str]]:
        found = await self._reader.fetch(
            query("serving.sql", "take_commands"),
            executions=[row.execution_id for row in rows],
            commands=[row.command_id for row in rows],
            attempts=[row.attempt for row in rows],
            sessions=[row.session_id for row in rows],
        )
        return {(row["execution_id"], row["command_id"]) for row in found}

    async def free(self, execution_id: int) -> dict[str, int]:
        rows = await self._reader.fetch(query("serving.sql", "free_commands"), execution_id=execution_id)
        return {row["command_id"]: row["attempt"] for row in rows}

    async def commands_of(self, execution_id: int) -> list[QueuedCommand]:
        rows = await self._reader.fetch(query("reads.sql", "commands_of"), execution_id=execution_id)
        return [QueuedCommand(**dict(row)) for row in rows]

    async def due_timers(self, *, limit: int, shards: Collection[int] | None = None) -> list[DueTimer]:
        rows = await self._reader.fetch(query("reads.sql", "due_timers"), rows=limit, shards=_listed(shards))
        return [DueTimer(row["execution_id"], row["name"], row["shard_id"]) for row in rows]

    async def next_due_in(self, *, shards: Collection[int] | None = None) -> float | None:
        rows = await self._reader.fetch(query("reads.sql", "next_due"), shards=_listed(shards))
        seconds: float | None = rows[0]["seconds"]
        return seconds


class PostgresExecutions:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def find(self, execution_id: int, *, tenant_id: str, organization_id: str) -> ExecutionRow | None:
        rows = await self._reader.fetch(
            query("reads.sql", "execution"),
            execution_id=execution_id,
            tenant_id=tenant_id,
            organization_id=organization_id,
        )
        return _execution_row(rows[0]) if rows else None

    async def newest(
        self, *, tenant_id: str, organization_id: str, limit: int, before: int | None = None, status: str | None = None
    ) -> list[ExecutionRow]:
        rows = await self._reader.fetch(
            query("reads.sql", "executions"),
            tenant_id=tenant_id,
            organization_id=organization_id,
            before=ID_MAX if before is None else before,
            status=status,
            rows=limit,
        )
        return [_execution_row(row) for row in rows]

    async def open_ids(self, *, shards: Collection[int] | None = None) -> list[int]:
        rows = await self._reader.fetch(
            query("reads.sql", "open_executions"), first_id=SYSTEM_ID_LIMIT, shards=_listed(shards)
        )
        return [row["execution_id"] for row in rows]

    async def idempotent(self, *, tenant_id: str, organization_id: str, idempotency_key: str) -> IdempotencyRow | None:
        rows = await self._reader.fetch(
            query("reads.sql", "idempotent"),
            tenant_id=tenant_id,
            organization_id=organization_id,
            idempotency_key=idempotency_key,
        )
        return IdempotencyRow(**dict(rows[0])) if rows else None


def _listed(shards: Collection[int] | None) -> list[int] | None:
    return None if shards is None else sorted(shards)


def _execution_row(row: Any) -> ExecutionRow:
    values = dict(row)
    values["started_at"] = iso(values["started_at"])
    values["ended_at"] = iso(values["ended_at"]) if values["ended_at"] else None
    return ExecutionRow(**values)
