"""What a limit allows, as it is written and as it is shown."""

from __future__ import annotations

import pytest

from noetl.core.limits import LIMIT_CONCURRENCY_MAX, LIMIT_RATE_MAX
from noetl.core.permits.rates import Allowance, rate_text, read_concurrency, read_rate, strictest


@pytest.mark.parametrize(
    ("written", "per_second"),
    [
        ("50/s", 50.0),
        ("600/min", 10.0),
        ("600/m", 10.0),
        ("3600/h", 1.0),
        (" 2.5 / s ", 2.5),
        ("7", 7.0),
        (7, 7.0),
        (0.5, 0.5),
        ("1/h", 1 / 3600),
        (LIMIT_RATE_MAX, float(LIMIT_RATE_MAX)),
    ],
)
def test_a_rate_is_a_number_with_its_unit_or_per_second(written: object, per_second: float) -> None:
    assert read_rate(written) == per_second


@pytest.mark.parametrize(
    "written",
    [
        *(0, -1, "0/s", "-3/s", "fast", "50/d", "50 per second", "50//s", "/s", True, None, [50], {}, "1e9/s", 10**400),
        *(float("inf"), float("nan"), LIMIT_RATE_MAX + 1, "{{ workload.rate }}", "9" * 400, "٥/s"),
    ],
)
def test_what_is_no_rate_is_none(written: object) -> None:
    assert read_rate(written) is None


@pytest.mark.parametrize("written", [0, -1, 1.5, "3", True, None, LIMIT_CONCURRENCY_MAX + 1])
def test_concurrency_is_a_whole_number_of_calls(written: object) -> None:
    assert read_concurrency(written) is None
    assert read_concurrency(20) == 20


@pytest.mark.parametrize(
    ("rate", "text"),
    [(50.0, "50/s"), (0.5, "30/min"), (1 / 3600, "1/h"), (10 / 3, "200/min"), (3.21234, "3.212/s"), (1e-4, "0.36/h")],
)
def test_a_rate_is_shown_as_somebody_would_write_it(rate: float, text: str) -> None:
    assert rate_text(rate) == text


def test_of_several_declarations_the_strictest_part_of_each_holds() -> None:
    found = strictest([Allowance(rate=50.0, concurrency=20), Allowance(rate=10.0), Allowance(concurrency=30)])
    assert found == Allowance(rate=10.0, concurrency=20)
    assert str(found) == "rate 10/s, concurrency 20"
    assert str(strictest([Allowance(concurrency=2)])) == "concurrency 2"
    assert strictest([]) == Allowance()
