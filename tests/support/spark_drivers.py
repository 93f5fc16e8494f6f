"""Real Spark drivers for tests: listeners that remember, small jobs, and one compute that many loops can use."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from noetl.adapters.spark.driver.compute import DriverCompute
from noetl.adapters.spark.driver.sessions import members
from noetl.adapters.spark.driver.settings import DriverSettings
from noetl.ports.data.compute import JobIntent, JobListener, JobOutcome, JobProgress, SparkJob
from tests.support.children import is_alive
from tests.support.spark import QUICK_CONF, ROOT, quick_options

TEST_SECONDS_MAX = 240.0
_numbers = count(1)


def driver_settings(folder: Path, **options: Any) -> DriverSettings:
    """Small, without a UI, and with the class archive that the tests of this machine share, if it was built."""
    runtime = replace(quick_options(folder / "spark"), driver_memory_bytes=options.pop("memory_bytes", 1024**3))
    made = DriverSettings(
        runtime=runtime,
        folder=folder / "drivers",
        conf={**QUICK_CONF, **options.pop("conf", {})},
        environment={"PYTHONPATH": str(ROOT)},
        is_builder=False,
    )
    return replace(made, **options)


@contextlib.asynccontextmanager
async def own_compute(folder: Path, **options: Any) -> AsyncIterator[DriverCompute]:
    """One whose drivers the test may kill."""
    compute = DriverCompute(driver_settings(folder, **options))
    try:
        async with asyncio.timeout(TEST_SECONDS_MAX):
            yield compute
    finally:
        await compute.close()


def code_job(folder: Path, text: str, **options: Any) -> SparkJob:
    """A job whose program has a `main`."""
    job_id = f"job-{os.getpid()}-{next(_numbers)}"
    place = folder / job_id
    place.mkdir()
    return SparkJob(**{"job_id": job_id, "title": "a test", "mode": "code", "text": text, "folder": place, **options})


class Heard:
    """A listener that remembers."""

    def __init__(self, on_intent: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        self.intents: list[JobIntent] = []
        self.progresses: list[JobProgress] = []
        self.texts: list[tuple[str, str]] = []
        self._on_intent = on_intent

    async def intended(self, intent: JobIntent) -> None:
        self.intents.append(intent)
        if self._on_intent is not None:
            await self._on_intent()

    async def progressed(self, progress: JobProgress) -> None:
        self.progresses.append(progress)

    def said(self, text: str, *, stream: str) -> None:
        self.texts.append((stream, text))

    def text(self, stream: str) -> str:
        return "".join(text for name, text in self.texts if name == stream)


def living(session: int) -> list[int]:
    """The processes of a driver's session that have not ended."""
    return [pid for pid in members(session) if is_alive(pid)]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


# --- one compute for all tests of a process --------------------------------------------------------------


class _Relay:
    """Calls a listener in its own loop."""

    def __init__(self, listener: JobListener, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._loop = loop

    async def intended(self, intent: JobIntent) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._listener.intended(intent), self._loop))

    async def progressed(self, progress: JobProgress) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._listener.progressed(progress), self._loop))

    def said(self, text: str, *, stream: str) -> None:
        self._loop.call_soon_threadsafe(functools.partial(self._listener.said, text, stream=stream))


class SharedCompute:
    """A compute in a loop of its own, so that its driver outlives the loop of each test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shared compute", daemon=True)
        self._thread.start()
        self._compute = DriverCompute(driver_settings(folder))

    @property
    def pids(self) -> tuple[int, ...]:
        return self._compute.pids

    async def run(self, job: SparkJob, listener: JobListener) -> JobOutcome:
        relay = _Relay(listener, asyncio.get_running_loop())
        done: Future[JobOutcome] = Future()
        tasks: list[asyncio.Task[None]] = []

        async def run() -> None:
            try:
                done.set_result(await self._compute.run(job, relay))
            except BaseException as error:
                done.set_exception(error if isinstance(error, Exception) else RuntimeError("cancelled"))
                raise

        self._loop.call_soon_threadsafe(lambda: tasks.append(self._loop.create_task(run())))
        waiting = asyncio.wrap_future(done)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            with contextlib.suppress(RuntimeError):
                await waiting
            raise

    async def close(self) -> None:
        """It ends with the process, after the last test."""

    def end(self) -> None:
        asyncio.run_coroutine_threadsafe(self._compute.close(), self._loop).result(30.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        self._loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@functools.cache
def shared_compute() -> SharedCompute:
    """The driver that all tests of this process share; only tests that kill or configure one have their own."""
    made = SharedCompute(Path(tempfile.mkdtemp(prefix="noetl-shared-spark-")))
    atexit.register(made.end)
    return made
