"""Ids rise whatever the clock does, and quarters tile the time that ids can name."""

from __future__ import annotations

import datetime
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

UTC = datetime.UTC
MOMENTS = st.datetimes(datetime.datetime(2024, 1, 1), datetime.datetime(2090, 1, 1), timezones=st.just(UTC))
NODES = st.integers(0, NODE_NUMBER_MAX)


@given(st.lists(st.integers(-10, 2**41 - 2), min_size=1, max_size=60), NODES)
def test_ids_of_a_node_rise_strictly_under_any_clock(clock: list[int], node: int) -> None:
    ids = []
    last = 0
    for now_ms in clock:
        last = following_id(last, now_ms=now_ms, node=node)
        ids.append(last)
    assert ids == sorted(set(ids))
    assert all(SYSTEM_ID_LIMIT <= one < 2**63 for one in ids)
    assert {one >> 12 & NODE_NUMBER_MAX for one in ids} == {node}


def test_a_standing_clock_borrows_the_next_millisecond_when_the_sequence_is_used_up() -> None:
    last, now_ms = 0, 1_000
    for _ in range(4_096):
        last = following_id(last, now_ms=now_ms, node=7)
    assert last >> 22 == now_ms
    assert last & 4_095 == 4_095
    following = following_id(last, now_ms=now_ms, node=7)
    assert following == (now_ms + 1) << 22 | 7 << 12


def test_a_clock_that_steps_back_goes_on_in_the_last_millisecond() -> None:
    last = following_id(0, now_ms=5_000, node=1)
    assert following_id(last, now_ms=4_000, node=1) == last + 1
    assert following_id(last, now_ms=5_001, node=1) == 5_001 << 22 | 1 << 12


@given(NODES, NODES, st.integers(1, 2**41 - 2))
def test_nodes_never_make_the_same_id(one: int, other: int, now_ms: int) -> None:
    same = following_id(0, now_ms=now_ms, node=one) == following_id(0, now_ms=now_ms, node=other)
    assert same is (one == other)


@pytest.mark.parametrize("node", [-1, NODE_NUMBER_MAX + 1])
def test_a_node_number_that_does_not_fit_is_a_defect(node: int) -> None:
    with pytest.raises(AssertionError, match="node number"):
        following_id(0, now_ms=1, node=node)


@given(MOMENTS, NODES)
def test_an_id_tells_the_millisecond_it_was_made(moment: datetime.datetime, node: int) -> None:
    now_ms = milliseconds_of(moment)
    made = following_id(0, now_ms=now_ms, node=node)
    assert time_of(made) == EPOCH + datetime.timedelta(milliseconds=max(now_ms, 1))
    assert first_id_at(moment) <= made < first_id_at(moment + datetime.timedelta(milliseconds=2))


def test_the_epoch_is_the_first_of_january_2024() -> None:
    assert milliseconds_of(datetime.datetime(2024, 1, 1, tzinfo=UTC)) == 0
    assert first_id_at(datetime.datetime(2024, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1_000 << 22


# --- quarters --------------------------------------------------------------------------------------------


@given(MOMENTS, st.integers(1, 12))
def test_quarters_tile_time_without_gap_or_overlap(moment: datetime.datetime, count: int) -> None:
    quarters = quarters_from(moment, count)
    assert len({quarter.name for quarter in quarters}) == count
    bounds = [quarter.id_bounds() for quarter in quarters]
    assert all(low < high for low, high in bounds)
    for (_, high), (low, _) in itertools.pairwise(bounds):
        assert high == low
    made = following_id(0, now_ms=milliseconds_of(moment), node=0)
    assert bounds[0][0] <= made < bounds[0][1]


@given(MOMENTS)
def test_a_moment_lies_in_exactly_one_quarter(moment: datetime.datetime) -> None:
    quarter = quarter_of(moment)
    assert quarter.start <= moment < quarter.following().start


@pytest.mark.parametrize(
    ("moment", "name"),
    [
        (datetime.datetime(2024, 1, 1, tzinfo=UTC), "2024q1"),
        (datetime.datetime(2024, 3, 31, 23, 59, 59, 999_999, tzinfo=UTC), "2024q1"),
        (datetime.datetime(2024, 4, 1, tzinfo=UTC), "2024q2"),
        (datetime.datetime(2024, 9, 30, tzinfo=UTC), "2024q3"),
        (datetime.datetime(2024, 12, 31, tzinfo=UTC), "2024q4"),
        # The same moment, written in another zone, belongs to the same quarter.
        (datetime.datetime(2024, 3, 31, 23, tzinfo=datetime.timezone(datetime.timedelta(hours=-5))), "2024q2"),
    ],
)
def test_a_quarter_is_named_by_year_and_number(moment: datetime.datetime, name: str) -> None:
    assert quarter_of(moment).name == name


def test_the_fourth_quarter_is_followed_by_the_first_of_the_next_year() -> None:
    assert Quarter(2025, 4).following() == Quarter(2026, 1)
    assert [quarter.name for quarter in quarters_from(datetime.datetime(2025, 11, 1, tzinfo=UTC), 3)] == [
        "2025q4",
        "2026q1",
        "2026q2",
    ]


def test_the_first_quarter_leaves_room_for_the_ids_of_the_system() -> None:
    low, high = Quarter(2024, 1).id_bounds()
    assert low == SYSTEM_ID_LIMIT
    assert high == first_id_at(datetime.datetime(2024, 4, 1, tzinfo=UTC))
