"""Fan-outs and pipelines that run once per frame, through the real engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import Status
from tests.support.aio import asynchronous
from tests.support.databases import empty_database
from tests.support.engine import Told, running_engine

# A row fails until it was tried as often as its number says.
ROW = """
        tool:
          kind: python
          input: {n: "{{ item }}", folder: "{{ workload.folder }}"}
          code: |
            from pathlib import Path
            seen = Path(folder) / str(n)
            tries = len(seen.read_text()) if seen.exists() else 0
            seen.write_text("x" * (tries + 1))
            if tries < (n % 10 if n >= 10 else 0):
                raise ValueError(f"no {n}")
            result = {"n": n, "tries": tries + 1}"""
ARCS = """
        next:
          arcs:
            - {step: failed, when: "{{ fanin.status == 'failed' }}"}
            - {step: partial, when: "{{ fanin.status == 'partial' and fanin.failed == 1 }}"}
            - {step: complete, when: "{{ fanin.status == 'complete' and fanin.refs | length == fanin.total }}"}"""
LOOK = "".join(
    f"""
      - step: {name}
        tool:
          kind: python
          input: {{all: "{{{{ each }}}}", fanin: "{{{{ each.fanin }}}}"}}
          code: "result = {{'where': '{name}', 'all': all, 'fanin': fanin}}\""""
    for name in ("failed", "partial", "complete")
)


@pytest.fixture(scope="module")
def address() -> str:
    return empty_database()


def fanout(rows: str, spec: str, *, keys: str = "", root: str = "") -> str:
    return f"""
    workload: {{folder: ""}}{root}
    workflow:
      - step: each
        loop: {{in: {rows}, iterator: item, spec: {spec}}}{keys}{ROW}{ARCS}{LOOK}
    """


async def told_of(address: str, home: Path, body: str) -> Told:
    folder = home / "rows"
    folder.mkdir()
    async with running_engine(address, home) as engine:
        told = await engine.run(body, {"folder": str(folder)})
    assert fold_all(told.events) == told.state
    assert told.state.status is Status.COMPLETED, told.state.failure
    return told


@asynchronous
async def test_a_fan_out_gives_its_rows_in_item_order_and_a_reference_per_shard(address: str, tmp_path: Path) -> None:
    told = await told_of(address, tmp_path, fanout("[1, 2, 3, 4, 5]", "{mode: fanout, fanout: {shard_size: 2}}"))
    result = told.result
    assert result["where"] == "complete"
    assert [row["n"] for row in result["all"]["results"]] == [1, 2, 3, 4, 5]
    fanin = dict(result["fanin"])
    references = fanin.pop("refs")
    assert fanin == {"status": "complete", "total": 3, "succeeded": 3, "failed": 0}
    assert [set(reference) >= {"uri", "sha256"} for reference in references] == [True] * 3
    (done,) = told.of_type(kinds.LOOP_DONE)
    assert done.meta["fanin"] == fanin


@pytest.mark.parametrize(
    ("spec", "keys", "root"),
    [
        ("{mode: parallel, max_in_flight: 2}", "\n        spec: {loop_mode: fanout}", ""),
        ("{mode: parallel, max_in_flight: 2}", "", "\n    executor: {spec: {loop_mode: fanout}}"),
    ],
)
@asynchronous
async def test_the_step_or_the_executor_may_ask_for_it(
    address: str, tmp_path: Path, spec: str, keys: str, root: str
) -> None:
    told = await told_of(address, tmp_path, fanout("[1, 2, 3]", spec, keys=keys, root=root))
    assert told.result["fanin"]["total"] == 3


@asynchronous
async def test_a_shard_whose_row_fails_runs_again_and_only_that_one(address: str, tmp_path: Path) -> None:
    told = await told_of(address, tmp_path, fanout("[1, 12, 3, 11]", "{mode: fanout}"))
    assert told.result["where"] == "complete"
    assert [row["tries"] for row in told.result["all"]["results"]] == [1, 3, 1, 2]
    tries = [(e.meta["first"], e.meta["tries"]) for e in told.of_type(kinds.FRAME_DISPATCHED) if "tries" in e.meta]
    assert sorted(tries) == [(1, 1), (1, 2), (3, 1)]
    assert told.result["all"]["stats"] == {"total": 4, "success": 4, "failed": 0}


@asynchronous
async def test_the_rows_of_a_shard_run_again_together(address: str, tmp_path: Path) -> None:
    told = await told_of(address, tmp_path, fanout("[1, 11, 2, 3]", "{mode: fanout, fanout: {shard_size: 2}}"))
    assert [row["tries"] for row in told.result["all"]["results"]] == [2, 2, 1, 1]


@asynchronous
async def test_a_shard_that_fails_too_often_fails_the_step(address: str, tmp_path: Path) -> None:
    told = await told_of(address, tmp_path, fanout("[1, 13, 3]", "{mode: fanout, max_in_flight: 1}"))
    assert told.result["where"] == "failed"
    assert told.result["all"]["status"] == "error"
    assert "no 13" in told.result["all"]["error"]["message"]
    fanin = told.result["fanin"]
    assert (fanin["status"], fanin["total"], fanin["succeeded"], fanin["failed"]) == ("failed", 3, 1, 1)
    assert not (tmp_path / "rows" / "3").exists()


