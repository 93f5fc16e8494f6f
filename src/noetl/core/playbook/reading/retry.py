"""A tool's own `retry` → the policy rule that it stands for (dsl §11)."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.playbook.document import Spot
from noetl.core.playbook.model import Action, Rule
from noetl.core.playbook.reading.policy import read_backoff

RETRY_KEYS = frozenset(
    (
        *("max_attempts", "attempts", "retry_on", "retry_when", "backoff", "delay", "initial_delay"),
        *("backoff_multiplier", "enabled", "max_delay", "jitter"),
    )
)
_NOT_APPLIED = ("max_delay", "jitter")
# Words for groups of errors, and the kind that each of them is; None is every error.
_GROUPS = {"5xx": "server_error", "4xx": "client_error", "error": None, "any": None, "all": None}
_FAILED = "output.status == 'error'"


def read_retry(value: object, spot: Spot) -> Rule | None:
    """The rule that comes before the task's own ones; None when there is nothing to retry."""
    spot.warn("deprecated_retry", "write retry as a rule of spec.policy")
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"max_attempts": value}
    if value is None or value is False:
        return None
    if not isinstance(value, dict):
        spot.error("retry_shape", "retry must be a mapping with max_attempts")
        return None
    spot.part("retry").warn_unknown(value, RETRY_KEYS)
    for key in _NOT_APPLIED:
        if key in value:
            spot.warn("not_applied", f"retry.{key} is not applied", key)
    if value.get("enabled") is False:
        return None
    backoff, delay = _waiting(value)
    return Rule(
        when=_condition(value, spot),
        do=Action.RETRY,
        attempts=value.get("max_attempts", value.get("attempts", 3)),
        backoff=read_backoff(backoff, spot),
        delay=delay,
        place=spot.place,
        then_place=spot.place,
    )


def _waiting(value: Mapping[str, object]) -> tuple[object, object]:
    """How waits grow and how long the first one is; a number in `backoff` is the wait itself."""
    backoff, delay = value.get("backoff"), value.get("delay", value.get("initial_delay"))
    if isinstance(backoff, int | float) and not isinstance(backoff, bool):
        backoff, delay = "fixed", backoff if delay is None else delay
    multiplier = value.get("backoff_multiplier")
    if backoff is None and isinstance(multiplier, int | float) and multiplier > 1:
        backoff = "exponential"
    return backoff, delay


def _condition(value: Mapping[str, object], spot: Spot) -> str:
    """Which errors are tried again: all of them, or those of the listed kinds, codes and statuses."""
    when = value.get("retry_when")
    if isinstance(when, str) and when.strip():
        return f"{_FAILED} and ({_inner(when)})"
    listed = value.get("retry_on")
    words = [listed] if isinstance(listed, str | int) else listed
    if words is None or words == []:
        return _FAILED
    if not isinstance(words, list) or any(isinstance(word, bool) or not isinstance(word, str | int) for word in words):
        spot.error("retry_shape", "retry.retry_on must be a list of error kinds, codes or statuses", "retry_on")
        return _FAILED
    kinds = [_GROUPS.get(word.lower(), word) for word in words if isinstance(word, str)]
    statuses = [int(word) for word in words if isinstance(word, int) or word.isdecimal()]
    if None in kinds:
        return _FAILED
    error = "output.error"
    return f"{_FAILED} and ({error}.kind in {kinds} or {error}.code in {kinds} or {error}.status in {statuses})"


def _inner(when: str) -> str:
    """A condition without the braces that are optional around it."""
    text = when.strip()
    return text[2:-2].strip() if text.startswith("{{") and text.endswith("}}") else text
