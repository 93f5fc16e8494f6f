"""`chain --remote` and `map --remote`: through a server and a worker, each a process, against the embedded engine."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from noetl.bench.ground import bare_ground, ground
from noetl.bench.loops import ITEMS, MAP, map_items
from noetl.bench.measure import Metric, Report, cpu_seconds
from noetl.bench.runs import CHAIN_RUNS, CHAIN_STEPS, chain, chain_playbook
from noetl.settings import Settings

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Remote:
    """A server with one worker, and a client."""

    http: aiohttp.ClientSession
    pids: list[int]

    async def run_once(self, text: str) -> dict[str, Any]:
        """One execution from its submission to its end."""
        async with self.http.post("/api/executions", json={"playbook": text}) as response:
            started = await response.json()
        path = f"/api/executions/{started['execution_id']}?wait=terminal&timeout_s=30"
        async with self.http.get(path) as response:
            final: dict[str, Any] = await response.json()
        assert final["status"] == "COMPLETED", final["error"]
        return final


async def remote_chain(settings: Settings) -> Report:
    """Sequential steps per second through processes; the limit is the embedded engine in the same run."""
    async with ground(settings) as place:
        embedded = (await chain(place)).metrics["steps_per_s"].value
    text = chain_playbook(CHAIN_STEPS)
    rate, cpu = 0.0, float("inf")
    async with remote_ground(settings) as remote:
        await remote.run_once(text)
        for _ in range(ROUNDS):
            before, started = cpu_seconds(remote.pids), time.perf_counter()
            for _ in range(CHAIN_RUNS):
                final = await remote.run_once(text)
                assert final["result"]["n"] == CHAIN_STEPS, final["result"]
            steps = CHAIN_RUNS * CHAIN_STEPS
            rate = max(rate, steps / (time.perf_counter() - started))
            cpu = min(cpu, (cpu_seconds(remote.pids) - before) / steps * 1000)
    return Report("chain_remote", {"steps_per_s": Metric(rate, "1/s", embedded), "cpu_ms_per_step": Metric(cpu, "ms")})


async def remote_map(settings: Settings) -> Report:
    """Items of a parallel loop per second through processes; the limit is the embedded engine in the same run."""
    async with ground(settings) as place:
        embedded = (await map_items(place)).metrics["items_per_s"].value
    rate, cpu = 0.0, float("inf")
    async with remote_ground(settings) as remote:
        await remote.run_once(MAP)
        for _ in range(ROUNDS):
            before, started = cpu_seconds(remote.pids), time.perf_counter()
            final = await remote.run_once(MAP)
            rate = max(rate, ITEMS / (time.perf_counter() - started))
            cpu = min(cpu, (cpu_seconds(remote.pids) - before) / ITEMS * 1000)
            assert final["result"]["stats"]["success"] == ITEMS, final["result"]["stats"]
    return Report("map_remote", {"items_per_s": Metric(rate, "1/s", embedded), "cpu_ms_per_item": Metric(cpu, "ms")})


@asynccontextmanager
async def remote_ground(settings: Settings) -> AsyncIterator[Remote]:
    token, worker_token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    async with AsyncExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-bench-"))
        bare = await stack.enter_async_context(bare_ground(settings))
        named = [f"NOETL_HOME={home}", f"NOETL_WORKER_TOKEN={worker_token}"]
        serving = ["NOETL_PORT=0", f"NOETL_POSTGRES_DSN={bare.database}", f"NOETL_TOKEN={token}"]
        server = await stack.enter_async_context(_process([*named, *serving], "server"))
        url = await asyncio.wait_for(_address(server), START_SECONDS_MAX)
        worker = await stack.enter_async_context(_process(named, "worker", "--server", url))
        http = aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {token}"})
        await stack.enter_async_context(http)
        yield Remote(http, [bare.postgres_pid, server.pid, worker.pid])


@asynccontextmanager
async def _process(settings: list[str], *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    # Through `env`: only settings.py reads the environment, and a child must keep the rest of it.
    process = await asyncio.create_subprocess_exec(
        "env", *settings, sys.executable, "-m", "noetl", *words, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        await _stop(process)


async def _address(server: asyncio.subprocess.Process) -> str:
    assert server.stdout is not None
    while line := (await server.stdout.readline()).decode():
        if line.startswith("listening on "):
            return line.split()[-1]
    raise AssertionError("the server did not start")


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        os.kill(process.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS_MAX)
        except TimeoutError:
            process.kill()
            await process.wait()
