"""Worker sessions of all servers, on Postgres."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.statements import query
from noetl.core.codec import canonical_json
from noetl.core.locator.locality import NOWHERE, place_from
from noetl.points import point
from noetl.ports.serving.roster import HeldCommand, SessionRow


class PostgresRoster:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def keep(self, runtime_id: int, sessions: Sequence[SessionRow], *, lease_seconds: float) -> None:
        if not sessions:
            return
        await self._reader.fetch(
            query("serving.sql", "keep_sessions"),
            runtime_id=runtime_id,
            lease_seconds=lease_seconds,
            sessions=[row.session_id for row in sessions],
            workers=[row.worker_id for row in sessions],
            pools=[row.pool for row in sessions],
            kinds=[None if row.kinds is None else "+".join(sorted(row.kinds)) for row in sessions],
            slots=[row.slots for row in sessions],
            places=[None if row.place == NOWHERE else canonical_json(row.place.to_json()) for row in sessions],
        )

    async def end(self, session_id: int, *, worker_id: str | None = None) -> int:
        rows = await self._reader.fetch(query("serving.sql", "end_session"), session_id=session_id, worker_id=worker_id)
        return len(rows)

    async def release_dead(self) -> int:
        rows = await self._reader.fetch(query("serving.sql", "release_dead"))
        if rows:
            point("reaper.released")
        return len(rows)

    async def held(self, sessions: Collection[int]) -> list[HeldCommand]:
        rows = await self._reader.fetch(query("serving.sql", "held_commands"), sessions=sorted(sessions))
        return [HeldCommand(**dict(row)) for row in rows]

    async def held_elsewhere(self, shards: Collection[int], *, runtime_id: int) -> list[HeldCommand]:
        rows = await self._reader.fetch(
            query("serving.sql", "held_elsewhere"), shards=sorted(shards), runtime_id=runtime_id
        )
        return [HeldCommand(**dict(row)) for row in rows]

    async def living(self) -> list[SessionRow]:
        rows = await self._reader.fetch(query("serving.sql", "living_sessions"))
        return [
            SessionRow(
                session_id=row["session_id"],
                worker_id=row["worker_id"],
                pool=row["pool"],
                kinds=None if row["kinds"] is None else frozenset(row["kinds"]),
                slots=row["slots"],
                place=NOWHERE if row["place"] is None else place_from(msgspec.json.decode(row["place"])),
            )
            for row in rows
        ]
