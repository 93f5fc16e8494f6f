"""`map` and `http_map`: parallel loops through the embedded engine, every item tracked."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import aiohttp
import asyncpg

from noetl.bench.ground import Ground
from noetl.bench.measure import Metric, Report, cpu_seconds
from noetl.bench.runs import run_once
from noetl.standin.process import standin_process

ITEMS = 10_000
HTTP_ITEMS = 20_000
ROUNDS = 3
HTTP_IN_FLIGHT = 50
HTTP_DELAY_SECONDS = 0.005
GROUP_ROWS = 50

MAP = f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: bench_map}}
workflow:
  - step: start
    tool: {{kind: python, code: "result = list(range({ITEMS}))"}}
    next: items
  - step: items
    loop:
      in: "{{{{ start }}}}"
      iterator: n
      spec: {{mode: parallel, max_in_flight: 20}}
    tool:
      kind: python
      input: {{n: "{{{{ n }}}}"}}
      code: 'result = {{"n": n + 1}}'
"""

HTTP_MAP = f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: bench_http_map}}
workload: {{address: none}}
workflow:
  - step: start
    tool: {{kind: python, code: "result = list(range({HTTP_ITEMS}))"}}
    next: items
  - step: items
    loop:
      in: "{{{{ start }}}}"
      iterator: n
      spec: {{mode: parallel, max_in_flight: {HTTP_IN_FLIGHT}}}
    tool:
      kind: http
      url: "{{{{ address }}}}/api/v1/concurrency/probe"
      params: {{delay_seconds: {HTTP_DELAY_SECONDS}, label: "{{{{ n }}}}"}}
"""


async def map_items(ground: Ground) -> Report:
    """Trivial python items per second, CPU and ledger rows per item."""
    await run_once(ground, MAP)
    rate, cpu, rows = 0.0, float("inf"), 0.0
    roots = [os.getpid(), ground.postgres_pid]
    for _ in range(ROUNDS):
        before, started = cpu_seconds(roots), time.perf_counter()
        state = await run_once(ground, MAP)
        seconds = time.perf_counter() - started
        used = cpu_seconds(roots) - before
        result: Any = await ground.engine.service.result(state)
        assert result["stats"] == {"total": ITEMS, "success": ITEMS, "failed": 0}, result["stats"]
        assert [row["n"] for row in result["results"]] == list(range(1, ITEMS + 1))
        rate, cpu = max(rate, ITEMS / seconds), min(cpu, used / ITEMS * 1000)
        rows = state.version / ITEMS
    return Report(
        "map",
        {
            "items_per_s": Metric(rate, "1/s"),
            "cpu_ms_per_item": Metric(cpu, "ms"),
            "ledger_rows_per_item": Metric(rows, ""),
        },
    )


async def http_map(ground: Ground) -> Report:
    """Tracked GETs per second against a server that takes 5 ms, beside a bare loop with the same library that commits
    one row per item in groups."""
    with standin_process() as address:
        payload = {"address": address}
        await run_once(ground, HTTP_MAP, payload)
        rate, limit = 0.0, 0.0
        for _ in range(ROUNDS):
            limit = max(limit, await _bare(ground.database, address))
            started = time.perf_counter()
            state = await run_once(ground, HTTP_MAP, payload)
            rate = max(rate, HTTP_ITEMS / (time.perf_counter() - started))
            result: Any = await ground.engine.service.result(state)
            assert result["stats"]["success"] == HTTP_ITEMS, result["stats"]
            assert result["results"][HTTP_ITEMS - 1]["data"]["label"] == str(HTTP_ITEMS - 1)
    return Report("http_map", {"items_per_s": Metric(rate, "1/s", limit)})


async def _bare(database: str, address: str) -> float:
    """The plain loop: so many requests in flight, the answers committed in groups."""
    connection = await asyncpg.connect(database)
    waiting = iter(range(HTTP_ITEMS))
    done: list[tuple[int, str]] = []
    lock = asyncio.Lock()
    await connection.execute("CREATE TABLE IF NOT EXISTS http_limit (n integer, body text)")

    async def commit() -> None:
        async with lock:
            rows = done[:]
            done.clear()
            if rows:
                await connection.executemany("INSERT INTO http_limit (n, body) VALUES ($1, $2)", rows)

    async def work(session: aiohttp.ClientSession) -> None:
        for n in waiting:
            params = {"delay_seconds": str(HTTP_DELAY_SECONDS), "label": str(n)}
            async with session.get(f"{address}/api/v1/concurrency/probe", params=params) as answer:
                body = await answer.json()
                assert answer.status == 200
            done.append((n, str(body)))
            if len(done) >= GROUP_ROWS:
                await commit()

    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=HTTP_IN_FLIGHT)) as session:
            started = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(HTTP_IN_FLIGHT):
                    group.create_task(work(session))
            await commit()
            return HTTP_ITEMS / (time.perf_counter() - started)
    finally:
        await connection.close()
