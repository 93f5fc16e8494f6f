"""How many rows go down together."""

from __future__ import annotations

import pytest

from noetl.tools.python.rows import MESSAGE_ROWS_MAX, MESSAGE_SECONDS, QUICK_SECONDS, Pace


def pace_of(seconds: float, *, times: int = 100, cores: int = 2, children_max: int = 32) -> Pace:
    pace = Pace(cores=cores, children_max=children_max)
    for _row in range(times):
        pace.learn(seconds)
    return pace


def test_rows_of_unknown_code_go_one_by_one_to_a_few_children() -> None:
    pace = Pace(cores=2, children_max=32)
    assert pace.rows(100, 1) == 1
    assert pace.children(100) == 2


def test_no_more_children_than_there_may_be() -> None:
    assert Pace(cores=8, children_max=3).children(100) == 3
    assert pace_of(0.0005, cores=8, children_max=3).children(100) == 3
    assert pace_of(1.0, cores=8, children_max=3).children(100) == 3


def test_quick_rows_fill_a_message_and_use_no_more_children_than_processors() -> None:
    pace = pace_of(0.00002)
    assert pace.rows(10_000, 2) == MESSAGE_ROWS_MAX
    assert pace.children(10_000) == 2
    assert pace_of(0.0001).rows(10_000, 2) == int(MESSAGE_SECONDS / 0.0001)


def test_little_work_goes_to_one_child() -> None:
    pace = pace_of(0.00002)
    assert pace.children(8) == 1
    assert pace.rows(8, 1) == 8
    assert pace.children(20) == 2
    assert pace.rows(20, 2) == 10


def test_slow_rows_spread_over_all_children() -> None:
    pace = pace_of(QUICK_SECONDS * 2)
    assert pace.children(20) == 32
    assert pace.rows(20, 32) == 1
    assert pace.rows(64, 32) == 2  # two of them are 4 ms
    assert pace_of(0.02).rows(640, 32) == 1


def test_rows_that_become_slow_go_alone_after_a_few() -> None:
    pace = pace_of(0.00002)
    pace.learn(30.0)
    assert pace.children(1_000) == 2  # one slow row among quick ones does not cost thirty forks
    for _row in range(4):
        pace.learn(30.0)
    assert pace.rows(1_000, 32) == 1
    assert pace.children(1_000) == 32


def test_rows_that_become_quick_go_together_again() -> None:
    pace = pace_of(0.02)
    for _row in range(100):
        pace.learn(0.00002)
    assert pace.rows(1_000, 2) > 50


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e9])
def test_any_measurement_gives_at_least_one_row_and_child(seconds: float) -> None:
    pace = pace_of(seconds)
    assert 1 <= pace.rows(1, 1) <= MESSAGE_ROWS_MAX
    assert 1 <= pace.children(1) <= 32
