"""Items of loops through the real engine: every kind of loop, while it runs and when it has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from noetl.core.errors import ResultUnknown
from noetl.engine.reading.items import Items, LoopReading
from tests.integration.test_cursor_loops import ROW_TOOL, engine_over
from tests.integration.test_cursor_loops import playbook as cursor_playbook
from tests.support.aio import asynchronous
from tests.support.databases import connected, fresh_database
from tests.support.engine import OWNER, Running, running_engine
from tests.support.work import Work, work_database

ODD_FAIL = """
    tool:
      kind: python
      input: {{x: "{{{{ x }}}}"}}
      code: |
        if x % 2:
            raise ValueError(f"odd {{x}}")
        result = x * 10
"""


def loop(spec: str, tool: str = ODD_FAIL, *, rows: str = "[0, 1, 2, 3, 4, 5, 6]", keys: str = "") -> str:
    return f"""
workflow:
  - step: rows
    loop: {{in: {rows}, iterator: x, spec: {spec}}}
{keys}{tool.format()}
"""


BEST_EFFORT = "    spec: {policy: {failure: {mode: best_effort}}}\n"


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


async def find(running: Running, execution_id: int, step: str = "rows", run: int | None = None) -> LoopReading:
    return await running.engine.items.find(execution_id, step, run=run, **OWNER)


def statuses(page: Items) -> str:
    return "".join(item.status[0] for item in page.items)


@asynchronous
async def test_each_item_says_how_it_ended_and_where_it_ran(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as running:
        told = await running.run(loop("{mode: parallel, max_in_flight: 2, frame: {max_rows: 3}}", keys=BEST_EFFORT))
        reading = await find(running, told.state.execution_id)
        page = await reading.page(0, 100, is_failed=False)
        assert (page.step, page.run, page.kind, page.total, page.done, page.failed) == (
            "rows",
            1,
            "collection",
            7,
            7,
            3,
        )
        assert (page.frames, page.next_index) == (3, None)
        assert statuses(page) == "sfsfsfs"
        assert [(item.index, item.frame_id, item.row) for item in page.items] == [
            (index, f"rows#1/{index // 3 + 1}", index % 3) for index in range(7)
        ]
        assert {item.attempt for item in page.items} == {1}
        assert page.items[3].error is not None
        assert "odd 3" in str(page.items[3].error["message"])
        failed = await reading.page(0, 100, is_failed=True)
        assert [item.index for item in failed.items] == [1, 3, 5]


@asynchronous
async def test_pages_go_on_where_the_one_before_ended(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as running:
        told = await running.run(loop("{mode: parallel, max_in_flight: 2, frame: {max_rows: 3}}", keys=BEST_EFFORT))
        reading = await find(running, told.state.execution_id)
        first = await reading.page(0, 2, is_failed=False)
        assert ([item.index for item in first.items], first.next_index) == ([0, 1], 2)
        second = await reading.page(2, 5, is_failed=False)
        assert ([item.index for item in second.items], second.next_index) == ([2, 3, 4, 5, 6], None)
        few = await reading.page(0, 2, is_failed=True)
        assert ([item.index for item in few.items], few.next_index) == ([1, 3], 5)
        assert (await reading.page(7, 5, is_failed=False)).items == []


@asynchronous
async def test_one_item_has_what_went_in_and_what_came_out(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as running:
        told = await running.run(loop("{mode: parallel, max_in_flight: 4}", keys=BEST_EFFORT, rows="[4, 5]"))
        reading = await find(running, told.state.execution_id)
        (good,) = (await reading.one(0)).items
        assert (good.index, good.status, good.input, good.result) == (0, "success", 4, 40)
        (bad,) = (await reading.one(1)).items
        assert (bad.status, bad.input) == ("failed", 5)
        assert bad.result == (await running.engine.service.result(told.state))["results"][1]  # type: ignore[index]
        for index in (-1, 2):
            with pytest.raises(ResultUnknown, match="has 2 items"):
                await reading.one(index)


@asynchronous
async def test_items_behind_a_failure_never_ran(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as running:
        told = await running.run(loop("{mode: sequential, frame: {max_rows: 3}}"))
        reading = await find(running, told.state.execution_id)
        page = await reading.page(0, 100, is_failed=False)
        assert [item.status for item in page.items] == ["success", "failed", *["skipped"] * 5]
        assert [item.frame_id for item in page.items] == [*["rows#1/1"] * 3, *[None] * 4]
        assert (page.done, page.failed) == (2, 1)
        assert [item.index for item in (await reading.page(0, 3, is_failed=True)).items] == [1, 2, 3]


@asynchronous
async def test_items_of_frames_that_were_taken_back_never_ran(address: str, tmp_path: Path) -> None:
    """The first of them fails while the others wait for a slot."""
    async with running_engine(address, tmp_path, {"NOETL_WORKER_SLOTS": "1"}) as running:
        told = await running.run(
            loop("{mode: parallel, max_in_flight: 3, frame: {max_rows: 1}}", rows="[5, 4, 4, 4, 4]")
        )
        reading = await find(running, told.state.execution_id)
        page = await reading.page(0, 100, is_failed=False)
        assert [item.status for item in page.items] == ["failed", *["skipped"] * 4]
        assert [item.frame_id for item in page.items] == ["rows#1/1", "rows#1/2", "rows#1/3", None, None]
        assert [item.index for item in (await reading.page(0, 100, is_failed=True)).items] == [0, 1, 2, 3, 4]
    async with connected(address) as connection:
        query = "SELECT number, status FROM noetl.frame WHERE execution_id = $1 ORDER BY number"
        frames = await connection.fetch(query, told.state.execution_id)
    assert [tuple(row) for row in frames] == [(1, "failed"), (2, "withdrawn"), (3, "withdrawn")]


@asynchronous
async def test_of_a_pipeline_that_runs_once_per_frame_all_rows_share_its_outcome(address: str, tmp_path: Path) -> None:
    tool = """
    tool:
      kind: python
      input: {{rows: "{{{{ frame.rows }}}}"}}
      code: |
        if 4 in rows:
            raise ValueError("four")
        result = sum(rows)
