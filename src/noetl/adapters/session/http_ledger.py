"""The ledger and where results are, through the server's API."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from noetl.adapters.session.http_stream_link import ServerLink, owner_headers
from noetl.core.errors import HostUnavailable
from noetl.core.reference import Reference, reference_from_json
from noetl.ports.data.sources import EVENT_COLUMNS, EventPage, EventRow, EventWindow, LedgerHeads

_LONGS = frozenset(("execution_id", "event_id", "causation_id", "parent_event_id", "parent_execution_id"))
_TIMES = frozenset(("event_time", "ingest_time"))


class HttpLedger:
    def __init__(self, link: ServerLink) -> None:
        self._link = link

    async def heads(self) -> LedgerHeads:
        found: Any = await self._link.ask("GET", "/api/ledger")
        try:
            positions = {int(shard): int(position) for shard, position in found["positions"].items()}
            return LedgerHeads(incarnation=str(found["incarnation"]), positions=positions)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unreadable(error) from error

    async def events(self, window: EventWindow, *, rows_max: int) -> EventPage:
        asked: dict[str, object] = {
            "shard_id": window.shard_id,
            "after_position": window.after_position,
            "until_position": window.until_position,
            "limit": rows_max,
        }
        if window.execution_id is not None:
            asked["execution_id"] = window.execution_id
        if window.event_types is not None:
            asked["event_type"] = list(window.event_types)
        headers = owner_headers(window.tenant_id, window.organization_id)
        path = f"/api/ledger/events?{urlencode(asked, doseq=True)}"
        found: Any = await self._link.ask("GET", path, headers=headers)
        try:
            return EventPage(rows=[_row(event) for event in found["events"]], position=int(found["position"]))
        except (KeyError, TypeError, ValueError) as error:
            raise _unreadable(error) from error

    async def result(self, execution_id: int, step: str, *, tenant_id: str, organization_id: str) -> Reference:
        """Where the result of a step is.  Raises what the server says: ExecutionUnknown, RequestInvalid."""
        path = f"/api/executions/{execution_id}/references/{quote(step, safe='')}"
        found = await self._link.ask("GET", path, headers=owner_headers(tenant_id, organization_id))
        return reference_from_json(found)


def _row(event: Mapping[str, Any]) -> EventRow:
    return [_value(name, event[name]) for name in EVENT_COLUMNS]


def _value(name: str, value: Any) -> object:
    if value is None:
        return None
    if name in _LONGS:
        return int(value)
    return datetime.fromisoformat(value) if name in _TIMES else value


def _unreadable(error: BaseException) -> HostUnavailable:
    return HostUnavailable(f"the server's answer about the ledger cannot be read: {error!r}")
