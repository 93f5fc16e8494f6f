"""Shared limits through the real engine: loops of two executions against a server that counts who is there."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.execution.state import Status
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import OWNER, Running, Told, completed, running_engine
from tests.support.standin import standin_process

CONCURRENCY = 3
PROBES = """
    limits: {api: %(limit)s}
    workload: {address: none, rows: 0, delay: 0.02}
    workflow:
      - step: each
        loop: {in: "{{ range(workload.rows) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 12}}
        tool:
          kind: http
          limit: api
          url: "{{ workload.address }}/api/v1/concurrency/probe"
          params: {delay_seconds: "{{ workload.delay }}", label: "{{ execution_id }}"}
    """


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


@pytest.fixture
def standin() -> Iterator[str]:
    with standin_process() as found:
        yield found


def probes(limit: str) -> str:
    return PROBES % {"limit": limit}


def stats(standin: str) -> Any:
    with urllib.request.urlopen(f"{standin}/api/v1/concurrency/stats") as answer:
        return json.load(answer)


async def counted(standin: str) -> Any:
    return await asyncio.to_thread(stats, standin)


@asynchronous
async def test_rows_of_two_executions_are_never_more_at_a_time_than_the_limit_says(
    address: str, tmp_path: Path, standin: str
) -> None:
    text = probes("{concurrency: 3}")
    async with running_engine(address, tmp_path) as engine:
        payload = {"address": standin, "rows": 40}
        one, two = await engine.start(text, payload), await engine.start(text, payload)
        for execution_id in (one, two):
            told = await engine.finish(execution_id)
            assert completed(told)["stats"] == {"total": 40, "success": 40, "failed": 0}
            frames = told.of_type(kinds.FRAME_COMMITTED)
            waited = [frame.meta["profile"]["tasks"]["each_task"]["limit_ms"] for frame in frames]  # type: ignore[index]
            assert sum(waited) > 0
        found = await counted(standin)
    assert found["completed"] == 80
    assert found["max_active"] == CONCURRENCY


@asynchronous
async def test_a_rate_holds_over_two_executions_and_both_get_their_share(
    address: str, tmp_path: Path, standin: str
) -> None:
    """Not timed to the millisecond: never faster than the rate allows, and both are done about together."""
    text = probes("{rate: 40/s}")
    async with running_engine(address, tmp_path) as engine:
        payload = {"address": standin, "rows": 30, "delay": 0}
        begun = time.monotonic()
        one, two = await engine.start(text, payload), await engine.start(text, payload)
        assert completed(await engine.finish(one))["stats"]["success"] == 30
        seen = await counted(standin)
        assert completed(await engine.finish(two))["stats"]["success"] == 30
        assert time.monotonic() - begun >= (60 - 40 * 0.25 - 1) / 40
    assert min(seen["labels"].values()) >= 20


@asynchronous
async def test_every_try_takes_a_permit_and_waiting_is_no_part_of_the_timeout(address: str, tmp_path: Path) -> None:
    text = """
    limits: {slow: {rate: 2/s}}
    workflow:
      - step: call
        tool:
          - name: get
            kind: python
            limit: slow
            timeout: 0.4
            input: {attempt: "{{ _attempt }}"}
            code: |
              if attempt < 3:
                  raise ValueError("again")
              result = attempt
            spec:
              policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 5, delay: 0}}]}
    """
    async with running_engine(address, tmp_path) as engine:
        begun = time.monotonic()
        told = await engine.run(text)
        assert completed(told)["get"] == 3
        assert time.monotonic() - begun >= 0.75
        (done,) = told.of_type(kinds.COMMAND_COMPLETED)
        tasks: Any = done.meta["tasks"]
        assert [entry.get("limit_ms", 0) > 300 for entry in tasks] == [False, True, True]
        assert all(entry["ms"] < 400 for entry in tasks)


@asynchronous
async def test_a_cancelled_execution_gives_back_what_it_held_and_waited_for(
    address: str, tmp_path: Path, standin: str
) -> None:
    text = probes("{concurrency: 2}")
    async with running_engine(address, tmp_path) as engine:
        stuck = await engine.start(text, {"address": standin, "rows": 20, "delay": 30})
        while (await counted(standin))["active"] < 2:
            await asyncio.sleep(0.02)
        await engine.cancel(stuck)
        told = await engine.run(text, {"address": standin, "rows": 6})
        assert completed(told)["stats"]["success"] == 6
        assert (await engine.finish(stuck)).state.status is Status.CANCELLED
        while any(user.in_use or user.waiting for user in await users(engine)):
            await asyncio.sleep(0.02)


async def users(engine: Running) -> list[Any]:
    views = await engine.engine.serving.permits.look(**OWNER)
    return [user for view in views for user in view.users]


@asynchronous
async def test_when_playbooks_declare_something_else_the_strictest_holds_and_the_run_says_so(
    address: str, tmp_path: Path, standin: str
) -> None:
    async with running_engine(address, tmp_path) as engine:
        strict = await engine.start(probes("{concurrency: 1}"), {"address": standin, "rows": 30})
        while (await counted(standin))["started"] < 2:
            await asyncio.sleep(0.02)
        loose = await engine.run(probes("{concurrency: 9}"), {"address": standin, "rows": 10})
        completed(loose)
        completed(await engine.finish(strict))
        assert (await counted(standin))["max_active"] == 1
        assert any("concurrency 1 holds" in line for line in warnings_of(loose)), warnings_of(loose)


def warnings_of(told: Told) -> list[str]:
    return [line for event in told.events for line in event.meta.get("warnings", ())]  # type: ignore[attr-defined]


@asynchronous
async def test_a_playbook_that_is_started_takes_a_permit_to_start(address: str, tmp_path: Path) -> None:
    child = """
    workflow: [{step: one, tool: {kind: python, code: "result = 7"}}]
    """
    parent = """
    limits: {starts: {rate: 100/s}}
    workflow: [{step: call, tool: {kind: playbook, path: limits/child, limit: starts}}]
    """
    async with running_engine(address, tmp_path) as engine:
        await engine.register("limits/child", child)
        completed(await engine.run(parent))
        views = await engine.engine.serving.permits.look(**OWNER)
        assert [view.granted for view in views if view.name == "starts"] == [1]
