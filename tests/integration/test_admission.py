"""Rules of admission and guards of steps, through the real engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import Status
from noetl.core.execution.view.document import execution_view
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import Told, running_engine

# Too many rows for an event: only a worker can look into them.
ROWS = """{kind: python, code: 'result = {"rows": [{"n": i, "text": "x" * 50} for i in range(500)]}'}"""


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


def decided(told: Told, step: str) -> dict[str, Any]:
    return dict([e for e in told.of_type(kinds.STEP_DECIDED) if e.meta["step"] == step][-1].meta)


def ran(told: Told) -> list[str]:
    issued = told.of_type(kinds.COMMAND_ISSUED)
    return [str(event.command_id) for event in issued if event.meta["kind"] == "step"]


@asynchronous
async def test_steps_are_admitted_denied_and_guarded_and_branches_still_meet(address: str, tmp_path: Path) -> None:
    body = """
    workload: {open: false}
    workflow:
      - step: start
        tool: ROWS
        next: {spec: {mode: inclusive}, arcs: [{step: denied}, {step: allowed}, {step: guarded}]}
      - step: denied
        spec: {policy: {admit: {rules: [{when: "{{ workload.open }}", then: {allow: true}},
                                           {else: {then: {allow: false}}}]}}}
        tool: {kind: noop}
        next: join
      - step: allowed
        # Only a worker can look into the rows.
        spec: {policy: {admit: {rules: [
          {when: "{% for row in event.payload.rows if row.n == 499 %}{{ event.name == 'step.done' }}{% endfor %}",
            then: {allow: true}}, {else: {then: {allow: false}}}]}}}
        tool: {kind: python, code: 'result = {"n": 1}'}
        next: join
      - step: guarded
        when: "{{ output.data.rows[3].n > 100 or event.payload.rows[4].n != 4 }}"
        tool: {kind: python, code: 'raise ValueError("must not run")'}
        next: [{step: join, when: "{{ output.status == 'ok' }}", set: {by: "{{ event.step }}"}}]
      - step: join
        tool:
          kind: python
          input: {denied: "{{ denied is defined }}", n: "{{ allowed.n }}", by: "{{ by }}"}
          code: 'result = [denied, n, by]'
    """.replace("ROWS", ROWS)
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(body)
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result == [False, 1, "guarded"]
    assert ran(told) == ["start#1", "allowed#1", "join#1"]
    assert decided(told, "denied")["reason"] == "admission"
    assert decided(told, "guarded")["reason"] == "guard"
    assert told.state.skipped_steps == {"denied": 1, "guarded": 1}
    assert fold_all(told.events) == told.state
    shown = {name: view["status"] for name, view in execution_view(told.state)["steps"].items()}
    assert shown == {
        "start": "completed",
        "denied": "skipped",
        "allowed": "completed",
        "guarded": "skipped",
        "join": "completed",
    }


@asynchronous
async def test_a_loop_is_admitted_or_not_each_time_it_is_its_turn(address: str, tmp_path: Path) -> None:
    body = """
    workflow:
      - step: start
        tool: ROWS
        next: each
      - step: each
        loop: {in: "{{ start.rows[:3] }}", iterator: row}
        spec: {policy: {admit: {rules: [{when: "{{ (turn | default(0)) == 1 }}", then: {allow: false}}]}}}
        tool: {kind: python, input: {n: "{{ row.n }}"}, code: 'result = n'}
        set: {turn: "{{ (turn | default(0)) + 1 }}"}
        next: each
    """.replace("ROWS", ROWS)
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(body)
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert len(told.of_type(kinds.LOOP_STARTED)) == 1
    assert told.state.runs == {"start": 1, "each": 2}
    assert told.state.skipped_steps == {"each": 2}
    assert told.result["results"] == [0, 1, 2]


@asynchronous
async def test_a_guard_that_fails_fails_the_execution_and_names_the_step(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - {step: start, tool: {kind: noop}, next: here}
          - {step: here, when: "{{ result.missing > 1 }}", tool: {kind: noop}}
        """)
    assert told.state.status is Status.FAILED
    assert told.state.failure is not None
    error: Any = told.state.failure["error"]
    assert (told.state.failure["step"], error["code"]) == ("here", "routing_error")
    assert "'here'" in error["message"]
