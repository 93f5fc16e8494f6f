"""Two processes that use the same contents again and again, while a collector deletes whatever nothing names."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from noetl.adapters.objects.filesystem import FilePayloads
from noetl.core.collection.plan import DAY, HOUR, Policy
from noetl.engine.collecting.large import CollectedLarge
from noetl.ports.data.payloads import StoredObject
from tests.support.aio import asynchronous
from tests.support.collecting import collect
from tests.support.databases import connected, fresh_database

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
GRACE_SECONDS = 0.7
FRESH_SECONDS = 0.2
SHIFT_SECONDS = HOUR - FRESH_SECONDS
"""All stores say that a payload is so much older than it is: what the statements of the ledger leave alone for an hour,
they leave alone for a moment."""
POLICY = Policy(grace_seconds=GRACE_SECONDS, margin_seconds=HOUR + FRESH_SECONDS, ttl_seconds=90 * DAY)
DELETED_MIN = 10
SECONDS_MAX = 90
SHIFT = f"""
CREATE FUNCTION noetl.shifted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.renewed_at := clock_timestamp() - interval '{SHIFT_SECONDS} seconds';
    RETURN NEW;
END
$$;
CREATE TRIGGER shifted BEFORE INSERT OR UPDATE ON noetl.payload FOR EACH ROW EXECUTE FUNCTION noetl.shifted();
"""


class Shifted(CollectedLarge):
    async def objects(self, *, tenant_id: str, organization_id: str) -> AsyncIterator[StoredObject]:
        async for found in super().objects(tenant_id=tenant_id, organization_id=organization_id):
            yield StoredObject(found.sha256, found.bytes, found.renewed_at - SHIFT_SECONDS)

    async def delete(self, sha256: str, *, renewed_before: float, tenant_id: str, organization_id: str) -> bool:
        return await super().delete(
            sha256,
            renewed_before=renewed_before + SHIFT_SECONDS,
            tenant_id=tenant_id,
            organization_id=organization_id,
        )


class Race:
    def __init__(self, address: str, home: Path) -> None:
        self.address = address
        self.files = FilePayloads(home / "payloads")
        self.fates: Counter[str] = Counter()
        self.dangling: dict[int, str] = {}
        self.checked = 0
        self.home = home

    async def run(self) -> list[str]:
        """What the producers told, when enough was deleted under their eyes."""
        producers = [await self._producer(str(seed)) for seed in range(2)]
        told = [asyncio.ensure_future(producer.communicate_later()) for producer in producers]
        async with asyncio.timeout(SECONDS_MAX):
            while self.fates["deleted"] < DELETED_MIN:
                report = await collect(self.address, policy=POLICY, stores=[Shifted("file", self.files)])
                for kind, heap in report.heaps.items():
                    self.fates[kind.fate] += heap.count
                await self.look()
        for producer in producers:
            producer.stop()
        lines = [line for one in told for line in await one]
        await self.look()
        return lines

    async def look(self) -> None:
        """Every event finds what it names for as long as it is there; then it is dropped, and names nothing."""
        async with connected(self.address) as connection:
            rows = await connection.fetch(
                "SELECT execution_id, result::text AS result, meta::text AS meta FROM noetl.event"
            )
            for row in rows:
                await self._look_at(connection, row)
            done = sorted({row["execution_id"] for row in rows})
            await connection.execute("DELETE FROM noetl.event WHERE execution_id = ANY ($1::bigint[])", done)

    async def _look_at(self, connection: Any, row: Any) -> None:
        named = [json.loads(row["meta"]).get("said"), json.loads(row["result"] or "{}").get("reference")]
        for reference in filter(None, named):
            self.checked += 1
            sha256 = reference["sha256"]
            if reference["store"] == "db":
                is_there = await connection.fetchval("SELECT true FROM noetl.payload WHERE sha256 = $1", sha256)
            else:
                is_there = any((self.home / "payloads").rglob(sha256))
            if not is_there:
                self.dangling[row["execution_id"]] = reference["uri"]

    async def _producer(self, seed: str) -> _Producer:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.racing_producer", self.address, str(self.home), seed),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        return _Producer(process)


class _Producer:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def communicate_later(self) -> list[str]:
        assert self._process.stdout is not None
        text = await self._process.stdout.read()
        assert await self._process.wait() == 0
        return text.decode().splitlines()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()


@pytest.fixture
def address() -> str:
    return fresh_database(shards=2)


@asynchronous
async def test_what_is_used_again_while_it_is_collected_is_never_missing(address: str, tmp_path: Path) -> None:
    async with connected(address) as connection:
        await connection.execute(SHIFT)
    race = Race(address, tmp_path)
    seconds = {int(execution): float(taken) for execution, taken in map(str.split, await race.run())}
    # Who was kept from running for longer than the grace has no promise; that is a matter of the machine.
    broken = {execution: uri for execution, uri in race.dangling.items() if seconds.get(execution, 0) < GRACE_SECONDS}
    assert broken == {}
    assert race.checked > 50
