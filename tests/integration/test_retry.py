"""Running failed items once more, through the real engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.codec import canonical_bytes
from noetl.core.errors import (
    ExecutionRunning,
    ExecutionUnknown,
    NothingToRetry,
    PayloadMissing,
    RequestInvalid,
    ResultUnknown,
)
from noetl.core.event import Event
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import Status
from noetl.core.limits import EVENT_BODY_BYTES_MAX
from noetl.core.snapshot.snapshot import state_checksum
from noetl.engine.forking.retrying import RetryRequest
from tests.integration.test_cursor_loops import engine_over
from tests.integration.test_cursor_loops import playbook as cursor_playbook
from tests.support.aio import asynchronous
from tests.support.collecting import until_gone
from tests.support.databases import connected, fresh_database
from tests.support.engine import OWNER, Told, completed, running_engine
from tests.support.retries import Flaky, retried, retry
from tests.support.work import CREDENTIAL, Work, work_database

BEST_EFFORT = "    spec: {policy: {failure: {mode: best_effort}}}\n"


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


@pytest.fixture
def own() -> str:
    """A database that nobody else uses."""
    return fresh_database()


@pytest.fixture
def work() -> Work:
    return work_database()


@pytest.fixture
def flaky(tmp_path: Path) -> Flaky:
    found = Flaky(tmp_path)
    found.breaks(())
    return found


def playbook(flaky: Flaky, *, spec: str, rows: str = "range(200) | list", keys: str = BEST_EFFORT) -> str:
    return f"""
workload: {{first: 7}}
workflow:
  - step: before
    tool: {{kind: python, code: "result = {{'n': 1}}"}}
    next: {{arcs: [{{step: rows, set: {{ctx.seen: "{{{{ before.n }}}}"}}}}]}}
  - step: rows
    loop: {{in: "{{{{ {rows} }}}}", iterator: x, spec: {spec}}}
{keys}{flaky.tool()}
    next: {{arcs: [{{step: after}}]}}
  - step: after
    tool:
      kind: python
      input:
        got: "{{{{ rows.results }}}}"
        stats: "{{{{ rows.stats }}}}"
        seen: "{{{{ ctx.seen }}}}"
        first: "{{{{ workload.first }}}}"
      code: |
        good = [one["twice"] if isinstance(one, dict) and "twice" in one else None for one in got]
        result = {{"good": good, "stats": stats, "seen": seen, "first": first}}
