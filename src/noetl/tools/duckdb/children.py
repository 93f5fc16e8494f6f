"""Processes of tasks, seen from the worker: each does one task and ends.  One more is kept ready, because starting one
takes longer than most statements."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import sysconfig
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import Any

from noetl.core.expression import to_text
from noetl.core.limits import (
    DUCKDB_ANSWER_BYTES_MAX,
    DUCKDB_INTERRUPT_SECONDS,
    DUCKDB_REQUEST_BYTES_MAX,
    DUCKDB_SPARE_SECONDS,
)
from noetl.tools.duckdb.failures import failed

_MODULE = "noetl.tools.duckdb.child.main"


class Child:
    """A process with a task."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def status(self) -> int | None:
        return self._process.returncode

    async def answers(self, request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Send the request, and what comes back until the process says no more.  Raises ToolFailed."""
        content = await asyncio.to_thread(_encoded, request)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(content)
            await self._process.stdin.drain()
        while line := await self._process.stdout.readline():
            yield json.loads(line)
        await self._process.wait()

    async def stop(self) -> None:
        """Interrupt what runs, so that it can roll back; kill what does not end."""
        if self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._process.stdin.write(b"interrupt\n")
            async with asyncio.timeout(DUCKDB_INTERRUPT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            await ended(self._process)


class Children:
    def __init__(self) -> None:
        self._spare: Process | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def take(self) -> Child:
        """A process that has loaded what it needs, or is about to.  The next one is started behind it."""
        process, self._spare = self._spare, None
        if process is None or process.returncode is not None:
            process = await _started()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(ended, process)
            await self._keep_ready()
            stack.pop_all()
        return Child(process)

    async def close(self) -> None:
        self._forget_timer()
        if self._spare is not None:
            await ended(self._spare)
            self._spare = None

    async def _keep_ready(self) -> None:
        self._forget_timer()
        spare = await _started()
        if self._spare is not None:
            # Another task was as quick.
            await ended(spare)
            return
        self._spare = spare
        self._timer = asyncio.get_running_loop().call_later(DUCKDB_SPARE_SECONDS, self._drop)

    def _drop(self) -> None:
        """Nobody needed it for a while."""
        if self._spare is not None and self._spare.returncode is None:
            self._spare.kill()
        self._spare = None

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def ended(process: Process) -> None:
    """Kill it if it still runs, and let go of its pipes."""
    with contextlib.suppress(ProcessLookupError):
        if process.returncode is None:
            process.kill()
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()


async def _started() -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-X",
        "utf8",
        "-m",
        _MODULE,
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        env=_environment(),
        cwd="/",
        start_new_session=True,
        limit=DUCKDB_ANSWER_BYTES_MAX,
    )


def _environment() -> dict[str, str]:
    """Nothing of the worker's own but where this package is."""
    root = os.path.abspath(__file__)
    for _ in range(4):
        root = os.path.dirname(root)
    return {} if root == sysconfig.get_path("purelib") else {"PYTHONPATH": root}


def _encoded(request: Mapping[str, Any]) -> bytes:
    content = json.dumps(request, ensure_ascii=True, default=to_text).encode("ascii") + b"\n"
    if len(content) > DUCKDB_REQUEST_BYTES_MAX:
        message = (
            f"statements and rows of `input` have {len(content):,} bytes, at most {DUCKDB_REQUEST_BYTES_MAX:,}: "
            "hand large rows over as the result of a step"
        )
        raise failed("config", message)
    return content
