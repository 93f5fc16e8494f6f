"""Projections in memory: what they keep, and who keeps them.  By the same rules as the statements of the real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults
from noetl.adapters.memory.tables import ProjectionRow, ProjectorRow
from noetl.ports.ledger import ExecutionRow
from noetl.ports.projections import Member, Move, ProjectionShard, ShardProgress, Standing


class MemoryProjectionLeases:
    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._database = database
        self._faults = faults or Faults()

    async def heartbeat(self, member: Member) -> Standing:
        return await self._faults.around("projector_heartbeat", lambda: self._heartbeat(member))

    def _heartbeat(self, member: Member) -> Standing:
        tables, now = self._database.tables, self._database.clock.monotonic()
        until = now + member.lease_seconds
        tables.projectors[member.runtime_id] = ProjectorRow(member.is_dedicated, until)
        for shard_id, row in tables.projections.items():
            if row.owner == member.runtime_id:
                tables.projections[shard_id] = row._replace(leased_until=until)
        live = [row for row in tables.projectors.values() if row.leased_until > now]
        dedicated = sum(row.is_dedicated for row in live)
        held = [
            _shard(shard_id, row)
            for shard_id, row in sorted(tables.projections.items())
            if row.owner == member.runtime_id
        ]
        return Standing(
            sharers=dedicated or len(live),
            is_sharer=member.is_dedicated or not dedicated,
            shards=len(tables.heads),
            held=tuple(held),
        )

    async def claim(self, member: Member, *, limit: int, by_force: bool = False) -> list[ProjectionShard]:
        return await self._faults.around("claim_projections", lambda: self._claim(member, limit, by_force))

    def _claim(self, member: Member, limit: int, by_force: bool) -> list[ProjectionShard]:
        tables, now = self._database.tables, self._database.clock.monotonic()
        for shard_id in tables.heads:
            tables.projections.setdefault(shard_id, ProjectionRow(0, tables.incarnation))
        free = [
            shard_id
            for shard_id, row in sorted(tables.projections.items())
            if row.owner != member.runtime_id and (row.owner is None or row.leased_until < now or by_force)
        ]
        for shard_id in free[:limit]:
            row = tables.projections[shard_id]
            tables.projections[shard_id] = row._replace(
                epoch=row.epoch + 1, owner=member.runtime_id, leased_until=now + member.lease_seconds
            )
        return [_shard(shard_id, tables.projections[shard_id]) for shard_id in free[:limit]]

    async def let_go(self, shards: Sequence[ProjectionShard]) -> None:
        def let_go() -> None:
            rows = self._database.tables.projections
            for shard in shards:
                if rows[shard.shard_id].epoch == shard.epoch:
                    rows[shard.shard_id] = _free(rows[shard.shard_id])

        await self._faults.around("let_projections_go", let_go)

    async def leave(self, runtime_id: int) -> None:
        def leave() -> None:
            tables = self._database.tables
            tables.projectors.pop(runtime_id, None)
            for shard_id, row in tables.projections.items():
                if row.owner == runtime_id:
                    tables.projections[shard_id] = _free(row)

        await self._faults.around("projector_leaves", leave)


class MemoryProjections:
    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._database = database
        self._faults = faults or Faults()

    async def project(
        self, moves: Sequence[Move], rows: Sequence[ExecutionRow], *, incarnation: str
    ) -> Mapping[int, int]:
        return await self._faults.around("project", lambda: self._project(moves, rows, incarnation))

    def _project(self, moves: Sequence[Move], rows: Sequence[ExecutionRow], incarnation: str) -> dict[int, int]:
        tables, clock = self._database.tables, self._database.clock
        held: dict[int, int] = {}
        for move in moves:
            known = tables.projections[move.shard_id]
            is_same_ledger = incarnation == tables.incarnation == known.incarnation
            if not is_same_ledger or (known.epoch, known.position) != (move.epoch, move.seen):
                continue
            lag = move.waited_ms
            if move.ingest_time is not None:
                lag = int(-clock.seconds_until(move.ingest_time) * 1000)
            tables.projections[move.shard_id] = known._replace(position=move.position, lag_ms=lag)
            held[move.shard_id] = lag
        for row in rows:
            if row.shard_id in held:
                self._write(row)
        return held

    def _write(self, row: ExecutionRow) -> None:
        executions = self._database.tables.executions
        known = executions.get(row.execution_id)
        if known is None:
            executions[row.execution_id] = row
        elif known.applied_position <= row.applied_position:
            if row.state is None:
                row = replace(
                    known,
                    quarantine=row.quarantine,
                    last_event_id=row.last_event_id,
                    applied_position=row.applied_position,
                )
            executions[row.execution_id] = replace(
                row,
                ended_at=row.ended_at or known.ended_at,
                last_step=row.last_step or known.last_step,
                version=max(row.version, known.version),
            )

    async def progress(self) -> list[ShardProgress]:
        def read() -> list[ShardProgress]:
            tables, now = self._database.tables, self._database.clock.monotonic()
            found = []
            for shard_id, head in sorted(tables.heads.items()):
                row = tables.projections.get(shard_id)
                found.append(
                    ShardProgress(
                        shard_id=shard_id,
                        head=head.next_position - 1,
                        ledger_incarnation=tables.incarnation,
                        position=row.position if row else 0,
                        incarnation=row.incarnation if row else None,
                        epoch=row.epoch if row else 0,
                        owner=row.owner if row else None,
                        is_held=row is not None and row.leased_until > now,
                        lag_ms=row.lag_ms if row else None,
                    )
                )
            return found

        return await self._faults.around("projection_progress", read)

    async def rebuild(self, shard: ProjectionShard, *, incarnation: str) -> ProjectionShard | None:
        def rebuild() -> ProjectionShard | None:
            tables = self._database.tables
            row = tables.projections[shard.shard_id]
            if row.epoch != shard.epoch:
                return None
            row = tables.projections[shard.shard_id] = row._replace(position=0, incarnation=incarnation, lag_ms=None)
            for gone in [one for one in tables.executions.values() if one.shard_id == shard.shard_id]:
                del tables.executions[gone.execution_id]
            return _shard(shard.shard_id, row)

        return await self._faults.around("rebuild_projection", rebuild)

    async def quarantined(self, shard_ids: Sequence[int], *, limit: int) -> list[int]:
        def read() -> list[int]:
            rows = self._database.tables.executions.values()
            found = [row for row in rows if row.quarantine is not None and row.shard_id in shard_ids]
            return sorted(row.execution_id for row in found)[:limit]

        return await self._faults.around("quarantined", read)

    async def heal(self, row: ExecutionRow) -> bool:
        def heal() -> bool:
            executions = self._database.tables.executions
            known = executions.get(row.execution_id)
            if known is None or known.quarantine is None or known.applied_position > row.applied_position:
                return False
            executions[row.execution_id] = replace(row, quarantine=None)
            return True

        return await self._faults.around("heal_projection", heal)


def _shard(shard_id: int, row: ProjectionRow) -> ProjectionShard:
    return ProjectionShard(shard_id, row.epoch, row.position, row.incarnation)


def _free(row: ProjectionRow) -> ProjectionRow:
    return row._replace(owner=None, leased_until=float("-inf"))
