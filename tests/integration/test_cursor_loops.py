"""Cursor loops through the real engine, over a work table in a real database (shape S7; items 20 and 21 of dsl §12)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import Status
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import OWNER, Running, Told, _Owner, running_engine
from tests.support.work import CLAIM, CREDENTIAL, Work, claim_references, committed_rows, work_database

INDENT = " " * 14
NOTE = (
    "INSERT INTO journal (id) VALUES ({{ iter.row.id }}); UPDATE queue SET status = 'done' WHERE id = {{ iter.row.id }}"
)
ROW_TOOL = f"""
        tool: {{kind: postgres, auth: {CREDENTIAL}, command: "{NOTE}"}}"""
FRAME_TOOL = f"""
        tool:
          kind: postgres
          auth: {CREDENTIAL}
          command: |
            INSERT INTO journal (id) SELECT (x->>'id')::int
              FROM json_array_elements('{{{{ iter.row | tojson | replace("'", "''") }}}}') x;
            UPDATE queue SET status = 'done' WHERE id IN (SELECT id FROM journal);"""
TOOLS = {"row": ROW_TOOL, "frame": FRAME_TOOL}


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


@pytest.fixture(scope="module")
def work() -> Work:
    return work_database()


@asynccontextmanager
async def engine_over(address: str, home: Path, work: Work, rows: int) -> AsyncIterator[Running]:
    """An engine that knows the credential, and a table with so many rows."""
    await work.fill(rows)
    async with running_engine(address, home) as engine:
        await engine.engine.credentials.put(CREDENTIAL, type="postgres", data=work.login, owner=_Owner())
        yield engine


def playbook(
    tool: str,
    *,
    spec: str = "{}",
    claim: str = CLAIM,
    auth: str = CREDENTIAL,
    options: str = "{}",
    keys: str = "",
    workload: str = "{}",
) -> str:
    text = claim.replace("\n", "\n" + INDENT)
    return f"""
    workload: {workload}
    workflow:
      - step: drain
        loop:
          cursor:
            kind: postgres
            auth: {auth}
            options: {options}
            claim: |
              {text}
          iterator: row
          spec: {spec}{tool}{keys}
        next:
          arcs:
            - {{step: rescue, when: "{{{{ output.status == 'error' }}}}"}}
            - {{step: read, when: "{{{{ event.name == 'loop.done' and drain.row_count >= 0 }}}}"}}
      - {{step: rescue, tool: {{kind: python, input: {{e: "{{{{ drain.error }}}}", all: "{{{{ drain }}}}"}},
         code: "result = {{'error': e, 'all': all}}"}}}}
      - {{step: read, tool: {{kind: python, input: {{all: "{{{{ drain }}}}"}}, code: "result = all"}}}}
    """


async def committed(engine: Running, told: Told) -> Counter[int]:
    """How often each row stands in a committed frame."""
    rows = {}
    for reference in claim_references(told.events):
        document: Any = await engine.engine.payloads.read_json(reference, **OWNER)
        rows[reference["sha256"]] = document["rows"]
    return committed_rows(told.events, rows)


async def drained(engine: Running, work: Work, body: str, total: int, **payload: object) -> Told:
    """Run it; every row is worked off once and stands in one committed frame."""
    told = await engine.run(body, payload)
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert fold_all(told.events) == told.state
    assert await work.journal() == Counter(range(1, total + 1))
    assert await committed(engine, told) == Counter(range(1, total + 1))
    assert await work.statuses() == ({"done": total} if total else {})
    stats = {"total": total, "success": total, "failed": 0}
    assert told.result | {"frames": 0} == {
        "status": "ok",
        "processed": total,
        "failed": 0,
        "breaks": 0,
        "frames": 0,
        "row_count": total,
        "stats": stats,
    }
    return told


# --- S7 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("process", ["row", "frame"])
@asynchronous
async def test_s7_cursor_loop_works_every_row_off_once(
    address: str, tmp_path: Path, work: Work, process: str, slots: int
) -> None:
    spec = f"{{mode: cursor, max_in_flight: {slots}, frame: {{max_rows: 5, process: {process}}}}}"
    async with engine_over(address, tmp_path, work, 42) as engine:
        told = await drained(engine, work, playbook(TOOLS[process], spec=spec), 42)
    assert told.result["frames"] >= 9
    assert {row["tries"] for row in await work.query("SELECT tries FROM queue")} == {1}
    assert len({e.meta["slot"] for e in told.of_type(kinds.FRAME_DISPATCHED)}) == slots


@asynchronous
async def test_s7_cursor_loop_takes_one_row_at_a_time_unless_told_otherwise(
    address: str, tmp_path: Path, work: Work
) -> None:
    async with engine_over(address, tmp_path, work, 6) as engine:
        told = await drained(engine, work, playbook(ROW_TOOL), 6)
    assert told.result["frames"] == 6
    assert [e.meta["rows"] for e in told.of_type(kinds.CURSOR_CLAIMED)] == [1] * 6


@asynchronous
async def test_s7_cursor_loop_over_an_empty_queue_is_done_at_once(address: str, tmp_path: Path, work: Work) -> None:
    async with engine_over(address, tmp_path, work, 0) as engine:
        told = await drained(engine, work, playbook(ROW_TOOL, spec="{max_in_flight: 3}"), 0)
    assert told.of_type(kinds.LOOP_DONE)[0].meta["total"] == 0


ADDING = f"""
        tool:
          kind: postgres
          auth: {CREDENTIAL}
          command: |
            INSERT INTO queue (id) SELECT {{{{ row.id }}}} + 10 WHERE {{{{ row.id }}}} <= 40 ON CONFLICT DO NOTHING;
            {NOTE.replace("; ", ";" + chr(10) + " " * 12)}"""


@pytest.mark.parametrize("slots", [1, 4])
@asynchronous
async def test_12_20_cursor_rows_added_while_draining_are_processed(
    address: str, tmp_path: Path, work: Work, slots: int
) -> None:
    """Ten rows, each of which brings another one, until there were fifty."""
    async with engine_over(address, tmp_path, work, 10) as engine:
        await drained(engine, work, playbook(ADDING, spec=f"{{max_in_flight: {slots}}}"), 50)


FRAME_NAMES = """
        tool:
          - name: look
            kind: python
            input: {rows: "{{ iter.row }}", same: "{{ iter.row_rows }}", bare: "{{ row }}",
                    count: "{{ frame.row_count }}", index: "{{ frame.index }}", base: "{{ frame.base_index }}",
                    frame_rows: "{{ frame.rows }}",
                    i: "{{ iter._frame_index }}", n: "{{ iter._frame_row_count }}", total: "{{ _total }}"}
            code: |
              assert rows == same == bare == frame_rows == row and isinstance(rows, list)
              result = {"ids": [r["id"] for r in rows], "names": [count, index, base, i, n, total]}
            set: {ctx.seen: "{{ (ctx.seen | default([])) + [output] }}"}"""


@asynchronous
async def test_12_21_process_frame_binds_the_iterator_to_a_list(address: str, tmp_path: Path, work: Work) -> None:
    async with engine_over(address, tmp_path, work, 7) as engine:
        told = await engine.run(playbook(FRAME_NAMES, spec="{frame: {max_rows: 3, process: frame}}"))
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.state.variables["seen"].value == [
        {"ids": [1, 2, 3], "names": [3, 0, 0, 0, 3, None]},
        {"ids": [4, 5, 6], "names": [3, 1, 3, 1, 3, None]},
        {"ids": [7], "names": [1, 2, 6, 2, 1, None]},
    ]


ROW_NAMES = """
        tool:
          kind: python
          input: {r: "{{ iter.row }}", i: "{{ iter._frame_index }}", n: "{{ iter._frame_row_index }}",
                  index: "{{ iter.index }}", first: "{{ iter._first }}", last: "{{ iter._last }}",
                  of: "{{ frame.row_count }}", d: "{{ loop.done }}"}
          code: "result = [row['id'], r['id'], i, n, index, _index, first, last, of, d]"
          set: {ctx.seen: "{{ (ctx.seen | default([])) + [output] }}"}"""


@asynchronous
async def test_s7_cursor_loop_rows_know_their_place_and_see_earlier_writes(
    address: str, tmp_path: Path, work: Work
) -> None:
    async with engine_over(address, tmp_path, work, 5) as engine:
        told = await engine.run(playbook(ROW_NAMES, spec="{frame: {max_rows: 2}}"))
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.state.variables["seen"].value == [
        [1, 1, 0, 0, 0, 0, True, False, 2, 0],
        [2, 2, 0, 1, 1, 1, False, False, 2, 1],
        [3, 3, 1, 0, 2, 2, False, False, 2, 2],
        [4, 4, 1, 1, 3, 3, False, False, 2, 3],
        [5, 5, 2, 0, 4, 4, False, False, 1, 4],
    ]


FAILING = """
        tool:
          kind: python
          input: {n: "{{ iter.row.id }}"}
          code: |
            if n in (3, 8):
                raise ValueError(f"no {n}")
            result = n"""


@pytest.mark.parametrize("slots", [1, 4])
@asynchronous
async def test_s7_cursor_loop_counts_a_failing_row_and_goes_on(
    address: str, tmp_path: Path, work: Work, slots: int
) -> None:
    async with engine_over(address, tmp_path, work, 12) as engine:
        told = await engine.run(playbook(FAILING, spec=f"{{max_in_flight: {slots}, frame: {{max_rows: 5}}}}"))
        assert await committed(engine, told) == Counter(range(1, 13))
    assert told.state.status is Status.COMPLETED
    assert told.result.pop("dead_letter") == told.state.ended_loops["drain"].dead_letter
    assert told.result | {"frames": 0} == {
        "status": "partial",
        "processed": 10,
        "failed": 2,
        "breaks": 0,
        "frames": 0,
        "row_count": 12,
        "stats": {"total": 12, "success": 10, "failed": 2},
    }


@asynchronous
async def test_s7_cursor_loop_may_fail_at_its_first_failing_row(address: str, tmp_path: Path, work: Work) -> None:
    keys = """
        spec: {policy: {failure: {mode: fail_fast}}}"""
    async with engine_over(address, tmp_path, work, 12) as engine:
        told = await engine.run(playbook(FAILING, spec="{frame: {max_rows: 5}}", keys=keys))
    assert told.state.status is Status.COMPLETED
    assert told.result["error"]["message"].startswith("item 2: ")
    assert told.result["all"]["stats"] == {"total": 5, "success": 2, "failed": 1}
    assert await work.statuses() == {"pending": 7, "claimed": 5}


@asynchronous
async def test_s7_cursor_loop_a_frame_whose_pipeline_fails_counts_all_its_rows(
    address: str, tmp_path: Path, work: Work
) -> None:
    tool = """
        tool: {kind: python, input: {rows: "{{ iter.row }}"}, code: "assert rows[0]['id'] != 4"}"""
    async with engine_over(address, tmp_path, work, 9) as engine:
        told = await engine.run(playbook(tool, spec="{frame: {max_rows: 3, process: frame}}"))
    assert told.result["stats"] == {"total": 9, "success": 6, "failed": 3}
    assert (told.result["status"], told.result["frames"]) == ("partial", 3)


@asynchronous
async def test_s7_cursor_loop_break_stops_the_slot_after_its_frame(address: str, tmp_path: Path, work: Work) -> None:
    tool = ROW_TOOL.replace("tool: {kind", "tool: {spec: {policy: {rules: [RULES]}}, kind").replace(
        "RULES", '{when: "{{ iter.row.id == 4 }}", then: {do: break}}, {else: {then: {do: continue}}}'
    )
    async with engine_over(address, tmp_path, work, 12) as engine:
        told = await engine.run(playbook(tool, spec="{frame: {max_rows: 3}}"))
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert (told.result["breaks"], told.result["processed"], told.result["status"]) == (1, 6, "ok")
    assert await work.journal() == Counter(range(1, 7))
    assert await work.statuses() == {"done": 6, "pending": 6}


@asynchronous
async def test_s7_cursor_loop_ends_a_slot_at_its_limit_with_a_warning(address: str, tmp_path: Path, work: Work) -> None:
    async with engine_over(address, tmp_path, work, 12) as engine:
        body = playbook(ROW_TOOL, spec="{frame: {max_rows: 2}}", options='{pool_size: 2, max_iterations: "{{ 5 }}"}')
        told = await engine.run(body)
    assert (told.result["processed"], told.result["status"]) == (6, "partial")
    assert "limit of 5 rows" in str(told.of_type(kinds.LOOP_DONE)[0].meta["warnings"])
    assert (await work.statuses())["pending"] == 6


# --- templates -------------------------------------------------------------------------------------------


@asynchronous
async def test_s7_cursor_loop_every_field_may_be_a_template(address: str, tmp_path: Path, work: Work) -> None:
    frame = (
        '{max_rows: "{{ workload.frame.rows }}", process: "{{ workload.frame.how }}", row_concurrency: "{{ 2 }}",'
        ' lease_seconds: "{{ 60 }}", heartbeat_seconds: "{{ 20 }}", max_seconds: "{{ 0.000001 }}",'
        ' max_bytes: "{{ 10 }}", max_attempts: "{{ 2 }}", verify_ipc: "{{ false }}"}'
    )
    body = playbook(
        ROW_TOOL,
        spec=f'{{max_in_flight: "{{{{ workload.slots }}}}", frame: {frame}}}',
        auth='"{{ workload.pg }}"',
        workload="{frame: {rows: 4, how: row}, slots: 2, pg: " + CREDENTIAL + "}",
    )
    async with engine_over(address, tmp_path, work, 9) as engine:
        told = await drained(engine, work, body, 9)
    policy: Any = told.of_type(kinds.LOOP_STARTED)[0].meta["policy"]
    assert (policy["max_in_flight"], policy["frame_rows"], policy["row_concurrency"]) == (2, 4, 2)
    # Soft bounds are told and nothing else.
    warnings: Any = told.of_type(kinds.FRAME_COMMITTED)[0].meta["warnings"]
    assert "more than max_seconds" in warnings[0]
    assert "more than max_bytes 10" in warnings[1]


@asynchronous
async def test_s7_cursor_loop_a_frame_number_that_is_none_fails_the_step(
    address: str, tmp_path: Path, work: Work
) -> None:
    async with engine_over(address, tmp_path, work, 1) as engine:
        told = await engine.run(
            playbook(ROW_TOOL, spec='{frame: {max_rows: "{{ workload.nope }}", process: "{{ 1 }}"}}')
        )
    assert told.result["error"]["kind"] == "config"
    assert "loop.spec.frame.process must be row or frame" in told.result["error"]["message"]
    assert await work.statuses() == {"pending": 1}


@asynchronous
async def test_s7_cursor_loop_a_long_claim_about_data_is_rendered_by_a_worker(
    address: str, tmp_path: Path, work: Work
) -> None:
    claim = CLAIM.replace("status = 'pending'", "status = 'pending' AND id IN ({{ steps.start.ids | join(', ') }})")
    body = playbook(ROW_TOOL, claim=claim, spec="{frame: {max_rows: 100}}").replace(
        "- step: drain",
        "- {step: start, tool: {kind: python, code: \"result = {'ids': list(range(1, 3001))}\"}, next: drain}\n"
        "      - step: drain",
    )
    async with engine_over(address, tmp_path, work, 300) as engine:
        told = await drained(engine, work, body, 300)
    cursor: Any = told.of_type(kinds.LOOP_STARTED)[0].meta["cursor"]
    assert set(cursor["claim"]) == {"ref", "path"}
    assert told.result["frames"] == 3


@asynchronous
async def test_s7_cursor_loop_values_are_those_of_a_postgres_task(address: str, tmp_path: Path, work: Work) -> None:
    claim = (
        "UPDATE queue SET status = 'x' WHERE status = 'pending' RETURNING id::numeric AS id, 1.50::numeric AS price,\n"
        "  '2026-01-02T03:04:05Z'::timestamptz AS at, '{\"a\": [1]}'::jsonb AS doc, 'NaN'::float8 AS nan, NULL AS none"
    )
    tool = """
        tool: {kind: python, input: {r: "{{ row }}"}, code: "result = r", set: {ctx.row: "{{ output }}"}}"""
    async with engine_over(address, tmp_path, work, 1) as engine:
        told = await engine.run(playbook(tool, claim=claim))
        task = f'- {{step: s, tool: {{kind: postgres, auth: {CREDENTIAL}, command: "{claim}"}}}}'.replace("\n", " ")
        await work.fill(1)
        same = await engine.run("workflow:\n  " + task.replace('"a"', '\\"a\\"'))
    row = told.state.variables["row"].value
    assert row == {
        "id": 1,
        "price": 1.5,
        "at": "2026-01-02T03:04:05+00:00",
        "doc": {"a": [1]},
        "nan": None,
        "none": None,
    }
    assert same.result["rows"] == [row]


# --- claims that go wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claim", "kind", "says"),
    [
        ("SELECT * FROM nowhere", "schema", "nowhere"),
        ("UPDATE queue SET status = 'x'", "config", "returns no rows: add RETURNING"),
        ("SELECT 1 AS id; COMMIT", "config", "statement 1 of the claim is COMMIT"),
        ("-- nothing", "config", "no statement"),
        ("SELECT $1::int AS id", "config", "parameters"),
        ("SELECT i AS id FROM generate_series(1, 60000) i", "config", "60,000 rows at once"),
        ("INSERT INTO pairs VALUES (1), (1) RETURNING id", "db_constraint", "duplicate key"),
    ],
)
@asynchronous
async def test_s7_cursor_loop_a_claim_that_cannot_work_fails_the_step(
    address: str, tmp_path: Path, work: Work, claim: str, kind: str, says: str
) -> None:
    await work.query("CREATE TABLE IF NOT EXISTS pairs (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    async with engine_over(address, tmp_path, work, 2) as engine:
        told = await engine.run(playbook(ROW_TOOL, claim=claim, spec="{max_in_flight: 2}"))
    assert told.state.status is Status.COMPLETED
    assert told.result["error"]["kind"] == kind, told.result
    assert says in told.result["error"]["message"]
    assert await work.statuses() == {"pending": 2}


@asynchronous
async def test_s7_cursor_loop_a_database_that_is_away_is_tried_as_often_as_a_frame(
    address: str, tmp_path: Path, work: Work
) -> None:
    async with engine_over(address, tmp_path, work, 1) as engine:
        away = {"db_host": str(tmp_path), "db_user": "noetl", "db_name": "x"}
        await engine.engine.credentials.put("pg_away", type="postgres", data=away, owner=_Owner())
        told = await engine.run(playbook(ROW_TOOL, auth="pg_away", spec="{frame: {max_attempts: 2}}"))
        unknown = await engine.run(playbook(ROW_TOOL, auth="pg_nowhere"))
    assert (told.result["error"]["kind"], told.result["error"]["code"]) == ("db_connection", "CONN_REFUSED")
    assert unknown.result["error"]["kind"] == "auth"
    assert "pg_nowhere" in unknown.result["error"]["message"]


@asynchronous
async def test_s7_cursor_loop_rows_beyond_max_rows_are_taken_and_so_they_are_worked_off(
    address: str, tmp_path: Path, work: Work
) -> None:
    claim = CLAIM.replace("{{ __frame_max_rows | default(1) | int }}", "4")
    async with engine_over(address, tmp_path, work, 6) as engine:
        told = await drained(engine, work, playbook(ROW_TOOL, claim=claim), 6)
    warnings: Any = told.of_type(kinds.FRAME_COMMITTED)[0].meta["warnings"]
    assert warnings == ["the claim took 4 rows where max_rows is 1: all of them are worked off"]


# --- restarts --------------------------------------------------------------------------------------------


SLOW = f"""
        tool:
          - {{name: note, kind: postgres, auth: {CREDENTIAL}, command: "{NOTE}"}}
          - {{name: wait, kind: python, code: "import time; time.sleep(0.1)"}}"""


@pytest.mark.parametrize("retry_mode", ["", ", retry_mode: whole_frame"])
@asynchronous
async def test_s7_cursor_loop_goes_on_with_the_recorded_rows_after_a_restart(
    address: str, tmp_path: Path, work: Work, retry_mode: str
) -> None:
    async with engine_over(address, tmp_path, work, 12) as engine:
        body = playbook(SLOW, spec=f"{{frame: {{max_rows: 12{retry_mode}}}}}")
        execution_id = await engine.start(body)
        async with asyncio.timeout(60):
            while len(await work.journal()) < 7:
                await asyncio.sleep(0.02)
    async with running_engine(address, tmp_path) as engine:
        told = await engine.finish(execution_id)
        assert await committed(engine, told) == Counter(range(1, 13))
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result["stats"] == {"total": 12, "success": 12, "failed": 0}
    assert {row["tries"] for row in await work.query("SELECT tries FROM queue")} == {1}
    (lost,) = told.of_type(kinds.FRAME_ABANDONED)
    journal = await work.journal()
    if retry_mode:
        assert lost.meta["retry_mode"] == "whole_frame"
        assert journal[1] == 2
    else:
        assert lost.meta["skipped"] != 0
        assert journal[1] == 1
    assert len(told.of_type(kinds.CURSOR_CLAIMED)) == 1


@asynchronous
async def test_s7_cursor_loop_is_cancelled_with_its_execution(address: str, tmp_path: Path, work: Work) -> None:
    tool = """
        tool: {kind: python, code: "import time; time.sleep(30)"}"""
    async with engine_over(address, tmp_path, work, 3) as engine:
        execution_id = await engine.start(playbook(tool, spec="{max_in_flight: 2}"))
        await engine.until(execution_id, lambda state: any(c.frame and c.frame.claim for c in state.commands.values()))
        await engine.cancel(execution_id)
        told = await engine.finish(execution_id)
    assert told.state.status is Status.CANCELLED


@asynchronous
async def test_s7_cursor_loop_keeps_the_time_limit_of_its_step(address: str, tmp_path: Path, work: Work) -> None:
    tool = """
        tool: {kind: python, code: "import time; time.sleep(30)"}"""
    keys = """
        spec: {timeout: 0.7}"""
    async with engine_over(address, tmp_path, work, 3) as engine:
        told = await engine.run(playbook(tool, spec="{max_in_flight: 2}", keys=keys))
    assert told.state.status is Status.COMPLETED
    assert told.result["error"]["code"] == "step_timeout"
    assert told.result["all"]["stats"] == {"total": 2, "success": 0, "failed": 2}


# --- children --------------------------------------------------------------------------------------------


@asynchronous
async def test_s7_cursor_loop_rows_may_start_other_playbooks(address: str, tmp_path: Path, work: Work) -> None:
    """Several rows of a frame wait, one after the other, without holding a slot."""
    child = f"""
    workload: {{id: 0}}
    workflow:
      - step: only
        tool: {{kind: postgres, auth: {CREDENTIAL}, command: "{NOTE.replace("iter.row.id", "workload.id")}"}}"""
    tool = """
        tool: {kind: playbook, path: children/one, input: {id: "{{ iter.row.id }}"}}"""
    async with engine_over(address, tmp_path, work, 5) as engine:
        await engine.register("children/one", child)
        told = await drained(engine, work, playbook(tool, spec="{max_in_flight: 2, frame: {max_rows: 2}}"), 5)
    assert len(told.of_type(kinds.CHILD_STARTED)) == 5
