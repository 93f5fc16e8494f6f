"""How long a retry waits."""

from __future__ import annotations

import math

from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import RETRY_WAIT_SECONDS_MAX


def retry_delay(backoff: str | None, explicit: float | None, failed_attempts: int) -> float:
    """Seconds before the next attempt (dsl §5.2)."""
    if backoff in (None, "none"):
        delay = explicit or 0.0
    elif backoff == "linear":
        delay = (1.0 if explicit is None else explicit) * failed_attempts
    elif backoff == "exponential":
        delay = (1.0 if explicit is None else explicit) * 2.0 ** min(failed_attempts - 1, 30)
    else:
        delay = 1.0 if explicit is None else explicit
    return min(max(delay, 0.0), RETRY_WAIT_SECONDS_MAX)


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(value: object, default: float) -> float:
    """A number of seconds, or text such as `30s`, `5m`."""
    if isinstance(value, bool) or value is None:
        return default
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) and value >= 0 else default
    text = str(value).strip()
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    try:
        number = float(text.removesuffix(unit))
    except ValueError as error:
        raise ToolFailed(Failure(kind="config", message=f"{text!r} is not a time in seconds")) from error
    return number * _UNITS.get(unit, 1.0)
