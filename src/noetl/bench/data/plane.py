"""`data`: every figure of the data plane in one run."""

from __future__ import annotations

import asyncpg

from noetl.bench.data.handover import handover
from noetl.bench.data.memory import peaks
from noetl.bench.data.results import chain_ratio
from noetl.bench.data.tiers import tiers
from noetl.bench.ground import Ground
from noetl.bench.measure import Metric, Report

RESULT_BYTES_P99_MAX = 2048


async def data(ground: Ground) -> Report:
    """Rows from one step to the next, the tiers behind that, peak memory, and what results cost a chain of steps."""
    metrics = {
        **await handover(ground),
        **await tiers(ground),
        **await peaks(ground),
        **await chain_ratio(ground),
        "event_result_p99_bytes": Metric(await result_bytes_p99(ground.database), "bytes", RESULT_BYTES_P99_MAX),
    }
    return Report("data", metrics)


async def result_bytes_p99(database: str) -> float:
    """How large the results in the events of this ledger are."""
    connection = await asyncpg.connect(database)
    try:
        return float(
            await connection.fetchval(
                "SELECT percentile_disc(0.99) WITHIN GROUP (ORDER BY octet_length(result::text))"
                " FROM noetl.event WHERE result IS NOT NULL"
            )
        )
    finally:
        await connection.close()
