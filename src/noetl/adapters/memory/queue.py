"""Reads of the derived tables in memory: the command queue, the timers, the list of executions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults
from noetl.adapters.memory.tables import Timer
from noetl.core.ids import SYSTEM_ID_LIMIT
from noetl.ports.ledger import ExecutionRow, IdempotencyRow, QueuedCommand
from noetl.ports.queue import DueTimer, Taken


class MemoryQueue:
    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._database = database
        self._faults = faults or Faults()

    async def waiting(self, *, pool: str, limit: int, kinds: Sequence[str] | None = None) -> list[QueuedCommand]:
        def read() -> list[QueuedCommand]:
            now = self._database.clock.now()
            rows = [
                row
                for row in self._database.tables.commands.values()
                if row.command.session_id is None
                and row.command.pool == pool
                and row.available_at <= now
                and (kinds is None or set(row.command.tool_kind.split("+")) <= set(kinds))
            ]
            rows.sort(key=lambda row: row.available_at)
            return [row.command for row in rows[:limit]]

        return await self._faults.around("waiting", read)

    async def release_all(self, *, except_sessions: Sequence[int]) -> int:
        def release() -> int:
            commands = self._database.tables.commands
            held = [
                (key, row)
                for key, row in commands.items()
                if row.command.session_id is not None and row.command.session_id not in except_sessions
            ]
            for key, row in held:
                commands[key] = row._replace(command=replace(row.command, session_id=None), stop=None)
            return len(held)

        return await self._faults.around("release_all", release)

    async def release(
        self,
        session_id: int,
        *,
        commands: Sequence[tuple[int, str]] | None = None,
        untaken: Sequence[int] | None = None,
    ) -> int:
        at = dict(zip(commands or (), untaken or (), strict=False))

        def release() -> int:
            rows = self._database.tables.commands
            held = [
                key
                for key, row in rows.items()
                if row.command.session_id == session_id
                and (commands is None or key in commands)
                and at.get(key, row.command.attempt) == row.command.attempt
            ]
            for key in held:
                row = rows[key].command
                freed = replace(row, session_id=None, attempt=row.attempt - (untaken is not None))
                rows[key] = rows[key]._replace(command=freed, stop=None)
            return len(held)

        return await self._faults.around("release", release)

    async def take(self, rows: Sequence[Taken]) -> set[tuple[int, str]]:
        def write() -> set[tuple[int, str]]:
            commands, taken = self._database.tables.commands, set()
            for row in rows:
                key = (row.execution_id, row.command_id)
                known = commands.get(key)
                if known is None:
                    continue
                is_free = known.command.session_id is None and known.command.attempt <= row.attempt
                is_own = (known.command.session_id, known.command.attempt) == (row.session_id, row.attempt)
                if not (is_free or is_own):
                    continue
                command = replace(known.command, session_id=row.session_id, attempt=row.attempt)
                commands[key] = known._replace(command=command, stop=None)
                taken.add(key)
            return taken

        return await self._faults.around("take", write)

    async def free(self, execution_id: int) -> dict[str, int]:
        def read() -> dict[str, int]:
            now = self._database.clock.now()
            return {
                command_id: row.command.attempt
                for (owner, command_id), row in sorted(self._database.tables.commands.items())
                if owner == execution_id and row.command.session_id is None and row.available_at <= now
            }

        return await self._faults.around("free", read)

    async def commands_of(self, execution_id: int) -> list[QueuedCommand]:
        def read() -> list[QueuedCommand]:
            commands = self._database.tables.commands
            return [commands[key].command for key in sorted(commands) if key[0] == execution_id]

        return await self._faults.around("commands_of", read)

    async def due_timers(self, *, limit: int, shards: Collection[int] | None = None) -> list[DueTimer]:
        def read() -> list[DueTimer]:
            clock, timers = self._database.clock, self._of(shards)
            due = [(timer.due_at, *key) for key, timer in timers.items() if clock.seconds_until(timer.due_at) <= 0]
            return [
                DueTimer(execution_id, name, timers[execution_id, name].shard_id)
                for _, execution_id, name in sorted(due)[:limit]
            ]

        return await self._faults.around("due_timers", read)

    async def next_due_in(self, *, shards: Collection[int] | None = None) -> float | None:
        def read() -> float | None:
            clock, timers = self._database.clock, self._of(shards)
            return min((clock.seconds_until(timer.due_at) for timer in timers.values()), default=None)

        return await self._faults.around("next_due_in", read)

    def _of(self, shards: Collection[int] | None) -> dict[tuple[int, str], Timer]:
        timers = self._database.tables.timers
        return {key: timer for key, timer in timers.items() if shards is None or timer.shard_id in shards}


class MemoryExecutions:
    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._database = database
        self._faults = faults or Faults()

    async def find(self, execution_id: int, *, tenant_id: str, organization_id: str) -> ExecutionRow | None:
        def read() -> ExecutionRow | None:
            row = self._database.tables.executions.get(execution_id)
            return _listed(row) if row is not None and _owner(row) == (tenant_id, organization_id) else None

        return await self._faults.around("find", read)

    async def newest(
        self, *, tenant_id: str, organization_id: str, limit: int, before: int | None = None, status: str | None = None
    ) -> list[ExecutionRow]:
        def read() -> list[ExecutionRow]:
            rows = self._database.tables.executions
            own = [rows[key] for key in sorted(rows, reverse=True) if before is None or key < before]
            own = [_listed(row) for row in own if _owner(row) == (tenant_id, organization_id)]
            return [row for row in own if status is None or row.status == status][:limit]

        return await self._faults.around("newest", read)

    async def open_ids(self, *, shards: Collection[int] | None = None) -> list[int]:
        def read() -> list[int]:
            streams = self._database.tables.streams
            return sorted(
                key
                for key, row in streams.items()
                if not row.closed and key >= SYSTEM_ID_LIMIT and (shards is None or row.shard_id in shards)
            )

        return await self._faults.around("open_ids", read)

    async def idempotent(self, *, tenant_id: str, organization_id: str, idempotency_key: str) -> IdempotencyRow | None:
        key = (tenant_id, organization_id, idempotency_key)
        return await self._faults.around("idempotent", lambda: self._database.tables.idempotency.get(key))


def _listed(row: ExecutionRow) -> ExecutionRow:
    """What lists show: all but the document."""
    return replace(row, state=None)


def _owner(row: ExecutionRow) -> tuple[str, str]:
    return row.tenant_id, row.organization_id