"""
    spec = "{mode: parallel, max_in_flight: 2, frame: {max_rows: 3, process: frame}}"
    async with running_engine(address, tmp_path) as running:
        told = await running.run(loop(spec, tool, keys=BEST_EFFORT))
        reading = await find(running, told.state.execution_id)
        page = await reading.page(0, 100, is_failed=False)
        assert statuses(page) == "sssfffs"
        (one,) = (await reading.one(1)).items
        assert (one.input, one.result) == (1, 3)


@asynchronous
async def test_of_a_shard_that_ran_again_the_last_try_counts(address: str, tmp_path: Path) -> None:
    tool = f"""
    tool:
      kind: python
      input: {{{{x: "{{{{{{{{ x }}}}}}}}"}}}}
      code: |
        import pathlib
        mark = pathlib.Path("{tmp_path}") / f"tried-{{{{x}}}}"
        if x == 2 and not mark.exists():
            mark.touch()
            raise ValueError("first try")
        result = x
"""
    async with running_engine(address, tmp_path) as running:
        told = await running.run(
            loop("{mode: fanout, max_in_flight: 2, fanout: {shard_size: 2, max_shard_retries: 2}}", tool)
        )
        reading = await find(running, told.state.execution_id)
        page = await reading.page(0, 100, is_failed=False)
        assert statuses(page) == "sssssss", page
        assert page.failed == 0
        assert page.items[2].frame_id == page.items[3].frame_id
        assert int(str(page.items[2].frame_id).rpartition("/")[2]) > 2


@asynchronous
async def test_rows_of_a_cursor_count_in_the_order_of_their_frames(tmp_path: Path) -> None:
    address, work = await asyncio.to_thread(fresh_database), await asyncio.to_thread(work_database)
    await check_cursor(address, tmp_path, work)


async def check_cursor(address: str, tmp_path: Path, work: Work) -> None:
    async with engine_over(address, tmp_path, work, 7) as running:
        spec = "{mode: cursor, max_in_flight: 2, frame: {max_rows: 3}}"
        told = await running.run(cursor_playbook(ROW_TOOL, spec=spec))
        reading = await find(running, told.state.execution_id, "drain")
        page = await reading.page(0, 100, is_failed=False)
        assert (page.kind, page.total, page.done, page.failed) == ("cursor", 7, 7, 0)
        assert statuses(page) == "s" * 7
        whole = [(await reading.one(index)).items[0] for index in range(7)]
        assert sorted(item.input["id"] for item in whole) == list(range(1, 8))  # type: ignore[index]
        assert [(item.frame_id, item.row) for item in whole] == [(item.frame_id, item.row) for item in page.items]


@asynchronous
async def test_while_it_runs_items_run_and_wait(address: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    tool = f"""
    tool:
      kind: python
      input: {{{{x: "{{{{{{{{ x }}}}}}}}"}}}}
      code: |
        import pathlib, time
        while x == 1 and not pathlib.Path("{gate}").exists():
            time.sleep(0.01)
        result = x
