"""`chain --remote` and `map --remote`: through a server and a worker, each a process, against the embedded engine."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from noetl.bench.ground import DATABASE, BareGround, bare_grounds, running
from noetl.bench.loops import ITEMS, MAP
from noetl.bench.measure import Metric, Report, cpu_seconds
from noetl.bench.processes import address_of, process
from noetl.bench.runs import CHAIN_RUNS, CHAIN_STEPS, chain_playbook, run_once
from noetl.settings import Settings

START_SECONDS_MAX = 60.0
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
    """Sequential steps per second through processes."""
    found = await _compared(settings, chain_playbook(CHAIN_STEPS), runs=CHAIN_RUNS, size=CHAIN_STEPS)
    assert found.result["n"] == CHAIN_STEPS, found.result
    return Report("chain_remote", {"steps_per_s": found.rate, "cpu_ms_per_step": found.cpu})


async def remote_map(settings: Settings) -> Report:
    """Items of a parallel loop per second through processes."""
    found = await _compared(settings, MAP, runs=1, size=ITEMS)
    assert found.result["stats"]["success"] == ITEMS, found.result["stats"]
    return Report("map_remote", {"items_per_s": found.rate, "cpu_ms_per_item": found.cpu})


@dataclass(frozen=True, slots=True)
class _Compared:
    """What processes reach, limited by what the embedded engine reaches, and the result of the last run."""

    rate: Metric
    cpu: Metric
    result: dict[str, Any]


async def _compared(settings: Settings, text: str, *, runs: int, size: int) -> _Compared:
    """Both shapes turn by turn, so that whatever else happens on the machine happens to both."""
    rate, cpu, limit = 0.0, float("inf"), 0.0
    async with (
        bare_grounds(settings, DATABASE, f"{DATABASE}_remote") as (here, there),
        running(settings, here) as embedded,
        remote_ground(there) as remote,
    ):
        await run_once(embedded, text)
        final = await remote.run_once(text)
        for _ in range(ROUNDS):
            started = time.perf_counter()
            for _ in range(runs):
                await run_once(embedded, text)
            limit = max(limit, runs * size / (time.perf_counter() - started))
            before, started = cpu_seconds(remote.pids), time.perf_counter()
            for _ in range(runs):
                final = await remote.run_once(text)
            rate = max(rate, runs * size / (time.perf_counter() - started))
            cpu = min(cpu, (cpu_seconds(remote.pids) - before) / (runs * size) * 1000)
    return _Compared(Metric(rate, "1/s", limit), Metric(cpu, "ms"), final["result"])


@asynccontextmanager
async def remote_ground(bare: BareGround) -> AsyncIterator[Remote]:
    token, worker_token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    async with AsyncExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-bench-"))
        named = [f"NOETL_HOME={home}", f"NOETL_WORKER_TOKEN={worker_token}"]
        serving = ["NOETL_PORT=0", f"NOETL_POSTGRES_DSN={bare.database}", f"NOETL_TOKEN={token}"]
        server = await stack.enter_async_context(process([*named, *serving], "server"))
        url = await asyncio.wait_for(address_of(server), START_SECONDS_MAX)
        worker = await stack.enter_async_context(process(named, "worker", "--server", url))
        http = aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {token}"})
        await stack.enter_async_context(http)
        yield Remote(http, [bare.postgres_pid, server.pid, worker.pid])