"""


def replays(told: Told) -> None:
    """Its own events alone give its state."""
    folded = fold_all(told.events)
    assert folded is not None
    assert state_checksum(folded) == state_checksum(told.state)


def unchanged(before: list[Event], after: list[Event]) -> None:
    assert [event.event_id for event in before] == [event.event_id for event in after]


@asynchronous
async def test_only_failed_items_run_again_and_what_follows_sees_all_of_them(
    address: str, tmp_path: Path, flaky: Flaky
) -> None:
    bad = [0, 3, 4, 50, 99, 100, 101, 199]
    flaky.breaks(bad)
    async with running_engine(address, tmp_path / "home") as running:
        old = await running.run(playbook(flaky, spec="{mode: parallel, max_in_flight: 4}"))
        assert completed(old)["stats"] == {"total": 200, "success": 192, "failed": 8}
        flaky.breaks(())
        new = await retry(running, old.state.execution_id)
        result = completed(new)
        assert result == {
            "good": [index * 2 for index in range(200)],
            "stats": {"total": 200, "success": 200, "failed": 0},
            "seen": 1,
            "first": 7,
        }
        assert new.state.retry_of == old.state.execution_id
        assert flaky.ran() == {index: 2 if index in bad else 1 for index in range(200)}
        replays(new)
        unchanged(old.events, await running.engine.ledger.read_execution(old.state.execution_id))


@asynchronous
async def test_a_loop_that_failed_fast_runs_what_failed_and_what_never_ran(
    address: str, tmp_path: Path, flaky: Flaky
) -> None:
    flaky.breaks([30])
    async with running_engine(address, tmp_path / "home") as running:
        old = await running.run(playbook(flaky, spec="{mode: parallel, max_in_flight: 4}", keys=""))
        assert old.state.status is Status.FAILED
        ran = flaky.ran()
        assert sum(ran.values()) < 200
        flaky.breaks(())
        new = await retry(running, old.state.execution_id)
        assert completed(new)["good"] == [index * 2 for index in range(200)]
        assert flaky.ran() == {index: 2 if index == 30 else 1 for index in range(200)}
        replays(new)


@asynchronous
async def test_a_sequential_loop_goes_on_where_it_failed(address: str, tmp_path: Path, flaky: Flaky) -> None:
    flaky.breaks([5])
    async with running_engine(address, tmp_path / "home") as running:
        old = await running.run(playbook(flaky, spec="{mode: sequential}", rows="range(12) | list", keys=""))
        assert old.state.status is Status.FAILED
        flaky.breaks(())
        new = await retry(running, old.state.execution_id)
        assert completed(new)["good"] == [index * 2 for index in range(12)]
        assert flaky.ran() == {index: 2 if index == 5 else 1 for index in range(12)}


@asynchronous
async def test_a_retry_of_a_retry_keeps_what_both_have_come_to(address: str, tmp_path: Path, flaky: Flaky) -> None:
    flaky.breaks([1, 2, 7, 30])
    async with running_engine(address, tmp_path / "home") as running:
        spec = "{mode: parallel, max_in_flight: 3, frame: {max_rows: 8}}"
        first = await running.run(playbook(flaky, spec=spec, rows="range(40) | list"))
        flaky.breaks([2, 30])
        second = await retry(running, first.state.execution_id)
        assert completed(second)["stats"] == {"total": 40, "success": 38, "failed": 2}
        flaky.breaks(())
        third = await retry(running, second.state.execution_id)
        assert completed(third)["good"] == [index * 2 for index in range(40)]
        assert third.state.retry_of == second.state.execution_id
        ran = {**dict.fromkeys(range(40), 1), 1: 2, 7: 2, 2: 3, 30: 3}
        assert flaky.ran() == ran
        replays(third)


@asynchronous
async def test_shards_that_failed_run_again_as_a_whole(address: str, tmp_path: Path, flaky: Flaky) -> None:
    flaky.breaks([13])
    spec = "{mode: fanout, max_in_flight: 4, fanout: {shard_size: 5, max_shard_retries: 0, allow_partial: true}}"
    async with running_engine(address, tmp_path / "home") as running:
        old = await running.run(playbook(flaky, spec=spec, rows="range(20) | list", keys=""))
        assert completed(old)["stats"]["failed"] > 0
        flaky.breaks(())
        before = flaky.ran()
        new = await retry(running, old.state.execution_id)
        assert completed(new)["good"] == [index * 2 for index in range(20)]
        assert set(flaky.ran() - before) == {10, 11, 12, 13, 14}
        replays(new)


@asynchronous
async def test_frames_that_ran_as_one_run_again_as_one(address: str, tmp_path: Path, flaky: Flaky) -> None:
    flaky.breaks([4])
    body = f"""
workflow:
  - step: rows
    loop:
      in: "{{{{ range(10) | list }}}}"
      iterator: x
      spec: {{mode: parallel, frame: {{process: frame, max_rows: 2}}}}
    spec: {{policy: {{failure: {{mode: best_effort}}}}}}
    tool:
      kind: python
      input: {{rows: "{{{{ frame.rows }}}}", journal: {flaky.journal}, broken: {flaky.broken}}}
      code: |
        with open(journal, "a") as file:
            file.write("".join(f"{{x}}\\n" for x in rows))
        if set(map(str, rows)) & set(open(broken).read().split()):
            raise ValueError("broken")
        result = sum(rows)