@asynchronous
async def test_without_fail_fast_the_other_shards_run(address: str, tmp_path: Path) -> None:
    spec = "{mode: fanout, max_in_flight: 1, fanout: {fail_fast: false, max_shard_retries: 0}}"
    told = await told_of(address, tmp_path, fanout("[1, 11, 3]", spec))
    fanin = told.result["fanin"]
    assert (fanin["status"], fanin["succeeded"], fanin["failed"]) == ("failed", 2, 1)
    assert (tmp_path / "rows" / "3").exists()


@asynchronous
async def test_a_partial_result_may_be_good_enough(address: str, tmp_path: Path) -> None:
    spec = "{mode: fanout, fanout: {allow_partial: true, max_shard_retries: 0}}"
    told = await told_of(address, tmp_path, fanout("[1, 11, 3]", spec))
    assert told.result["where"] == "partial"
    assert told.result["all"]["results"][1]["status"] == "error"
    assert len(told.result["fanin"]["refs"]) == 2


@asynchronous
async def test_many_references_are_more_than_the_router_reads_and_arcs_see_them_all_the_same(
    address: str, tmp_path: Path
) -> None:
    body = (
        fanout("[1, 2, 3, 4, 5, 6, 7, 8, 9]", "{mode: fanout}")
        .replace(
            "- {step: failed,",
            '- {step: complete, set: {ctx.refs: "{{ fanin.refs }}"}, when: "{{ fanin.total == 9 }}"}\n'
            "            - {step: failed,",
        )
        .replace('fanin: "{{ each.fanin }}"}', 'fanin: "{{ ctx.refs }}"}')
    )
    told = await told_of(address, tmp_path, body)
    assert told.result["where"] == "complete"
    assert len(told.result["fanin"]) == 9
    assert not told.state.variables["refs"].is_inline


# --- once per frame --------------------------------------------------------------------------------------


FRAMEWISE = """
    workflow:
      - step: each
        loop: {in: "{{ range(7) | list }}", iterator: item, spec: SPEC}
        tool:
          kind: python
          input: {rows: "{{ iter.item }}", same: "{{ frame.rows }}", also: "{{ iter.item_rows }}",
                  place: "{{ [frame.index, frame.base_index, frame.row_count, iter._frame_index] }}",
                  edge: "{{ [iter._first, iter._last, _total] }}"}
          code: |
            assert rows == same == also == item
            if BAD in rows:
                raise ValueError("bad")
            result = {"sum": sum(rows), "place": place, "edge": edge}
        spec: {policy: {failure: {mode: best_effort}}}
        next: {arcs: [{step: read, when: "{{ each.count == 3 and each.stats.total == 7 }}"}]}
      - {step: read, tool: {kind: python, input: {all: "{{ each }}", second: "{{ each.results[1].sum }}"},
         code: "result = {'all': all, 'second': second}"}}
"""


@pytest.mark.parametrize("spec", ["{frame: F}", "{mode: parallel, max_in_flight: 2, frame: F}"])
@asynchronous
async def test_a_pipeline_per_frame_gives_one_entry_per_frame(address: str, tmp_path: Path, spec: str) -> None:
    body = FRAMEWISE.replace("SPEC", spec.replace("F}", "{max_rows: 3, process: frame}}")).replace("BAD", "99")
    told = await told_of(address, tmp_path, body)
    result = told.result["all"]
    assert [row["sum"] for row in result["results"]] == [3, 12, 6]
    assert [row["place"] for row in result["results"]] == [[0, 0, 3, 0], [1, 3, 3, 1], [2, 6, 1, 2]]
    assert [row["edge"] for row in result["results"]] == [[True, False, 7], [False, False, 7], [False, True, 7]]
    assert result["stats"] == {"total": 7, "success": 7, "failed": 0}
    assert (result["count"], told.result["second"]) == (3, 12)


@asynchronous
async def test_a_frame_that_fails_counts_its_rows_and_has_one_entry(address: str, tmp_path: Path) -> None:
    body = FRAMEWISE.replace("SPEC", "{frame: {max_rows: 3, process: frame}}").replace("BAD", "4")
    told = await told_of(address, tmp_path, body)
    result: Any = told.result["all"]
    assert result["stats"] == {"total": 7, "success": 4, "failed": 3}
    assert (result["results"][1]["status"], result["results"][0]["sum"]) == ("error", 3)


@asynchronous
async def test_a_shard_may_be_one_run_of_the_pipeline(address: str, tmp_path: Path) -> None:
    body = FRAMEWISE.replace("SPEC", "{mode: fanout, frame: {process: frame}, fanout: {shard_size: 3}}")
    told = await told_of(address, tmp_path, body.replace("BAD", "99"))
    assert [row["sum"] for row in told.result["all"]["results"]] == [3, 12, 6]
    assert told.result["all"]["fanin"]["total"] == 3
