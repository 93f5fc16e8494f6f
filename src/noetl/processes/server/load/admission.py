"""Requests that bring work, counted: more than can be carried is refused at once and held nowhere.

A request stays open until what it brought is committed, so its count and its bytes bound every queue behind it.  What
starts work has room of its own: a flood of new executions must not keep workers from reporting the old ones, or anybody
from cancelling them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Receive, Scope, Send

from noetl.core import limits
from noetl.core.errors import AppendOverloaded
from noetl.ports.data.counters import Sample
from noetl.processes.server.problems import of_error

STARTING, OTHER = "starting", "other"
_STARTING_PATHS = ("/api/executions", "/api/execute")
_EXECUTIONS, _RETRY = "/api/executions/", "/retry"
_CATALOG = "/api/catalog"
_RETRY_SECONDS_MAX = 10.0
_ALWAYS = 16
# One that took long is no rule: it counts for this much, and for this share of what is known.
_SERVICE_SECONDS_MAX = 0.25
_LEARNED_SHARE = 0.05


@dataclass(slots=True, kw_only=True)
class Room:
    """How much of one sort may be under way: so many requests, so many bytes, and no more than can be served soon.

    How soon is learned from the time between two that leave while others wait.  A few are always let in, however slow
    things are: they may simply be large."""

    requests_max: int
    bytes_max: int
    wait_seconds_max: float = limits.REQUESTS_WAIT_SECONDS_MAX
    age_seconds_max: float = limits.REQUESTS_AGE_SECONDS_MAX
    refused: int = 0
    bytes: int = 0
    _begun: dict[int, float] = field(default_factory=dict)
    _next: int = 0
    _last_left: float = 0.0
    _service_seconds: float = 0.0

    @property
    def requests(self) -> int:
        return len(self._begun)

    def enter(self, size: int, now: float) -> int:
        """A ticket to leave with.  Raises AppendOverloaded, which says when to come again."""
        if self._begun:
            self._check(size, now)
        else:
            # A single one of any allowed size always fits: it must not be refused for ever.
            self._last_left = now
        self._next += 1
        self._begun[self._next] = now
        self.bytes += size
        return self._next

    def _check(self, size: int, now: float) -> None:
        oldest = now - next(iter(self._begun.values()))
        wait = self.requests * self._service_seconds
        is_late = self.requests >= _ALWAYS and (wait > self.wait_seconds_max or oldest > self.age_seconds_max)
        if is_late or self.requests >= self.requests_max or self.bytes + size > self.bytes_max:
            self.refused += 1
            error = AppendOverloaded(f"{self.requests} requests are under way, the oldest for {oldest:.1f} s: wait")
            error.retry_after_seconds = min(max(1.0, wait, oldest), _RETRY_SECONDS_MAX)
            raise error

    def leave(self, ticket: int, size: int, now: float) -> None:
        del self._begun[ticket]
        self.bytes -= size
        if self._begun:
            taken = min(now - self._last_left, _SERVICE_SECONDS_MAX)
            self._service_seconds += (taken - self._service_seconds) * _LEARNED_SHARE
        self._last_left = now


def rooms() -> dict[str, Room]:
    return {
        STARTING: Room(requests_max=limits.REQUESTS_STARTING_MAX, bytes_max=limits.REQUESTS_STARTING_BYTES_MAX),
        # Workers wait in some of them for something to do: old ones say nothing.
        OTHER: Room(
            requests_max=limits.REQUESTS_OTHER_MAX,
            bytes_max=limits.REQUESTS_OTHER_BYTES_MAX,
            wait_seconds_max=math.inf,
            age_seconds_max=math.inf,
        ),
    }


class Admission:
    """A layer around the routes, behind whoever asks who it is."""

    def __init__(self, app: ASGIApp, found: dict[str, Room] | None = None) -> None:
        self._app = app
        self.rooms = rooms() if found is None else found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A heartbeat is never too much: sessions that die of load make more of it.
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"].endswith("/heartbeat"):
            await self._app(scope, receive, send)
            return
        room, size = self.rooms[sort_of(scope["path"])], _size_of(scope)
        try:
            ticket = room.enter(size, time.monotonic())
        except AppendOverloaded as error:
            await of_error(error)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            room.leave(ticket, size, time.monotonic())

    def samples(self) -> Iterator[Sample]:
        for sort, room in self.rooms.items():
            yield "noetl_requests_open", {"sort": sort}, room.requests
            yield "noetl_requests_open_bytes", {"sort": sort}, room.bytes
            yield "noetl_requests_refused_total", {"sort": sort}, room.refused


def sort_of(path: str) -> str:
    is_start = path in _STARTING_PATHS or path.startswith(_CATALOG)
    is_start = is_start or (path.startswith(_EXECUTIONS) and path.endswith(_RETRY))
    return STARTING if is_start else OTHER


def _size_of(scope: Scope) -> int:
    """What the request says it will send; one that does not say counts as the largest that is read."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
        if name == b"transfer-encoding":
            return limits.REQUEST_BYTES_MAX
    return 0
