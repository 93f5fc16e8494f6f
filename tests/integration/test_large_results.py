"""A result of 100 MB and a loop of 100,000 items: what looks at a part of them pays for that part."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from datetime import datetime
from pathlib import Path
from unittest import mock

import pytest

from noetl.core import kinds
from noetl.core.execution.state import Status
from noetl.core.expression import compile_template, render
from noetl.engine.payloads import Payloads
from noetl.engine.stored.reader import Reader
from noetl.engine.stored.sources import settled
from tests.support.aio import asynchronous
from tests.support.databases import empty_database
from tests.support.engine import OWNER, Told, running_engine

pytestmark = pytest.mark.long

BIG = """
workflow:
  - step: big
    tool:
      kind: python
      code: 'result = {"rows": [[i, {"x": i * 2, "text": "t" * 130}] for i in range(600000)], "row_count": 600000}'
    next: [{step: pause}]
  - step: pause
    tool: {kind: python, code: "import time; time.sleep(5); result = 7"}
    next: [{step: guard, when: "{{ big.rows[1100][0] == 1100 and big.rows[-1][1].x == 1199998 }}"}]
  - step: guard
    tool: {kind: noop}
    next: [{step: field, when: "{{ big.rows[pause][0] == 7 }}"}]
  - step: field
    tool: {kind: noop, result: ["{{ big.rows[1100][0] }}", "{{ big.rows[-1][1].x }}", "{{ big.row_count }}"]}
    set: {kept.rows: "{{ big.rows }}"}
    next: [{step: each}]
  - step: each
    loop: {in: "{{ kept.rows[300000:300010] }}", iterator: row, spec: {mode: parallel}}
    tool: {kind: noop, result: "{{ row[0] }}"}
    next: [{step: end}]
  - step: end
    tool: {kind: noop, result: ["{{ field }}", "{{ each.results }}", "{{ big._size_bytes > 95000000 }}"]}
"""
LOOP = """
workflow:
  - step: start
    tool: {kind: python, code: "result = {'items': list(range(100000))}"}
    next: [{step: each}]
  - step: each
    loop: {in: "{{ start.items }}", iterator: item, spec: {mode: parallel, max_in_flight: 64}}
    tool: {kind: noop, result: {n: "{{ item }}"}}
    set: {a: "{{ [each.results | length, each.stats.failed, each.count, each.results[5].n] }}"}
    next: [{step: end, when: "{{ each.results[99999].n == 99999 }}"}]
  - step: end
    tool:
      kind: python
      input: {rows: "{{ each.results }}", a: "{{ ctx.a }}"}
      code: "result = [a, len(rows), rows[-1]['n']]"
"""


@pytest.fixture(scope="module")
def address() -> str:
    return empty_database()


def memory(field: str) -> int:
    """Mebibytes of this process: `VmRSS` now, `VmHWM` at most since the last reset."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(field + ":")[1].split()[0]) // 1024


def seconds_between(told: Told, first: str, last: str) -> float:
    times = {event.command_id: event.event_time for event in told.of_type(kinds.COMMAND_COMPLETED)}
    one, other = (datetime.fromisoformat(times[command]) for command in (first, last))
    return (other - one).total_seconds()


@asynchronous
async def test_parts_of_100_megabytes_are_read_in_little_time_and_memory(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start(BIG)
        await engine.until(execution_id, lambda state: "big" in state.completed_steps)
        await asyncio.sleep(1)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        told = await engine.finish(execution_id)
        grown = memory("VmHWM") - before
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result == [[1100, 1199998, 600000], list(range(300000, 300010)), True]
    assert seconds_between(told, "pause#1", "end#1") < 2
    assert grown < 48


@asynchronous
async def test_a_row_of_100000_is_found_by_its_index(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start(LOOP)
        async with asyncio.timeout(200):
            while not (await engine.state(execution_id)).is_terminal:
                await asyncio.sleep(0.2)
        told = await engine.finish(execution_id)
        assert told.result == [[100000, 0, 100000, 5], 100000, 99999]
        small, large = (mock.Mock(wraps=one) for one in (engine.engine.small_payloads, engine.engine.large_payloads))
        fresh = Payloads(small=small, large=large)
        view = Reader(fresh, **OWNER).step(told.state.step_results["each"].to_json())
        template = compile_template("{{ each.results[99999].n }}")
        assert await settled(lambda: render(template, {"each": view})) == 99999
        read = [*small.get.call_args_list, *large.get.call_args_list, *large.get_range.call_args_list]
        assert 0 < len(read) <= 4, "the frames of the other rows are not opened"
