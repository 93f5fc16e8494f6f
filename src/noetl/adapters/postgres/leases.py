"""Processes on one ledger: node numbers and leases.  Only the database's clock decides what has run out."""

from __future__ import annotations

import asyncio

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.rows import iso
from noetl.adapters.postgres.statements import query
from noetl.core.errors import LedgerUnavailable, TransitionConflict
from noetl.ports.serving.runtimes import SERVER_KINDS, NodeLease, Profile, Runtime

NODE_LEASE_SECONDS = 60.0
"""Longer than that of what a process owns: nobody else may make ids with its number while it might come back."""
_REGISTER_TRIES = 20


class PostgresLeases:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def register(self, profile: Profile, *, lease_seconds: float) -> NodeLease:
        for number in range(_REGISTER_TRIES):
            lease = await self._lease_node(profile, lease_seconds)
            if lease is not None:
                break
            # Several processes that start at once ask for the same number; all but one ask again.
            await asyncio.sleep(0.01 * (number + 1))
        else:
            raise LedgerUnavailable("no node number could be leased: all are taken or another process was faster")
        if profile.seat is not None:
            await self._reader.fetch(query("serving.sql", "take_seat"), seat=profile.seat, runtime_id=lease.runtime_id)
        return lease

    async def _lease_node(self, profile: Profile, lease_seconds: float) -> NodeLease | None:
        try:
            rows = await self._reader.fetch(
                query("serving.sql", "lease_node"),
                instance=profile.instance,
                kind=profile.kind,
                url=profile.url,
                version=profile.version,
                seat=profile.seat,
                node_seconds=NODE_LEASE_SECONDS,
                lease_seconds=lease_seconds,
            )
        except TransitionConflict:
            return None
        return NodeLease(rows[0]["runtime_id"], rows[0]["node_number"], rows[0]["last_id"]) if rows else None

    async def renew(self, runtime_id: int, *, last_id: int, lease_seconds: float) -> int | None:
        rows = await self._reader.fetch(
            query("serving.sql", "renew_node"),
            runtime_id=runtime_id,
            last_id=last_id,
            node_seconds=NODE_LEASE_SECONDS,
            lease_seconds=lease_seconds,
            kinds=list(SERVER_KINDS),
        )
        return rows[0]["servers"] if rows else None

    async def leave(self, runtime_id: int, *, last_id: int) -> None:
        await self._reader.fetch(query("serving.sql", "leave_node"), runtime_id=runtime_id, last_id=last_id)

    async def known(self) -> list[Runtime]:
        rows = await self._reader.fetch(query("serving.sql", "runtimes"))
        times = ("started_at", "heartbeat_at")
        return [Runtime(**{**dict(row), **{name: iso(row[name]) for name in times}}) for row in rows]

    async def refresh_incarnation(self) -> None:
        """Notice a restored or promoted database before anything is written to it."""
        await self._reader.fetch(query("reads.sql", "refresh_incarnation"))
