"""Loops through the real engine: real ledger, real child processes, real payloads (shape S6)."""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.execution.evolve import evolve, fold_all
from noetl.core.execution.state import Status
from noetl.core.limits import PAYLOAD_INLINE_BYTES_MAX, STAGE_OUTPUTS_GATHERED
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import Running, Told, running_engine

MODES = {
    "sequential": "{mode: sequential}",
    "parallel": "{mode: parallel, max_in_flight: 7}",
}
TOOLS = {
    "single": """
        tool: {kind: python, input: {n: "{{ item }}"}, code: "result = {'n': n, 'double': 2 * n}"}""",
    "pipeline": """
        tool:
          - {name: first, kind: python, input: {n: "{{ item }}"}, code: "result = {'n': n}"}
          - {name: second, kind: python, input: {n: "{{ first.n }}"}, code: "result = {'double': 2 * n}"}""",
}
FAILING = """
        tool:
          kind: python
          input: {n: "{{ item }}"}
          code: |
            if n in (3, 8):
                raise ValueError(f"no {n}")
            result = n"""
BEST_EFFORT = """
        spec: {policy: {failure: {mode: best_effort}}}"""


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


def playbook(tool: str, *, spec: str, rows: str = '"{{ range(workload.n) | list }}"', after: str = "") -> str:
    return f"""
    workload: {{n: 0}}
    workflow:
      - step: each
        loop: {{in: {rows}, iterator: item, spec: {spec}}}{tool}
        next: {{arcs: [{{step: rescue, when: "{{{{ output.status == 'error' }}}}"}}, {{step: read}}]}}
      - {{step: rescue, tool: {{kind: python, input: {{e: "{{{{ each.error }}}}", rows: "{{{{ each.results }}}}",
                                           data: "{{{{ each.data }}}}", status: "{{{{ each.status }}}}"}},
         code: "result = {{'error': e, 'rows': rows, 'data': data, 'status': status}}"}}}}
      - step: read
        tool:
          kind: python
          input: {{all: "{{{{ each }}}}", data: "{{{{ each.data }}}}", third: "{{{{ each.results[2] }}}}",
                  stats: "{{{{ each.stats }}}}", count: "{{{{ each.count }}}}"}}
          code: "result = {{'all': all, 'data': data, 'third': third, 'stats': stats, 'count': count}}"
    {after}"""


def check_frames(told: Told) -> None:
    """What holds of the frames of any loop in the ledger."""
    assert fold_all(told.events) == told.state
    ended = [e for e in told.events if e.event_type in (kinds.FRAME_COMMITTED, kinds.FRAME_FAILED)]
    assert len({e.frame_id for e in ended}) == len(ended)
    dispatched = {e.frame_id: e for e in told.of_type(kinds.FRAME_DISPATCHED)}
    for event in ended:
        outcomes: Any = event.meta["outcomes"]
        assert sum(outcomes.values()) == dispatched[event.frame_id].meta["rows"]
        assert (event.stage_id or "") + "/" in (event.frame_id or "")
    assert len(told.of_type(kinds.LOOP_STARTED)) == len(told.of_type(kinds.LOOP_DONE))


# --- S6 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("mode", MODES)
@asynchronous
async def test_loops_of_no_one_and_many_rows_give_their_results_in_item_order(
    address: str, tmp_path: Path, mode: str, tool: str
) -> None:
    async with running_engine(address, tmp_path) as engine:
        for total in (0, 1, 500):
            told = await engine.run(playbook(TOOLS[tool], spec=MODES[mode]), {"n": total})
            assert told.state.status is Status.COMPLETED, told.state.failure
            result = told.result
            assert result["stats"] == {"total": total, "success": total, "failed": 0}
            assert result["count"] == result["all"]["count"] == total
            assert result["all"]["status"] == "ok"
            assert result["data"] == result["all"]["results"]
            assert [(row["n"], row["double"]) for row in result["data"]] == [(n, 2 * n) for n in range(total)]
            if tool == "pipeline":
                assert all(row["second"] == {"double": 2 * n} for n, row in enumerate(result["data"]))
                assert all(row["results"]["first"] == {"n": n} for n, row in enumerate(result["data"]))
            assert result["third"] == (result["data"][2] if total > 2 else None)
            check_frames(told)
            done = told.of_type(kinds.LOOP_DONE)[0].meta
            assert (done["total"], done["done"], done["failed"], done["status"]) == (total, total, 0, "ok")


