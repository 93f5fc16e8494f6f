"""The host itself: Postgres, engine and API in one process, in a thread of their own.

The thread lets `noetl run` host in its own process and still be an ordinary client in its main thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time

import uvicorn
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send

from noetl.core.errors import HostUnavailable, NoetlError
from noetl.processes.host.app import HostApi
from noetl.processes.host.places import Places
from noetl.settings import Settings
from noetl.wiring import Engine, control_dsn, embedded_postgres, keep_alive, prepare_database

log = logging.getLogger("noetl.host")
STOP_SECONDS_MAX = 15.0
VISITOR_SECONDS = 0.5
CLIENT_HEADER = b"noetl-client"


class Host:
    """Start it, wait until it is ready, stop it.  The caller holds the lock of the home."""

    def __init__(self, settings: Settings, places: Places, *, resume: bool = True) -> None:
        self._settings = settings
        self._places = places
        self._resume = resume
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._engine: Engine | None = None
        self._visitors = Visitors()
        self._thread = threading.Thread(target=self._main, name="noetl-host", daemon=True)

    def start(self) -> None:
        """Returns when the API answers; raises what went wrong."""
        self._thread.start()
        while not self._ready.wait(0.2):
            if self._ended.is_set():
                break
        if self._failure is not None:
            raise self._failure

    @property
    def resumed(self) -> list[int]:
        return self._engine.resumed if self._engine else []

    @property
    def is_waited_for(self) -> bool:
        """Whether a client of another process waits: it has a request open, or had one a moment ago."""
        return self._visitors.are_waiting

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the host's end; True when it has ended."""
        return self._ended.wait(seconds)

    def ask_to_stop(self) -> None:
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)

    def stop(self) -> None:
        self.ask_to_stop()
        self._thread.join(STOP_SECONDS_MAX)
        if self._failure is not None:
            raise self._failure

    # --- in the thread -------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._failure = _first(error)
            log.exception("the host ended", extra={"event": "host.failed"})
        finally:
            self._ended.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        settings = self._settings
        if settings.postgres_dsn is not None:
            await prepare_database(settings, settings.postgres_dsn, is_embedded=False)
            await self._run_engine(settings.postgres_dsn)
            return
        postgres = embedded_postgres(settings)
        address = await asyncio.to_thread(postgres.start)
        try:
            await prepare_database(settings, control_dsn(address), is_embedded=True)
            async with asyncio.TaskGroup() as group:
                keeping = group.create_task(keep_alive(postgres, address))
                await self._run_engine(control_dsn(address))
                keeping.cancel()
        finally:
            await asyncio.to_thread(postgres.stop)

    async def _run_engine(self, database: str) -> None:
        assert self._stop is not None
        engine = Engine(self._settings, database, instance=f"{socket.gethostname()}-{os.getpid()}")
        self._engine = engine
        await engine.open(resume=self._resume)
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(engine.run())
                await engine.is_restored.wait()
                server = self._server(engine)
                serving = group.create_task(server.serve(sockets=[self._listen()]))
                ready = group.create_task(self._announce(server, engine))
                await self._stop.wait()
                # Requests that wait are cut off now; their clients ask the next host.
                logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
                server.should_exit = server.force_exit = True
                ready.cancel()
                running.cancel()
                await asyncio.wait([serving], timeout=2)
        finally:
            self._places.socket.unlink(missing_ok=True)
            await engine.close()

    def _server(self, engine: Engine) -> uvicorn.Server:
        settings = self._settings
        assert self._stop is not None
        api = HostApi(
            engine.service,
            tenant_id=settings.tenant_id,
            organization_id=settings.organization_id,
            facts=lambda: {
                "pid": os.getpid(),
                "only_reads": not self._resume,
                "resumed": [str(one) for one in engine.resumed],
            },
            on_stop=self._stop.set,
        )
        application = self._visitors.counted(api.application())
        config = uvicorn.Config(
            application, log_config=None, access_log=False, lifespan="off", ws="none", timeout_keep_alive=60
        )
        return uvicorn.Server(config)

    def _listen(self) -> socket.socket:
        """Our own socket: a private path, removed first if a killed host left it behind."""
        self._places.socket.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        previous = os.umask(0o177)
        try:
            listening.bind(str(self._places.socket))
        finally:
            os.umask(previous)
        return listening

    async def _announce(self, server: uvicorn.Server, engine: Engine) -> None:
        await engine.is_restored.wait()
        while not server.started:  # noqa: ASYNC110 - uvicorn tells by a flag only
            await asyncio.sleep(0.002)
        self._ready.set()


class Visitors:
    """Requests of other processes.  Between two long polls a waiting client has none open: it gets a moment."""

    def __init__(self) -> None:
        self._open = 0
        self._last_seen = float("-inf")
        self._own = str(os.getpid()).encode()

    @property
    def are_waiting(self) -> bool:
        return self._open > 0 or time.monotonic() - self._last_seen < VISITOR_SECONDS

    def counted(self, application: ASGIApp) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if (CLIENT_HEADER, self._own) in scope.get("headers", ()):
                await application(scope, receive, send)
                return
            self._open += 1
            try:
                await application(scope, receive, send)
            finally:
                self._open -= 1
                self._last_seen = time.monotonic()

        return app


def _first(error: BaseException) -> BaseException:
    """The cause inside nested groups; what is no error of ours is named as the host's failure."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, NoetlError) else HostUnavailable(f"the host failed: {error!r}")