"""
    async with running_engine(address, tmp_path / "home") as running:
        old = await running.run(body)
        assert completed(old)["stats"] == {"total": 10, "success": 8, "failed": 2}
        flaky.breaks(())
        new = await retry(running, old.state.execution_id)
        assert completed(new)["results"] == [1, 5, 9, 13, 17]
        assert flaky.ran() == {index: 2 if index in (4, 5) else 1 for index in range(10)}


PARALLEL = """
workflow:
  - step: fork
    tool: {{kind: noop}}
    next: {{spec: {{mode: inclusive}}, arcs: [{{step: rows}}, {{step: beside}}]}}
  - step: rows
    loop: {{in: "{{{{ range(10) | list }}}}", iterator: x, spec: {{mode: parallel}}}}
    spec: {{policy: {{failure: {{mode: best_effort}}}}}}
{tool}
    next: {{arcs: [{{step: join}}]}}
  - step: beside
    loop: {{in: "{{{{ range(100, 110) | list }}}}", iterator: x, spec: {{mode: parallel}}}}
    spec: {{policy: {{failure: {{mode: best_effort}}}}}}
{tool}
    next: {{arcs: [{{step: join}}]}}
  - step: join
    loop: {{in: "{{{{ range(200, 203) | list }}}}", iterator: x}}
{tool}
    next: {{arcs: [{{step: sum}}]}}
  - step: sum
    tool: {{kind: python, input: {{a: "{{{{ rows.stats }}}}", b: "{{{{ beside.stats }}}}"}}, code: "result = [a, b]"}}
