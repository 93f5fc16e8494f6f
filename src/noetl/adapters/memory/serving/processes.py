"""Processes, shards and sessions in memory: the tables that say who is alive and who owns what.

They live in the database, which outlives every process; its clock is the only one that is asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults
from noetl.ports.ledger import ShardHead
from noetl.ports.serving.roster import HeldCommand, SessionRow
from noetl.ports.serving.runtimes import SERVER_KINDS, NodeLease, Profile, Runtime
from noetl.ports.serving.shards import OwnedShard


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeRow:
    profile: Profile
    last_id: int
    started_at: str
    heartbeat_at: str
    alive_until: float


@dataclass(frozen=True, slots=True)
class KeptSession:
    runtime_id: int
    row: SessionRow
    leased_until: float


class Presence:
    """The tables and what is derived from them."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database
        self.runtimes: dict[int, RuntimeRow] = {}
        self.owners: dict[int, int] = {}
        self.sessions: dict[int, KeptSession] = {}

    @property
    def now(self) -> float:
        return self.database.clock.monotonic()

    def is_alive(self, runtime_id: int | None) -> bool:
        row = self.runtimes.get(runtime_id or 0)
        return row is not None and row.alive_until > self.now

    def vouched(self, session_id: int | None) -> KeptSession | None:
        kept = self.sessions.get(session_id or 0)
        is_good = kept is not None and kept.leased_until > self.now and self.is_alive(kept.runtime_id)
        return kept if is_good else None

    def release(self, is_released: Callable[[int], bool]) -> int:
        """Give back the rows of these sessions."""
        commands = self.database.tables.commands
        keys = [
            key
            for key, row in commands.items()
            if row.command.session_id is not None and is_released(row.command.session_id)
        ]
        for key in keys:
            commands[key] = commands[key]._replace(command=replace(commands[key].command, session_id=None), stop=None)
        return len(keys)


class MemoryRuntimes:
    def __init__(self, presence: Presence, faults: Faults | None = None) -> None:
        self._presence = presence
        self._faults = faults or Faults()

    async def register(self, profile: Profile, *, lease_seconds: float) -> NodeLease:
        def write() -> NodeLease:
            rows, now = self._presence.runtimes, self._presence.now
            number = len(rows) + 1
            for runtime_id, row in rows.items():
                if profile.seat is not None and row.profile.seat == profile.seat:
                    rows[runtime_id] = replace(row, alive_until=min(row.alive_until, now))
            moment = self._presence.database.clock.now()
            rows[number] = RuntimeRow(
                profile=profile, last_id=0, started_at=moment, heartbeat_at=moment, alive_until=now + lease_seconds
            )
            return NodeLease(number, number % 1024, 0)

        return await self._faults.around("register", write)

    async def renew(self, runtime_id: int, *, last_id: int, lease_seconds: float) -> int | None:
        def write() -> int | None:
            rows, presence = self._presence.runtimes, self._presence
            if runtime_id not in rows:
                return None
            rows[runtime_id] = replace(
                rows[runtime_id],
                last_id=last_id,
                heartbeat_at=presence.database.clock.now(),
                alive_until=presence.now + lease_seconds,
            )
            return sum(row.profile.kind in SERVER_KINDS and presence.is_alive(one) for one, row in rows.items())

        return await self._faults.around("renew", write)

    async def leave(self, runtime_id: int, *, last_id: int) -> None:
        def write() -> None:
            presence = self._presence
            gone = {one for one, kept in presence.sessions.items() if kept.runtime_id == runtime_id}
            presence.release(lambda session_id: session_id in gone)
            for session_id in gone:
                del presence.sessions[session_id]
            for shard_id in [shard for shard, owner in presence.owners.items() if owner == runtime_id]:
                del presence.owners[shard_id]
            row = presence.runtimes.get(runtime_id)
            if row is not None:
                presence.runtimes[runtime_id] = replace(row, alive_until=presence.now, last_id=last_id)

        await self._faults.around("leave", write)

    async def known(self) -> list[Runtime]:
        def read() -> list[Runtime]:
            return [
                Runtime(
                    runtime_id=runtime_id,
                    node_number=runtime_id % 1024,
                    instance=row.profile.instance,
                    kind=row.profile.kind,
                    url=row.profile.url,
                    version=row.profile.version,
                    started_at=row.started_at,
                    heartbeat_at=row.heartbeat_at,
                    lease_seconds=row.alive_until - self._presence.now,
                )
                for runtime_id, row in sorted(self._presence.runtimes.items(), reverse=True)
            ]

        return await self._faults.around("runtimes", read)


