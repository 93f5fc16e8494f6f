"""What happens to an object that nothing names."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from noetl.core.collection.plan import Policy, Verdict

POLICY = Policy(grace_seconds=100, margin_seconds=10, ttl_seconds=1_000)
NOW = 10_000.0
TIMES = st.floats(0, 20_000)


@pytest.mark.parametrize(
    ("renewed_at", "candidate_at", "verdict"),
    [
        (NOW - 110, None, Verdict.YOUNG),
        (NOW - 111, None, Verdict.NOMINATE),
        (NOW + 50, NOW - 500, Verdict.YOUNG),
        (NOW - 500, NOW - 99, Verdict.WAITING),
        (NOW - 500, NOW - 100, Verdict.DELETE),
        (NOW - 200, NOW - 300, Verdict.NOMINATE),
        (NOW - 500, NOW + 99, Verdict.WAITING),
        (NOW - 1_000, None, Verdict.NOMINATE),
        (NOW - 1_001, None, Verdict.DELETE),
        (NOW - 1_001, NOW - 1, Verdict.DELETE),
    ],
)
def test_verdicts(renewed_at: float, candidate_at: float | None, verdict: Verdict) -> None:
    assert POLICY.at(NOW).verdict(renewed_at=renewed_at, candidate_at=candidate_at) is verdict


@given(TIMES, st.none() | TIMES, TIMES, st.none() | TIMES, TIMES)
def test_nothing_is_deleted_whose_event_may_be_on_its_way(
    now: float, working_since: float | None, listed_at: float, candidate_at: float | None, renewed_at: float
) -> None:
    """Whatever the list said: an object is deleted by its time at that moment, and then every event that could name it
    was there before the roots were read, and whoever still works had not yet begun."""
    terms = POLICY.at(now, working_since=working_since)
    assume(terms.verdict(renewed_at=listed_at, candidate_at=candidate_at) is Verdict.DELETE)
    assume(renewed_at < terms.cutoff(candidate_at))
    latest_use = renewed_at + POLICY.margin_seconds
    assert latest_use + POLICY.grace_seconds <= now
    assert working_since is None or latest_use <= working_since


@given(TIMES, TIMES, TIMES)
def test_a_candidate_is_deleted_only_when_it_was_not_renewed_since(now: float, renewed_at: float, since: float) -> None:
    terms = POLICY.at(now)
    assert terms.cutoff(since) <= since
    if terms.verdict(renewed_at=renewed_at, candidate_at=since) is Verdict.DELETE:
        assert renewed_at < max(terms.cutoff(since), now - POLICY.ttl_seconds)


def test_what_was_put_since_the_oldest_work_began_is_young() -> None:
    terms = POLICY.at(NOW, working_since=NOW - 3_000)
    assert terms.verdict(renewed_at=NOW - 3_010, candidate_at=NOW - 2_000) is Verdict.YOUNG
    assert terms.verdict(renewed_at=NOW - 3_011, candidate_at=NOW - 2_000) is Verdict.DELETE
    assert terms.cutoff(NOW - 2_000) == NOW - 3_010


def test_a_ttl_below_the_grace_is_no_policy() -> None:
    with pytest.raises(AssertionError):
        Policy(grace_seconds=100, margin_seconds=10, ttl_seconds=109)
