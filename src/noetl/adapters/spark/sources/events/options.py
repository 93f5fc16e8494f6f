"""The options of `noetl_events`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from noetl.core.errors import RequestInvalid
from noetl.core.kinds import KINDS

KNOWN = frozenset(("tenant", "organization", "execution", "from", "to", "event_types", "events_per_batch"))
EARLIEST, LATEST = "earliest", "latest"
EVENTS_PER_BATCH = 100_000
EVENTS_PER_BATCH_MAX = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EventOptions:
    tenant_id: str
    organization_id: str
    execution_id: int | None = None
    start: str | Mapping[str, Any] = EARLIEST
    end: str | Mapping[str, Any] = LATEST
    since: datetime | None = None
    until: datetime | None = None
    event_types: tuple[str, ...] | None = None
    events_per_batch: int = EVENTS_PER_BATCH


def event_options(options: Mapping[str, str], *, tenant_id: str, organization_id: str) -> EventOptions:
    """Raises RequestInvalid."""
    unknown = sorted(name for name in options if name.lower() not in KNOWN)
    if unknown:
        raise RequestInvalid(f"noetl_events has no option {unknown[0]!r}: it has {', '.join(sorted(KNOWN))}")
    start, since = _bound(options.get("from"), EARLIEST, "from")
    end, until = _bound(options.get("to"), LATEST, "to")
    return EventOptions(
        tenant_id=options.get("tenant") or tenant_id,
        organization_id=options.get("organization") or organization_id,
        execution_id=_number(options.get("execution"), "execution"),
        start=start,
        end=end,
        since=since,
        until=until,
        event_types=_types(options.get("event_types")),
        events_per_batch=_per_batch(options.get("events_per_batch")),
    )


def _bound(text: str | None, default: str, option: str) -> tuple[str | Mapping[str, Any], datetime | None]:
    """An offset and a time: one of them is what the text says."""
    if text is None or text in (EARLIEST, LATEST):
        return text or default, None
    try:
        document = json.loads(text) if text.lstrip().startswith("{") else None
        if isinstance(document, dict):
            return document, None
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise RequestInvalid(
            f"option {option}: write {EARLIEST}, {LATEST}, a time with its zone (2026-01-31T12:00:00Z), or an offset "
            'as JSON ({"incarnation": …, "positions": {"0": 12}})'
        )
    return default, moment


def _number(text: str | None, option: str) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise RequestInvalid(f"option {option} is the number of an execution, not {text[:80]!r}")
    return int(text)


def _types(text: str | None) -> tuple[str, ...] | None:
    if not text:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise RequestInvalid(f"there are no events of type {unknown[0][:80]!r}: there are {', '.join(sorted(KINDS))}")
    return names


def _per_batch(text: str | None) -> int:
    if not text:
        return EVENTS_PER_BATCH
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= EVENTS_PER_BATCH_MAX:
        raise RequestInvalid(f"option events_per_batch is a number from 1 to {EVENTS_PER_BATCH_MAX:,}")
    return int(text)
