"""`noetl.stage` and `noetl.frame`: loops as rows, with the edges that replay and audit walk along."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from noetl.core import kinds
from tests.integration.test_cursor_loops import ROW_TOOL, engine_over
from tests.integration.test_cursor_loops import playbook as cursor_playbook
from tests.support.aio import asynchronous
from tests.support.databases import connected, fresh_database
from tests.support.engine import running_engine
from tests.support.work import work_database

CHAIN = """
workflow:
  - step: first
    loop: {in: [0, 1, 2, 3, 4], iterator: x, spec: {mode: parallel, max_in_flight: 2, frame: {max_rows: 2}}}
    spec: {policy: {failure: {mode: best_effort}}}
    tool: {kind: noop, result: "{{ 6 // x }}"}
    next: [{step: plain}]
  - step: plain
    tool: {kind: noop}
    next: [{step: second}]
  - step: second
    loop: {in: [1, 2], iterator: x, spec: {mode: fanout}}
    tool: {kind: noop}
    next: [{step: third}]
  - step: third
    loop: {in: [1], iterator: x}
    tool: {kind: noop}
"""


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


async def rows(address: str, table: str, execution_id: int) -> list[dict[str, Any]]:
    order = {"stage": "opened_event_id", "frame": "claimed_event_id"}[table]
    async with connected(address) as connection:
        found = await connection.fetch(
            f"SELECT * FROM noetl.{table} WHERE execution_id = $1 ORDER BY {order}", execution_id
        )
    return [dict(row) for row in found]


@asynchronous
async def test_rows_are_what_the_events_say(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as running:
        told = await running.run(CHAIN)
    execution_id, by_id = told.state.execution_id, {event.event_id: event for event in told.events}
    first, second, third = stages = await rows(address, "stage", execution_id)
    assert [(one["stage_id"], one["step"], one["run"], one["kind"], one["source"]) for one in stages] == [
        ("first#1", "first", 1, "loop", "collection"),
        ("second#1", "second", 1, "fanout", "collection"),
        ("third#1", "third", 1, "loop", "collection"),
    ]
    assert {one["status"] for one in stages} == {"closed"}
    assert (first["total"], first["done"], first["failed"], first["frames"]) == (5, 5, 1, 3)
    policy = json.loads(first["frame_policy"])
    assert {name: policy[name] for name in ("max_in_flight", "max_rows", "process")} == {
        "max_in_flight": 2,
        "max_rows": 2,
        "process": "row",
    }
    assert json.loads(second["frame_policy"])["max_shard_retries"] == 2
    # A step between two loops is a link of another kind.
    assert [one["parent_stage_id"] for one in stages] == [None, None, "second#1"]
    for one in stages:
        assert by_id[one["opened_event_id"]].event_type == kinds.STAGE_OPENED
        assert by_id[one["loop_event_id"]].event_type == kinds.LOOP_STARTED
        assert by_id[one["closed_event_id"]].event_type == kinds.STAGE_CLOSED
        assert one["opened_at"] <= one["closed_at"]
    frames = [one for one in await rows(address, "frame", execution_id) if one["stage_id"] == "first#1"]
    assert [(one["frame_id"], one["parent_frame_id"], one["command_id"]) for one in frames] == [
        ("first#1/1", None, "first#1/1"),
        ("first#1/2", "first#1/1", "first#1/2"),
        ("first#1/3", "first#1/2", "first#1/3"),
    ]
    assert [(one["first_row"], one["row_count"], one["succeeded"], one["failed"]) for one in frames] == [
        (0, 2, 1, 1),
        (2, 2, 2, 0),
        (4, 1, 1, 0),
    ]
    for one in frames:
        assert (one["status"], one["attempt"]) == ("committed", 1)
        assert by_id[one["claimed_event_id"]].event_type == kinds.FRAME_DISPATCHED
        terminal = by_id[one["terminal_event_id"]]
        assert terminal.event_type == kinds.FRAME_COMMITTED
        assert terminal.result["reference"]["sha256"] == one["output_sha256"]  # type: ignore[index]
        started = next(e for e in told.events if e.frame_id == one["frame_id"] and e.event_type == kinds.FRAME_STARTED)
        assert str(one["owner_session_id"]) == started.meta["session"]
        assert one["dispatched_at"] <= one["started_at"] <= one["ended_at"]
        assert one["wall_ms"] >= 0
    assert (second["frames"], third["frames"]) == (2, 1)


@asynchronous
async def test_the_turns_of_a_cursors_slot_are_a_chain(tmp_path: Path) -> None:
    address, work = await asyncio.to_thread(fresh_database), await asyncio.to_thread(work_database)
    async with engine_over(address, tmp_path, work, 9) as running:
        spec = "{mode: cursor, max_in_flight: 2, frame: {max_rows: 2}}"
        told = await running.run(cursor_playbook(ROW_TOOL, spec=spec))
    (stage,) = await rows(address, "stage", told.state.execution_id)
    assert (stage["kind"], stage["source"], stage["status"]) == ("loop", "cursor", "closed")
    assert (stage["total"], stage["done"]) == (9, 9)
    frames = await rows(address, "frame", told.state.execution_id)
    assert sum(one["row_count"] for one in frames) == 9
    before: dict[int, str] = {}
    for one in frames:
        assert one["parent_frame_id"] == before.get(one["slot"])
        before[one["slot"]] = one["frame_id"]
    assert len(before) == 2


@asynchronous
async def test_what_is_under_way_is_open(address: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = f"import pathlib, time\nwhile not pathlib.Path('{gate}').exists(): time.sleep(0.01)"
    body = f"""
