"""`loop`: a million items through the embedded engine, and what each of them costs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from noetl.bench.ground import Ground
from noetl.bench.measure import Metric, Report, cpu_seconds
from noetl.bench.runs import run_once
from noetl.core.execution.state import ExecutionState
from noetl.core.results.members import parsed_path

ITEMS = 1_000_000
PYTHON_ITEMS = 100_000
SECONDS_MAX = 600.0
ITEMS_PER_S_MIN, PYTHON_PER_S_MIN = 20_000.0, 10_000.0
CPU_US_MAX, ROWS_PER_FRAME_MAX, READ_MS_MAX = 60.0, 3.0, 50.0
# A million items, and never so much more memory than twenty thousand take: the list of them is 8 MB alone.
GROWN_MB_MAX = 256.0
LOOK_SECONDS = 0.1
READS = 20

_LOOP = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: bench_loop}}
workflow:
  - step: start
    tool: {{kind: python, code: "result = list(range({items}))"}}
    next: items
  - step: items
    loop:
      in: "{{{{ start }}}}"
      iterator: n
      spec: {{mode: parallel, max_in_flight: 50}}
    tool: {tool}
"""
NOOP = '{kind: noop, result: "{{ n + 1 }}"}'
PYTHON = '{kind: python, input: {n: "{{ n }}"}, code: "result = n + 1"}'


@dataclass(frozen=True, slots=True)
class _Ran:
    state: ExecutionState
    rate: float
    cpu_us: float


async def loop(ground: Ground) -> Report:
    await _run(ground, NOOP, 20_000)
    before = _resident_mb()
    async with _peak() as peak:
        noop = await _run(ground, NOOP, ITEMS)
    grown = max(peak) - before
    read_ms = await _read_last(ground, noop.state, ITEMS)
    rows, frames = await _ledger(ground, noop.state)
    python = await _run(ground, PYTHON, PYTHON_ITEMS)
    return Report(
        "loop",
        {
            "items_per_s": Metric(noop.rate, "1/s", ITEMS_PER_S_MIN),
            "cpu_us_per_item": Metric(noop.cpu_us, "us", CPU_US_MAX),
            "ledger_rows_per_frame": Metric(rows / frames, "", ROWS_PER_FRAME_MAX),
            "last_result_ms": Metric(read_ms, "ms", READ_MS_MAX),
            "python_items_per_s": Metric(python.rate, "1/s", PYTHON_PER_S_MIN),
            "frames": Metric(frames, ""),
            "memory_grown_mb": Metric(grown, "MB", GROWN_MB_MAX),
        },
    )


async def _run(ground: Ground, tool: str, items: int) -> _Ran:
    roots = [os.getpid(), ground.postgres_pid]
    before, started = cpu_seconds(roots), time.perf_counter()
    state = await run_once(ground, _LOOP.format(items=items, tool=tool), seconds=SECONDS_MAX)
    seconds, used = time.perf_counter() - started, cpu_seconds(roots) - before
    ended = state.ended_loops["items"]
    assert (ended.total, ended.done, ended.failed) == (items, items, 0), ended
    return _Ran(state, items / seconds, used / items * 1e6)


async def _read_last(ground: Ground, state: ExecutionState, items: int) -> float:
    """Milliseconds to the last result of all, as a client reads it; the slowest of some."""
    owner = {"tenant_id": state.tenant_id, "organization_id": state.organization_id}
    slowest = 0.0
    for number in range(READS):
        index = items - 1 - number * (items // READS)
        started = time.perf_counter()
        reading = await ground.engine.results.find(state.execution_id, "items", **owner)
        async with aclosing(await reading.json(parsed_path(f"results[{index}]"))) as pieces:
            content = b"".join([piece async for piece in pieces])
        slowest = max(slowest, (time.perf_counter() - started) * 1000)
        assert content == str(index + 1).encode(), content
    return slowest


@asynccontextmanager
async def _peak() -> AsyncIterator[list[float]]:
    """How much memory this process, which is server and worker at once, has meanwhile."""
    seen = [_resident_mb()]

    async def look() -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            seen.append(_resident_mb())

    async with asyncio.TaskGroup() as group:
        looking = group.create_task(look())
        yield seen
        looking.cancel()


async def _ledger(ground: Ground, state: ExecutionState) -> tuple[int, int]:
    """Rows about frames, and how many frames there were."""
    rows, position = 0, 0
    frames: set[str] = set()
    while page := await ground.engine.ledger.read_execution(state.execution_id, after_position=position):
        position = page[-1].position
        about = [event.frame_id for event in page if event.frame_id is not None]
        rows += len(about)
        frames.update(about)
    return rows, len(frames)


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2
