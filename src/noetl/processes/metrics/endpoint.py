"""The small listener of a worker: `/health` and `/metrics`, nothing else, and on loopback unless it is told otherwise.

It needs no token and says nothing about data: who opens it to others opens these numbers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from noetl.core.errors import SettingsInvalid
from noetl.ports.data.counters import Counted
from noetl.processes.metrics.gathering import gathered
from noetl.processes.metrics.text import MEDIA_TYPE

_STOP_SECONDS_MAX = 2.0
_BACKLOG = 64
_VARIABLES = "NOETL_WORKER_METRICS_HOST and NOETL_WORKER_METRICS_PORT"


class _Server(uvicorn.Server):
    """Signals belong to the worker, which drains."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def worker_app(
    counted: Callable[[], Iterable[Counted]], labels: Mapping[str, str], facts: Callable[[], Mapping[str, object]]
) -> Starlette:
    """`facts` are what `/health` says beside `ok`."""

    async def health(_request: Request) -> Response:
        return JSONResponse({"status": "ok", **labels, **facts()})

    async def metrics(_request: Request) -> Response:
        return Response(await gathered(counted(), labels), media_type=MEDIA_TYPE)

    return Starlette(routes=[Route("/health", health), Route("/metrics", metrics)])


@asynccontextmanager
async def listening(app: Starlette, *, host: str, port: int, variables: str = _VARIABLES) -> AsyncIterator[None]:
    """Answer as long as the context is open.  Raises SettingsInvalid when the place is taken; `variables` is where it
    came from."""
    on = _bound(host, port, variables)
    server = _Server(
        uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False)
    )
    try:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[on]))
            try:
                yield
            finally:
                server.should_exit = server.force_exit = True
                await asyncio.wait([serving], timeout=_STOP_SECONDS_MAX)
    finally:
        on.close()


def _bound(host: str, port: int, variables: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(_BACKLOG)
    except OSError as error:
        raise SettingsInvalid(f"cannot listen on {host}:{port}: {error.strerror}; see {variables}") from error
    return found
