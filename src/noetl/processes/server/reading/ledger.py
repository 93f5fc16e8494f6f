"""The ledger for readers that keep their own position: how far it is, and what stands behind a position.

Owners see their own events only.  Positions are those of a shard, which all owners share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from noetl.core.limits import EVENTS_ROWS_MAX
from noetl.core.shards import SHARD_COUNT_MAX
from noetl.engine.reading.service import ResultService
from noetl.ports.data.sources import EVENT_COLUMNS, EventRow, EventWindow, LedgerReading
from noetl.processes.server.bodies import answer, execution_id_of
from noetl.processes.server.owners import owner_of

POSITION_MAX = 2**62
EVENT_TYPES_MAX = 64
_IDS = frozenset(("execution_id", "event_id", "causation_id", "parent_event_id", "parent_execution_id"))


class HeadsView(BaseModel):
    incarnation: str = Field(description="which life of the ledger the positions are of")
    positions: dict[str, int] = Field(description="the last position of every shard")


class LedgerEventsView(BaseModel):
    events: list[dict[str, Any]] = Field(description="ids as text; payload_ref, result, writes and meta as JSON text")
    position: int = Field(description="all events of the window up to here are among these: go on from here")


class ReferenceView(BaseModel):
    model_config = ConfigDict(extra="allow")

    uri: str
    sha256: str
    media_type: str
    bytes: int
    store: str


class LedgerQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    shard_id: int = Field(ge=0, lt=SHARD_COUNT_MAX)
    after_position: int = Field(0, ge=0, le=POSITION_MAX)
    until_position: int = Field(POSITION_MAX, ge=0, le=POSITION_MAX)
    execution_id: str | None = None
    event_type: list[Annotated[str, Field(max_length=100)]] | None = Field(None, max_length=EVENT_TYPES_MAX)
    limit: int = Field(EVENTS_ROWS_MAX, ge=1, le=EVENTS_ROWS_MAX)


def router(ledger: LedgerReading, results: ResultService) -> APIRouter:
    found = APIRouter(tags=["ledger"])
    routes = _Routes(ledger, results)
    add = found.add_api_route
    add("/api/ledger", routes.heads, responses={200: {"model": HeadsView}})
    add("/api/ledger/events", routes.events, responses={200: {"model": LedgerEventsView}})
    add(
        "/api/executions/{execution_id}/references/{step:path}",
        routes.reference,
        responses={200: {"model": ReferenceView}},
    )
    return found


class _Routes:
    def __init__(self, ledger: LedgerReading, results: ResultService) -> None:
        self._ledger = ledger
        self._results = results

    async def heads(self) -> Response:
        """How far the ledger is."""
        found = await self._ledger.heads()
        positions = {str(shard): position for shard, position in found.positions.items()}
        return answer({"incarnation": found.incarnation, "positions": positions})

    async def events(self, request: Request, query: Annotated[LedgerQuery, Query()]) -> Response:
        """Events of one shard behind a position, in order."""
        owner = owner_of(request)
        window = EventWindow(
            shard_id=query.shard_id,
            after_position=query.after_position,
            until_position=query.until_position,
            execution_id=None if query.execution_id is None else execution_id_of(query.execution_id),
            event_types=None if query.event_type is None else tuple(query.event_type),
            tenant_id=owner.tenant_id,
            organization_id=owner.organization_id,
        )
        page = await self._ledger.events(window, rows_max=query.limit)
        return answer({"events": [_view(row) for row in page.rows], "position": page.position})

    async def reference(self, request: Request, execution_id: str, step: str) -> Response:
        """Where the result of a step's last run is stored."""
        reading = await self._results.find(execution_id_of(execution_id), step, **owner_of(request))
        return answer(reading.raw().to_json())


def _view(row: EventRow) -> Mapping[str, object]:
    return {name: _value(name, value) for name, value in zip(EVENT_COLUMNS, row, strict=True)}


def _value(name: str, value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if value is not None and name in _IDS else value
