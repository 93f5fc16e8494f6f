"""Rows in columns through a whole run: from one task to the next, to another step, through loops, rules and `ctx`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from noetl.core.errors import PlaybookInvalid
from noetl.core.reference import MEDIA_ARROW, is_parted
from tests.support.aio import asynchronous
from tests.support.databases import empty_database
from tests.support.engine import Running, completed, running_engine

SMALL, LARGE = 5, 200_000
"""One table that travels with its event, and one that is stored before it."""

MAKE = """
            import pyarrow as pa, decimal, datetime
            n = {rows}
            result = pa.table({{
                "n": pa.array(range(n), pa.int64()),
                "price": pa.array([decimal.Decimal("1.10")] * n, pa.decimal128(10, 2)),
                "day": pa.array([datetime.date(2026, 11, 16)] * n, pa.date32()),
                "text": pa.array([f"item {{i * 7919 % 100003}}" for i in range(n)]),
            }})
"""


@asynccontextmanager
async def running(tmp_path: Path, **variables: str) -> AsyncIterator[Running]:
    async with running_engine(await asyncio.to_thread(empty_database), tmp_path, variables) as engine:
        yield engine


def row(number: int) -> dict[str, Any]:
    return {"n": number, "price": 1.1, "day": "2026-11-16", "text": f"item {number * 7919 % 100003}"}


@pytest.mark.parametrize("rows", [0, SMALL, LARGE])
@asynchronous
async def test_a_table_is_a_list_of_rows_for_templates_rules_loops_and_code(tmp_path: Path, rows: int) -> None:
    """Nobody sees that it is stored in columns, whoever looks, and however many there are."""
    body = f"""
    workflow:
      - step: make
        tool:
          kind: python
          code: |{MAKE.format(rows=rows)}
          spec:
            policy:
              rules:
                - when: "{{{{ (output.data | length) > 1 and output.data[1].n == 1 }}}}"
                  then: {{do: continue, set: {{ctx.second: "{{{{ output.data[1] }}}}"}}}}
                - else: {{then: {{do: continue}}}}
        set: {{kept.rows: "{{{{ make }}}}"}}
        next: [{{step: look, when: "{{{{ make | length == {rows} }}}}"}}]
      - step: look
        tool:
          - count: {{kind: python, input: {{rows: "{{{{ make }}}}"}}, code: "result = [len(rows), rows[-1:]]"}}
          - sum:
              kind: python
              tables: arrow
              input: {{rows: "{{{{ make }}}}", more: {{again: "{{{{ ctx.kept.rows }}}}"}}}}
              code: |
                import pyarrow.compute as pc
                result = {{"sum": pc.sum(rows["n"]).as_py(), "type": str(rows.schema.field("price").type),
                          "again": more["again"].num_rows}}
          - pass:
              kind: python
              tables: arrow
              input: {{rows: "{{{{ make }}}}"}}
              code: "result = {{'rows': rows.slice(0, 2), 'n': 2}}"
        next: [{{step: each}}]
      - step: each
        loop: {{in: "{{{{ make[:3] }}}}", iterator: row, spec: {{mode: parallel}}}}
        tool: {{kind: noop, result: "{{{{ row.n }}}} {{{{ row.price }}}}"}}
        next: [{{step: end}}]
      - step: end
        tool:
          kind: noop
          result:
            count: "{{{{ look.count }}}}"
            sum: "{{{{ look.sum }}}}"
            passed: "{{{{ look.pass.rows | map(attribute='n') | list }}}}"
            each: "{{{{ each.results }}}}"
            last: "{{{{ make[-1] }}}}"
            second: "{{{{ ctx.second }}}}"
            kept: "{{{{ ctx.kept.rows | length }}}}"
    """
    async with running(tmp_path) as engine:
        told = await engine.run(body)
        found = completed(told)
        events = told.of_type("command.completed")
    last = row(rows - 1) if rows else None
    assert found["count"] == [rows, [last] if last else []]
    assert found["sum"] == {"sum": sum(range(rows)) if rows else None, "type": "decimal128(10, 2)", "again": rows}
    assert found["passed"] == list(range(min(rows, 2)))
    assert found["each"] == [f"{n} 1.1" for n in range(min(rows, 3))]
    assert found["last"] == last
    assert found["second"] == (row(1) if rows else None)
    assert found["kept"] == rows
    reference = events[0].result["reference"]
    assert (reference["media_type"], reference["row_count"]) == (MEDIA_ARROW, rows)
    assert reference["store"] == ("file" if rows == LARGE else "db")
    assert any(is_parted(event.result["reference"]["media_type"]) for event in events if event.result["reference"])


@asynchronous
async def test_rows_of_a_loop_may_be_tables(tmp_path: Path) -> None:
    body = """
    workflow:
      - step: each
        loop: {in: "{{ [1, 2, 3] }}", iterator: n, spec: {mode: parallel}}
        tool:
          kind: python
          input: {n: "{{ n }}"}
          code: |
            import pyarrow as pa
            result = {"rows": pa.table({"x": list(range(n * 40000))}), "n": n}
        next: [{step: end}]
      - step: end
        tool:
          kind: python
          tables: arrow
          input: {all: "{{ each.results }}", third: "{{ each.results[2].rows }}"}
          code: 'result = [[one["rows"].num_rows for one in all], third.num_rows, all[0]["n"]]'
    """
    async with running(tmp_path) as engine:
        assert completed(await engine.run(body)) == [[40_000, 80_000, 120_000], 120_000, 1]


@asynchronous
async def test_a_large_plain_result_never_passes_through_the_worker(tmp_path: Path) -> None:
    """It lands as a file with its index; templates and later steps see what they always saw."""
    body = """
    workflow:
      - step: big
        tool:
          kind: python
          code: 'result = {"rows": [{"n": i, "t": "x" * 50} for i in range(60000)], "none": float("nan"), 3: (1, 2)}'
        next: [{step: end, when: "{{ big.rows[59999].n == 59999 and big['3'][1] == 2 }}"}]
      - step: end
        tool:
          kind: python
          input: {rows: "{{ big.rows }}", none: "{{ big.none }}"}
          code: "result = [len(rows), rows[-1]['n'], none]"
    """
    async with running(tmp_path) as engine:
        told = await engine.run(body)
        assert completed(told) == [60_000, 59_999, None]
        reference = told.of_type("command.completed")[0].result["reference"]
    assert reference["index"]["bytes"] > 0
    assert reference["bytes"] > 3_000_000


@asynchronous
async def test_a_retry_that_waits_keeps_the_tables_of_earlier_tasks(tmp_path: Path) -> None:
    """The resume point of a pipeline names them."""
    body = f"""
    workflow:
      - step: make
        tool:
          - rows:
              kind: python
              code: |{MAKE.format(rows=LARGE).replace(chr(10), chr(10) + "    ")}
          - small: {{kind: python, code: "import pyarrow as pa; result = {{'t': pa.table({{'a': [1, 2]}})}}"}}
          - child: {{kind: playbook, path: tests/child, input: {{n: 1}}}}
          - after:
              kind: python
              tables: arrow
              input: {{rows: "{{{{ rows }}}}", small: "{{{{ small.t }}}}"}}
              code: "result = [rows.num_rows, small.num_rows]"
    """
    async with running(tmp_path) as engine:
        await engine.register("tests/child", "workflow:\n  - step: start\n    tool: {kind: noop, result: 5}\n")
        found = completed(await engine.run(body))
    assert found["after"] == [LARGE, 2]


@asynchronous
async def test_what_is_no_table_is_told_with_the_place(tmp_path: Path) -> None:
    body = """
    workflow:
      - step: bad
        tool: {kind: python, tables: "{{ 'side' ~ 'ways' }}", code: "result = 1"}
    """
    async with running(tmp_path) as engine:
        told = await engine.run(body)
        with pytest.raises(PlaybookInvalid, match="tables must be one of rows, arrow, pandas"):
            await engine.run(body.replace("\"{{ 'side' ~ 'ways' }}\"", "arow"))
    assert "tables must be one of rows, arrow, pandas, not 'sideways'" in str(told.state.failure)


@asynchronous
async def test_a_lost_collection_is_an_error_and_never_made_up(tmp_path: Path) -> None:
    """The frames of a loop read their rows from the table; without it no row is invented."""
    body = f"""
    workflow:
      - step: make
        tool:
          kind: python
          code: |{MAKE.format(rows=LARGE)}
        next: [{{step: lose}}]
      - step: lose
        tool:
          kind: python
          input: {{home: "{tmp_path}", digest: "{{{{ make._ref.sha256 }}}}"}}
          code: |
            import pathlib
            result = [p.unlink() for p in pathlib.Path(home, "payloads").rglob(f"*{{digest}}*")]
        next: [{{step: each}}]
      - step: each
        loop: {{in: "{{{{ make }}}}", iterator: row}}
        tool: {{kind: noop, result: "{{{{ row.n }}}}"}}
    """
    async with running(tmp_path, NOETL_TIER15_BUDGET_MB="0", NOETL_TIER1_MEMORY_MB="0") as engine:
        told = await engine.run(body)
    assert told.state.failure is not None
    assert told.state.failure["step"] == "each"
    assert told.state.loop_state == {} or all(loop.done == 0 for loop in told.state.loop_state.values())


@pytest.mark.parametrize("switch", ["true", "false"])
@asynchronous
async def test_rows_of_frames_can_be_kept_out_of_shared_memory_and_never_out_of_the_store(
    tmp_path: Path, switch: str
) -> None:
    body = f"""
    workflow:
      - step: each
        loop: {{in: [1, 2], iterator: x}}
        tool:
          kind: python
          code: |{MAKE.format(rows=LARGE)}
        next: [{{step: plain}}]
      - step: plain
        tool:
          kind: python
          code: |{MAKE.format(rows=LARGE)}
        next: [{{step: look}}]
      - step: look
        tool: {{kind: noop, result: "{{{{ each.results[1][7].n }}}}"}}
    """
    async with running(tmp_path, NOETL_CURSOR_FRAME_IPC_ENABLED=switch) as engine:
        told = await engine.run(body)
        assert completed(told) == 7
    frames = [event.result["reference"] for event in told.of_type("frame.committed") if event.result]
    assert frames
    assert [("ipc" in reference) for reference in frames] == [switch == "true"] * len(frames)
    plain = next(e for e in told.of_type("command.completed") if e.command_id == "plain#1" and e.result)
    assert "ipc" in plain.result["reference"], "only frames are meant"  # type: ignore[index]
