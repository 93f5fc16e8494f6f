"""A process that opens one table again and again as a worker would, looks through it, and says how long that took."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from noetl.core.reference import reference_from_json
from noetl.settings import read_settings
from noetl.wiring.stores import local_tables

OWNER = {"tenant_id": "default", "organization_id": "default"}


async def _read(asked: Any) -> dict[str, object]:
    environment = {"NOETL_HOME": asked["home"]} | ({"NOETL_TIER15_BUDGET_MB": "0"} if asked["budget"] else {})
    environment["NOETL_TIER1_MEMORY_MB"] = "0"
    tables = await local_tables(read_settings(environment)).made()
    reference = reference_from_json(asked["reference"])
    times, found, size = [], [], 0
    for _ in range(asked["reads"]):
        started = time.perf_counter()
        table = await tables.open(reference, **OWNER)
        size = await table.looked(_scan, table)
        times.append(time.perf_counter() - started)
        found.append(table.tier)
        table.close()
    return {
        "bytes": size,
        "best_seconds": min(times),
        "reads": len(found),
        "hits": found.count("ipc"),
        "tiers": sorted(set(found)),
    }


def _scan(table: Any) -> int:
    """Look at every value; the bytes that were looked at."""
    size = 0
    for batch in table.batches():
        size += batch.nbytes
        for column in batch.columns:
            if pa.types.is_string(column.type):
                pc.sum(pc.binary_length(column))
            elif pa.types.is_boolean(column.type):
                pc.sum(column)
            else:
                pc.min_max(column)
    return size


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_read(json.loads(sys.argv[1])))))