@pytest.mark.parametrize("mode", MODES)
@asynchronous
async def test_a_loop_that_does_its_best_counts_its_failed_rows(address: str, tmp_path: Path, mode: str) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(playbook(FAILING + BEST_EFFORT, spec=MODES[mode]), {"n": 12})
    assert told.state.status is Status.COMPLETED
    assert told.result["stats"] == {"total": 12, "success": 10, "failed": 2}
    assert told.result["all"]["status"] == "ok"
    rows = told.result["data"]
    assert [row for row in rows if not isinstance(row, dict)] == [n for n in range(12) if n not in (3, 8)]
    for index in (3, 8):
        assert rows[index]["status"] == "error"
        assert rows[index]["error"]["message"] == f"no {index}"
        assert rows[index]["error"]["exception_type"] == "ValueError"
    check_frames(told)


@pytest.mark.parametrize("mode", MODES)
@asynchronous
async def test_a_loop_ends_at_its_first_failed_row(address: str, tmp_path: Path, mode: str) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(playbook(FAILING, spec=MODES[mode]), {"n": 400})
    assert told.state.status is Status.COMPLETED
    assert told.result["error"]["message"] in ("item 3: no 3", "item 8: no 8")
    assert told.result["error"]["kind"] == "python"
    done = told.of_type(kinds.LOOP_DONE)[0].meta
    assert done["status"] == "failed"
    if mode == "sequential":
        assert told.result["error"]["message"] == "item 3: no 3"
        assert (done["done"], done["failed"]) == (4, 1)
        assert told.result["rows"] == [0, 1, 2, told.result["rows"][3], *[None] * 396]
    failed = [row["error"]["message"] for row in told.result["rows"] if isinstance(row, dict)]
    assert failed
    assert set(failed) <= {"no 3", "no 8"}
    assert told.result["data"] == told.result["rows"]
    assert told.result["status"] == "error"
    assert told.result["rows"].count(None) > 300
    check_frames(told)


@asynchronous
async def test_a_failed_loop_without_a_handler_fails_the_execution(address: str, tmp_path: Path) -> None:
    body = """
    workflow:
      - {step: each, loop: {in: [1, 2, 3], iterator: item}, next: after,
         tool: {kind: python, input: {n: "{{ item }}"}, code: "result = 1 // (n - 2)"}}
      - {step: after, tool: {kind: noop}}
    """
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(body)
    assert told.state.status is Status.FAILED
    assert told.state.failure is not None
    assert told.state.failure["step"] == "each"
    error: Any = told.state.failure["error"]
    assert error["message"].startswith("item 1: ")
    assert error["exception_type"] == "ZeroDivisionError"
    assert "after" not in told.state.runs


# --- how many at a time ----------------------------------------------------------------------------------

TIMED = """
        tool:
          kind: python
          input: {n: "{{ item }}", seconds: "{{ workload.seconds }}"}
          code: |
            import time
            begun = time.monotonic()
            time.sleep(seconds)
            result = [begun, time.monotonic()]"""


@pytest.mark.parametrize(("spec", "limit"), [("{mode: sequential}", 1), ("{mode: parallel, max_in_flight: 3}", 3)])
@asynchronous
async def test_never_more_rows_run_at_a_time_than_allowed(address: str, tmp_path: Path, spec: str, limit: int) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(playbook(TIMED, spec=spec), {"n": 40, "seconds": 0.01})
    moments = [(begun, 1) for begun, _ in told.result["data"]] + [(ended, -1) for _, ended in told.result["data"]]
    active = most = 0
    for _, change in sorted(moments):
        active += change
        most = max(most, active)
    assert most <= limit
    if limit > 1:
        assert most > 1
    else:
        begins = [begun for begun, _ in told.result["data"]]
        assert begins == sorted(begins)