"""


@asynchronous
async def test_what_ran_beside_a_loop_is_not_run_again_and_what_follows_is(
    address: str, tmp_path: Path, flaky: Flaky
) -> None:
    flaky.breaks([3])
    async with running_engine(address, tmp_path / "home") as running:
        old = await running.run(PARALLEL.format(tool=flaky.tool()))
        completed(old)
        flaky.breaks(())
        new = await retry(running, old.state.execution_id)
        assert completed(new) == [{"total": 10, "success": 10, "failed": 0}] * 2
        again = {3: 2, 200: 2, 201: 2, 202: 2}
        assert flaky.ran() == {**dict.fromkeys([*range(10), *range(100, 110)], 1), **again}
        replays(new)


@asynchronous
async def test_loops_beside_each_other_are_retried_together_or_one_of_them(
    address: str, tmp_path: Path, flaky: Flaky
) -> None:
    flaky.breaks([3, 104, 201])
    async with running_engine(address, tmp_path / "home") as running:
        old = await running.run(PARALLEL.format(tool=flaky.tool()))
        assert old.state.status is Status.FAILED
        flaky.breaks([3])
        one = await retry(running, old.state.execution_id, step="beside")
        assert completed(one) == [
            {"total": 10, "success": 9, "failed": 1},
            {"total": 10, "success": 10, "failed": 0},
        ]
        assert flaky.ran()[3] == 1
        flaky.breaks(())
        both = await retry(running, old.state.execution_id)
        assert completed(both) == [{"total": 10, "success": 10, "failed": 0}] * 2
        assert (flaky.ran()[3], flaky.ran()[104]) == (2, 3)


@asynchronous
async def test_a_loop_that_only_led_nowhere_is_sealed_once_more_and_runs_no_item(
    address: str, tmp_path: Path, flaky: Flaky
) -> None:
    # One behind the other: a loop still open beside the one that leads nowhere would be withdrawn.
    body = PARALLEL.replace("arcs: [{{step: join}}]", 'arcs: [{{step: join, when: "{{{{ 1 // workload.zero }}}}"}}]', 1)
    body = body.replace("[{{step: rows}}, {{step: beside}}]", "[{{step: beside}}]")
    body = body.replace("arcs: [{{step: join}}]", "arcs: [{{step: rows}}]", 1)
    body = f"workload: {{{{zero: 0}}}}{body}"
    async with running_engine(address, tmp_path / "home") as running:
        old = await running.run(body.format(tool=flaky.tool()))
        assert old.state.status is Status.FAILED
        before = flaky.ran()
        assert before == dict.fromkeys([*range(10), *range(100, 110)], 1)
        with pytest.raises(NothingToRetry, match="'beside'"):
            await retried(running, old.state.execution_id, step="beside")
        new = await retry(running, old.state.execution_id)
        # It leads nowhere once more.
        assert new.state.status is Status.FAILED
        assert new.state.ended_loops["rows"].done == 10
        assert flaky.ran() == before
        replays(new)


@asynchronous
async def test_a_cancelled_execution_goes_on_with_the_items_that_never_ran(
    address: str, tmp_path: Path, flaky: Flaky
) -> None:
    async with running_engine(address, tmp_path / "home") as running:
        body = playbook(flaky, spec="{mode: sequential, frame: {max_rows: 2}}", rows="range(40) | list")
        execution_id = await running.start(body)
        await running.until(execution_id, lambda state: any(one.done >= 4 for one in state.loop_state.values()))
        await running.cancel(execution_id)
        old = await running.finish(execution_id)
        assert old.state.status is Status.CANCELLED
        new = await retry(running, execution_id)
        assert completed(new)["good"] == [index * 2 for index in range(40)]
        # What was running when it was cancelled has run twice at most.
        assert sum(flaky.ran().values()) <= 42
        replays(new)


@asynchronous
async def test_items_of_a_retry_say_where_they_come_from(address: str, tmp_path: Path, flaky: Flaky) -> None:
    flaky.breaks([2, 3, 9])
    async with running_engine(address, tmp_path / "home") as running:
        spec = "{mode: parallel, max_in_flight: 2, frame: {max_rows: 4}}"
        old = await running.run(playbook(flaky, spec=spec, rows="range(10) | list"))
        flaky.breaks([9])
        new = await retry(running, old.state.execution_id)
        flaky.breaks(())
        newest = await retry(running, new.state.execution_id)
        reading = await running.engine.items.find(new.state.execution_id, "rows", run=None, **OWNER)
        page = await reading.page(0, 100, is_failed=False)
        assert (page.total, page.done, page.failed) == (10, 10, 1)
        assert [item.index for item in page.items] == list(range(10))
        assert [item.origin is None for item in page.items] == [index in (2, 3, 9) for index in range(10)]
        assert {item.origin for item in page.items} == {None, old.state.execution_id}
        assert {item.frame_id for item in page.items[4:8]} == {"rows#1/2"}
        assert [item.index for item in (await reading.page(0, 100, is_failed=True)).items] == [9]
        (whole,) = (await reading.one(1)).items
        assert (whole.input, whole.result, whole.status) == (1, {"x": 1, "twice": 2}, "success")
        reading = await running.engine.items.find(newest.state.execution_id, "rows", run=None, **OWNER)
        page = await reading.page(0, 100, is_failed=False)
        origins = {2: new.state.execution_id, 3: new.state.execution_id, 9: None}
        assert [item.origin for item in page.items] == [origins.get(i, old.state.execution_id) for i in range(10)]


@asynchronous
async def test_a_loop_with_failures_leaves_a_dead_letter(address: str, tmp_path: Path, flaky: Flaky) -> None:
    flaky.breaks([2, 9])
    body = """
workflow:
  - step: rows
    loop: {in: "{{ range(12) | list }}", iterator: x, spec: {mode: parallel, frame: {max_rows: 5}}}
    spec: {policy: {failure: {mode: best_effort}}}
TOOL
    next: {arcs: [{step: after}]}
  - step: after
    tool: {kind: python, input: {letter: "{{ rows.dead_letter | default('none') }}"}, code: "result = letter"}
