"""NOETL_EVENT_RESULT_CONTEXT_MAX_BYTES: more context than this is an error, never a shorter context."""

from __future__ import annotations

from pathlib import Path

import pytest

from noetl.core.errors import EnvelopeInvalid
from noetl.core.execution.state import Status
from noetl.core.limits import EVENT_RESULT_BYTES_MAX
from noetl.engine.control.facts import check_context
from noetl.ports.session import Fact
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import completed, running_engine

BODY = """
    workflow:
      - step: s
        tool:
          kind: python
          code: "result = {name: name * 900 for name in 'abcdef'}"
        output: {select: [{path: "$.a", as: one}, {path: "$.b", as: two}, {path: "$.c", as: three}]}
        set: {ctx.d: "{{ s.d }}", ctx.e: "{{ s.e }}", ctx.f: "{{ s.f }}"}
        next: {arcs: [{step: end, when: "{{ s.a[0] == 'a' }}"}]}
      - {step: end, tool: {kind: noop, result: "{{ ctx.d | length }}"}}
"""


@pytest.fixture
def address() -> str:
    return fresh_database()


@asynchronous
async def test_a_context_above_the_setting_fails_its_step_and_says_so(address: str, tmp_path: Path) -> None:
    limit = {"NOETL_EVENT_RESULT_CONTEXT_MAX_BYTES": "4096"}
    async with running_engine(address, tmp_path, limit) as engine:
        told = await engine.run(BODY)
        assert told.state.status is Status.FAILED
        assert told.state.failure is not None
        assert told.state.failure["step"] == "s"
        message = str(told.state.failure["error"])
        assert "NOETL_EVENT_RESULT_CONTEXT_MAX_BYTES is 4,096" in message
        assert "by reference" in message


@asynchronous
async def test_the_same_context_is_fine_by_default(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(BODY)
        assert completed(told) == 900
        (done,) = [event for event in told.of_type("command.completed") if event.command_id == "s#1"]
        assert done.result is not None
        assert len(str(done.result["context"])) > 4096


@pytest.mark.parametrize(("size", "bytes_max", "is_refused"), [(4_000, 4_096, False), (4_096, 4_096, True)])
def test_the_context_is_measured_as_it_is_stored(size: int, bytes_max: int, is_refused: bool) -> None:
    fact = Fact(
        execution_id=1,
        command_id="s#1",
        attempt=1,
        event_type="command.completed",
        result={"status": "ok", "context": {"x": "y" * size}, "reference": None, "parent_ref": None},
    )
    check_context(fact, EVENT_RESULT_BYTES_MAX)
    if is_refused:
        with pytest.raises(EnvelopeInvalid, match="select less"):
            check_context(fact, bytes_max)
    else:
        check_context(fact, bytes_max)