workflow:
  - step: rows
    loop: {{in: [1, 2], iterator: x}}
    tool: {{kind: python, code: {code!r}}}
"""
    async with running_engine(address, tmp_path) as running:
        execution_id = await running.start(body.replace("'import", '"import').replace("0.01)'", '0.01)"'))
        async with asyncio.timeout(60):
            while [one["status"] for one in await rows(address, "frame", execution_id)] != ["started"]:
                await asyncio.sleep(0.01)
        (stage,) = await rows(address, "stage", execution_id)
        assert (stage["status"], stage["closed_event_id"], stage["done"]) == ("open", None, None)
        gate.touch()
        await running.finish(execution_id)


REDUCED = """
workflow:
  - step: parts
    loop: {in: [1, 2, 3], iterator: x, spec: {mode: fanout}}
    tool: {kind: noop, result: "{{ x }}"}
    next: [{step: total, set: {ctx.refs: "{{ fanin.refs }}"}}]
  - step: total
    tool: {kind: noop, result: "{{ parts.results | sum }}"}
    next: [{step: after}]
  - step: after
    tool: {kind: noop}
"""


@asynchronous
async def test_the_step_that_a_fan_out_leads_to_reduces_it(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as running:
        told = await running.run(REDUCED)
    by_id = {event.event_id: event for event in told.events}
    parts, total = await rows(address, "stage", told.state.execution_id)
    assert (parts["kind"], parts["parent_stage_id"]) == ("fanout", None)
    assert (total["stage_id"], total["kind"], total["source"]) == ("total#1", "reduce", "references")
    assert (total["parent_stage_id"], total["status"], total["total"]) == ("parts#1", "closed", 3)
    assert by_id[total["opened_event_id"]].event_type == kinds.COMMAND_ISSUED
    assert by_id[total["closed_event_id"]].event_type == kinds.COMMAND_COMPLETED
    assert by_id[parts["closed_event_id"]].event_id < total["opened_event_id"]


MET = """
workflow:
  - step: start
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: here}, {step: there}]}
  - step: here
    loop: {in: [1, 2], iterator: x, spec: {mode: fanout}}
    tool: {kind: noop}
    next: [{step: total}]
  - step: there
    loop: {in: [1, 2, 3], iterator: x, spec: {mode: fanout}}
    tool: {kind: noop}
    next: [{step: total}]
  - step: total
    tool: {kind: noop}
"""


@asynchronous
async def test_a_step_in_which_two_fan_outs_meet_is_one_stage(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as running:
        told = await running.run(MET)
    by_id = {event.event_id: event for event in told.events}
    *fanouts, total = await rows(address, "stage", told.state.execution_id)
    assert sorted(one["stage_id"] for one in fanouts) == ["here#1", "there#1"]
    last = max((e for e in told.events if e.event_type == kinds.FANIN_COMPLETED), key=lambda e: e.position)
    assert (total["stage_id"], total["kind"], total["parent_stage_id"]) == ("total#1", "reduce", last.stage_id)
    assert by_id[total["opened_event_id"]].position > last.position


REFUSED = """
workflow:
  - step: rows
    loop: {in: 5, iterator: x}
    tool: {kind: noop}
"""


@asynchronous
async def test_a_loop_that_could_not_begin_has_a_row_too(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as running:
        told = await running.run(REFUSED)
    (stage,) = await rows(address, "stage", told.state.execution_id)
    assert (stage["status"], stage["loop_event_id"], stage["frames"]) == ("refused", None, 0)


@asynchronous
async def test_loops_of_an_older_ledger_are_shown_by_their_beginning_and_end(tmp_path: Path) -> None:
    """Events of before there were openings of stages: the view finds its rows all the same."""
    address = await asyncio.to_thread(fresh_database)
    async with running_engine(address, tmp_path) as running:
        told = await running.run(CHAIN)
    by_id = {event.event_id: event for event in told.events}
    async with connected(address) as connection:
        await connection.execute("DELETE FROM noetl.event WHERE event_type LIKE 'stage.%'")
    first, second, _ = await rows(address, "stage", told.state.execution_id)
    assert [one["kind"] for one in (first, second)] == ["loop", "fanout"]
    assert (first["status"], first["source"]) == ("closed", "collection")
    assert by_id[first["opened_event_id"]].event_type == kinds.LOOP_STARTED
    assert by_id[first["closed_event_id"]].event_type == kinds.LOOP_DONE
