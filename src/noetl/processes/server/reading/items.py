"""The items of a loop, one by one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from noetl.core.errors import RequestInvalid
from noetl.engine.reading.items import Item, Items, ItemService
from noetl.processes.server.bodies import answer, execution_id_of
from noetl.processes.server.owners import owner_of

INDEX_MAX = 2**53
RUN_MAX = 2**31 - 1
ITEMS_MAX = 1_000


class ItemQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    index: int | None = Field(None, ge=0, le=INDEX_MAX, description="this one, with input and result")
    first: int = Field(0, ge=0, le=INDEX_MAX, description="from this index on")
    limit: int = Field(100, ge=1, le=ITEMS_MAX)
    failed: bool = Field(False, description="only those that failed or never ran")
    run: int | None = Field(None, ge=1, le=RUN_MAX, description="not the last one")


class ItemView(BaseModel):
    """`input` and `result` are there when one item was asked for."""

    index: int
    status: str = Field(description="success, failed, skipped, running or waiting")
    frame_id: str | None
    row: int | None = Field(description="its place in the frame")
    attempt: int = Field(description="of its frame")
    error: dict[str, Any] | None
    origin: str | None = Field(description="the execution it ran in, when that was another one")
    input: Any = None
    result: Any = None


class ItemsView(BaseModel):
    execution_id: str
    step: str
    run: int
    kind: str = Field(description="collection or cursor")
    total: int
    done: int
    failed: int
    frames: int
    items: list[ItemView]
    next_index: int | None = Field(description="where the page behind this one begins")
    dead_letter: dict[str, Any] | None = Field(description="the payload that lists what failed, by reference")


def router(items: ItemService) -> APIRouter:
    found = APIRouter(tags=["results"])
    found.add_api_route(
        "/api/executions/{execution_id}/items/{step:path}",
        _Routes(items).get,
        name="items",
        responses={200: {"model": ItemsView}},
    )
    return found


class _Routes:
    def __init__(self, items: ItemService) -> None:
        self._items = items

    async def get(
        self, request: Request, execution_id: str, step: str, query: Annotated[ItemQuery, Query()]
    ) -> Response:
        """What became of the items of a loop: those from an index on, those that failed, or one of them whole."""
        index = query.index
        if index is not None and query.model_fields_set & {"first", "limit", "failed"}:
            raise RequestInvalid("index asks for one item: first, limit and failed choose among many")
        loop = await self._items.find(execution_id_of(execution_id), step, run=query.run, **owner_of(request))
        if index is not None:
            found = await loop.one(index)
        else:
            found = await loop.page(query.first, query.limit, is_failed=query.failed)
        return answer(_view(execution_id, found, is_whole=index is not None))


def _view(execution_id: str, found: Items, *, is_whole: bool) -> dict[str, Any]:
    return {
        "execution_id": execution_id,
        **{name: value for name, value in asdict(found).items() if name != "items"},
        "items": [_item(one, is_whole=is_whole) for one in found.items],
    }


def _item(item: Item, *, is_whole: bool) -> dict[str, Any]:
    told = {
        "index": item.index,
        "status": item.status,
        "frame_id": item.frame_id,
        "row": item.row,
        "attempt": item.attempt,
        "error": item.error,
        "origin": None if item.origin is None else str(item.origin),
    }
    return {**told, "input": item.input, "result": item.result} if is_whole else told
