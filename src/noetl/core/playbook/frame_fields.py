"""The numbers and words of `loop.spec.frame`, `loop.spec.fanout` and `cursor.options`: what each may be.

Any of them may be a template.  Then it is judged by the same rule when the loop opens and its value is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from noetl.core.limits import (
    CURSOR_ROWS_PER_SLOT_DEFAULT,
    FRAME_ATTEMPTS_MAX,
    FRAME_BYTES_MAX,
    FRAME_ROWS_MAX,
    LOOP_ITEMS_MAX,
    SHARD_RETRIES_MAX,
    TIMEOUT_SECONDS_MAX,
)
from noetl.core.locator.locality import DISTANCES

ROW, FRAME = "row", "frame"
WHOLE_FRAME = "whole_frame"

Check = Callable[[object], object]


_NUMBER_CHARS_MAX = 40


class FieldInvalid(ValueError):
    """What a field must be and is not."""


def is_template(value: object) -> bool:
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def checked(fields: Mapping[str, Check], values: Mapping[str, object]) -> dict[str, object]:
    """The values that are given, as what they stand for.  Raises FieldInvalid, which begins with the field's name."""
    found = {}
    for name, check in fields.items():
        if values.get(name) is not None:
            try:
                found[name] = check(values[name])
            except FieldInvalid as error:
                raise FieldInvalid(f"{name} {error}") from None
    return found


def _whole(low: int, high: int) -> Check:
    def check(value: object) -> int:
        is_number = isinstance(value, str) and len(value) <= _NUMBER_CHARS_MAX and value.strip().isdecimal()
        number = int(value) if is_number else value  # type: ignore[call-overload]
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            raise FieldInvalid(f"must be a whole number from {low} to {high}, not {value!r}")
        return number

    return check


def _seconds(value: object) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):  # a whole number may be larger than any other
        number = math.nan
    if not 0 < number <= TIMEOUT_SECONDS_MAX:
        raise FieldInvalid(f"must be a number of seconds above 0, not {value!r}")
    return number


def _one_of(*words: str) -> Check:
    def check(value: object) -> str:
        if value not in words:
            raise FieldInvalid(f"must be {' or '.join(words)}, not {value!r}")
        return str(value)

    return check


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise FieldInvalid(f"must be true or false, not {value!r}")
    return word == "true"


FRAME_FIELDS: Mapping[str, Check] = {
    "max_rows": _whole(1, FRAME_ROWS_MAX),
    "process": _one_of(ROW, FRAME),
    "row_concurrency": _whole(1, FRAME_ROWS_MAX),
    "lease_seconds": _seconds,
    "heartbeat_seconds": _seconds,
    "max_seconds": _seconds,
    "max_bytes": _whole(1, FRAME_BYTES_MAX),
    "retry_mode": _one_of(WHOLE_FRAME),
    "max_attempts": _whole(1, FRAME_ATTEMPTS_MAX),
    "verify_ipc": _truth,
}
FANOUT_FIELDS: Mapping[str, Check] = {
    "shard_size": _whole(1, FRAME_ROWS_MAX),
    "max_shard_retries": _whole(0, SHARD_RETRIES_MAX),
    "fail_fast": _truth,
    "allow_partial": _truth,
}
LOCALITY_FIELDS: Mapping[str, Check] = {"max_distance": _one_of(*DISTANCES)}
CURSOR_OPTIONS: Mapping[str, Check] = {
    "pool_size": _whole(1, FRAME_ROWS_MAX),
    "max_iterations": _whole(1, LOOP_ITEMS_MAX),
}

# What a cursor's frames are without a word about them (dsl §4.5).
CURSOR_FRAME_DEFAULTS: Mapping[str, object] = {
    "max_rows": 1,
    "process": ROW,
    "row_concurrency": 1,
    "lease_seconds": 120.0,
    "heartbeat_seconds": 30.0,
    "max_seconds": 30.0,
    "max_bytes": 64 * 1024 * 1024,
    "max_attempts": 3,
    "verify_ipc": False,
}
FANOUT_DEFAULTS: Mapping[str, object] = {"shard_size": 1, "max_shard_retries": 2, "allow_partial": False}
CURSOR_OPTION_DEFAULTS: Mapping[str, object] = {"max_iterations": CURSOR_ROWS_PER_SLOT_DEFAULT}
