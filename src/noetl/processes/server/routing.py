"""Routes that declare who may use them.  A route without a declared scope cannot be installed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import request_response
from starlette.types import ASGIApp, Receive, Scope, Send

from noetl.processes.server.problems import FORBIDDEN, Refusal

API = "api"
WORKER = "worker"
ADMIN = "admin"
OPEN = "open"
SCOPES = (API, WORKER, ADMIN)
SCOPES_MEMBER = "x-noetl-scopes"
Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


class PlainRoute(APIRoute):
    """A route whose endpoint takes the request and gives the response, with nothing of the framework in between; it
    is described like every other.  For the hot ones."""

    def __init__(self, path: str, endpoint: Endpoint, **description: Any) -> None:
        super().__init__(path, endpoint, **description)
        self.app = request_response(endpoint)


class _Guarded:
    """Lets a request pass that holds one of the scopes."""

    def __init__(self, app: ASGIApp, scopes: frozenset[str]) -> None:
        self._app = app
        self._scopes = scopes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._scopes.isdisjoint(scope.get("state", {}).get("scopes", ())):
            needed = " or ".join(sorted(self._scopes))
            raise Refusal(FORBIDDEN, "forbidden", f"this token does not have the scope {needed}")
        await self._app(scope, receive, send)


def install(app: FastAPI, routes: Iterable[Any], *scopes: str) -> None:
    """Add routes for whoever holds one of the scopes; `OPEN` needs none."""
    assert scopes, "a route declares who may use it"
    assert set(scopes) <= {*SCOPES, OPEN}, scopes
    for route in routes:
        assert isinstance(route, APIRoute), f"{route!r} cannot be guarded"
        if OPEN not in scopes:
            route.app = _Guarded(route.app, frozenset(scopes))
        route.openapi_extra = {**(route.openapi_extra or {}), SCOPES_MEMBER: sorted(scopes)}
        app.router.routes.append(route)
        declared(app)[f"{'|'.join(sorted(route.methods or ()))} {route.path}"] = frozenset(scopes)


def declared(app: FastAPI) -> dict[str, frozenset[str]]:
    """Every installed route, by method and path, with the scopes that it declares."""
    if not hasattr(app.state, "declared"):
        app.state.declared = {}
    found: dict[str, frozenset[str]] = app.state.declared
    return found