@asynchronous
async def test_short_frames_have_three_rows_in_the_ledger_and_long_ones_say_what_is_persisted(
    address: str, tmp_path: Path
) -> None:
    async with running_engine(address, tmp_path) as engine:
        quick = await engine.run(playbook(TOOLS["single"], spec=MODES["parallel"]), {"n": 100})
        spec = "{mode: parallel, max_in_flight: 2, frame: {max_rows: 20}}"
        slow = await engine.run(playbook(TIMED, spec=spec), {"n": 40, "seconds": 0.06})
    for told in (quick, slow):
        assert told.state.status is Status.COMPLETED
        begun = {e.frame_id: e.ingest_time for e in told.of_type(kinds.FRAME_STARTED)}
        for beat in told.of_type(kinds.FRAME_HEARTBEAT):
            assert seconds_between(begun[beat.frame_id], beat.ingest_time) >= 0.25
    assert Counter(e.event_type for e in quick.events if e.frame_id)[kinds.FRAME_HEARTBEAT] == 0
    per_frame = Counter(e.frame_id for e in quick.events if e.frame_id)
    assert set(per_frame.values()) == {3}
    beats = slow.of_type(kinds.FRAME_HEARTBEAT)
    assert len({e.frame_id for e in beats}) == 2
    persisted = [index for e in beats for first, end in ranges(e) for index in range(first, end)]
    assert len(persisted) == len(set(persisted)) > 10


def ranges(event: Any) -> list[tuple[int, int]]:
    return list(event.meta["ranges"])


def seconds_between(one: str, other: str) -> float:
    first, second = (datetime.datetime.fromisoformat(moment) for moment in (one, other))
    return (second - first).total_seconds()


# --- names (dsl §4.3) ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@asynchronous
async def test_every_name_of_an_iteration(address: str, tmp_path: Path, mode: str) -> None:
    body = f"""
    workload: {{item: hidden, base: 100}}
    workflow:
      - step: each
        loop: {{in: [a, b, c], iterator: item, spec: {MODES[mode]}}}
        tool:
          - name: names
            kind: python
            input:
              item: ["{{{{ item }}}}", "{{{{ iter.item }}}}", "{{{{ workload.item }}}}"]
              index: ["{{{{ iter.index }}}}", "{{{{ iter._index }}}}", "{{{{ _index }}}}", "{{{{ loop_index }}}}",
                      "{{{{ loop.index }}}}"]
              first: ["{{{{ iter._first }}}}", "{{{{ loop.first }}}}"]
              last: ["{{{{ iter._last }}}}", "{{{{ loop.last }}}}"]
              total: ["{{{{ _total }}}}", "{{{{ iter._total }}}}", "{{{{ loop.length }}}}"]
              parent: "{{{{ iter.parent is defined }}}}"
              other: "{{{{ base }}}}"
            code: "result = {{'item': item, 'index': index, 'first': first, 'last': last, 'total': total,
                   'parent': parent, 'other': other}}"
            set: {{iter.mine: "{{{{ iter.index * 10 }}}}", local: "{{{{ item }}}}!"}}
          - name: own
            kind: python
            input: {{mine: "{{{{ iter.mine }}}}", local: "{{{{ local }}}}", kept: "{{{{ iter.item }}}}"}}
            code: "result = {{'mine': mine, 'local': local, 'kept': kept}}"
          - name: code
            kind: python
            code: "result = {{'in_code': [item, _index, _total]}}"
    """
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(body)
    assert told.state.status is Status.COMPLETED, told.state.failure
    for index, row in enumerate(told.result["results"]):
        item = "abc"[index]
        assert row["names"] == {
            "item": [item, item, "hidden"],
            "index": [index] * 5,
            "first": [index == 0] * 2,
            "last": [index == 2] * 2,
            "total": [3] * 3,
            "parent": False,
            "other": 100,
        }
        assert row["own"] == {"mine": index * 10, "local": f"{item}!", "kept": item}
        assert row["code"] == {"in_code": [item, index, 3]}


