"""The stand-in as an ASGI application: a table of paths, a few prefixes, and nothing between them and uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from noetl.standin import clinic, routes
from noetl.standin.answers import Answer, Asked, Receive, Refused, failed, json_answer
from noetl.standin.large import large
from noetl.standin.routes import World

Send = Callable[[Any], Awaitable[None]]
Handler = Callable[[World, Asked], "Answer | Awaitable[Answer]"]

RATE_LIMIT_DEFAULT = 50
DELAY_SECONDS_MAX = 600.0
_GET = frozenset({"GET", "HEAD"})
_POST = frozenset({"POST"})
_ANY = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_JSON = (b"content-type", b"application/json")


async def probe(world: World, asked: Asked) -> Answer:
    """Sleeps for the asked time and counts how many do so at once."""
    seconds = asked.decimal("delay_seconds", 0.0, 0.0, DELAY_SECONDS_MAX)
    label, probes = asked.text("label"), world.probes
    generation = probes.enter(label)
    try:
        if seconds:
            await asyncio.sleep(seconds)
    finally:
        probes.leave(generation)
    return json_answer({"status": "ok", "label": label, "delay_seconds": seconds, "active": probes.active})


async def errors(world: World, asked: Asked) -> Answer:
    """`error_type=timeout` keeps the caller waiting until it gives up."""
    if asked.text("error_type") != "timeout":
        return routes.errors(world, asked)
    seconds = asked.decimal("delay_seconds", 30.0, 0.0, DELAY_SECONDS_MAX)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while (await asked.receive())["type"] != "http.disconnect":
                pass
    return failed(504, f"answered after {seconds:g} s")


_PATHS: Mapping[str, tuple[frozenset[str], Handler]] = {
    "/health": (_GET, routes.health),
    "/api/v1/reset": (_POST, routes.reset),
    "/api/v1/assessments": (_GET, routes.assessments),
    "/api/v1/users": (_GET, routes.users),
    "/api/v1/events": (_GET, routes.events),
    "/api/v1/flaky": (_GET, routes.flaky),
    "/api/v1/flaky/reset": (_POST, routes.flaky_reset),
    "/api/v1/errors": (_GET, errors),
    "/api/v1/rate-limited": (_GET, routes.rate_limited),
    "/api/v1/heavy": (_GET, routes.heavy),
    "/api/v1/large": (_GET, large),
    "/api/v1/reference-chain/items": (_GET, routes.reference_items),
    "/api/v1/patient-records": (_GET, clinic.patient_records),
    "/api/v1/mds/assessment_ids": (_GET, clinic.mds_assessment_ids),
    "/api/v1/pft/mds/details": (_GET, clinic.pft_mds_details),
    "/api/v1/concurrency/reset": (_POST, routes.probes_reset),
    "/api/v1/concurrency/stats": (_GET, routes.probes_stats),
    "/api/v1/concurrency/probe": (_GET, probe),
    "/api/v1/journal": (_GET, routes.journal),
    "/api/v1/journal/note": (_ANY, routes.journal_note),
    "/api/v1/journal/reset": (_POST, routes.journal_reset),
    "/get": (_GET, routes.echo),
    "/anything": (_ANY, routes.echo),
    "/posts": (_GET, routes.posts),
    "/users": (_GET, routes.people),
}
# What stands behind the prefix is one segment, except below /anything.
_PREFIXES: tuple[tuple[str, frozenset[str], Handler], ...] = (
    ("/api/v1/patient/", _GET, clinic.patient_type),
    ("/api/v1/reference-chain/detail/", _GET, routes.reference_detail),
    ("/api/v1/mds/assessment/", _GET, clinic.mds_assessment),
    ("/api/v1/pft/batch/", _GET, clinic.pft_batch),
    ("/anything/", _ANY, routes.echo),
)


class StandIn:
    """One world behind one application."""

    def __init__(self, *, rate_limit: int = RATE_LIMIT_DEFAULT) -> None:
        self._world = World(rate_limit=rate_limit)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "served without lifespan and websockets"
        asked = Asked(scope["method"], scope["path"], scope["query_string"], scope["headers"], receive)
        try:
            found = _route(asked)
            answer = found if isinstance(found, Answer) else found(self._world, asked)
            if not isinstance(answer, Answer):
                answer = await answer
        except Refused as refused:
            answer = refused.answer
        if answer.pieces is not None:
            await _stream(answer, answer.pieces, asked, send)
            return
        headers = [_JSON, (b"content-length", b"%d" % len(answer.body))]
        if answer.retry_after_seconds is not None:
            headers.append((b"retry-after", b"%d" % answer.retry_after_seconds))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})


async def _stream(answer: Answer, pieces: Iterator[bytes], asked: Asked, send: Send) -> None:
    """Without a length: the one who asks must not rely on it."""
    headers = [(b"content-type", answer.content_type.encode())]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    for piece in pieces if asked.method != "HEAD" else ():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _route(asked: Asked) -> Handler | Answer:
    """The handler of a path, or why there is none."""
    path = asked.path
    entry = _PATHS.get(path)
    if entry is None:
        for prefix, allowed, prefixed in _PREFIXES:
            if path.startswith(prefix) and (prefix == "/anything/" or "/" not in path[len(prefix) :]):
                entry = (allowed, prefixed)
                break
    if entry is None:
        return failed(404, "there is nothing here")
    methods, handler = entry
    if asked.method not in methods:
        return failed(405, f"use {' or '.join(sorted(methods))}")
    return handler
