"""How much memory a worker needs for a result, beyond what it has anyway: the peak while a step makes it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from noetl.bench.ground import Ground
from noetl.bench.measure import Metric
from noetl.bench.runs import run_once

PEAK_RATIO_MAX = 2.0
_PYTHON = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: bench_memory}
workflow:
  - step: make
    tool:
      kind: python
      code: '%s'
    next: [{step: use, when: "{{ make.rows[123].n == 123 }}"}]
  - step: use
    tool: {kind: noop, result: "{{ make.rows | length }}"}
"""
PLAIN = _PYTHON % 'result = {"rows": [{"n": i, "text": "t" * 80} for i in range(1000000)]}'
TABLE = (
    _PYTHON % 'import pyarrow as pa; result = {"rows": pa.table({"n": range(1000000), "text": ["t" * 80] * 1000000})}'
)

ROWS = TABLE.replace(
    'tool: {kind: noop, result: "{{ make.rows | length }}"}',
    'tool: {kind: python, input: {rows: "{{ make.rows }}"}, code: "result = len(rows)"}',
)


async def peaks(ground: Ground) -> dict[str, Metric]:
    """The worker is this process: its children make the data and are not counted."""
    return {
        "python_json_peak_ratio": Metric(await _ratio(ground, PLAIN, 100_000_000), "× payload", PEAK_RATIO_MAX),
        "python_rows_peak_ratio": Metric(await _ratio(ground, ROWS, 92_000_000), "× payload", PEAK_RATIO_MAX),
        "python_table_peak_ratio": Metric(await _ratio(ground, TABLE, 92_000_000), "× payload", PEAK_RATIO_MAX),
    }


async def _ratio(ground: Ground, text: str, payload_bytes: int) -> float:
    gc.collect()
    _reset_peak()
    before = _status("VmRSS")
    state = await run_once(ground, text)
    result: Any = await ground.engine.service.result(state)
    assert result == 1_000_000, result
    return (_status("VmHWM") - before) / payload_bytes


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"this system does not tell {name}")
