"""Limits that only a run can meet: the error names the limit and the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from noetl.engine.work.pipeline import interpreter, rendering
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import running_engine


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


@asynchronous
async def test_a_pipeline_that_never_ends_is_stopped(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "PIPELINE_TASKS_MAX", 50)
    body = """
    workflow:
      - step: start
        tool:
          - {name: one, kind: noop}
          - {name: two, kind: noop, spec: {policy: {rules: [{else: {then: {do: jump, to: one}}}]}}}
    """
    async with running_engine(address, tmp_path) as engine:
        failure = (await engine.run(body)).state.failure
    assert failure is not None
    error = failure["error"]
    assert error["code"] == "pipeline_runaway"
    assert error["message"].startswith("step 'start', task 'one': more than 50 task runs")


@asynchronous
async def test_a_template_that_takes_too_long_is_stopped(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "TEMPLATE_SECONDS_MAX", 0.2)
    loops = "".join(f"{{% for a{number} in range(400) %}}" for number in range(3)) + "{% endfor %}" * 3
    body = f"""
    workflow:
      - {{step: start, tool: {{kind: noop, result: "{loops}"}}}}
    """
    async with running_engine(address, tmp_path) as engine:
        failure = (await engine.run(body)).state.failure
    assert failure is not None
    error = failure["error"]
    assert (error["kind"], error["code"]) == ("template", "template_refused")
    assert "step 'start', task 'start_task': field 'result'" in error["message"]
    assert "took longer than 0.2 s" in error["message"]