""".replace("TOOL", flaky.tool())
    async with running_engine(address, tmp_path / "home") as running:
        old = await running.run(body)
        reference = completed(old)
        assert reference == old.state.ended_loops["rows"].dead_letter
        letter = await running.engine.payloads.read_json(reference, **OWNER)
        assert (letter["loop"], letter["total"], letter["failed"], letter["never_ran"]) == ("rows#1", 12, 2, [])
        assert [(one["index"], one["frame"], one["attempt"]) for one in letter["items"]] == [
            (2, "rows#1/1", 1),
            (9, "rows#1/2", 1),
        ]
        assert "item 9 is broken" in letter["items"][1]["error"]["message"]
        assert letter["items"][1]["input"] == {"event": "loop.started/rows#1", "row": 9}
        page = await (await running.engine.items.find(old.state.execution_id, "rows", run=None, **OWNER)).page(
            0, 1, is_failed=True
        )
        assert page.dead_letter == reference
        flaky.breaks(())
        assert completed(await retry(running, old.state.execution_id)) == "none"


@asynchronous
async def test_a_dead_letter_of_very_many_failures_is_in_chunks(address: str, tmp_path: Path) -> None:
    body = """
workflow:
  - step: rows
    loop: {in: "{{ range(2500) | list }}", iterator: x, spec: {mode: parallel, frame: {max_rows: 500}}}
    spec: {policy: {failure: {mode: best_effort}}}
    tool: {kind: python, input: {x: "{{ x }}"}, code: "result = 1 // (x % 2)"}
"""
    async with running_engine(address, tmp_path / "home") as running:
        old = await running.run(body)
        letter = await running.engine.payloads.read_json(old.state.ended_loops["rows"].dead_letter or {}, **OWNER)
        assert letter["failed"] == 1250
        chunks = [await running.engine.payloads.read_json(one["ref"], **OWNER) for one in letter["chunks"]]
        assert [one["index"] for chunk in chunks for one in chunk] == list(range(0, 2500, 2))


@asynchronous
async def test_what_cannot_be_retried_is_refused_with_the_reason(address: str, tmp_path: Path, flaky: Flaky) -> None:
    async with running_engine(address, tmp_path / "home") as running:
        good = await running.run(playbook(flaky, spec="{mode: parallel}", rows="range(3) | list"))
        identity = good.state.execution_id
        with pytest.raises(NothingToRetry, match="nothing to run again"):
            await retried(running, identity)
        with pytest.raises(NothingToRetry, match="'rows'"):
            await retried(running, identity, step="rows")
        with pytest.raises(ResultUnknown, match="no step 'nowhere'"):
            await retried(running, identity, step="nowhere")
        with pytest.raises(ResultUnknown, match=r"'before' .* is no loop"):
            await retried(running, identity, step="before")
        with pytest.raises(ExecutionUnknown):
            await retried(running, 12345)
        other = RetryRequest(execution_id=identity, tenant_id="else", organization_id="default")
        with pytest.raises(ExecutionUnknown):
            await running.engine.retries.failed_items(other)
        waiting = "workflow:\n  - step: waits\n    tool: {kind: python, code: 'import time; time.sleep(60)'}\n"
        open_ = await running.start(waiting)
        with pytest.raises(ExecutionRunning, match="still running"):
            await retried(running, open_)
        await running.cancel(open_)
        await running.finish(open_)
        rows = await running.engine.service.newest(limit=100, before=None, status=None, **OWNER)
        assert not any(row.retry_of for row in rows if row.execution_id > identity)


@asynchronous
async def test_the_same_request_is_the_same_retry(address: str, tmp_path: Path, flaky: Flaky) -> None:
    flaky.breaks([1])
    async with running_engine(address, tmp_path / "home") as running:
        old = await running.run(playbook(flaky, spec="{mode: parallel}", rows="range(3) | list"))
        flaky.breaks(())
        identity = old.state.execution_id
        first = await retried(running, identity, key="once")
        assert await retried(running, identity, key="once") == first
        with pytest.raises(RequestInvalid, match="another request"):
            await retried(running, identity, step="rows", key="once")
        await running.finish(first)
        assert flaky.ran() == {0: 1, 1: 2, 2: 1}
        rows = await running.engine.service.newest(limit=10, before=None, status=None, **OWNER)
        assert [row.retry_of for row in rows if row.execution_id == first] == [identity]


@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
@asynchronous
async def test_a_retry_of_very_many_items_runs_only_what_failed(address: str, tmp_path: Path, count: int) -> None:
    broken = tmp_path / "broken"
    broken.write_text("yes")
    body = f"""
