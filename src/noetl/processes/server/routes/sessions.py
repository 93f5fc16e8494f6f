"""The worker protocol: sessions, commands down, facts up.  The reference is docs/reference/worker-protocol.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from noetl.core.errors import LeaseLost, NoetlError, RequestInvalid
from noetl.core.limits import FACTS_BYTES_MAX, REQUEST_BYTES_MAX
from noetl.core.locator.locality import NOWHERE, Place
from noetl.engine.sessions.keeper import Keeper, Told
from noetl.engine.sessions.remote import Profile, RemoteSession
from noetl.ports.session import CommandMessage
from noetl.processes.server import models, wire
from noetl.processes.server.bodies import answer, content_of, execution_id_of, idempotency_key_of
from noetl.processes.server.parts import WorkParts
from noetl.processes.server.problems import NOT_FOUND, Refusal
from noetl.processes.server.routes.documents import read_document
from noetl.processes.server.routing import PlainRoute

NDJSON = "application/x-ndjson"
_HEARTBEAT: dict[str, Any] = {"body": "HeartbeatBody", "required": False, "model": models.HeartbeatView}


def router(work: WorkParts) -> APIRouter:
    found = APIRouter(tags=["workers"])
    facts, sessions = _Facts(work.keeper), _Sessions(work)
    plain: list[tuple[str, str, Any, dict[str, Any]]] = [
        ("POST", "/api/events/batch", facts.batch, {"body": "FactsBody", "model": models.FactAnswers}),
        ("POST", "/api/events", facts.single, {"body": "OneFactBody", "model": models.FactAnswer}),
        ("POST", "/api/worker/sessions/{session_id}/heartbeat", sessions.heartbeat, _HEARTBEAT),
        ("GET", "/api/worker/sessions/{session_id}/commands", sessions.stream, {}),
    ]
    for method, path, endpoint, described in plain:
        parameters = [models.path_parameter("session_id")] if "{session_id}" in path else []
        if method == "POST":
            parameters.append(models.IDEMPOTENCY_KEY)
        extra: dict[str, Any] = {"parameters": parameters}
        if "body" in described:
            extra["requestBody"] = models.body(described["body"], required=described.get("required", True))
        responses: dict[int | str, dict[str, Any]] = {200: {"content": {NDJSON: {}}}}
        if "model" in described:
            responses = {200: {"model": described["model"]}}
        found.routes.append(
            PlainRoute(path, endpoint, methods=[method], tags=["workers"], responses=responses, openapi_extra=extra)
        )
    add = found.add_api_route
    add(
        "/api/worker/sessions",
        sessions.register,
        methods=["POST"],
        status_code=201,
        responses={201: {"model": models.SessionView}},
        openapi_extra=models.keyed(models.SessionBody),
    )
    add(
        "/api/worker/sessions/{session_id}",
        sessions.leave,
        methods=["DELETE"],
        responses={200: {"model": models.DrainedView}},
    )
    add(
        "/api/commands/claim",
        sessions.claim,
        methods=["POST"],
        responses={200: {"model": models.CommandsView}},
        openapi_extra=models.keyed(models.ClaimBody),
    )
    add("/api/commands/{command:path}", sessions.command, responses={200: {"model": models.CommandView}})
    return found


class _Facts:
    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    async def batch(self, request: Request) -> Response:
        """Facts of one session; each has its own answer, in the order in which they came."""
        session_id, raws = wire.read_batch(await content_of(request, limit=FACTS_BYTES_MAX))
        key = idempotency_key_of(request)
        session = self._keeper.teller(wire.session_id_of(session_id), facts=len(raws))
        answers: list[NoetlError | None] = []
        told: list[Told] = []
        places: list[int] = []
        facts: list[wire.FactIn | None] = []
        for number, raw in enumerate(raws):
            answers.append(None)
            facts.append(None)
            try:
                facts[-1] = fact = wire.read_fact(raw)
                if fact.fact_id is None and key is not None:
                    fact.fact_id = f"{key}/{number}"
                told.append(wire.told_of(fact, session))
                places.append(number)
            except NoetlError as error:
                self._keeper.count_late(error)
                answers[-1] = error
        outcomes = await self._keeper.report(session, told)
        # What follows from the facts is already on its way down the stream: it goes out before this answer.
        await asyncio.sleep(0)
        for place, outcome in zip(places, outcomes, strict=True):
            answers[place] = outcome
        return answer({"answers": [_answer(one, fact, session) for one, fact in zip(answers, facts, strict=True)]})

    async def single(self, request: Request) -> Response:
        """One fact.  A refusal is an answer and no failure of the request."""
        fact = wire.read_single(await content_of(request, limit=FACTS_BYTES_MAX))
        fact.fact_id = fact.fact_id or idempotency_key_of(request)
        session = self._keeper.teller(wire.session_id_of(str(fact.session_id)), facts=1)
        outcome: NoetlError | None
        try:
            told = wire.told_of(fact, session)
        except NoetlError as error:
            self._keeper.count_late(error)
            outcome = error
        else:
            (outcome,) = await self._keeper.report(session, [told])
        return answer(_answer(outcome, fact, session))


def _answer(error: NoetlError | None, fact: wire.FactIn | None, session: RemoteSession) -> dict[str, object]:
    is_held = False
    if fact is not None and fact.execution_id.isascii() and fact.execution_id.isdigit():
        is_held = session.is_holding(int(fact.execution_id), fact.command_id, fact.attempt)
    return wire.answer_of(error, is_held=is_held)


class _Sessions:
    def __init__(self, work: WorkParts) -> None:
        self._keeper = work.keeper
        self._queue = work.queue
        self._payloads = work.payloads

    async def register(self, request: Request) -> Response:
        """A session: slots to be filled with commands, for as long as heartbeats come."""
        body = await read_document(request, models.SessionBody, limit=REQUEST_BYTES_MAX)
        profile = Profile(
            worker_id=body.worker_id,
            slots=body.slots,
            pool=body.pool,
            kinds=None if body.kinds is None else frozenset(body.kinds),
            place=NOWHERE if body.place is None else Place(**body.place.model_dump()),
        )
        if body.replaces is not None:
            self._keeper.replace(wire.session_id_of(body.replaces), body.worker_id)
        session = self._keeper.register(profile, key=idempotency_key_of(request))
        view = {
            "session_id": str(session.session_id),
            "lease_seconds": self._keeper.lease_seconds,
            "heartbeat_seconds": self._keeper.heartbeat_seconds,
            "store": self._payloads.large_name,
        }
        return answer(view, 201)

    async def heartbeat(self, request: Request) -> Response:
        """The session lives.  With `slots` it gets no more commands than these at a time until it says otherwise."""
        session = self._keeper.beat(_session_of(request), slots=wire.slots_of(await content_of(request)))
        return answer({"session_id": str(session.session_id), "is_draining": session.is_draining})

    async def stream(self, request: Request) -> Response:
        """Commands and stops, one JSON object per line, for as long as the session lives."""
        session = self._keeper.find(_session_of(request))
        return StreamingResponse(
            self._lines(session), media_type=NDJSON, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )

    async def _lines(self, session: RemoteSession) -> AsyncIterator[bytes]:
        listener = session.voice.listen()
        yield wire.KEEP_ALIVE
        while True:
            try:
                words = await session.voice.words(listener, self._keeper.heartbeat_seconds)
            except LeaseLost as error:
                yield wire.end_line(error)
                return
            yield b"".join(map(wire.line_of, words)) if words else wire.KEEP_ALIVE

    async def leave(
        self, session_id: str, drain: Annotated[bool, Query(description="end what is held first")] = False
    ) -> Response:
        """End a session: what it holds goes back at once.  With `drain` it gets nothing more and may end what it
        holds; heartbeats go on until the session is ended without `drain`."""
        number = wire.session_id_of(session_id)
        if drain:
            held = len(self._keeper.drain(number).held)
        else:
            held = 0
            self._keeper.end(number)
        return answer({"session_id": session_id, "held": held})

    async def claim(self, request: Request) -> Response:
        """The pull form of the stream: commands for free slots of a session, waiting for the first one."""
        body = await read_document(request, models.ClaimBody, limit=REQUEST_BYTES_MAX)
        session = self._keeper.find(wire.session_id_of(body.session_id))
        words = await session.voice.claim(body.count, body.wait_s, idempotency_key_of(request))
        commands = [wire.command_view(word) for word in words if isinstance(word, CommandMessage)]
        return answer({"commands": commands})

    async def command(self, command: str) -> Response:
        """An open command by `<execution_id>/<command_id>`, as it stands in the queue."""
        execution_id, slash, command_id = command.partition("/")
        if not slash:
            raise RequestInvalid("a command is named <execution_id>/<command_id>, percent-encoded")
        rows = await self._queue.commands_of(execution_id_of(execution_id))
        for row in rows:
            if row.command_id == command_id:
                return answer(
                    {
                        "execution_id": str(row.execution_id),
                        "command_id": row.command_id,
                        "tenant_id": row.tenant_id,
                        "organization_id": row.organization_id,
                        "pool": row.pool,
                        "tool_kind": row.tool_kind,
                        "attempt": row.attempt,
                        "session_id": None if row.session_id is None else str(row.session_id),
                        "body": msgspec.Raw(row.body.encode()),
                    }
                )
        raise Refusal(NOT_FOUND, "command_unknown", f"there is no open command {command[:200]!r}")


def _session_of(request: Request) -> int:
    return wire.session_id_of(request.path_params["session_id"])
