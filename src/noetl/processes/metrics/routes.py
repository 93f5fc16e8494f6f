"""`GET /metrics` of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from starlette.requests import Request
from starlette.responses import Response

from noetl.ports.data.counters import Counted
from noetl.processes.metrics.gathering import gathered
from noetl.processes.metrics.text import MEDIA_TYPE
from noetl.processes.server.routing import PlainRoute


def metrics_route(counted: Callable[[], Iterable[Counted]]) -> PlainRoute:
    async def metrics(_request: Request) -> Response:
        return Response(await gathered(counted(), {}), media_type=MEDIA_TYPE)

    return PlainRoute("/metrics", metrics, methods=["GET"], include_in_schema=False)
