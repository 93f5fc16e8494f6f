"""What a limit allows: a rate, a number of calls at a time, or both."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from noetl.core.limits import LIMIT_CONCURRENCY_MAX, LIMIT_RATE_MAX

SECONDS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
RATE_FORMS = "50/s, 600/min (or 600/m), 1000/h, or a number alone, which is per second"
_RATE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(?:\s*/\s*(s|min|m|h))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """`rate` is calls per second; None where there is no such limit."""

    rate: float | None = None
    concurrency: int | None = None

    def __str__(self) -> str:
        parts = [] if self.rate is None else [f"rate {rate_text(self.rate)}"]
        return ", ".join(parts if self.concurrency is None else [*parts, f"concurrency {self.concurrency}"])


def strictest(declared: Iterable[Allowance]) -> Allowance:
    """What holds when several say something else about the same limit."""
    found = tuple(declared)
    return Allowance(
        rate=min((one.rate for one in found if one.rate is not None), default=None),
        concurrency=min((one.concurrency for one in found if one.concurrency is not None), default=None),
    )


def read_rate(value: object) -> float | None:
    """Calls per second; None for what is no rate."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        rate = float(value) if abs(value) <= LIMIT_RATE_MAX else math.inf
    else:
        match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            return None
        rate = float(match.group(1)) / SECONDS[match.group(2) or "s"]
    return rate if 0 < rate <= LIMIT_RATE_MAX else None


def read_concurrency(value: object) -> int | None:
    """A whole number of calls; None for what is none."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and 1 <= value <= LIMIT_CONCURRENCY_MAX else None  # type: ignore[operator,return-value]


def rate_text(rate: float) -> str:
    """As somebody would write it."""
    for unit, seconds in (("s", 1.0), ("min", 60.0), ("h", 3600.0)):
        count = rate * seconds
        if count >= 1 and math.isclose(count, round(count), rel_tol=1e-9):
            return f"{round(count)}/{unit}"
    return f"{rate:.4g}/s" if rate >= 1 else f"{rate * 3600:.4g}/h"
