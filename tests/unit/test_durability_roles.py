"""The works of the roles, over memory: partitions ahead of time, what could go, and what dead sessions leave."""

from __future__ import annotations

import datetime
import logging

import pytest

from noetl.adapters.memory.clock import START, VirtualClock
from noetl.adapters.memory.database import MemoryDatabase
from noetl.core.ids import Quarter, quarter_named, quarters_from
from noetl.engine.durability.partitions import PartitionKeeper, droppable
from noetl.engine.durability.reaper import Reaper
from noetl.ports.durability.partitions import QUARTERS_AHEAD, Partition
from tests.support.aio import asynchronous
from tests.support.durability import memory_parts


def at(year: int, month: int, day: int) -> datetime.datetime:
    return datetime.datetime(year, month, day, tzinfo=datetime.UTC)


DAYS = datetime.timedelta(days=30)


@pytest.mark.parametrize(
    ("now", "has_open", "goes"),
    [
        (at(2026, 4, 1), False, False),
        (at(2026, 4, 30), False, False),
        (at(2026, 5, 1), False, True),
        (at(2026, 5, 1), True, False),
        (at(2027, 5, 1), True, False),
    ],
)
def test_a_quarter_could_go_when_its_last_day_is_older_than_the_retention_and_nothing_in_it_is_open(
    now: datetime.datetime, has_open: bool, goes: bool
) -> None:
    quarter = Quarter(2026, 1)
    found = droppable([Partition(quarter=quarter, has_open=has_open)], now=now, retention=DAYS)
    assert found == ([quarter] if goes else [])


@asynchronous
async def test_the_keeper_makes_what_is_missing_and_only_tells_what_is_old(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    database = MemoryDatabase(clock=clock, shard_count=1)
    keeper = PartitionKeeper(memory_parts(database, {}).partitions, clock=clock, retention_days=30)
    with caplog.at_level(logging.INFO, logger="noetl.partitions"):
        await keeper.look()
        assert database.tables.quarters == set(quarters_from(START, QUARTERS_AHEAD))
        assert dict(_gauges(keeper)) == {"noetl_partitions_ahead": 5, "noetl_partitions_droppable": 0}
        clock.advance(datetime.timedelta(days=200).total_seconds())
        await keeper.look()
    assert len(database.tables.quarters) == 7
    assert dict(_gauges(keeper)) == {"noetl_partitions_ahead": 5, "noetl_partitions_droppable": 1}
    assert [record.partitions for record in caplog.records if hasattr(record, "partitions")] == [["2026q1"]]


def _gauges(keeper: PartitionKeeper) -> list[tuple[str, float]]:
    return [(name, value) for name, _, value in keeper.samples()]


@asynchronous
async def test_the_reaper_counts_what_it_gives_back_and_what_it_clears() -> None:
    class Book:
        def __init__(self, *counts: int) -> None:
            self._counts = list(counts)

        async def release_dead(self) -> int:
            return self._counts.pop(0)

        async def drop_ended(self) -> int:
            return self._counts.pop(0)

    reaper = Reaper(Book(2, 0, 1), Book(3, 0))
    await reaper.look()
    await reaper.look(clears=False)
    await reaper.look()
    assert [value for _, _, value in reaper.samples()] == [3, 3]


@pytest.mark.parametrize("name", ["system", "2026", "2026q", "2026q0", "2026q5", "2026q11", "q1", "²026q1", "default"])
def test_what_is_no_name_of_a_quarter_is_none(name: str) -> None:
    assert quarter_named(name) is None


def test_a_quarter_is_found_by_its_name() -> None:
    for quarter in quarters_from(START, 9):
        assert quarter_named(quarter.name) == quarter