class MemoryShards:
    def __init__(self, presence: Presence, faults: Faults | None = None) -> None:
        self._presence = presence
        self._faults = faults or Faults()

    async def claim(self, runtime_id: int, *, count: int) -> list[ShardHead]:
        def write() -> list[ShardHead]:
            presence, heads = self._presence, self._presence.database.tables.heads
            locked = presence.database.locked()
            dead = [shard for shard in sorted(heads) if not presence.is_alive(presence.owners.get(shard))]
            free = [shard for shard in dead if shard not in locked]
            for shard_id in free[:count]:
                heads[shard_id] = replace(heads[shard_id], epoch=heads[shard_id].epoch + 1)
                presence.owners[shard_id] = runtime_id
            return [heads[shard_id] for shard_id in free[:count]]

        return await self._faults.around("claim_shards", write)

    async def hand_over(self, runtime_id: int, shards: Collection[int]) -> list[int]:
        def write() -> list[int]:
            locked = self._presence.database.locked()
            own = [one for one in sorted(shards) if self._presence.owners.get(one) == runtime_id and one not in locked]
            for shard_id in own:
                del self._presence.owners[shard_id]
            return own

        return await self._faults.around("hand_over", write)

    async def look(self) -> list[OwnedShard]:
        def read() -> list[OwnedShard]:
            presence = self._presence
            found = []
            for shard_id, head in sorted(presence.database.tables.heads.items()):
                owner = presence.owners.get(shard_id)
                row = presence.runtimes.get(owner or 0)
                found.append(
                    OwnedShard(
                        head=head,
                        owner_runtime_id=owner,
                        owner_instance=row.profile.instance if row else None,
                        owner_url=row.profile.url if row else None,
                        lease_seconds=row.alive_until - presence.now if row else None,
                    )
                )
            return found

        return await self._faults.around("look_at_shards", read)


class MemoryRoster:
    def __init__(self, presence: Presence, faults: Faults | None = None) -> None:
        self._presence = presence
        self._faults = faults or Faults()

    async def keep(self, runtime_id: int, sessions: Sequence[SessionRow], *, lease_seconds: float) -> None:
        def write() -> None:
            until = self._presence.now + lease_seconds
            for row in sessions:
                self._presence.sessions[row.session_id] = KeptSession(runtime_id, row, until)

        await self._faults.around("keep_sessions", write)

    async def end(self, session_id: int, *, worker_id: str | None = None) -> int:
        def write() -> int:
            kept = self._presence.sessions.get(session_id)
            if worker_id is not None and (kept is None or kept.row.worker_id != worker_id):
                return 0
            self._presence.sessions.pop(session_id, None)
            return self._presence.release(lambda one: one == session_id)

        return await self._faults.around("end_session", write)

    async def release_dead(self) -> int:
        def write() -> int:
            presence = self._presence
            count = presence.release(lambda session_id: presence.vouched(session_id) is None)
            for session_id in [one for one in presence.sessions if presence.vouched(one) is None]:
                del presence.sessions[session_id]
            return count

        return await self._faults.around("release_dead", write)

    async def held(self, sessions: Collection[int]) -> list[HeldCommand]:
        return await self._faults.around("held", lambda: self._held(lambda one, _shard: one in sessions))

    async def held_elsewhere(self, shards: Collection[int], *, runtime_id: int) -> list[HeldCommand]:
        def is_elsewhere(session_id: int, shard_id: int) -> bool:
            kept = self._presence.vouched(session_id)
            return kept is not None and kept.runtime_id != runtime_id and shard_id in shards

        return await self._faults.around("held_elsewhere", lambda: self._held(is_elsewhere))

    def _held(self, is_wanted: Callable[[int, int], bool]) -> list[HeldCommand]:
        found = []
        for (execution_id, command_id), row in self._presence.database.tables.commands.items():
            session_id = row.command.session_id
            if session_id is not None and is_wanted(session_id, row.command.shard_id):
                found.append(HeldCommand(execution_id, command_id, row.command.attempt, session_id, row.stop))
        return found

    async def living(self) -> list[SessionRow]:
        def read() -> list[SessionRow]:
            sessions = self._presence.sessions
            return [sessions[one].row for one in sorted(sessions) if self._presence.vouched(one) is not None]

        return await self._faults.around("living_sessions", read)