"""
    async with running_engine(address, tmp_path) as running:
        execution_id = await running.start(loop("{mode: sequential, frame: {max_rows: 1}}", tool, rows="[0, 1, 2]"))
        await running.until(
            execution_id, lambda state: "rows" in state.loop_state and state.loop_state["rows"].done == 1
        )
        async with asyncio.timeout(60):
            while statuses(page := await (await find(running, execution_id)).page(0, 9, is_failed=False)) != "srw":
                await asyncio.sleep(0.01)
        assert (page.total, page.done) == (3, 1)
        (waiting,) = (await (await find(running, execution_id)).one(2)).items
        assert (waiting.status, waiting.input, waiting.frame_id) == ("waiting", 2, None)
        gate.touch()
        await running.finish(execution_id)
        assert statuses(await (await find(running, execution_id)).page(0, 9, is_failed=False)) == "sss"


@asynchronous
async def test_only_loops_have_items(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as running:
        told = await running.run("workflow: [{step: rows, tool: {kind: noop, result: 1}}]")
        with pytest.raises(ResultUnknown, match="is no loop"):
            await find(running, told.state.execution_id)
        with pytest.raises(ResultUnknown, match="no such step"):
            await find(running, told.state.execution_id, "nowhere")
        with pytest.raises(ResultUnknown, match="has no run 7"):
            await find(running, told.state.execution_id, run=7)


@asynchronous
async def test_rows_that_were_persisted_in_a_frame_that_still_runs_are_told(address: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    tool = f"""
    tool:
      kind: python
      input: {{{{x: "{{{{{{{{ x }}}}}}}}"}}}}
      code: |
        import pathlib, time
        while x == 5 and not pathlib.Path("{gate}").exists():
            time.sleep(0.01)
        if x == 4:
            raise ValueError("four")
        result = x * 10
"""
    async with running_engine(address, tmp_path) as running:
        body = loop("{mode: parallel, max_in_flight: 1, frame: {max_rows: 3}}", tool, keys=BEST_EFFORT)
        execution_id = await running.start(body)
        async with asyncio.timeout(60):
            while statuses(page := await (await find(running, execution_id)).page(0, 9, is_failed=False)) != "ssssfrw":
                await asyncio.sleep(0.02)
        reading = await find(running, execution_id)
        assert [item.index for item in (await reading.page(0, 9, is_failed=True)).items] == [4]
        (third,) = (await reading.one(3)).items
        assert (third.frame_id, third.row, third.result) == ("rows#1/2", 0, 30)
        assert page.items[4].error is not None
        gate.touch()
        await running.finish(execution_id)
