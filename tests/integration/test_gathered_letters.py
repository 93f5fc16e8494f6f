"""The dead letter of a loop whose frames' outputs were written down on the way names what failed and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import OWNER, completed, running_engine

ROWS = 700
BODY = """
workflow:
  - step: rows
    loop: {in: "{{ range(700) | list }}", iterator: x, spec: {mode: parallel, max_in_flight: 16, frame: {max_rows: 1}}}
    spec: {policy: {failure: {mode: best_effort}}}
    tool: {kind: python, input: {x: "{{ x }}"}, code: "result = 1 // (0 if x == BAD else 1)"}
    next: {arcs: [{step: after}]}
  - step: after
    tool: {kind: python, input: {letter: "{{ rows.dead_letter | default('none') }}"}, code: "result = letter"}
"""


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


@asynchronous
async def test_a_long_loop_that_went_well_has_no_dead_letter(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path / "home") as running:
        told = await running.run(BODY.replace("BAD", "None"))
        assert any("/gather/" in (event.command_id or "") for event in told.events)
        assert completed(told) == "none"
        assert told.state.ended_loops["rows"].dead_letter is None


@asynchronous
async def test_the_dead_letter_of_a_long_loop_says_what_failed(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path / "home") as running:
        told = await running.run(BODY.replace("BAD", "3"))
        letter = await running.engine.payloads.read_json(completed(told), **OWNER)
        assert (letter["total"], letter["failed"], letter["never_ran"]) == (ROWS, 1, [])
        assert [item["index"] for item in letter["items"]] == [3]
