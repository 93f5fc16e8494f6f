"""`limits` → what is allowed, by name; `limit` of a task → one of these names.

Plain values only: a limit is shared with other playbooks and runs, so what one run was started with must not change
it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from noetl.core.limits import (
    LIMIT_CONCURRENCY_MAX,
    LIMIT_NAME_CHARS_MAX,
    LIMIT_RATE_MAX,
    LIMITS_PER_PLAYBOOK_MAX,
)
from noetl.core.permits.rates import RATE_FORMS, Allowance, read_concurrency, read_rate
from noetl.core.playbook.document import Findings, Spot
from noetl.core.playbook.model import Step

ROOT = "limits"
FIELD = "limit"
KEYS = frozenset(("rate", "concurrency", "desc", "description"))


def read_limits(value: object, findings: Findings) -> Mapping[str, Allowance]:
    """Every name that is declared, also of what is wrong: whoever uses it made no mistake."""
    found: dict[str, Allowance] = {}
    root = Spot(findings, ROOT, (ROOT,))
    if value is None:
        return found
    if not isinstance(value, dict):
        root.error("limits_shape", "must be a mapping from names to limits, as in `api: {rate: 50/s, concurrency: 20}`")
        return found
    if len(value) > LIMITS_PER_PLAYBOOK_MAX:
        root.error("limits_shape", f"{len(value):,} limits, at most {LIMITS_PER_PLAYBOOK_MAX} can be declared")
        return found
    for name, given in value.items():
        spot = Spot(findings, f"limit {name!r}", (ROOT, name))
        if not name.strip() or name != name.strip() or not name.isprintable() or len(name) > LIMIT_NAME_CHARS_MAX:
            spot.error("limit_name", f"a name is one line of at most {LIMIT_NAME_CHARS_MAX} characters")
        found[name] = _allowance(given, spot)
    return found


def _allowance(given: object, spot: Spot) -> Allowance:
    if not isinstance(given, dict):
        spot.error("limit_shape", "must be a mapping with `rate`, `concurrency` or both")
        return Allowance()
    spot.warn_unknown(given, KEYS)
    rate, concurrency = given.get("rate"), given.get("concurrency")
    if rate is None and concurrency is None:
        spot.error("limit_shape", "allows everything: give it `rate`, `concurrency` or both")
        return Allowance()
    found = Allowance(rate=read_rate(rate), concurrency=read_concurrency(concurrency))
    if rate is not None and found.rate is None:
        templates = "; templates are not possible here" if _is_template(rate) else ""
        allowed = f"{RATE_FORMS}; more than 0 and at most {LIMIT_RATE_MAX:,} a second{templates}"
        spot.error("limit_rate", f"{_short(rate)} is no rate: write {allowed}", "rate")
    if concurrency is not None and found.concurrency is None:
        templates = "; templates are not possible here" if _is_template(concurrency) else ""
        message = f"must be a whole number from 1 to {LIMIT_CONCURRENCY_MAX:,}, not {_short(concurrency)}{templates}"
        spot.error("limit_concurrency", f"concurrency {message}", "concurrency")
    return found


def read_limit(value: object, spot: Spot, known: Collection[str]) -> str | None:
    """The limit of a task; `spot` is where the task says so."""
    if value is None:
        return None
    if isinstance(value, str) and value in known:
        return value
    if not isinstance(value, str):
        spot.error("limit_shape", f"limit must be the name of one of the playbook's limits, not {_short(value)}", FIELD)
    elif _is_template(value):
        spot.error("limit_shape", f"limit {_short(value)}: templates are not possible here, write the name", FIELD)
    else:
        declare = f": declare it at the root, as in `limits: {{{_plain(value)}: {{rate: 50/s}}}}`"
        hint = spot.near(value, known) or declare
        spot.error("unknown_limit", f"the playbook has no limit {_short(value)}{hint}", FIELD)
    return None


def check_limits(limits: Mapping[str, Allowance], steps: Iterable[Step], findings: Findings) -> None:
    """What is declared and does nothing, or not what one would think."""
    used = set()
    for step in steps:
        for task in step.tasks:
            if task.limit is None:
                continue
            used.add(task.limit)
            if task.kind == "playbook" and limits[task.limit].concurrency is not None:
                spot = Spot(findings, f"step {step.name!r}, task {task.label!r}", task.place, step.name)
                message = (
                    f"the concurrency of limit {task.limit!r} is taken to start the playbook and given back when it has"
                    " started: give the tasks inside it a limit"
                )
                spot.warn("limit_of_playbook", message, FIELD)
    for name in limits:
        if name not in used:
            Spot(findings, f"limit {name!r}", (ROOT, name)).warn("unused_limit", "no task uses it")


def _is_template(value: object) -> bool:
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _plain(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and len(name) <= 40 else "name"
