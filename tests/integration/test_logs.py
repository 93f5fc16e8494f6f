"""Logs through the whole engine: live, by step, row, attempt and try, bounded, and without secrets."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from noetl.core import kinds, limits
from noetl.core.errors import ExecutionUnknown, RequestInvalid
from noetl.core.execution.state import Status
from noetl.engine.logs import Cursor, LogQuery, cursor_of
from noetl.processes.server.owners import Owner
from tests.support.aio import asynchronous
from tests.support.databases import connected, fresh_database
from tests.support.engine import OWNER, Running, completed, running_engine
from tests.support.logs import log_lines

SECRET = "canary/logs&71f0=Zq"


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


async def page_of(running: Running, execution_id: int, *, wait: float = 0.0, **query: Any) -> Any:
    asked = LogQuery(execution_id, **{**OWNER, "limit": 100, **query})
    return await running.engine.logs.page(asked, running.engine.service, wait_seconds=wait)


@asynchronous
async def test_a_line_can_be_read_while_its_task_runs(address: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start(
            """
            workload: {gate: none}
            workflow:
              - step: start
                tool:
                  kind: python
                  input: {gate: "{{ workload.gate }}"}
                  code: |
                    import os, time
                    print("first")
                    while not os.path.exists(gate): time.sleep(0.01)
                    print("second")
            """,
            {"gate": str(gate)},
        )
        async with asyncio.timeout(60):
            page = await page_of(engine, execution_id, wait=20)
            assert [line["text"] for line in page.lines] == ["first"]
            assert not page.is_complete
            assert not (await engine.state(execution_id)).is_terminal
            gate.touch()
            page = await page_of(engine, execution_id, after=page.cursor, wait=20)
        assert [line["text"] for line in page.lines] == ["second"]
        told = await engine.finish(execution_id)
        last = await page_of(engine, execution_id, after=page.cursor, wait=20)
        assert (last.lines, last.is_complete) == ([], True)
    (done,) = told.of_type(kinds.COMMAND_COMPLETED)
    assert done.meta["logs"] == {"lines": 2, "bytes": 11}


@asynchronous
async def test_lines_know_their_step_task_row_and_try(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: start
            tool:
              - one: {kind: python, code: "import sys\\nprint('a', file=sys.stderr)\\nresult = [5, 6, 7]"}
              - two:
                  kind: python
                  code: |
                    import os
                    print("try")
                    if not os.environ.get("X"): raise ConnectionError("away")
                  env: {X: "{{ '1' if _attempt > 2 else '' }}"}
                  spec:
                    policy:
                      rules:
                        - {when: "{{ outcome.status == 'error' }}", then: {do: retry, attempts: 4, delay: 0.01}}
              - three: {kind: python, code: "result = [5, 6, 7]"}
            next: items
          - step: items
            loop: {in: "{{ start.three }}", iterator: n, spec: {mode: parallel, max_in_flight: 3}}
            tool: {kind: python, input: {n: "{{ n }}"}, code: "print('row', n); result = n"}
        """)
        assert completed(told)["count"] == 3
        lines = await log_lines(engine, told.state.execution_id)
        rows = await log_lines(engine, told.state.execution_id, step="items")
        paged = await log_lines(engine, told.state.execution_id, limit=1)
    first = [line for line in lines if line["step"] == "start"]
    again = "is tried again in 0.01 s: connection: away"
    assert [(line["task"], line["stream"], line["try"], line["text"]) for line in first] == [
        ("one", "stderr", 1, "a"),
        ("two", "stdout", 1, "try"),
        ("two", "log", 1, f"run 1 {again}"),
        ("two", "stdout", 2, "try"),
        ("two", "log", 2, f"run 2 {again}"),
        ("two", "stdout", 3, "try"),
    ]
    assert sorted((line["row"], line["text"]) for line in rows) == [(0, "row 5"), (1, "row 6"), (2, "row 7")]
    assert paged == lines
    assert all(line["attempt"] == 1 for line in lines)
    assert [event.event_type for event in told.events if "stdout" in event.meta] == []


