"""Is it alive, is it ready, what is it; and asking it to stop."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from noetl.processes.server import models
from noetl.processes.server.bodies import answer
from noetl.processes.server.parts import ApiParts
from noetl.processes.server.problems import problem


def probes(parts: ApiParts) -> APIRouter:
    """For whoever starts and stops processes: these need no token and say nothing about data."""
    found = APIRouter(tags=["health"])

    @found.get("/livez", responses={200: {"model": models.HealthView}})
    async def livez(_request: Request) -> Response:
        """The process answers."""
        return answer({"status": "ok"})

    @found.get("/readyz", responses={200: {"model": models.HealthView}, 503: {"model": models.ProblemView}})
    async def readyz(_request: Request) -> Response:
        """The database answers and this process owns its shards."""
        reason = await parts.not_ready()
        if reason is not None:
            return problem(503, "not_ready", reason, headers={"Retry-After": "1"})
        return answer({"status": "ok"})

    return found


def router(parts: ApiParts) -> APIRouter:
    found = APIRouter(tags=["health"])

    @found.get("/api/health", responses={200: {"model": models.HealthView}})
    async def health(_request: Request) -> Response:
        return answer({"status": "ok", **parts.facts()})

    return found


def control(parts: ApiParts) -> APIRouter:
    """For whoever runs this process."""
    found = APIRouter(tags=["health"])

    @found.post("/api/host/stop", status_code=202, responses={202: {"model": models.HealthView}})
    async def stop(_request: Request) -> Response:
        """Ask this process to end; what is open goes on after the next start."""
        parts.on_stop()
        return answer({"status": "stopping"}, 202)

    return found
