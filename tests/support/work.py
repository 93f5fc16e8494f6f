"""A work table in a database of the user, for cursor loops: rows to take, and a journal of what was done with them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from noetl.core import kinds
from noetl.core.event import Event
from tests.support.databases import connected, empty_database
from tests.support.postgres import shared_server

# What the playbooks call the credential of the database with the work table.
CREDENTIAL = "pg_work"
# An UPDATE returns its rows in whatever order its plan has.
CLAIM = """\
WITH claimed AS (
  UPDATE queue SET status = 'claimed', tries = tries + 1 WHERE id IN (
    SELECT id FROM queue WHERE status = 'pending' ORDER BY id
    LIMIT {{ __frame_max_rows | default(1) | int }} FOR UPDATE SKIP LOCKED)
  RETURNING id, n, text)
SELECT * FROM claimed ORDER BY id"""

_TABLES = """
CREATE TABLE queue (id int PRIMARY KEY, status text NOT NULL DEFAULT 'pending', tries int NOT NULL DEFAULT 0,
                    n numeric NOT NULL DEFAULT 0, text text);
CREATE TABLE journal (id int, at timestamptz DEFAULT clock_timestamp());
"""


@dataclass(frozen=True, slots=True)
class Work:
    """The database.  Every method opens a connection of its own, for the time of one statement."""

    address: str

    @property
    def login(self) -> dict[str, object]:
        """As the data of a credential."""
        server = shared_server().address
        database = urlsplit(self.address).path.strip("/")
        return {"db_host": str(server.socket_dir), "db_port": server.port, "db_user": "noetl", "db_name": database}

    async def query(self, text: str, *values: object) -> list[Any]:
        async with connected(self.address) as connection:
            return list(await connection.fetch(text, *values))

    async def fill(self, rows: int) -> None:
        await self.query("TRUNCATE queue, journal")
        await self.query(
            "INSERT INTO queue (id, n, text) SELECT i, i * 1.5, 'row ' || i FROM generate_series(1, $1) i", rows
        )

    async def journal(self) -> Counter[int]:
        """How often each row was worked off."""
        return Counter(row["id"] for row in await self.query("SELECT id FROM journal"))

    async def statuses(self) -> dict[str, int]:
        found = await self.query("SELECT status, count(*) AS n FROM queue GROUP BY 1")
        return {row["status"]: row["n"] for row in found}


def work_database() -> Work:
    work = Work(empty_database())
    asyncio.run(_make(work.address))
    return work


async def _make(address: str) -> None:
    async with connected(address) as connection:
        await connection.execute(_TABLES)


def committed_rows(events: Sequence[Any], rows_of: dict[str, list[dict[str, Any]]]) -> Counter[int]:
    """How often each row stands in a committed frame; `rows_of` the digest of a claim's payload."""
    claims: dict[str, str] = {}
    found: Counter[int] = Counter()
    for event in events:
        event_type, frame_id, meta, reference = _facts(event)
        if event_type == kinds.CURSOR_CLAIMED:
            claims[frame_id] = reference["sha256"]
        elif event_type == kinds.FRAME_COMMITTED and "claim" not in meta:
            found.update(row["id"] for row in rows_of[claims[frame_id]])
    return found


def claim_references(events: Sequence[Any]) -> list[dict[str, Any]]:
    return [_facts(event)[3] for event in events if _facts(event)[0] == kinds.CURSOR_CLAIMED]


def _facts(event: Any) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
    if isinstance(event, Event):
        return event.event_type, str(event.frame_id), dict(event.meta), dict(event.payload_ref or {})
    return event["event_type"], str(event.get("frame_id")), event["meta"], event.get("payload_ref") or {}
