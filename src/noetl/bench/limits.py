"""`limits`: a rate that four worker processes and two executions share, as the called server sees it."""

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

from noetl.bench.ground import DATABASE, BareGround, bare_grounds
from noetl.bench.measure import Metric, Report, cpu_seconds
from noetl.bench.processes import address_of, process
from noetl.settings import Settings
from noetl.standin.process import standin_process

RATE = 50
WORKERS = 4
EXECUTIONS = 2
SECONDS = 60.0
WARM_CALLS = 3 * RATE
START_SECONDS_MAX = 60.0
ROWS = 10 * RATE * int(SECONDS) // EXECUTIONS
PLAYBOOK = f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: bench_limits}}
limits: {{api: {{rate: {RATE}/s}}}}
workload: {{address: none}}
workflow:
  - step: start
    tool: {{kind: python, code: "result = list(range({ROWS}))"}}
    next: items
  - step: items
    loop:
      in: "{{{{ start }}}}"
      iterator: n
      spec: {{mode: parallel, max_in_flight: 40}}
    tool:
      kind: http
      limit: api
      url: "{{{{ address }}}}/api/v1/concurrency/probe"
      params: {{delay_seconds: 0.02, label: "{{{{ execution_id }}}}"}}
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the called server has counted at a moment."""

    at: float
    calls: int
    by_execution: dict[str, int]


async def limits(settings: Settings) -> Report:
    """How far the calls of a minute are from the rate, and the executions from equal shares."""
    async with (
        bare_grounds(settings, f"{DATABASE}_limits") as (bare,),
        _servers(bare) as (http, pids),
    ):
        with standin_process() as address:
            executions = [await _start(http, address) for _ in range(EXECUTIONS)]
            before = await _until(address, executions)
            used = cpu_seconds(pids)
            await asyncio.sleep(before.at + SECONDS - time.perf_counter())
            after = await _seen(address)
            used = cpu_seconds(pids) - used
            for execution_id in executions:
                async with http.post(f"/api/executions/{execution_id}/cancel", json={}) as response:
                    assert response.status < 300, await response.text()
    calls, seconds = after.calls - before.calls, after.at - before.at
    shares = [after.by_execution[one] - before.by_execution[one] for one in executions]
    even = calls / EXECUTIONS
    return Report(
        "limits",
        {
            "calls_per_s": Metric(calls / seconds, "1/s", float(RATE)),
            "rate_error_pct": Metric(abs(calls / seconds - RATE) / RATE * 100, "%", 2.0),
            "share_error_pct": Metric(max(abs(share - even) for share in shares) / even * 100, "%", 5.0),
            "control_cpu_ms_per_call": Metric(used / calls * 1000, "ms"),
        },
    )


async def _start(http: aiohttp.ClientSession, address: str) -> str:
    async with http.post("/api/executions", json={"playbook": PLAYBOOK, "payload": {"address": address}}) as response:
        started: dict[str, Any] = await response.json()
        assert response.status == 201, started
    return str(started["execution_id"])


async def _seen(address: str) -> Seen:
    async with aiohttp.ClientSession() as session, session.get(f"{address}/api/v1/concurrency/stats") as response:
        found: dict[str, Any] = await response.json()
    return Seen(time.perf_counter(), found["started"], dict(found["labels"]))


async def _until(address: str, executions: list[str]) -> Seen:
    """Both are under way, and what a start costs is over."""
    async with asyncio.timeout(START_SECONDS_MAX):
        while True:
            seen = await _seen(address)
            if seen.calls >= WARM_CALLS and all(one in seen.by_execution for one in executions):
                return seen
            await asyncio.sleep(0.05)


@asynccontextmanager
async def _servers(bare: BareGround) -> AsyncIterator[tuple[aiohttp.ClientSession, list[int]]]:
    """A server with its workers, each a process; a client, and the processes of the control plane."""
    token, worker_token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    async with AsyncExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-bench-"))
        named = [f"NOETL_HOME={home}", f"NOETL_WORKER_TOKEN={worker_token}"]
        serving = ["NOETL_PORT=0", f"NOETL_POSTGRES_DSN={bare.database}", f"NOETL_TOKEN={token}"]
        server = await stack.enter_async_context(process([*named, *serving], "server"))
        url = await asyncio.wait_for(address_of(server), START_SECONDS_MAX)
        for _ in range(WORKERS):
            await stack.enter_async_context(process(named, "worker", "--server", url))
        http = aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {token}"})
        await stack.enter_async_context(http)
        yield http, [bare.postgres_pid, server.pid]
