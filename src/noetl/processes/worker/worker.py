"""A worker process.  SIGTERM drains: nothing new is taken, what runs may end within the grace, the rest goes back."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence

import uvloop

from noetl.core.errors import NoetlError
from noetl.processes.metrics.endpoint import listening, worker_app
from noetl.processes.metrics.identity import RUNTIME, ProcessInfo
from noetl.processes.objects import settle_memory
from noetl.settings import Settings
from noetl.wiring.worker import RemoteWorker

PLACE_LABELS = {"node": "node_id", "zone": "zone", "region": "region", "cluster": "cluster_id"}
log = logging.getLogger("noetl.worker")


def run_worker(
    settings: Settings, *, urls: Sequence[str], token: str | None, kinds: tuple[str, ...] | None = None
) -> int:
    """Be a worker until a signal; 0 after a drain, also when something was handed back."""
    worker_id = f"{socket.gethostname()}-{os.getpid()}"
    worker = RemoteWorker(settings, urls=urls, token=token, worker_id=worker_id, kinds=kinds)
    settle_memory()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_observed(worker, settings, worker_id))
    except BaseExceptionGroup as group:
        cause = _innermost(group)
        if isinstance(cause, NoetlError):
            raise cause from None
        raise
    return 0


def _innermost(error: BaseException) -> BaseException:
    """What ended the worker, out of the groups of tasks around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _observed(worker: RemoteWorker, settings: Settings, worker_id: str) -> None:
    """With a listener for its numbers, if one is wanted."""
    if settings.worker_metrics_port is None:
        await _serve(worker, settings.worker_grace_seconds)
        return
    where = {PLACE_LABELS[level]: name for level, name in settings.place.items()}
    labels = {"worker_id": worker_id, "worker_pool": settings.worker_pool, "runtime": RUNTIME, **where}
    app = worker_app(lambda: (ProcessInfo("worker"), *worker.counted), labels, lambda: {"pid": os.getpid()})
    async with listening(app, host=settings.worker_metrics_host, port=settings.worker_metrics_port):
        await _serve(worker, settings.worker_grace_seconds)


async def _serve(worker: RemoteWorker, grace_seconds: float) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        """Once to drain, twice to leave at once."""
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(worker.run())
        await stop.wait()
        draining = group.create_task(worker.drain(grace_seconds))
        hurrying = group.create_task(hurry.wait())
        await asyncio.wait([draining, hurrying], return_when=asyncio.FIRST_COMPLETED)
        if not draining.done() or not draining.result():
            log.warning("not everything ended in time; it goes back", extra={"event": "worker.left"})
        draining.cancel()
        hurrying.cancel()
        running.cancel()
