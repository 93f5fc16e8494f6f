"""Any tier may vanish at any moment of a run: it gives the same results, byte for byte."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.aio import asynchronous
from tests.support.databases import empty_database
from tests.support.engine import Running, completed, running_engine

PLAYBOOK = """
workflow:
  - step: make
    tool:
      kind: python
      code: |
        import pyarrow as pa
        n = 60000
        result = {"rows": pa.table({"n": range(n), "t": [str(i * 7919 % 1000) for i in range(n)]}), "k": n}
    next: [{step: plain}]
  - step: plain
    tool: {kind: python, code: 'result = [{"n": i, "t": "x" * 60} for i in range(30000)]'}
    next: [{step: map}]
  - step: map
    tool:
      - filter:
          kind: python
          tables: arrow
          input: {rows: "{{ make.rows }}"}
          code: "import pyarrow.compute as pc; result = rows.filter(pc.equal(rows['t'], '7'))"
      - whole:
          kind: python
          tables: arrow
          input: {rows: "{{ make.rows }}", more: "{{ filter }}"}
          code: "result = rows.slice(0, 50000)"
    next: [{step: each}]
  - step: each
    loop: {in: "{{ make.rows[1000:1040] }}", iterator: row, spec: {mode: parallel, max_in_flight: 4}}
    tool:
      kind: python
      tables: arrow
      input: {row: "{{ row }}", rows: "{{ map.whole }}", first: "{{ plain[row.n].n }}"}
      code: "result = [row['n'], rows.num_rows, first]"
    next: [{step: end}]
  - step: end
    tool:
      kind: python
      input:
        rows: "{{ map.filter }}"
        last: "{{ map.whole[-1] }}"
        each: "{{ each.results }}"
        count: "{{ plain | length }}"
      code: "result = [sum(r['n'] for r in rows), last, each, count]"
"""


async def drop_tiers(engine: Running, home: Path, seed: int) -> None:
    """Throw away what a run may lose, at random moments: its open tables, shared memory, parsed values, spilt files."""
    chance = random.Random(seed)
    while True:
        await asyncio.sleep(chance.uniform(0.0, 0.03))
        tables: Any = engine.engine.tables._made
        if tables is None:
            continue
        match chance.randrange(4):
            case 0:
                tables._held._held.clear()
                tables._held._bytes = 0
            case 1:
                for path in tables._segments.folder.root.iterdir():
                    # What a child is about to hand over is no copy of anything yet.
                    if chance.random() < 0.7 and path.name != "lock" and not path.name.startswith("new."):
                        await asyncio.to_thread(path.unlink, missing_ok=True)
            case 2:
                engine.engine.payloads._cache._values.clear()
                engine.engine.payloads._cache._bytes = 0
            case 3:
                for path in (home / "cache").rglob("*"):
                    if path.is_file() and chance.random() < 0.7:
                        await asyncio.to_thread(path.unlink, missing_ok=True)


async def digests(address: str, home: Path, seed: int | None) -> tuple[object, dict[str, str]]:
    """The result of a run, and the digests of what its steps gave."""
    cached = {"NOETL_DEFAULT_STORE_TIER": "memory", "NOETL_STORAGE_LOCAL_CACHE_DIR": str(home / "cache")}
    async with running_engine(address, home, cached) as engine:
        dropping = None if seed is None else asyncio.create_task(drop_tiers(engine, home, seed))
        try:
            told = await engine.run(PLAYBOOK)
        finally:
            if dropping is not None:
                dropping.cancel()
    steps = told.state.step_results
    return completed(told), {name: str(step.reference["sha256"]) for name, step in steps.items() if step.reference}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
@asynchronous
async def test_tiers_that_vanish_change_nothing(tmp_path: Path, seed: int) -> None:
    expected = await digests(await asyncio.to_thread(empty_database), tmp_path / "calm", None)
    assert await digests(await asyncio.to_thread(empty_database), tmp_path / "rough", seed) == expected
