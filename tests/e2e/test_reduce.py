"""A reduce over a fan-out: it reads what the shards left by reference, where it runs, and comes to what one partition
comes to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Place, running_server

SHARDS, ROWS = 100, 5_000
GROWTH_BYTES_MAX = 40 * 1024**2
# Each shard leaves a table of some hundred kilobytes that compresses badly; all of them together are what one partition
# makes of the same numbers.
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: reduced}
workload: {shards: %(shards)d, rows: %(rows)d}
workflow:
  - step: parts
    loop:
      in: "{{ range(shards) | list }}"
      iterator: shard
      spec: {mode: fanout, max_in_flight: 8}
    tool:
      kind: python
      input: {shard: "{{ iter.shard }}", rows: "{{ rows }}"}
      code: |
        import hashlib
        import pyarrow as pa
        numbers = range(shard * rows, (shard + 1) * rows)
        result = pa.table({
            "n": pa.array(numbers, pa.int64()),
            "text": pa.array([hashlib.sha256(str(n).encode()).hexdigest() for n in numbers]),
        })
    next: [{step: total, when: "{{ fanin.status == 'complete' }}", set: {ctx.refs: "{{ fanin.refs }}"}}]
  - step: total
    tool:
      kind: python
      tables: arrow
      input: {parts: "{{ parts.results }}", refs: "{{ ctx.refs }}"}
      code: |
        import hashlib
        digest, count = hashlib.sha256(), 0
        for part in parts:
            count += part.num_rows
            for text in part.column("text").to_pylist():
                digest.update(text.encode())
        result = {
            "sha256": digest.hexdigest(),
            "count": count,
            "kinds": sorted({type(part).__name__ for part in parts}),
            "refs": len(refs),
            "digests": sorted({len(ref["sha256"]) for ref in refs}),
        }
"""


@pytest.fixture(scope="module")
def ground() -> Iterator[Place]:
    with running_server(workers=2) as found:
        yield found


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had since it was told to forget."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) * 1024


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def finished(ground: Place, shards: int, rows: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    execution_id = ground.submit(PLAYBOOK % {"shards": shards, "rows": rows})
    final = ground.finish(execution_id, seconds=120)
    assert final["status"] == "COMPLETED", (final, ground.logs())
    return final["result"], ground.events(execution_id)


def test_a_reduce_over_a_hundred_shards_is_that_of_one_partition(ground: Place) -> None:
    server = ground.processes[0].pid
    baseline, _ = finished(ground, 1, SHARDS * ROWS)
    before = peak_bytes(server)
    forget_peak(server)
    reduced, events = finished(ground, SHARDS, ROWS)
    assert (reduced["sha256"], reduced["count"]) == (baseline["sha256"], SHARDS * ROWS)
    assert reduced["kinds"] == ["Table"], "rows in columns, and not one by one"
    assert (reduced["refs"], reduced["digests"]) == (SHARDS, [64])
    outputs = [one["result"]["reference"] for one in events if one["event_type"] == "frame.committed"]
    assert len(outputs) == SHARDS
    # What the server has of all this is where it is.
    sizes = sorted(len(json.dumps(one)) for one in events)
    assert sizes[int(len(sizes) * 0.99)] < 2_048
    assert peak_bytes(server) < before + GROWTH_BYTES_MAX
    told = [one["event_type"] for one in events]
    assert told.count("loop.shard.done") == SHARDS
    assert told.count("loop.fanin.completed") == 1
    fanin = next(one for one in events if one["event_type"] == "loop.fanin.completed")
    issued = next(one for one in events if one.get("command_id") == "total#1")
    assert fanin["position"] < issued["position"], "a reduce waits for all partitions"


def test_a_loop_over_the_references_of_a_fan_out_is_a_map_of_its_partitions(ground: Place) -> None:
    text = PLAYBOOK % {"shards": 4, "rows": 10}
    over = """
  - step: total
    loop: {in: "{{ ctx.refs }}", iterator: ref, spec: {mode: parallel, max_in_flight: 4}}
    tool: {kind: noop, result: "{{ iter.ref.sha256 }}"}
"""
    head, _, _ = text.partition("  - step: total\n")
    execution_id = ground.submit(head + over.lstrip("\n"))
    final = ground.finish(execution_id)
    assert final["status"] == "COMPLETED", (final, ground.logs())
    events = ground.events(execution_id)
    outputs = [
        one["result"]["reference"]["sha256"] for one in events if one.get("stage_id") == "parts#1" and one.get("result")
    ]
    assert sorted(final["result"]["results"]) == sorted(outputs)
