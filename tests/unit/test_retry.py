"""The wait before the next attempt of a task (dsl §5.2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core.errors import ToolFailed
from noetl.core.limits import RETRY_WAIT_SECONDS_MAX
from noetl.core.playbook.reading.policy import BACKOFFS
from noetl.engine.work.pipeline.retry import attempts_of, retry_delay, wait_of


@pytest.mark.parametrize(
    ("backoff", "explicit", "waits"),
    [
        # Omitted or `none`: no wait, unless a delay was written.
        (None, None, [0, 0, 0]),
        ("none", None, [0, 0, 0]),
        (None, 0.5, [0.5, 0.5, 0.5]),
        ("none", 2.0, [2, 2, 2]),
        ("fixed", None, [1, 1, 1]),
        ("constant", None, [1, 1, 1]),
        ("fixed", 0.25, [0.25, 0.25, 0.25]),
        ("constant", 0.0, [0, 0, 0]),
        ("linear", None, [1, 2, 3]),
        ("linear", 0.5, [0.5, 1, 1.5]),
        ("linear", 0.0, [0, 0, 0]),
        ("exponential", None, [1, 2, 4, 8]),
        ("exponential", 0.5, [0.5, 1, 2, 4]),
        ("exponential", 0.0, [0, 0]),
    ],
)
def test_the_wait_grows_as_the_backoff_says(backoff: str | None, explicit: float | None, waits: list[float]) -> None:
    assert [retry_delay(backoff, explicit, failed) for failed in range(1, len(waits) + 1)] == waits


@given(
    st.sampled_from([None, *BACKOFFS]),
    st.none() | st.floats(-1e9, 1e9),
    st.integers(1, 1_000_000),
)
def test_one_wait_is_never_negative_and_never_above_the_limit(
    backoff: str | None, explicit: float | None, failed: int
) -> None:
    assert 0 <= retry_delay(backoff, explicit, failed) <= RETRY_WAIT_SECONDS_MAX == 300


@given(st.sampled_from(BACKOFFS), st.floats(0, 1e6), st.integers(1, 60))
def test_waits_never_shrink(backoff: str, explicit: float, failed: int) -> None:
    assert retry_delay(backoff, explicit, failed) <= retry_delay(backoff, explicit, failed + 1)


@pytest.mark.parametrize(("value", "tries"), [(5, 5), (5.0, 5), (" 5 ", 5), ("5.0", 5), (0, 1), (-3, 1)])
def test_the_number_of_tries_may_be_rendered_text(value: object, tries: int) -> None:
    assert attempts_of(value) == tries


@pytest.mark.parametrize("value", ["often", None, True, 2.5, float("nan"), [3], ""])
def test_a_number_of_tries_that_is_none_is_a_failure_of_the_configuration(value: object) -> None:
    with pytest.raises(ToolFailed) as caught:
        attempts_of(value)
    assert caught.value.failure.kind == "config"


@pytest.mark.parametrize(("value", "seconds"), [(None, 7.0), (2, 2.0), ("500ms", 0.5), ("1m", 60.0), (" 3 ", 3.0)])
def test_a_wait_may_be_a_number_or_text(value: object, seconds: float) -> None:
    assert wait_of("delay", value, 7.0) == seconds


@pytest.mark.parametrize("value", ["soon", -1, [1], True])
def test_a_wait_that_is_none_is_a_failure_of_the_configuration(value: object) -> None:
    with pytest.raises(ToolFailed, match="delay must be a time"):
        wait_of("delay", value, 7.0)
