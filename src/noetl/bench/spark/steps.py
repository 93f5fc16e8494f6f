"""A join and an aggregate over ten million rows as a step, against the same statements in plain PySpark.

The plain side runs as user code of a step of its own, in the same warm session and over the same files, and takes the
time itself.  Of a step all is counted, from its submission as an execution of its own to its end."""

from __future__ import annotations

import time
from importlib.resources import files
from typing import Any

from noetl.bench.ground import Ground
from noetl.bench.measure import Metric
from noetl.bench.runs import run_once

ROWS = 10_000_000
ROUNDS = 4
STEP_SECONDS_ALLOWED = 0.3
"""What a step may cost whatever it does: claim, intent, hand-over, event."""
OVERHEAD_RATIO_MAX = 1.1
READ_RATIO_MIN = 0.9


async def made(ground: Ground, *, rows: int = ROWS) -> dict[str, str]:
    """The locators of the datasets that everything is measured on."""
    result = await _result(ground, "make", {"rows": rows})
    assert result["rows"] == rows, result
    return {"sales": result["sales"], "customers": result["customers"]}


async def steps(ground: Ground, inputs: dict[str, str]) -> dict[str, Metric]:
    ours, plain = [], []
    for _ in range(ROUNDS + 1):
        began = time.monotonic()
        await _run(ground, "ours", inputs)
        ours.append(time.monotonic() - began)
        plain.append((await _result(ground, "plain", inputs))["seconds"])
    # The first of each warms up.
    best, other = min(ours[1:]), min(plain[1:])
    reading = await _result(ground, "read", {"sales": inputs["sales"], "rounds": ROUNDS})
    return {
        "overhead_ratio": Metric((best - STEP_SECONDS_ALLOWED) / other, "x", OVERHEAD_RATIO_MAX),
        "step_s": Metric(best, "s"),
        "plain_s": Metric(other, "s"),
        "read_ratio": Metric(reading["plain"] / reading["ours"], "x", READ_RATIO_MIN),
    }


async def _run(ground: Ground, name: str, payload: dict[str, Any]) -> Any:
    text = files("noetl.bench.spark").joinpath(f"playbooks/{name}.yaml").read_text("utf-8")
    return await run_once(ground, text, payload, seconds=300)


async def _result(ground: Ground, name: str, payload: dict[str, Any]) -> Any:
    return await ground.engine.service.result(await _run(ground, name, payload))