@asynchronous
async def test_done_counts_the_iterations_that_have_ended(address: str, tmp_path: Path) -> None:
    tool = """
        tool: {kind: python, input: {done: "{{ loop.done }}"}, code: "result = done"}"""
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(playbook(tool, spec=MODES["sequential"]), {"n": 30})
    assert told.result["data"] == list(range(30))


# --- ctx -------------------------------------------------------------------------------------------------


@asynchronous
async def test_rows_of_a_sequential_loop_see_what_earlier_rows_wrote(address: str, tmp_path: Path) -> None:
    body = """
    workload: {n: 300}
    workflow:
      - step: each
        loop: {in: "{{ range(workload.n) | list }}", iterator: item}
        tool:
          kind: python
          input: {seen: "{{ (ctx.items | default([])) | length }}", last: "{{ ctx.last.index }}"}
          code: "result = {'seen': seen, 'last': last}"
          set: {ctx.items: "{{ (ctx.items | default([])) + [item] }}", ctx.last.index: "{{ loop.index }}"}
          spec: {policy: {rules: [{else: {then: {do: continue, set: {ctx.count: "{{ (count | default(0)) + 1 }}"}}}}]}}
        next: after
      - step: after
        tool:
          kind: python
          input: {items: "{{ ctx.items }}", last: "{{ ctx.last }}", rows: "{{ each.results }}", count: "{{ count }}"}
          code: "result = {'items': items, 'last': last, 'rows': rows, 'count': count}"
    """
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(body)
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result["items"] == list(range(300))
    assert told.result["last"] == {"index": 299}
    assert told.result["count"] == 300
    assert [row["seen"] for row in told.result["rows"]] == list(range(300))
    assert [row["last"] for row in told.result["rows"]] == [None, *range(299)]
    # Every row writes three names; the ledger gets each of them once per frame.
    for event in told.of_type(kinds.FRAME_COMMITTED):
        assert len(event.writes or ()) <= 3


@asynchronous
async def test_of_parallel_rows_the_last_writer_wins(address: str, tmp_path: Path) -> None:
    tool = """
        tool:
          kind: python
          input: {n: "{{ item }}"}
          code: |
            import time
            time.sleep(0.15 if n == 1 else 0)
            result = n
          set: {ctx.last: "{{ item }}", ctx.shared.a: "{{ item }}"}"""
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(playbook(tool, spec="{mode: parallel, max_in_flight: 4}"), {"n": 4})
    assert told.state.variables["last"].value == 1
    assert told.state.variables["shared"].value == {"a": 1}


@asynchronous
async def test_many_large_writes_of_one_frame_fit_into_its_event(address: str, tmp_path: Path) -> None:
    tool = """
        tool: {kind: noop, set: {ctx.last: "{{ item }} {{ workload.filler }}", ctx.other: "{{ workload.filler }}"}}"""
    async with running_engine(address, tmp_path) as engine:
        body = playbook(tool, spec="{mode: sequential, frame: {max_rows: 600}}")
        told = await engine.run(body, {"n": 600, "filler": "x" * 900})
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert str(told.state.variables["last"].value).startswith("599 xxx")


@asynchronous
async def test_a_write_to_a_part_of_a_value_keeps_the_rest_of_it(address: str, tmp_path: Path) -> None:
    body = """
    workload: {filler: ""}
    workflow:
      - {step: start, tool: {kind: noop}, next: plain, set: {ctx.small: {x: 1}, ctx.large: "{{ {'y': filler} }}"}}
      - {step: plain, tool: {kind: noop, set: {ctx.small.plain: "{{ filler }}", ctx.large.plain: 1}}, next: each}
      - step: each
        loop: {in: [a, b], iterator: item, spec: {frame: {max_rows: 1}}}
        tool: {kind: noop, set: {ctx.small.each: "{{ item }}{{ filler }}", ctx.large.each: "{{ item }}"}}
        next: end
      - {step: end, tool: {kind: python, input: {small: "{{ ctx.small }}", large: "{{ ctx.large }}"},
         code: "result = {'small': small, 'large': large}"}}
    """
    filler = "x" * 2_000
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(body, {"filler": filler})
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result == {
        "small": {"x": 1, "plain": filler, "each": "b" + filler},
        "large": {"y": filler, "plain": 1, "each": "b"},
    }


