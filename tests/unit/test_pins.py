"""What an execution is bound to when it begins."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.errors import Problem
from noetl.core.execution.context import command_body
from noetl.core.execution.pins import pinned, started
from noetl.core.execution.state import Command, CommandStatus, Entry, ExecutionState, Script, StepResult
from noetl.core.limits import WARNING_CHARS_MAX
from noetl.core.playbook.compile import compile_playbook
from noetl.engine.pinning.pins import Pins, recorded
from tests.support.yaml import playbook

REFERENCE = {"uri": "noetl://x", "sha256": "1" * 64}


def body_of(tool: str, scripts: dict[str, Script]) -> dict[str, Any]:
    text = playbook(f"workflow:\n  - step: start\n    tool: {tool}\n")
    compiled = compile_playbook(text, file="p.yaml", kinds=frozenset({"python", "postgres"}))
    state = ExecutionState(
        execution_id=1,
        scripts=scripts,
        workload={"a": Entry(1), "b": Entry(2)},
        variables={"c": Entry(3)},
        step_results={"load": StepResult(1, "ok", None, {})},
    )
    command = Command("start#1", "start", 1, "step", CommandStatus.ISSUED)
    return dict(command_body(state, compiled, command))


def carried(body: dict[str, Any]) -> set[str]:
    return {name for part in ("workload", "ctx", "steps") for name in body[part]}


def test_a_command_carries_its_scripts_by_reference_and_the_names_they_read() -> None:
    scripts = {"a.py": Script(REFERENCE, ("b", "load")), "other.py": Script(REFERENCE, None)}
    body = body_of("{kind: python, script: a.py}", scripts)
    assert body["scripts"] == {"a.py": REFERENCE}
    assert carried(body) == {"b", "load"}


@pytest.mark.parametrize(
    ("tool", "scripts"),
    [
        ("{kind: python, script: a.py}", {"a.py": Script(REFERENCE, None)}),
        ("{kind: python, script: a.py}", {}),
        ("{kind: postgres, auth: x, script: '{{ a }}.sql'}", {}),
        ("{kind: python, script: 'https://x/y.py'}", {}),
    ],
)
def test_a_script_that_nobody_has_seen_may_read_everything(tool: str, scripts: dict[str, Script]) -> None:
    assert carried(body_of(tool, scripts)) == {"a", "b", "c", "load"}


def test_without_a_script_there_is_nothing_of_it_in_the_command() -> None:
    body = body_of("{kind: python, code: 'result = 1'}", {})
    assert "scripts" not in body
    assert carried(body) == set()


def test_pins_are_recorded_and_folded_again() -> None:
    pins = Pins(
        scripts={"a.py": {"ref": REFERENCE, "names": ["n"]}, "b.sql": {"ref": REFERENCE, "names": None}},
        playbooks={"lib/x": {"id": "7", "version": 3, "sha256": "2" * 64}},
        catalog={"id": "5", "version": 2},
        warnings=(Problem("code", "message", "file.yaml", 3, 4, "start", "tool"),),
    )
    meta = pins.to_meta(20)
    assert meta["scripts"] == {"a.py": REFERENCE, "b.sql": REFERENCE}
    assert set(meta) <= set(kinds.KINDS[kinds.PLAYBOOK_INITIALIZED].meta)
    assert pinned(meta) == {
        "scripts": {"a.py": Script(REFERENCE, ("n",)), "b.sql": Script(REFERENCE, None)},
        "playbooks": {"lib/x": 3},
        "warnings": ({"code": "code", "message": "message", "line": 3, "column": 4, "step": "start", "field": "tool"},),
    }
    assert Pins().to_meta(20) == {}
    assert pinned({}) == {"scripts": {}, "playbooks": {}, "warnings": ()}


def test_a_path_is_bound_to_the_version_of_its_first_child() -> None:
    state = ExecutionState(execution_id=1, playbooks={"a": 1})
    assert started(state, {"path": "a", "catalog": {"id": "9", "version": 2}}) == {}
    assert started(state, {"path": "b", "catalog": {"id": "9", "version": 2}}) == {"playbooks": {"a": 1, "b": 2}}
    assert started(state, {"path": "c"}) == {}


def test_recorded_warnings_are_bounded_in_number_and_length() -> None:
    many = [Problem("c", "x" * 1_000 + "\ud800", "file.yaml") for _ in range(30)]
    kept = recorded(many, 20)
    assert len(kept) == 20
    assert kept[0] == {"code": "c", "message": "x" * WARNING_CHARS_MAX}
    assert kept[-1] == {"code": "more_warnings", "message": "and 11 more"}
    assert len(recorded(many[:20], 20)) == 20
    assert recorded([], 20) == []
