"""`latency` and `chain`: whole executions through the embedded engine."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from typing import Any

import asyncpg

from noetl.bench.ground import Ground
from noetl.bench.measure import Metric, Report, cpu_seconds
from noetl.core.execution.state import ExecutionState, Status
from noetl.engine.executions import StartRequest

LATENCY_RUNS = 200
CHAIN_STEPS = 200
CHAIN_RUNS = 3
COMMITS = 400
ONE_STEP = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: bench_latency}
workload: {n: 1}
workflow:
  - step: start
    tool:
      kind: python
      input: {n: "{{ n }}"}
      code: |
        result = {"n": n + 1, "pid": os.getpid()}
"""


async def latency(ground: Ground) -> Report:
    """Submit to terminal of a one-step playbook, against three single-row commits."""
    await _runs(ground, ONE_STEP, 30)
    best: list[float] | None = None
    limit = float("inf")
    for _ in range(3):
        limit = min(limit, 3 * await commit_seconds(ground.database))
        times = await _runs(ground, ONE_STEP, LATENCY_RUNS)
        if best is None or statistics.median(times) < statistics.median(best):
            best = times
    assert best is not None
    median, p95 = statistics.median(best) * 1000, statistics.quantiles(best, n=20)[18] * 1000
    return Report(
        "latency",
        {"median_ms": Metric(median, "ms", limit * 1000), "p95_ms": Metric(p95, "ms", limit * 1000)},
    )


async def chain(ground: Ground) -> Report:
    """Sequential steps per second and CPU per step, against two single-row commits per step."""
    text = chain_playbook(CHAIN_STEPS)
    await run_once(ground, text)
    rate, cpu, limit = 0.0, float("inf"), 0.0
    roots = [os.getpid(), ground.postgres_pid]
    for _ in range(3):
        limit = max(limit, 1 / (2 * await commit_seconds(ground.database)))
        before, started = cpu_seconds(roots), time.perf_counter()
        for _ in range(CHAIN_RUNS):
            state = await run_once(ground, text)
            result: Any = await ground.engine.service.result(state)
            assert result["n"] == CHAIN_STEPS, result
        steps = CHAIN_RUNS * CHAIN_STEPS
        rate = max(rate, steps / (time.perf_counter() - started))
        cpu = min(cpu, (cpu_seconds(roots) - before) / steps * 1000)
    return Report("chain", {"steps_per_s": Metric(rate, "1/s", limit), "cpu_ms_per_step": Metric(cpu, "ms")})


def chain_playbook(steps: int) -> str:
    lines = [
        "apiVersion: noetl.io/v2",
        "kind: Playbook",
        "metadata: {name: bench_chain}",
        "workload: {zero: {n: 0}}",
        "workflow:",
    ]
    for number in range(steps):
        before = "zero" if number == 0 else f"s{number - 1}"
        lines += [
            f"  - step: s{number}",
            "    tool:",
            "      kind: python",
            f'      input: {{n: "{{{{ {before}.n }}}}"}}',
            '      code: "result = {\\"n\\": n + 1}"',
        ]
        if number + 1 < steps:
            lines.append(f"    next: {{arcs: [{{step: s{number + 1}}}]}}")
    return "\n".join(lines) + "\n"


async def _runs(ground: Ground, text: str, count: int) -> list[float]:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        state = await run_once(ground, text)
        times.append(time.perf_counter() - started)
    result: Any = await ground.engine.service.result(state)
    assert result["pid"] != os.getpid(), "user code ran in the worker's process"
    return times


async def run_once(
    ground: Ground, text: str, payload: Mapping[str, object] | None = None, *, seconds: float = 60
) -> ExecutionState:
    """One execution from its submission to its end."""
    service, settings = ground.engine.service, ground.settings
    owner = {"tenant_id": settings.tenant_id, "organization_id": settings.organization_id}
    started = await service.start(StartRequest(text=text, file="<bench>", payload=payload or {}, **owner))
    # As a client sees it: the end is there when it is projected.
    await ground.engine.status.wait_terminal(started.execution_id, timeout_seconds=seconds, **owner)
    state = await service.state(started.execution_id, **owner)
    assert state.status is Status.COMPLETED, state.failure
    return state


async def commit_seconds(database: str) -> float:
    """The median time of a single-row commit by a plain driver loop."""
    connection = await asyncpg.connect(database)
    try:
        await connection.execute("CREATE TABLE IF NOT EXISTS commit_limit (id bigserial PRIMARY KEY, text text)")
        insert = await connection.prepare("INSERT INTO commit_limit (text) VALUES ($1)")
        times = []
        for _ in range(COMMITS):
            started = time.perf_counter()
            await insert.fetch("x" * 100)
            times.append(time.perf_counter() - started)
        return statistics.median(times)
    finally:
        await connection.close()
