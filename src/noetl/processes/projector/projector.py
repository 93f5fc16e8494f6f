"""A projector process.  SIGTERM hands its shards over; whatever it had not written is folded again by the next one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from noetl import __version__
from noetl.core.errors import NoetlError
from noetl.processes.metrics.endpoint import listening
from noetl.processes.metrics.gathering import gathered
from noetl.processes.metrics.identity import RUNTIME, ProcessInfo
from noetl.processes.metrics.text import MEDIA_TYPE
from noetl.processes.objects import settle_memory
from noetl.settings import Settings
from noetl.wiring.projections.process import ProjectorProcess

_PLACE = "NOETL_PROJECTOR_METRICS_HOST and NOETL_PROJECTOR_METRICS_PORT"


def run_projector(settings: Settings) -> int:
    """Be a projector until a signal."""
    instance = f"{socket.gethostname()}-{os.getpid()}"
    process = ProjectorProcess(settings, instance=instance, version=__version__)
    try:
        settle_memory()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(process, settings, instance))
    except BaseExceptionGroup as group:
        cause = _innermost(group)
        if isinstance(cause, NoetlError):
            raise cause from None
        raise
    return 0


def projector_app(process: ProjectorProcess, instance: str) -> Starlette:
    """`/health`, `/metrics` and `/summary`; no token, and nothing about data."""
    labels = {"projector": instance, "runtime": RUNTIME}

    async def health(_request: Request) -> Response:
        return JSONResponse({"status": "ok", "pid": os.getpid(), **labels})

    async def metrics(_request: Request) -> Response:
        return Response(await gathered((ProcessInfo("projector"), *process.counted), labels), media_type=MEDIA_TYPE)

    async def summary(_request: Request) -> Response:
        return JSONResponse({**labels, **process.projector.summary()})

    return Starlette(routes=[Route("/health", health), Route("/metrics", metrics), Route("/summary", summary)])


async def _serve(process: ProjectorProcess, settings: Settings, instance: str) -> None:
    control = settings.control
    await process.open()
    try:
        if control.projector_metrics_port is None:
            await _until_told(process)
            return
        app = projector_app(process, instance)
        host, port = control.projector_metrics_host, control.projector_metrics_port
        async with listening(app, host=host, port=port, variables=_PLACE):
            await _until_told(process)
    finally:
        await process.close()


async def _until_told(process: ProjectorProcess) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(process.run())
        await stop.wait()
        running.cancel()


def _innermost(error: BaseException) -> BaseException:
    """What ended the process, out of the groups of tasks around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
