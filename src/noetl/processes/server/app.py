"""The application: every router with the scope it declares, one shape for errors, one description."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from noetl import __version__
from noetl.processes.metrics.routes import metrics_route
from noetl.processes.server import models, problems
from noetl.processes.server.auth import EVERYTHING, NOTHING, Doorkeeper, Tokens
from noetl.processes.server.bodies import answer
from noetl.processes.server.limits import listing, permits
from noetl.processes.server.load.admission import Admission
from noetl.processes.server.operating import doctor
from noetl.processes.server.parts import ApiParts
from noetl.processes.server.reading import items, ledger, servers
from noetl.processes.server.routes import (
    catalog,
    credentials,
    executions,
    frames,
    health,
    logs,
    payloads,
    results,
    sealed,
    sessions,
    trace,
)
from noetl.processes.server.routing import ADMIN, API, OPEN, WORKER, PlainRoute, declared, install
from noetl.processes.server.tokens import Grant

_REF = "#/components/schemas/{model}"


class Application:
    """The API once, for any number of listeners."""

    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts
        self.app = FastAPI(
            title="NoETL",
            version=__version__,
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
        )
        problems.install(self.app)
        # One for all listeners: what comes over any of them ends in the same queues.
        self._admission = Admission(self.app)
        # The hot ones first: routes are tried in order.
        if parts.work is not None:
            install(self.app, sessions.router(parts.work).routes, WORKER)
            frames_router = frames.router(parts.work.frames, lease_seconds=parts.work.keeper.lease_seconds)
            install(self.app, frames_router.routes, WORKER)
            install(self.app, permits.router(parts.work.permits, parts.work.keeper).routes, WORKER)
            install(self.app, payloads.router(parts.work).routes, API, WORKER)
            install(self.app, sealed.router(parts.work.credentials).routes, WORKER)
            install(self.app, logs.worker_router(parts.work).routes, WORKER)
        install(self.app, health.probes(parts).routes, OPEN)
        install(self.app, executions.router(parts).routes, API)
        install(self.app, results.router(parts.results).routes, API)
        install(self.app, trace.router(parts.traces).routes, API)
        install(self.app, items.router(parts.items).routes, API)
        install(self.app, ledger.router(parts.ledger, parts.results).routes, API)
        install(self.app, logs.router(parts).routes, API)
        install(self.app, health.router(parts).routes, API)
        if parts.limits is not None:
            install(self.app, listing.router(parts.limits).routes, API)
        if parts.servers is not None:
            install(self.app, servers.router(parts.servers).routes, API)
        install(self.app, health.control(parts).routes, ADMIN)
        install(self.app, doctor.router(parts.doctor).routes, ADMIN)
        install(self.app, credentials.router(parts.credentials).routes, API)
        install(self.app, catalog.router(parts.catalog).routes, API)
        install(self.app, [PlainRoute("/openapi.json", self._openapi, methods=["GET"], include_in_schema=False)], API)
        install(self.app, [metrics_route(lambda: (*parts.counted(), self._admission))], API, ADMIN)
        self._description: dict[str, Any] | None = None
        self._open_paths = frozenset(
            name.split(" ", 1)[1] for name, scopes in declared(self.app).items() if OPEN in scopes
        )

    def trusting(self) -> Doorkeeper:
        """For a listener that only this user can reach: everything is allowed."""
        return self._behind(lambda _token: EVERYTHING)

    def asking(self, grants: Iterable[Grant]) -> Doorkeeper:
        """For every other listener: without a token nothing but the open routes."""
        tokens = Tokens(grants)
        return self._behind(lambda token: NOTHING if token is None else tokens.identity(token))

    def _behind(self, identify: Any) -> Doorkeeper:
        return Doorkeeper(self._admission, identify=identify, owner=self._parts.owner, open_paths=self._open_paths)

    async def _openapi(self, _request: Request) -> Response:
        return answer(self.description())

    def description(self) -> dict[str, Any]:
        """The OpenAPI document, with the bodies that plain routes read themselves."""
        if self._description is None:
            document = self.app.openapi()
            _, schemas = models_json_schema([(one, "validation") for one in models.DESCRIBED], ref_template=_REF)
            components = document.setdefault("components", {})
            components["schemas"] = {**schemas["$defs"], **components.get("schemas", {})}
            components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"bearer": []}]
            refused = {"content": {problems.MEDIA_TYPE: {"schema": {"$ref": _REF.format(model="ProblemView")}}}}
            for path in document["paths"].values():
                for operation in path.values():
                    answers = operation["responses"]
                    answers.pop("422", None)
                    answers["default"] = {"description": "a problem with a stable code", **refused}
            self._description = document
        return self._description
