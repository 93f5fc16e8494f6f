"""The tiers behind a reference, read by another process: a published segment, and local files."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from noetl.bench.data.handover import TABLE
from noetl.bench.ground import Ground
from noetl.bench.measure import Metric
from noetl.bench.runs import run_once

READS = 20
MAKE = (
    """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: bench_tiers}
workflow:
  - step: make
    tool:
      kind: python
      code: |"""
    + TABLE.format(rows=1_000_000)
    + """
        result = table
"""
)


async def tiers(ground: Ground) -> dict[str, Metric]:
    state = await run_once(ground, MAKE)
    reference = state.step_results["make"].reference
    assert reference is not None
    shared = await _read_elsewhere(ground, reference, budget="")
    files = await _read_elsewhere(ground, reference, budget="0")
    assert files["tiers"] == ["durable"], files
    return {
        "ipc_gb_per_s": Metric(shared["bytes"] / shared["best_seconds"] / 1e9, "GB/s"),
        "ipc_hit_ratio": Metric(shared["hits"] / shared["reads"], ""),
        "file_mb_per_s": Metric(files["bytes"] / files["best_seconds"] / 1e6, "MB/s"),
    }


async def _read_elsewhere(ground: Ground, reference: Any, *, budget: str) -> Any:
    """What a process of its own needs to open a table and to look through all of it."""
    asked = {"home": str(ground.settings.home), "reference": reference, "reads": READS, "budget": budget}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "noetl.bench.data.reader", json.dumps(asked)), stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, "the reading process failed"
    return json.loads(told)
