"""The data source `noetl_events` in a real session: the ledger once, and as a stream."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from noetl.adapters.spark.sources.access import Access
from noetl.adapters.spark.sources.events.source import EventsSource
from noetl.adapters.spark.sources.registering import register_sources
from noetl.adapters.spark.sources.waiting import waited
from noetl.core import kinds
from noetl.ports.data.sources import EVENT_COLUMNS, EventWindow
from noetl.wiring.sources import SettingsAccess
from tests.support.backends import postgres_backend
from tests.support.databases import connected, fresh_database
from tests.support.events import ORGANIZATION, TENANT, offer
from tests.support.server import running_server
from tests.support.sources import access_of
from tests.support.spark import shared_session

OWNER = {"NOETL_TENANT_ID": TENANT, "NOETL_ORGANIZATION_ID": ORGANIZATION}
Place = tuple[int, int]


@pytest.fixture
def database() -> str:
    return fresh_database()


@pytest.fixture
def access(database: str, tmp_path: Path) -> SettingsAccess:
    return access_of(tmp_path / "home", {"NOETL_POSTGRES_DSN": database, **OWNER})


@pytest.fixture
def spark(access: SettingsAccess) -> Iterator[SparkSession]:
    found = shared_session().newSession()
    register_sources(found, Access(own=access), (EventsSource,))
    yield found
    for query in found.streams.active:
        query.stop()


def append(database: str, executions: int, *, shard: int = 3, tenant_id: str = TENANT) -> list[int]:
    """Three events for each execution."""

    async def run() -> list[int]:
        async with postgres_backend(database) as backend:
            backend.make.tenant_id = tenant_id
            found = [backend.make.execution_id() for _ in range(executions)]
            for one in found:
                make = backend.make
                events = make.initialized(one), make.issued(one, meta={"step": "größe", "run": 1}), make.ended(one)
                await backend.ledger.append([offer(shard, *events)])
            return found

    return asyncio.run(run())


def ledger(database: str) -> list[Place]:
    """Every event of the owner, as the table has it."""

    async def run() -> list[Place]:
        async with connected(database) as connection:
            text = "SELECT shard_id, position FROM noetl.event WHERE tenant_id = $1 ORDER BY 1, 2"
            return [(row["shard_id"], row["position"]) for row in await connection.fetch(text, TENANT)]

    return asyncio.run(run())


def places(frame: Any) -> list[Place]:
    return sorted((row.shard_id, row.position) for row in frame.select("shard_id", "position").collect())


def test_the_ledger_is_read_once(database: str, spark: SparkSession) -> None:
    first, *_ = append(database, 3)
    append(database, 1, shard=5)
    append(database, 1, tenant_id="another")
    frame = spark.read.format("noetl_events").load()
    assert frame.columns == list(EVENT_COLUMNS)
    assert places(frame) == ledger(database)
    issued = spark.read.format("noetl_events").option("event_types", kinds.COMMAND_ISSUED)
    rows = issued.option("execution", str(first)).load().collect()
    assert [(row.execution_id, row.command_id, json.loads(row.meta)["step"]) for row in rows] == [
        (first, "start#1", "größe")
    ]
    assert rows[0].ingest_time >= rows[0].event_time


def test_a_window_is_chosen_by_positions_and_by_time(database: str, spark: SparkSession) -> None:
    append(database, 4)
    everything = ledger(database)
    some = spark.read.format("noetl_events").option("from", '{"positions": {"3": 2}}')
    assert places(some.option("to", '{"positions": {"3": 7}}').load()) == everything[2:7]
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=1)
    assert spark.read.format("noetl_events").option("from", now.isoformat()).load().count() == 0
    assert spark.read.format("noetl_events").option("from", "latest").load().count() == 0


def test_a_stream_has_every_event_once_while_others_are_appended(
    database: str, spark: SparkSession, tmp_path: Path
) -> None:
    append(database, 4)
    source = spark.readStream.format("noetl_events").option("events_per_batch", "5").load()
    output, checkpoint = str(tmp_path / "output"), str(tmp_path / "checkpoint")
    writer = source.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    query = writer.start(output)
    try:
        query.processAllAvailable()
        assert places(spark.read.parquet(output)) == ledger(database)
        append(database, 2, shard=9)
        query.processAllAvailable()
        assert places(spark.read.parquet(output)) == ledger(database)
        sizes = [one.numInputRows for one in query.recentProgress if one.numInputRows]
        assert max(sizes) <= 5
    finally:
        query.stop()
    # While nothing reads, the ledger goes on; the next query begins behind the last offset.
    append(database, 2)
    again = writer.trigger(availableNow=True).start(output)
    assert again.awaitTermination(120)
    assert again.exception() is None
    assert places(spark.read.parquet(output)) == ledger(database)


def test_an_offset_of_another_life_of_the_ledger_stops_the_reader(database: str, spark: SparkSession) -> None:
    append(database, 1)
    old = json.dumps({"incarnation": "00000000-0000-0000-0000-000000000000", "positions": {"3": 1}})
    with pytest.raises(Exception, match="another life"):
        spark.read.format("noetl_events").option("from", old).load().count()


def test_the_ledger_is_the_same_through_the_server(tmp_path: Path) -> None:
    """Without a Spark: the pages are what tasks read."""
    with running_server(workers=0) as place:
        database = place.environment["NOETL_POSTGRES_DSN"]
        append(database, 2)
        token = {"NOETL_SERVER_URL": place.url, "NOETL_TOKEN": place.tokens["token"]}
        straight = access_of(place.home, {"NOETL_POSTGRES_DSN": database, **OWNER})
        around = access_of(tmp_path, {**token, **OWNER})
        window = EventWindow(
            shard_id=3, after_position=1, until_position=6, tenant_id=TENANT, organization_id=ORGANIZATION
        )
        heads = [waited(one, lambda stores: stores.ledger.heads()) for one in (straight, around)]
        assert heads[0] == heads[1]
        pages = [waited(one, lambda stores: stores.ledger.events(window, rows_max=4)) for one in (straight, around)]
        assert pages[0] == pages[1]
        assert len(pages[0].rows) == 4
        worker = place.request("GET", "/api/ledger", token="worker_token")
        assert worker.status == 403
