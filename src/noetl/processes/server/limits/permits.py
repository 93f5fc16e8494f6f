"""The worker protocol, permits: everything that a session uses or wants in one word, answered when there is news."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from noetl.core import limits
from noetl.core.errors import RequestInvalid
from noetl.core.permits.rates import Allowance
from noetl.engine.permits.desk import PermitDesk
from noetl.engine.sessions.keeper import Keeper
from noetl.ports.serving.permits import LimitKey, PermitGrant, PermitUse
from noetl.processes.server import models, wire
from noetl.processes.server.bodies import answer, content_of
from noetl.processes.server.routing import PlainRoute

COUNT_MAX = 2**53 - 1
PATH = "/api/worker/sessions/{session_id}/permits"
_Rate = Annotated[float, msgspec.Meta(gt=0, le=limits.LIMIT_RATE_MAX)]
_Concurrency = Annotated[int, msgspec.Meta(ge=1, le=limits.LIMIT_CONCURRENCY_MAX)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
_Wanted = Annotated[int, msgspec.Meta(ge=0, le=limits.PERMITS_WANTED_MAX)]


class UseIn(msgspec.Struct, forbid_unknown_fields=True):
    execution_id: str
    limit: Annotated[str, msgspec.Meta(min_length=1, max_length=limits.LIMIT_NAME_CHARS_MAX)]
    returned: _Count = 0
    in_use: _Wanted = 0
    waiting: _Wanted = 0
    rate: _Rate | None = None
    concurrency: _Concurrency | None = None


class WordIn(msgspec.Struct, forbid_unknown_fields=True):
    turn: _Count
    uses: Annotated[list[UseIn], msgspec.Meta(max_length=limits.PERMIT_USES_MAX)]
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=limits.PERMIT_WAIT_SECONDS_MAX)] = 0.0


class PermitView(BaseModel):
    execution_id: str
    limit: str
    granted: int = Field(description="of all permits so far, those that were returned included")
    rate: float | None = Field(description="calls per second that hold now; null: no limit")
    concurrency: int | None
    keep_s: float = Field(description="for so long the next call of the execution may use a permit that is done with")


class PermitsView(BaseModel):
    permits: list[PermitView]


_word = msgspec.json.Decoder(WordIn)


def router(desk: PermitDesk, keeper: Keeper) -> APIRouter:
    found = APIRouter(tags=["workers"])

    async def permits(request: Request) -> Response:
        """What a session uses of shared limits and waits for."""
        session = keeper.find(wire.session_id_of(request.path_params["session_id"]))
        word = _read(await content_of(request))
        owners = {one.execution_id: (one.tenant_id, one.organization_id) for one in session.held}
        uses = [use for one in word.uses if (use := _use(one, owners)) is not None]
        granted = await desk.ask(session.session_id, word.turn, uses, wait_seconds=word.wait_s)
        keeper.find(session.session_id)  # what a session is granted that ended meanwhile is not its own
        return answer({"permits": [_view(one) for one in granted]})

    parameters = [models.path_parameter("session_id"), models.IDEMPOTENCY_KEY]
    found.routes.append(
        PlainRoute(
            PATH,
            permits,
            methods=["POST"],
            tags=["workers"],
            responses={200: {"model": PermitsView}},
            openapi_extra={"parameters": parameters, "requestBody": models.body("PermitsBody")},
        )
    )
    return found


def _read(content: bytes) -> WordIn:
    try:
        return _word.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestInvalid(f"the body says nothing about permits: {error}") from error


def _use(one: UseIn, owners: Mapping[int, tuple[str, str]]) -> PermitUse | None:
    """Whose limit it is, the server knows; what a session does not hold it has no permits for."""
    if one.rate is None and one.concurrency is None:
        raise RequestInvalid(f"limit {one.limit!r} allows everything: give rate, concurrency or both")
    if not one.limit.isprintable():
        raise RequestInvalid("the name of a limit is one line of text")
    text = one.execution_id
    owner = owners.get(int(text)) if text.isascii() and text.isdigit() and len(text) <= 19 else None
    if owner is None:
        return None
    allowance = Allowance(rate=one.rate, concurrency=one.concurrency)
    return PermitUse(LimitKey(*owner, one.limit), int(text), allowance, one.returned, one.in_use, one.waiting)


def _view(grant: PermitGrant) -> dict[str, object]:
    return {
        "execution_id": str(grant.execution_id),
        "limit": grant.key.name,
        "granted": grant.granted,
        "rate": grant.allowance.rate,
        "concurrency": grant.allowance.concurrency,
        "keep_s": grant.keep_seconds,
    }
