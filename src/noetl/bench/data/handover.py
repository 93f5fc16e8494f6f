"""A table of a million rows from one step to the next: made by one process, durable, named by an event, and looked
through by another process."""

from __future__ import annotations

from typing import Any

from noetl.bench.ground import Ground
from noetl.bench.measure import Metric
from noetl.bench.runs import run_once

ROWS = 1_000_000
ROUNDS = 5
TABLE = """
        import pyarrow as pa, pyarrow.compute as pc, random
        n, dice = {rows}, random.Random(7)
        ids = pa.array(range(n), pa.int64())
        noise = pa.array([dice.random() for _ in range(1 << 16)])
        spread = lambda seed: pc.take(noise, pc.bit_wise_and(pc.add(pc.multiply(ids, seed), seed), (1 << 16) - 1))
        words = pa.array(["north", "south", "east", "west", "centre"])
        table = pa.table({{
            "id": ids,
            "customer": pc.bit_wise_and(pc.multiply(ids, 7919), 0xFFFFF),
            "amount": pc.multiply(spread(31), 1000.0),
            "price": pc.cast(pc.floor(pc.multiply(spread(37), 100000.0)), pa.int64()),
            "score": spread(41),
            "weight": spread(43),
            "region": pc.take(words, pc.cast(pc.floor(pc.multiply(spread(47), 5.0)), pa.int64())),
            "day": pc.cast(pc.cast(pc.floor(pc.multiply(spread(53), 3650.0)), pa.int32()), pa.date32()),
            "at": pc.cast(pc.add(pc.multiply(ids, 1000003), 1_700_000_000_000_000), pa.timestamp("us", "UTC")),
            "flag": pc.greater(spread(59), 0.5),
        }})
"""
PLAYBOOK = (
    """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: bench_handover}
workflow:
  - step: make
    tool:
      kind: python
      code: |"""
    + TABLE.format(rows=ROWS)
    + """
        import time
        result = {"rows": table, "bytes": table.nbytes, "made_at": time.time()}
    next: [{step: use}]
  - step: use
    tool:
      kind: python
      tables: arrow
      input: {rows: "{{ make.rows }}", bytes: "{{ make.bytes }}", made_at: "{{ make.made_at }}"}
      code: |
        import time, pyarrow.compute as pc
        sums = [pc.sum(rows[name]).as_py() for name in ("id", "customer", "amount", "price", "score", "weight", "flag")]
        spans = [pc.min_max(rows[name]) for name in ("day", "at")]
        letters = pc.sum(pc.utf8_length(rows["region"])).as_py()
        result = {"seconds": time.time() - made_at, "bytes": bytes, "rows": rows.num_rows, "sum": sums[0]}
"""
)


async def handover(ground: Ground) -> dict[str, Metric]:
    best = 0.0
    for _ in range(ROUNDS):
        state = await run_once(ground, PLAYBOOK)
        result: Any = await ground.engine.service.result(state)
        assert (result["rows"], result["sum"]) == (ROWS, ROWS * (ROWS - 1) // 2), result
        best = max(best, result["bytes"] / result["seconds"] / 1e6)
    return {"handover_mb_per_s": Metric(best, "MB/s")}