workflow:
  - step: rows
    loop: {{in: "{{{{ range({count}) | list }}}}", iterator: x, spec: {{mode: parallel, max_in_flight: 16}}}}
    spec: {{policy: {{failure: {{mode: best_effort}}}}}}
    tool:
      kind: python
      input: {{x: "{{{{ x }}}}", broken: {broken}}}
      code: |
        if x % {count // 10} == 77 and open(broken).read() == "yes":
            raise ValueError("broken")
        result = x
    next: {{arcs: [{{step: after}}]}}
  - step: after
    tool: {{kind: python, input: {{s: "{{{{ rows.stats }}}}"}}, code: "result = s"}}
"""
    async with running_engine(address, tmp_path / "home") as running:
        old = await running.run(body)
        assert completed(old) == {"total": count, "success": count - 10, "failed": 10}
        broken.write_text("no")
        new_id = await retried(running, old.state.execution_id)
        new = await running.finish(new_id)
        assert completed(new) == {"total": count, "success": count, "failed": 0}
        ended = new.of_type("frame.committed")
        outcomes: Any = [event.meta["outcomes"] for event in ended]
        assert sum(one["success"] for one in outcomes) == 10
        seeds = new.of_type("execution.seeded")
        assert max(len(canonical_bytes(event.meta)) for event in seeds) <= EVENT_BODY_BYTES_MAX
        replays(new)


@asynchronous
async def test_failed_rows_of_a_cursor_run_again_from_where_their_claims_recorded_them(
    own: str, tmp_path: Path, work: Work
) -> None:
    """Nothing is claimed once more: the rows of the table are not even pending."""
    async with engine_over(own, tmp_path, work, 10) as running:
        await work.query("UPDATE queue SET n = 0 WHERE id IN (2, 3, 9)")
        await work.query(
            "CREATE FUNCTION check_row(int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN "
            "IF (SELECT n FROM queue WHERE id = $1) = 0 THEN RAISE 'row % is broken', $1; END IF; RETURN 1; END $$"
        )
        note = "INSERT INTO journal (id) VALUES ({{ iter.row.id }})"
        tool = f"""
        tool:
          - note: {{kind: postgres, auth: {CREDENTIAL}, command: "{note}"}}
          - check: {{kind: postgres, auth: {CREDENTIAL}, command: "SELECT check_row({{{{ iter.row.id }}}})"}}"""
        spec = "{mode: cursor, max_in_flight: 2, frame: {max_rows: 4}}"
        old = await running.run(cursor_playbook(tool, spec=spec))
        assert (completed(old)["processed"], completed(old)["failed"]) == (7, 3)
        letter = await running.engine.payloads.read_json(completed(old)["dead_letter"], **OWNER)
        reading = await running.engine.items.find(old.state.execution_id, "drain", run=None, **OWNER)
        failed = (await reading.page(0, 100, is_failed=True)).items
        assert {(one["frame"], one["row"]) for one in letter["items"]} == {(one.frame_id, one.row) for one in failed}
        assert len(letter["items"]) == 3
        place = letter["items"][0]["input"]
        claimed = await running.engine.payloads.read_json(place["ref"], **OWNER)
        assert claimed["rows"][place["row"]]["id"] in (2, 3, 9)
        await work.query("UPDATE queue SET n = 1")
        new = await retry(running, old.state.execution_id)
        result = completed(new)
        assert (result["status"], result["processed"], result["failed"], result["row_count"]) == ("ok", 10, 0, 10)
        assert await work.journal() == {index: 2 if index in (2, 3, 9) else 1 for index in range(1, 11)}
        assert await work.statuses() == {"claimed": 10}
        assert not new.of_type("cursor.claimed")
        reading = await running.engine.items.find(new.state.execution_id, "drain", run=None, **OWNER)
        page = await reading.page(0, 100, is_failed=False)
        assert (page.kind, page.total, page.done, page.failed) == ("cursor", 10, 10, 0)
        assert sum(item.origin is None for item in page.items) == 3
        inputs = [(await reading.one(index)).items[0] for index in range(10)]
        ids: Any = [item.input for item in inputs]
        assert sorted(one["id"] for one in ids) == list(range(1, 11))
        replays(new)


@asynchronous
async def test_payloads_of_an_old_execution_stay_for_as_long_as_a_retry_names_them(
    own: str, tmp_path: Path, flaky: Flaky
) -> None:
    flaky.breaks([1])
    async with running_engine(own, tmp_path / "home") as running:
        spec = "{mode: parallel, frame: {max_rows: 4}}"
        old = await running.run(playbook(flaky, spec=spec, rows="range(8) | list"))
        flaky.breaks(())
        new = await retry(running, old.state.execution_id)
    async with connected(own) as connection:
        # As when retention has dropped the old one.
        for table in ("event", "execution", "log_chunk"):
            await connection.execute(f"DELETE FROM noetl.{table} WHERE execution_id = $1", old.state.execution_id)
    reports = await until_gone(own)
    assert not any(report.damaged for report in reports)
    async with running_engine(own, tmp_path / "home") as running:
        state = await running.state(new.state.execution_id)
        assert await running.engine.service.result(state) == completed(new)
        loop: Any = state.step_results["rows"].reference
        rows: Any = await running.engine.service.result_of(loop, **OWNER)
        assert [one["twice"] for one in rows["results"]] == [index * 2 for index in range(8)]
        gone: Any = old.state.step_results["rows"].reference
        with pytest.raises(PayloadMissing):
            await running.engine.service.result_of(gone, **OWNER)


@asynchronous
async def test_what_kept_rows_wrote_is_kept_also_of_a_frame_that_was_cancelled(address: str, tmp_path: Path) -> None:
    """The rows are persisted by a heartbeat, and so is what they wrote; no end of a frame ever said it."""
    go = tmp_path / "go"
    body = f"""
workflow:
  - step: rows
    loop: {{in: "{{{{ range(4) | list }}}}", iterator: x, spec: {{mode: sequential, frame: {{max_rows: 4}}}}}}
    tool:
      - work:
          kind: python
          input: {{x: "{{{{ x }}}}", go: {go}}}
          code: |
            import os, time
            while x == 2 and not os.path.exists(go):
                time.sleep(0.05)
            result = x
          set: {{ctx.sum: "{{{{ (ctx.sum | default(0)) + x + 1 }}}}"}}
    next: {{arcs: [{{step: after}}]}}
  - step: after
    tool: {{kind: python, input: {{s: "{{{{ ctx.sum }}}}"}}, code: "result = s"}}
"""
    async with running_engine(address, tmp_path / "home") as running:
        identity = await running.start(body)
        async with asyncio.timeout(60):
            while not any(
                event.event_type == kinds.FRAME_HEARTBEAT
                for event in await running.engine.ledger.read_execution(identity)
            ):
                await asyncio.sleep(0.02)
        await running.cancel(identity)
        await running.finish(identity)
        go.write_text("go")
        new = await retry(running, identity)
        assert [event.meta["first"] for event in new.of_type(kinds.FRAME_DISPATCHED)] == [2]
        assert completed(new) == 1 + 2 + 3 + 4
        replays(new)