# --- policy ----------------------------------------------------------------------------------------------


@asynchronous
async def test_a_row_is_tried_again_by_its_own_policy(address: str, tmp_path: Path) -> None:
    tool = """
        tool:
          kind: python
          input: {n: "{{ item }}", attempt: "{{ _attempt }}"}
          code: |
            if attempt <= n % 3:
                raise OSError("not yet")
            result = attempt
          spec: {policy: {rules: [{when: "{{ output.status == 'error' }}",
                                   then: {do: retry, attempts: 3, delay: 0.01, backoff: fixed}}]}}"""
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(playbook(tool, spec=MODES["parallel"]), {"n": 30})
    assert told.result["data"] == [n % 3 + 1 for n in range(30)]


@asynchronous
async def test_break_ends_a_row_and_nothing_else(address: str, tmp_path: Path) -> None:
    tool = """
        tool:
          - name: look
            kind: python
            input: {n: "{{ item }}"}
            code: "result = {'n': n}"
            spec: {policy: {rules: [{when: "{{ output.data.n % 2 == 0 }}", then: {do: break}}]}}
          - {name: odd, kind: python, code: "result = {'odd': True}"}"""
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(playbook(tool, spec=MODES["parallel"]), {"n": 10})
    assert ["odd" in row for row in told.result["data"]] == [n % 2 == 1 for n in range(10)]


# --- collections (dsl §4.2) ------------------------------------------------------------------------------

ECHO = """
        tool: {kind: python, code: "result = item"}"""


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("[1, two, {three: 3}, [4]]", [1, "two", {"three": 3}, [4]]),
        ('"{{ workload.rows }}"', [10, 20]),
        ('"{{ workload.text }}"', [1, [2], "3"]),
        ('"{{ workload.mapping }}"', [{"a": 1}]),
        ('["{{ workload.rows[0] }}", "x{{ workload.rows[1] }}"]', [10, "x20"]),
        ('"{{ workload.rows | reverse | list }}"', [20, 10]),
        ('"{% for row in workload.rows %}{{ row }}{% endfor %}"', ["1020"]),
        ("just text", ["just text"]),
    ],
)
@asynchronous
async def test_what_a_loop_can_be_over(address: str, tmp_path: Path, rows: str, expected: list[object]) -> None:
    payload = {"rows": [10, 20], "text": '[1, [2], "3"]', "mapping": {"a": 1}}
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(playbook(ECHO, spec=MODES["sequential"], rows=rows), payload)
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result["data"] == expected


@asynchronous
async def test_a_loop_over_nothing_fails_and_says_which(address: str, tmp_path: Path) -> None:
    body = """
    workflow:
      - {step: each, loop: {in: "{{ start.rows }}", iterator: item}, tool: {kind: noop}}
    """
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(body)
    assert told.state.status is Status.FAILED
    assert "step 'each': loop.in gave nothing" in str(told.state.failure)


LARGE = """
    workflow:
      - step: start
        tool:
          - {name: other, kind: python, code: "result = {'x': 1}"}
          - {name: make, kind: python, code: "result = {'rows': [{'n': n, 'text': 'x' * 40} for n in range(2500)]}"}
        set: {ctx.rows: "{{ start.make.rows }}"}
        next: each
      - step: each
        loop: {in: "%s", iterator: row, spec: {mode: parallel, max_in_flight: 8}}
        tool: {kind: python, input: {n: "{{ row.n }}"}, code: "result = {'n': n, 'text': 'y' * 40}"}
        next: again
      - step: again
        loop: {in: "%s", iterator: row, spec: {mode: parallel, max_in_flight: 8}}
        tool: {kind: python, input: {n: "{{ row.n }}"}, code: "result = n"}
        next: {arcs: [{step: end, when: "{{ each.results[2400].n == 2400 and event.name == 'loop.done' }}"}]}
      - {step: end, tool: {kind: python, input: {first: "{{ each }}", rows: "{{ again.data }}"},
         code: "result = {'first': first, 'sum': sum(rows)}"}}
"""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("{{ start.rows }}", "{{ each.results }}"),
        ("{{ start.make.rows }}", "{{ each.data }}"),
        ("{{ ctx.rows }}", "{{ each.result | list }}"),
    ],
)
@asynchronous
async def test_large_collections_and_results_go_by_reference(
    address: str, tmp_path: Path, first: str, second: str
) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(LARGE % (first, second))
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result["sum"] == sum(range(2500))
    assert told.result["first"]["stats"] == {"total": 2500, "success": 2500, "failed": 0}
    assert [row["n"] for row in told.result["first"]["results"]] == list(range(2500))
    assert max(len(str(event)) for event in told.events) < 20_000
    for event in told.of_type(kinds.LOOP_STARTED):
        assert "ref" in event.meta["collection"]  # type: ignore[operator]
    reference = told.state.step_results["each"].reference
    assert reference is not None
    assert "loop" in str(reference["media_type"])


