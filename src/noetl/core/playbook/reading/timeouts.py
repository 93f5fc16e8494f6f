"""How long a step and an execution may take: literal values, because the limit counts before anything is rendered."""

from __future__ import annotations

import math
from collections.abc import Mapping

from noetl.core.limits import TIMEOUT_SECONDS_MAX
from noetl.core.playbook.document import Findings, Path

_FLOAT_MAX = 1e308
# The longer unit first: `ms` also ends with `s`.
_UNITS = (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0))


def seconds_of(value: object) -> float | None:
    """A time as a number of seconds, or as text such as `500ms`, `30s`, `5m`, `1h`; None when it is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        # A whole number may be larger than any other.
        return float(value) if abs(value) <= _FLOAT_MAX else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    unit, factor = next(((unit, factor) for unit, factor in _UNITS if text.endswith(unit)), ("", 1.0))
    try:
        number = float(text.removesuffix(unit)) * factor
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def step_timeout(step: str, spec: object, path: Path, findings: Findings) -> float | None:
    """`spec.timeout` or `spec.policy.lifecycle.timeout_s`; of both the shorter one."""
    if not isinstance(spec, dict):
        return None
    policy = spec.get("policy")
    lifecycle = policy.get("lifecycle") if isinstance(policy, dict) else None
    places: tuple[tuple[object, Path], ...] = (
        (spec.get("timeout"), ("spec", "timeout")),
        (
            lifecycle.get("timeout_s") if isinstance(lifecycle, dict) else None,
            ("spec", "policy", "lifecycle", "timeout_s"),
        ),
    )
    found = []
    for value, place in places:
        where = f"step {step!r}: {'.'.join(map(str, place))}"
        seconds = _limit(where, value, (*path, *place), findings, step=step)
        if seconds is not None:
            found.append(seconds)
    return min(found, default=None)


def execution_timeout(spec: Mapping[str, object], findings: Findings) -> float | None:
    return _limit("executor.spec.timeout", spec.get("timeout"), ("executor", "spec", "timeout"), findings)


def _limit(where: str, value: object, place: Path, findings: Findings, *, step: str | None = None) -> float | None:
    if value is None:
        return None
    if isinstance(value, str) and "{" in value:
        findings.error(
            "timeout", f"{where} must be a literal time such as 30s: templates are not allowed", place, step=step
        )
        return None
    seconds = seconds_of(value)
    if seconds is None or not 0 < seconds <= TIMEOUT_SECONDS_MAX:
        message = (
            f"{where} must be a time above 0 and up to a year, such as 500ms, 30s, 5m, 1h or seconds, not {value!r}"
        )
        findings.error("timeout", message, place, step=step)
        return None
    return seconds
