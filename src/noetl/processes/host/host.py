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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send

from noetl.core.errors import HostUnavailable, NoetlError
from noetl.processes.host.listeners import Listener, listener, tcp_socket, unix_socket, url_of
from noetl.processes.host.places import Places
from noetl.processes.metrics.identity import ProcessInfo
from noetl.processes.server.owners import Owner
from noetl.processes.server.parts import ApiParts, ServerBooks, WorkParts
from noetl.processes.server.tokens import Grant, grants_of, serving_tokens
from noetl.settings import Settings
from noetl.wiring.databases import control_dsn, embedded_postgres, keep_alive, prepare_database
from noetl.wiring.doctor.checks import doctor_of
from noetl.wiring.engine import Engine

if TYPE_CHECKING:
    from noetl.processes.server.app import Application

log = logging.getLogger("noetl.host")
STOP_SECONDS_MAX = 15.0
VISITOR_SECONDS = 0.5
CLIENT_HEADER = b"noetl-client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The embedded host works itself and only this user reaches it; a server listens and leaves the work to others."""

    has_worker: bool = True
    has_tcp: bool = False
    has_projector: bool = True
    """Without one, projections are left to processes that do nothing else."""


class Host:
    """Start it, wait until it is ready, stop it.  The caller holds the lock of the home."""

    def __init__(self, settings: Settings, places: Places, *, resume: bool = True, shape: Shape | None = None) -> None:
        self._settings = settings
        self._places = places
        self._resume = resume
        self._shape = shape or Shape()
        self.url: str | None = None
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
            # What we can explain before anything ran is told to whoever started the host, and needs no trace.
            if self._ready.is_set() or not isinstance(_innermost(error), NoetlError):
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
        # The web framework takes as long to load as Postgres to start.
        address, _ = await asyncio.gather(asyncio.to_thread(postgres.start), asyncio.to_thread(_application))
        try:
            await prepare_database(settings, control_dsn(address), is_embedded=True)
            async with asyncio.TaskGroup() as group:
                keeping = group.create_task(keep_alive(postgres, address))
                await self._run_engine(control_dsn(address), partial(Engine, server=address))
                keeping.cancel()
        finally:
            await asyncio.to_thread(postgres.stop)

    async def _run_engine(self, database: str, engine_of: Callable[..., Engine] = Engine) -> None:
        assert self._stop is not None
        engine = engine_of(
            self._settings,
            database,
            instance=f"{socket.gethostname()}-{os.getpid()}",
            has_worker=self._shape.has_worker,
            has_projector=self._shape.has_projector,
            seat=self._places.seat if self._places.lock.exists() else None,
        )
        self._engine = engine
        # Before anything is resumed: a port that is taken is a mistake of the settings.
        door = self._door() if self._shape.has_tcp else None
        engine.url = self.url
        await engine.open(resume=self._resume)
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(engine.run())
                await engine.is_restored.wait()
                listeners = self._listeners(engine, database, door)
                serving = [group.create_task(one.server.serve(sockets=[one.socket])) for one in listeners]
                ready = group.create_task(self._announce(listeners))
                await self._stop.wait()
                # Requests that wait are cut off now; their clients ask the next host.
                logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
                for one in listeners:
                    one.server.should_exit = one.server.force_exit = True
                ready.cancel()
                running.cancel()
                await asyncio.wait(serving, timeout=2)
        finally:
            self._places.socket.unlink(missing_ok=True)
            await engine.close()

    def _door(self) -> tuple[socket.socket, list[Grant]]:
        """Where others come in, and who they may be."""
        listening = tcp_socket(self._settings)
        self.url = url_of(listening)
        return listening, grants_of(serving_tokens(self._settings), self._settings.tokens_file)

    def _listeners(
        self, engine: Engine, database: str, door: tuple[socket.socket, list[Grant]] | None
    ) -> list[Listener]:
        application = _application()(self._api_parts(engine, database))
        found = [listener(self._visitors.counted(application.trusting()), unix_socket(self._places.socket))]
        if door is not None:
            listening, grants = door
            found.append(listener(application.asking(grants), listening))
        return found

    def _api_parts(self, engine: Engine, database: str) -> ApiParts:
        assert self._stop is not None
        work = None
        if self._resume:
            work = WorkParts(
                keeper=engine.keeper,
                queue=engine.queue,
                payloads=engine.payloads,
                small=engine.small_payloads,
                large=engine.large_payloads,
                credentials=engine.sealed_credentials,
                frames=engine.frames,
                logs=engine.logs,
                permits=engine.permits,
            )
        return ApiParts(
            service=engine.service,
            status=engine.status,
            credentials=engine.credentials,
            catalog=engine.catalog,
            logs=engine.logs,
            results=engine.results,
            traces=engine.traces,
            items=engine.items,
            retries=engine.retries,
            ledger=engine.published,
            doctor=doctor_of(engine, self._settings, database),
            owner=Owner(self._settings.tenant_id, self._settings.organization_id),
            facts=self._facts,
            not_ready=engine.not_ready,
            on_stop=self._stop.set,
            counted=lambda: (ProcessInfo("host" if self._shape.has_worker else "server"), *engine.counted),
            limits=engine.serving.permits,
            servers=ServerBooks(engine.serving.runtimes, engine.serving.shards, engine.serving.roster),
            only_reads=not self._resume,
            work=work,
        )

    def _facts(self) -> dict[str, object]:
        engine = self._engine
        assert engine is not None
        return {
            "pid": os.getpid(),
            "only_reads": not self._resume,
            "resumed": [str(one) for one in engine.resumed],
            "url": self.url,
            "has_worker": self._shape.has_worker,
            "worker_sessions": engine.keeper.session_count if self._resume else 0,
        }

    async def _announce(self, listeners: list[Listener]) -> None:
        while not all(one.server.started for one in listeners):  # noqa: ASYNC110 - uvicorn tells by a flag only
            await asyncio.sleep(0.002)
        self._ready.set()


def _application() -> type[Application]:
    from noetl.processes.server.app import Application  # noqa: PLC0415 - loaded while Postgres starts

    return Application


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
    """The cause; what is no error of ours is named as the host's failure."""
    cause = _innermost(error)
    return cause if isinstance(cause, NoetlError) else HostUnavailable(f"the host failed: {cause!r}")


def _innermost(error: BaseException) -> BaseException:
    """The cause inside nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
