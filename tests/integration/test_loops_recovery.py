"""Loops in trouble: rows that kill their process, engines that stop in the middle, rows that must not begin any more.

Rows keep a journal outside the system, which says how often each really ran."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.event import Event
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import Status
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import Told, running_engine


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


JOURNAL = """
    workload: {{journal: "", seconds: 0.05, n: 30, bad: -1}}
    workflow:
      - step: each
        loop: {{in: "{{{{ range(workload.n) | list }}}}", iterator: item, spec: {spec}}}
        tool:
          kind: python
          input: {{n: "{{{{ item }}}}", journal: "{{{{ workload.journal }}}}", seconds: "{{{{ workload.seconds }}}}",
                  bad: "{{{{ workload.bad }}}}", seen: "{{{{ ctx.seen | default([]) }}}}"}}
          code: |
            import time
            with open(journal, "a") as file:
                file.write(f"start {{n}}\\n")
            if n == bad:
                raise ValueError("bad")
            time.sleep(seconds)
            with open(journal, "a") as file:
                file.write(f"end {{n}}\\n")
            result = {{"n": n, "seen": len(seen)}}
          {set}
        spec: {{policy: {{failure: {{mode: {failure}}}}}}}
"""
ACCUMULATE = 'set: {ctx.seen: "{{ (ctx.seen | default([])) + [item] }}"}'


def playbook(spec: str, *, failure: str = "fail_fast", accumulate: bool = False) -> str:
    return JOURNAL.format(spec=spec, failure=failure, set=ACCUMULATE if accumulate else "")


class Journal:
    """What the rows themselves wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def count(self, word: str) -> Counter[int]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return Counter(int(line.split()[1]) for line in lines if line.startswith(word))

    async def until(self, holds: Callable[[Journal], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds(self):
                await asyncio.sleep(0.01)


def persisted(events: list[Event]) -> set[int]:
    found: set[int] = set()
    for event in events:
        if event.event_type == kinds.FRAME_HEARTBEAT:
            ranges: Any = event.meta["ranges"]
            found.update(index for first, end in ranges for index in range(first, end))
    return found


def check_ledger(told: Told, total: int) -> None:
    """Every transition is there once, and every row in exactly one frame that has one end."""
    assert fold_all(told.events) == told.state
    keys = [event.transition_key for event in told.events]
    assert len(keys) == len(set(keys))
    first = [e for e in told.of_type(kinds.FRAME_DISPATCHED) if e.meta["attempt"] == 1]
    windows: dict[str | None, Any] = {e.frame_id: (e.meta["first"], e.meta["rows"]) for e in first}
    ended = [e for e in told.events if e.event_type in (kinds.FRAME_COMMITTED, kinds.FRAME_FAILED)]
    rows = [i for e in ended for i in range(windows[e.frame_id][0], sum(windows[e.frame_id]))]
    assert sorted(rows) == list(range(total))
    for frame_id in windows:
        attempts = [e.meta["attempt"] for e in told.of_type(kinds.FRAME_STARTED) if e.frame_id == frame_id]
        assert attempts == list(range(1, len(attempts) + 1))


async def interrupted(
    address: str, home: Path, body: str, journal: Journal, *, when: Callable[[Journal], bool], **payload: object
) -> tuple[Told, list[Event]]:
    """Start a loop, stop the engine in the middle, go on with another one; also returns what was recorded before."""
    async with running_engine(address, home) as engine:
        execution_id = await engine.start(body, {"journal": str(journal.path), **payload})
        await journal.until(when)
    async with running_engine(address, home) as engine:
        told = await engine.finish(execution_id)
    abandoned = [e.position for e in told.of_type(kinds.FRAME_ABANDONED)]
    before = [e for e in told.events if e.position < min(abandoned, default=10**9)]
    return told, before


# --- restarts --------------------------------------------------------------------------------------------


@asynchronous
async def test_an_engine_that_stops_in_the_middle_of_a_loop_goes_on_behind_what_is_persisted(
    address: str, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    body = playbook("{mode: parallel, max_in_flight: 4, frame: {max_rows: 20}}")
    told, before = await interrupted(
        address, tmp_path, body, journal, when=lambda j: len(j.count("end")) >= 36, n=60, seconds=0.05
    )
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert [row["n"] for row in told.result["results"]] == list(range(60))
    check_ledger(told, 60)
    assert told.of_type(kinds.FRAME_ABANDONED)
    early = persisted(before)
    assert len(early) >= 8
    starts = journal.count("start")
    assert set(starts) == set(range(60))
    assert [index for index in early if starts[index] != 1] == []
    # What ran twice had not been persisted: it was in flight, or had ended a moment ago.
    assert sum(starts.values()) - 60 <= 60 - len(early)
    for lost in told.of_type(kinds.FRAME_ABANDONED):
        assert lost.meta["skipped"] == len(persisted([e for e in before if e.frame_id == lost.frame_id]))


@asynchronous
async def test_a_sequential_loop_that_is_interrupted_forgets_no_write(address: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    body = playbook("{mode: sequential, frame: {max_rows: 40}}", accumulate=True)
    told, before = await interrupted(
        address, tmp_path, body, journal, when=lambda j: len(j.count("end")) >= 20, n=40, seconds=0.03
    )
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert [row["seen"] for row in told.result["results"]] == list(range(40))
    assert len(persisted(before)) >= 5
    assert told.state.variables["seen"].value == list(range(40))


@asynchronous
async def test_a_loop_that_wants_whole_frames_runs_them_again_from_their_beginning(
    address: str, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    body = playbook("{mode: parallel, max_in_flight: 2, frame: {max_rows: 20, retry_mode: whole_frame}}")
    told, before = await interrupted(
        address, tmp_path, body, journal, when=lambda j: len(j.count("end")) >= 14, n=20, seconds=0.05
    )
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert persisted(before)
    starts = journal.count("start")
    assert all(starts[index] == 2 for index in persisted(before))
    (lost,) = told.of_type(kinds.FRAME_ABANDONED)
    assert (lost.meta["retry_mode"], lost.meta["skipped"]) == ("whole_frame", 0)


@asynchronous
async def test_a_loop_survives_stop_after_stop(address: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    body = playbook("{mode: parallel, max_in_flight: 3}")
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start(body, {"journal": str(journal.path), "n": 120, "seconds": 0.02})
        await journal.until(lambda j: len(j.count("end")) >= 5)
    for goal in (20, 40, 60):
        async with running_engine(address, tmp_path):
            await journal.until(lambda j, goal=goal: len(j.count("end")) >= goal)  # type: ignore[misc]
    async with running_engine(address, tmp_path) as engine:
        told = await engine.finish(execution_id)
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert [row["n"] for row in told.result["results"]] == list(range(120))
    check_ledger(told, 120)


# --- rows that take their process with them --------------------------------------------------------------

DEADLY = """
    workflow:
      - step: each
        loop: {in: "{{ range(40) | list }}", iterator: item, spec: {mode: parallel, max_in_flight: 4}}
        tool:
          kind: python
          input: {n: "{{ item }}"}
          code: |
            import os
            if n in (5, 21):
                os._exit(3) if n == 5 else os.kill(os.getpid(), 9)
            result = n
        spec: {policy: {failure: {mode: best_effort}}}
"""


@asynchronous
async def test_a_row_that_kills_its_process_fails_and_the_others_do_not(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(DEADLY)
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result["stats"] == {"total": 40, "success": 38, "failed": 2}
    for index, row in enumerate(told.result["results"]):
        if index in (5, 21):
            assert row["status"] == "error"
            assert "ended" in row["error"]["message"] or "exit" in row["error"]["message"], row
        else:
            assert row == index
    assert not told.of_type(kinds.FRAME_ABANDONED)


# --- rows that must not begin any more -------------------------------------------------------------------


@asynchronous
async def test_when_a_row_fails_no_further_row_begins_anywhere(address: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    body = playbook("{mode: parallel, max_in_flight: 4, frame: {max_rows: 50}}")
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(body, {"journal": str(journal.path), "n": 200, "seconds": 0.1, "bad": 53})
    assert told.state.status is Status.FAILED
    assert told.state.failure is not None
    assert "item 53: bad" in str(told.state.failure["error"])
    # Four frames of fifty rows: in each of them a few rows ran before the word reached them.
    starts = journal.count("start")
    assert sum(starts.values()) < 40
    (done,) = told.of_type(kinds.LOOP_DONE)
    assert done.meta["status"] == "failed"
    drained = [e for e in told.of_type(kinds.FRAME_FAILED) if "drained" in str(e.result)]
    assert drained
    skipped = sum(int(str(e.meta["outcomes"]["skipped"])) for e in told.of_type(kinds.FRAME_FAILED))  # type: ignore[index]
    assert skipped + sum(journal.count("end").values()) + 1 >= 150


@asynchronous
async def test_a_loop_that_failed_before_the_engine_stopped_does_not_begin_again(address: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    body = playbook("{mode: parallel, max_in_flight: 2, frame: {max_rows: 50}}")
    payload = {"journal": str(journal.path), "n": 100, "seconds": 1.5, "bad": 51}
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start(body, payload)
        # Row 50 takes long, row 51 fails behind it while row 1 is running.
        await engine.until(execution_id, lambda state: any(s.failure for s in state.loop_state.values()))
    begun = sum(journal.count("start").values())
    async with running_engine(address, tmp_path) as engine:
        told = await engine.finish(execution_id)
    assert told.state.status is Status.FAILED
    assert sum(journal.count("start").values()) == begun
