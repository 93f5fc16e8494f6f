"""Processes of ours that a benchmark measures."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

STOP_SECONDS_MAX = 20.0


@asynccontextmanager
async def process(settings: list[str], *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`noetl <words>` with these settings, ended with the block."""
    # Through `env`: only settings.py reads the environment, and a child must keep the rest of it.
    found = await asyncio.create_subprocess_exec(
        "env", *settings, sys.executable, "-m", "noetl", *words, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield found
    finally:
        await _stop(found)


async def address_of(server: asyncio.subprocess.Process) -> str:
    """Where a server that was just started listens."""
    assert server.stdout is not None
    while line := (await server.stdout.readline()).decode():
        if line.startswith("listening on "):
            return line.split()[-1]
    raise AssertionError("the server did not start")


async def _stop(found: asyncio.subprocess.Process) -> None:
    if found.returncode is None:
        os.kill(found.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(found.wait(), STOP_SECONDS_MAX)
        except TimeoutError:
            found.kill()
            await found.wait()