@asynchronous
async def test_a_task_that_waits_is_told_apart_by_its_attempt(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: start
            tool:
              kind: python
              code: |
                print("here")
                if not os.environ.get("X"): raise ValueError("not yet")
              env: {X: "{{ '1' if _attempt > 1 else '' }}"}
              spec:
                policy:
                  rules: [{when: "{{ outcome.status == 'error' }}", then: {do: retry, attempts: 2, delay: 2.1}}]
        """)
        assert told.state.status is Status.COMPLETED, told.state.failure
        lines = await log_lines(engine, told.state.execution_id)
    assert [(line["attempt"], line["try"], line["text"]) for line in lines if line["stream"] == "stdout"] == [
        (1, 1, "here"),
        (2, 2, "here"),
    ]


@asynchronous
async def test_the_server_of_a_database_is_heard(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        await engine.engine.credentials.put("db", type="postgres", data={"dsn": address}, owner=Owner(**OWNER))
        told = await engine.run("""
        workflow:
          - step: start
            tool:
              kind: postgres
              auth: db
              query: |
                DO $$ BEGIN RAISE NOTICE 'seen % rows', 3; RAISE WARNING 'careful' USING HINT = 'look'; END $$;
                DROP TABLE IF EXISTS nothing_here;
        """)
        assert told.state.status is Status.COMPLETED, told.state.failure
        lines = await log_lines(engine, told.state.execution_id)
    assert [line["text"] for line in lines] == [
        "NOTICE: seen 3 rows",
        "WARNING: careful",
        "HINT: look",
        'NOTICE: table "nothing_here" does not exist, skipping',
    ]
    assert {line["stream"] for line in lines} == {"log"}


@asynchronous
async def test_a_flood_is_bounded_and_what_was_left_out_is_said(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: start
            tool:
              kind: python
              code: |
                for n in range(400_000): print(n, "x" * 90)
                print("the end")
        """)
        assert told.state.status is Status.COMPLETED, told.state.failure
        lines = await log_lines(engine, told.state.execution_id, limit=5_000)
        async with connected(address) as connection:
            stored = await connection.fetchval(
                "SELECT sum(octet_length(content)) FROM noetl.log_chunk WHERE execution_id = $1",
                told.state.execution_id,
            )
    (done,) = told.of_type(kinds.COMMAND_COMPLETED)
    said: Any = done.meta["logs"]
    assert len(lines) == said["lines"]
    assert said["bytes"] <= limits.LOG_COMMAND_BYTES_MAX + limits.LOG_TAIL_BYTES_MAX + 10_000
    assert said["left_out_bytes"] > 10_000_000
    assert any(line["text"].endswith("MB left out") for line in lines)
    assert stored < limits.LOG_COMMAND_BYTES_MAX


@asynchronous
async def test_no_form_of_a_secret_is_in_a_log(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        await engine.engine.credentials.put("api", type="bearer", data={"token": SECRET}, owner=Owner(**OWNER))
        told = await engine.run("""
        keychain: [{name: api, kind: credential, ref: api}]
        workflow:
          - step: start
            tool:
              kind: python
              input: {token: "{{ keychain.api.token }}"}
              code: |
                import base64, sys, time
                from urllib.parse import quote
                print("plain", token)
                print("hex", token.encode().hex(), token.encode().hex().upper())
                print("url", quote(token, safe=""), quote(token))
                print("base64", base64.b64encode(("user:" + token).encode()).decode())
                for character in token:
                    print(character, end="", flush=True)
                print()
                for character in base64.b64encode(token.encode()).decode():
                    sys.stderr.write(character)
                    sys.stderr.flush()
                print(token[:9], end="", flush=True)
                time.sleep(0.5)
                print(token[9:])
                print("y" * 5_000 + token + "y" * 20_000)
                print("no line end " + token, end="")
                result = len(token)
        """)
        assert completed(told) == len(SECRET)
        lines = await log_lines(engine, told.state.execution_id)
    texts = [line["text"] for line in lines]
    assert [text for text in texts if text.startswith("no line end")] == ["no line end ***"]
    for form in (
        SECRET,
        SECRET.encode().hex(),
        SECRET.encode().hex().upper(),
        quote(SECRET, safe=""),
        base64.b64encode(SECRET.encode()).decode()[2:-4],
        SECRET[:9],
        SECRET[-9:],
    ):
        assert [text for text in texts if form in text] == [], form
    assert sum(text.count("***") for text in texts) == 11


@asynchronous
async def test_a_stopped_task_keeps_what_it_said(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start("""
        workflow:
          - step: start
            tool: {kind: python, code: "import time\\nprint('on my way')\\nprint('and', end='')\\ntime.sleep(60)"}
        """)
        async with asyncio.timeout(60):
            await page_of(engine, execution_id, wait=20)
            await engine.cancel(execution_id)
            told = await engine.finish(execution_id)
        assert told.state.status is Status.CANCELLED
        assert [line["text"] for line in await log_lines(engine, execution_id)] == ["on my way"]


@asynchronous
async def test_logs_belong_to_their_owner(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("workflow: [{step: start, tool: {kind: python, code: \"print('x')\"}}]")
        with pytest.raises(ExecutionUnknown):
            await page_of(engine, told.state.execution_id, tenant_id="other")
        async with connected(address) as connection:
            await connection.execute("UPDATE noetl.log_chunk SET content = 'damaged', reference = NULL")
        (line,) = await log_lines(engine, told.state.execution_id)
        assert line["text"].startswith("… 1 lines cannot be read")


@pytest.mark.parametrize("text", ["", "1", "1.2.3", "a.b", "-1.0", "1.", f"{10**19}.0", "١.0"])
def test_what_is_no_place_in_a_log_is_refused(text: str) -> None:
    with pytest.raises(RequestInvalid):
        cursor_of(text)
    assert cursor_of(str(Cursor(12, 3))) == Cursor(12, 3)
