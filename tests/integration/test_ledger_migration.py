"""Bringing a database to the schema: migrations, partitions, refusals."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import re

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.adapters.postgres.migrate import QUARTERS_AHEAD, _check_server, check_schema, migrate, migrations
from noetl.core.errors import EnvelopeInvalid, LedgerUnavailable, SchemaOutdated
from noetl.core.ids import (
    EPOCH,
    NODE_NUMBER_MAX,
    SYSTEM_ID_LIMIT,
    Quarter,
    first_id_at,
    following_id,
    milliseconds_of,
    quarter_of,
    quarters_from,
    time_of,
)
from tests.support.aio import asynchronous
from tests.support.backends import postgres_backend
from tests.support.databases import connected, empty_database, fresh_database
from tests.support.events import offer
from tests.support.postgres import shared_server

NOW = datetime.datetime.now(datetime.UTC)
# Ids have 41 bits of milliseconds: until 2093.
moments = st.datetimes(
    min_value=datetime.datetime(2024, 1, 1), max_value=datetime.datetime(2093, 1, 1), timezones=st.just(datetime.UTC)
)


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


async def partitions(address: str) -> dict[str, tuple[int, int]]:
    async with connected(address) as connection:
        rows = await connection.fetch(
            "SELECT c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bound FROM pg_inherits AS i"
            " JOIN pg_class AS c ON c.oid = i.inhrelid WHERE i.inhparent = 'noetl.event'::regclass"
        )
    found = {}
    for row in rows:
        first, after = re.findall(r"'(\d+)'", row["bound"])
        found[row["name"]] = (int(first), int(after))
    return found


# --- partitions -----------------------------------------------------------------------------------------------


@asynchronous
async def test_the_current_and_the_next_four_quarters_have_partitions(address: str) -> None:
    found = await partitions(address)
    quarters = quarters_from(NOW, QUARTERS_AHEAD)
    assert len(quarters) == 5
    assert quarters[0] == quarter_of(NOW)
    assert found.pop("event_system") == (0, SYSTEM_ID_LIMIT)
    assert found == {f"event_{quarter.name}": quarter.id_bounds() for quarter in quarters}


@asynchronous
async def test_every_event_lies_in_the_quarter_of_its_execution(address: str) -> None:
    async with postgres_backend(address) as b:
        expected = {1: "event_system", SYSTEM_ID_LIMIT - 1: "event_system"}
        for quarter in quarters_from(NOW, QUARTERS_AHEAD):
            first, after = quarter.id_bounds()
            expected |= dict.fromkeys((first, (first + after) // 2, after - 1), f"event_{quarter.name}")
        await b.ledger.append([offer(execution % 16, b.make.initialized(execution)) for execution in expected])
        async with connected(address) as connection:
            rows = await connection.fetch(
                "SELECT e.execution_id, c.relname FROM noetl.event AS e JOIN pg_class AS c ON c.oid = e.tableoid"
            )
        assert {row["execution_id"]: row["relname"] for row in rows} == expected


@asynchronous
async def test_there_is_no_default_partition_for_what_fits_nowhere(address: str) -> None:
    quarters = quarters_from(NOW, QUARTERS_AHEAD)
    async with postgres_backend(address) as b:
        for execution in (quarters[0].id_bounds()[0] - 1, quarters[-1].id_bounds()[1]):
            with pytest.raises(EnvelopeInvalid, match="partition"):
                await b.ledger.append([offer(0, b.make.initialized(execution))])
            assert await b.ledger.read_execution(execution) == []


@asynchronous
async def test_a_partition_cannot_be_cut_by_another_column(address: str) -> None:
    """One execution lives in one partition: that is why the guard of the transitions is complete."""
    async with connected(address) as connection:
        with pytest.raises(asyncpg.FeatureNotSupportedError):
            await connection.execute(
                "CREATE TABLE noetl.event_cut PARTITION OF noetl.event FOR VALUES FROM (4194304) TO (4194305)"
                " PARTITION BY RANGE (event_time)"
            )


@given(moments)
def test_an_id_lies_within_the_bounds_of_its_quarter(moment: datetime.datetime) -> None:
    quarter = quarter_of(moment)
    first, after = quarter.id_bounds()
    assert quarter.start <= moment < quarter.following().start
    made = following_id(0, now_ms=milliseconds_of(moment), node=NODE_NUMBER_MAX)
    if made >= SYSTEM_ID_LIMIT:
        assert first <= made < after
        assert quarter_of(time_of(made)) == quarter
    # The last id of the last millisecond is still inside.
    last = first_id_at(quarter.following().start) - 1
    assert first <= last < after
    assert quarter_of(time_of(last)) == quarter


@given(moments, st.integers(2, 12))
def test_neighbouring_quarters_leave_no_gap_and_do_not_overlap(moment: datetime.datetime, count: int) -> None:
    quarters = quarters_from(moment, count)
    assert len(quarters) == count
    for one, following in itertools.pairwise(quarters):
        assert one.id_bounds()[1] == following.id_bounds()[0]
        assert one.id_bounds()[0] < one.id_bounds()[1]
    assert len({quarter.name for quarter in quarters}) == count


def test_the_very_first_quarter_begins_behind_the_ids_of_the_system() -> None:
    assert Quarter(2024, 1).id_bounds()[0] == SYSTEM_ID_LIMIT
    assert first_id_at(EPOCH) == 0


@asynchronous
async def test_a_later_start_adds_the_quarters_that_came_up() -> None:
    address = await asyncio.to_thread(fresh_database)
    later = NOW + datetime.timedelta(days=200)
    before = await partitions(address)
    assert await migrate(address, shard_count=16, now=later) == []
    after = await partitions(address)
    assert before.items() <= after.items()
    assert {f"event_{quarter.name}" for quarter in quarters_from(later, QUARTERS_AHEAD)} <= set(after)


# --- migrations -----------------------------------------------------------------------------------------------


async def shape_of(address: str) -> list[tuple[object, ...]]:
    async with connected(address) as connection:
        tables = await connection.fetch(
            "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns"
            " WHERE table_schema = 'noetl' ORDER BY 1, 2"
        )
        indexes = await connection.fetch("SELECT indexdef FROM pg_indexes WHERE schemaname = 'noetl' ORDER BY 1")
        counts = await connection.fetch("SELECT shard_id, next_position, epoch FROM noetl.execution_shard ORDER BY 1")
        kept = await connection.fetch("SELECT ledger_incarnation FROM noetl.ledger")
    return [tuple(row) for rows in (tables, indexes, counts, kept) for row in rows]


@asynchronous
async def test_migrating_twice_changes_nothing() -> None:
    address = await asyncio.to_thread(empty_database)
    assert await migrate(address, shard_count=4, now=NOW) == [one.name for one in migrations()]
    async with postgres_backend(address) as b:
        await b.ledger.append([offer(2, b.make.initialized(b.make.execution_id()))])
    before = await shape_of(address)
    assert await migrate(address, shard_count=4, now=NOW) == []
    assert await shape_of(address) == before
    await check_schema(address)


@asynchronous
async def test_more_shards_are_added_and_the_old_ones_keep_their_counter() -> None:
    address = await asyncio.to_thread(empty_database)
    await migrate(address, shard_count=2, now=NOW)
    async with postgres_backend(address) as b:
        await b.ledger.append([offer(1, b.make.initialized(b.make.execution_id()))])
        await migrate(address, shard_count=4, now=NOW)
        await migrate(address, shard_count=1, now=NOW)
        assert [(head.shard_id, head.next_position) for head in await b.ledger.heads()] == [
            (0, 1),
            (1, 2),
            (2, 1),
            (3, 1),
        ]


@asynchronous
async def test_several_processes_may_migrate_at_once() -> None:
    address = await asyncio.to_thread(empty_database)
    applied = await asyncio.gather(*(migrate(address, shard_count=16, now=NOW) for _ in range(4)))
    assert sorted(map(len, applied)) == [0, 0, 0, len(migrations())]
    await check_schema(address)


@asynchronous
async def test_an_empty_database_is_refused_with_what_to_do() -> None:
    address = await asyncio.to_thread(empty_database)
    with pytest.raises(SchemaOutdated, match="noetl migrate"):
        await check_schema(address)
    async with connected(address) as connection:
        assert await connection.fetchval("SELECT to_regnamespace('noetl')") is None


@asynchronous
async def test_a_database_of_a_newer_release_is_refused() -> None:
    address = await asyncio.to_thread(fresh_database)
    await check_schema(address)
    async with connected(address) as connection:
        await connection.execute("INSERT INTO noetl.migration (number, name) VALUES (9999, '9999_pre_future')")
    with pytest.raises(SchemaOutdated, match="newer release"):
        await check_schema(address)


@asynchronous
async def test_a_failed_migration_leaves_nothing_behind() -> None:
    """All in one transaction: a database is migrated or it is not."""
    address = await asyncio.to_thread(empty_database)
    async with connected(shared_server().dsn(database=address.split("/")[3].split("?")[0], user="postgres")) as admin:
        await admin.execute("CREATE SCHEMA noetl AUTHORIZATION noetl; CREATE TABLE noetl.command (x integer)")
        with pytest.raises(asyncpg.DuplicateTableError):
            await migrate(address, shard_count=4, now=NOW)
        assert await admin.fetchval("SELECT to_regclass('noetl.event')") is None
        assert await admin.fetchval("SELECT to_regclass('noetl.migration')") is None


@asynchronous
async def test_an_unreachable_database_is_unavailable_and_not_a_surprise() -> None:
    address = shared_server().dsn(database="nobody_made_this")
    with pytest.raises(LedgerUnavailable, match="nobody_made_this"):
        await check_schema(address)


class _Server:
    def __init__(self, version: str) -> None:
        self._version = version

    async def fetchval(self, statement: str) -> str:
        assert "server_version_num" in statement
        return self._version


@pytest.mark.parametrize(("version", "name"), [("140011", "14"), ("130000", "13"), ("90624", "9")])
@asynchronous
async def test_a_server_before_15_is_refused(version: str, name: str) -> None:
    with pytest.raises(SchemaOutdated, match=f"Postgres {name} is too old: version 15"):
        await _check_server(_Server(version))


@pytest.mark.parametrize("version", ["150000", "150012", "180004"])
@asynchronous
async def test_a_server_from_15_is_welcome(version: str) -> None:
    await _check_server(_Server(version))
