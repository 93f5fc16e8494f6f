"""How often a task is tried, how long a retry waits, and how long a task may take."""

from __future__ import annotations

import math

from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import RETRY_WAIT_SECONDS_MAX, TASK_TIMEOUT_SECONDS_BY_KIND, TASK_TIMEOUT_SECONDS_DEFAULT
from noetl.core.playbook.reading.timeouts import seconds_of


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


def attempts_of(value: object) -> int:
    """The total number of tries that a rule allows.  Raises ToolFailed."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None or not math.isfinite(number) or number != int(number):
        raise _wrong(f"attempts must be a whole number, not {value!r}")
    return max(int(number), 1)


def wait_of(name: str, value: object, default: float) -> float:
    """A rendered time in seconds, or text such as `30s`, `5m`.  Raises ToolFailed."""
    if value is None:
        return default
    seconds = seconds_of(value)
    if seconds is None or seconds < 0:
        raise _wrong(f"{name} must be a time such as 30s, 5m or seconds, not {value!r}")
    return seconds


def usual_timeout(kind: str, declared: float | None) -> float:
    """Seconds that a task may take which says nothing itself; `declared` is what its playbook says of all."""
    return declared or TASK_TIMEOUT_SECONDS_BY_KIND.get(kind, TASK_TIMEOUT_SECONDS_DEFAULT)


def _wrong(message: str) -> ToolFailed:
    return ToolFailed(Failure(kind="config", message=message))
