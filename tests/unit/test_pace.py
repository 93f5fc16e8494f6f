"""A worker's pace: halves after trouble, rises by steps, and never leaves its bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from noetl.core.sessions.pace import STEP_SECONDS, STEPS_TO_FULL, Pace


def test_without_trouble_all_slots_are_wanted() -> None:
    assert Pace.full(16).slots(0.0) == 16
    assert Pace.full(16).slots(1e9) == 16


def test_trouble_halves_at_once() -> None:
    pace = Pace.full(16).slowed(begun=9.0, now=10.0)
    assert pace.slots(10.0) == 8


def test_trouble_again_and_again_leaves_one_slot() -> None:
    pace, seen = Pace.full(16), []
    for now in (1.0, 1.1, 1.2, 1.3, 1.4, 1.5):
        pace = pace.slowed(begun=now, now=now)
        seen.append(pace.slots(now))
    assert seen == [8, 4, 2, 1, 1, 1]


def test_reports_that_were_sent_before_the_halving_do_not_halve_again() -> None:
    once = Pace.full(16).slowed(begun=9.0, now=10.0)
    assert once.slowed(begun=9.9, now=10.5) is once
    assert once.slowed(begun=10.1, now=10.5).slots(10.5) == 4


def test_slots_come_back_step_by_step_and_not_at_once() -> None:
    pace = Pace.full(16).slowed(begun=0.0, now=0.0)
    rising = [pace.slots(number * STEP_SECONDS) for number in range(5)]
    assert rising == [8, 10, 12, 14, 16]
    assert pace.slots(STEP_SECONDS * 0.99) == 8


def test_a_worker_of_one_slot_keeps_it() -> None:
    assert Pace.full(1).slowed(begun=0.0, now=0.0).slots(0.0) == 1


@given(
    st.integers(1, 1024),
    st.lists(st.tuples(st.floats(0.0, 5.0), st.booleans()), max_size=50),
)
def test_the_bounds_hold_and_every_worker_is_at_full_speed_in_the_end(
    slots_max: int, story: list[tuple[float, bool]]
) -> None:
    pace, now = Pace.full(slots_max), 0.0
    for seconds, is_trouble in story:
        before = pace.slots(now)
        now += seconds
        assert pace.slots(now) >= before, "without trouble it never falls"
        if is_trouble:
            expected = max(1, pace.slots(now) // 2)
            pace = pace.slowed(begun=now, now=now)
            assert pace.slots(now) == expected
        assert 1 <= pace.slots(now) <= slots_max
    assert pace.slots(now + (STEPS_TO_FULL + 0.5) * STEP_SECONDS) == slots_max