@asynchronous
async def test_a_large_result_of_a_loop_is_the_result_of_the_execution(address: str, tmp_path: Path) -> None:
    body = """
    workflow:
      - {step: each, loop: {in: "{{ range(300) | list }}", iterator: n, spec: {mode: parallel}},
         tool: {kind: python, input: {n: "{{ n }}"}, code: "result = str(n) * 200"}}
    """
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(body)
    assert told.result["results"] == [str(n) * 200 for n in range(300)]
    assert len(str(told.result)) > PAYLOAD_INLINE_BYTES_MAX
    assert told.result["status"] == "ok"


# --- cycles (shape S4) -----------------------------------------------------------------------------------


@asynchronous
async def test_a_loop_inside_a_cycle_is_a_fresh_one_each_time(address: str, tmp_path: Path) -> None:
    body = """
    workflow:
      - {step: start, tool: {kind: noop}, set: {ctx.turn: 0, ctx.seen: []}, next: each}
      - step: each
        loop: {in: "{{ range(ctx.turn + 1) | list }}", iterator: n}
        tool: {kind: python, input: {n: "{{ n }}"}, code: "result = n",
               set: {ctx.seen: "{{ ctx.seen + [[ctx.turn, n]] }}"}}
        next:
          arcs:
            - {step: each, when: "{{ ctx.turn < 3 }}", set: {ctx.turn: "{{ ctx.turn + 1 }}"}}
            - {step: end}
      - {step: end, tool: {kind: python, input: {seen: "{{ ctx.seen }}", last: "{{ each.results }}"},
         code: "result = {'seen': seen, 'last': last}"}}
    """
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(body)
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result == {"seen": [[t, n] for t in range(4) for n in range(t + 1)], "last": [0, 1, 2, 3]}
    assert [e.stage_id for e in told.of_type(kinds.LOOP_STARTED)] == [f"each#{n}" for n in range(1, 5)]
    check_frames(told)


@asynchronous
async def test_many_loops_at_the_same_time(address: str, tmp_path: Path) -> None:
    async def one(engine: Running, total: int) -> Told:
        return await engine.run(playbook(TOOLS["single"], spec=MODES["parallel"]), {"n": total})

    async with running_engine(address, tmp_path) as engine:
        results = await asyncio.gather(*(one(engine, 20 + n) for n in range(12)))
    for number, told in enumerate(results):
        assert told.result["count"] == 20 + number
        check_frames(told)


@asynchronous
async def test_outputs_of_many_frames_are_written_down_on_the_way(address: str, tmp_path: Path) -> None:
    """The state of a loop stays small however many frames it has, and its result has every row."""
    rows = 2 * STAGE_OUTPUTS_GATHERED + 50
    spec = "{mode: parallel, max_in_flight: 8, frame: {max_rows: 1}}"
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(playbook(TOOLS["single"], spec=spec), {"n": rows})
        assert told.state.status is Status.COMPLETED
    written = [e for e in told.of_type(kinds.COMMAND_COMPLETED) if "/gather/" in str(e.command_id)]
    assert len(written) == 2
    assert len(told.result["data"]) == rows
    state = None
    for event in told.events:
        state = evolve(state, event)
        for stage in state.loop_state.values():
            assert len(stage.outputs) <= STAGE_OUTPUTS_GATHERED + 64
