"""Runs of the collector on a real database, with objects that look older than they are."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from noetl.adapters.postgres.collecting.books import PostgresBooks, only_collector
from noetl.adapters.postgres.collecting.roots import SOURCES, PostgresRoots, Source
from noetl.adapters.postgres.collecting.small import CollectedPayloads
from noetl.adapters.postgres.pool import Reader
from noetl.adapters.sqlite.holdings import SqliteHoldings
from noetl.core.collection.plan import DAY, HOUR, Policy
from noetl.core.reference import Payload, address
from noetl.engine.collecting.collector import Collector, CollectorParts
from noetl.engine.collecting.report import Report
from noetl.ports.data.collection import CollectedStore, Control
from tests.support.databases import connected

POLICY = Policy(grace_seconds=24 * HOUR, ttl_seconds=90 * DAY)
OWNER = {"tenant_id": "acme", "organization_id": "sales"}


def small(content: bytes, *, media_type: str = "application/json", tenant_id: str = "acme") -> Payload:
    return address(content, media_type=media_type, store="db", tenant_id=tenant_id, organization_id="sales")


async def collect(
    address: str,
    *,
    policy: Policy = POLICY,
    is_dry_run: bool = False,
    sources: Sequence[Source] = SOURCES,
    stores: Sequence[CollectedStore] = (),
    forgets_missing: bool = False,
) -> Report:
    """One run over the small payloads and other stores."""
    reader = Reader(address, size_max=4)
    holdings = SqliteHoldings()
    await reader.open()
    try:
        async with only_collector(address) as turn:
            control = Control(PostgresRoots(reader, sources), CollectedPayloads(reader), PostgresBooks(reader), turn)
            parts = CollectorParts(control=control, large=stores, holdings=holdings)
            collector = Collector(parts, policy, is_dry_run=is_dry_run, forgets_missing=forgets_missing)
            return await collector.run()
    finally:
        holdings.close()
        await reader.close()


async def age(address: str, *, hours: float, home: Path | None = None) -> None:
    """Everything was put, and every candidate found, so much earlier."""
    span = datetime.timedelta(hours=hours)
    async with connected(address) as connection:
        await connection.execute("UPDATE noetl.payload SET renewed_at = renewed_at - $1::interval", span)
        await connection.execute(
            "UPDATE noetl.payload_candidate SET candidate_at = candidate_at - $1::interval, "
            "confirmed_at = confirmed_at - $1::interval",
            span,
        )
    for path in () if home is None else (home / "payloads").rglob("*"):
        if path.is_file():
            changed_at = path.stat().st_mtime - span.total_seconds()
            os.utime(path, (changed_at, changed_at))


async def until_gone(address: str, *, home: Path | None = None, **options: Any) -> list[Report]:
    """Two runs, each when everything is old enough: the second one deletes all that nothing names."""
    reports = []
    for _ in range(2):
        await age(address, hours=30, home=home)
        reports.append(await collect(address, **options))
    return reports


async def stored(address: str) -> set[str]:
    """The digests of the small payloads."""
    async with connected(address) as connection:
        return {row["sha256"] for row in await connection.fetch("SELECT sha256 FROM noetl.payload")}
