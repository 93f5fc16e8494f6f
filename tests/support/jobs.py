"""A tool that runs jobs as the real one does, without a JVM: it tells its intent and its progress, takes its time, and
when it is cancelled it takes its time to confirm.

    python -m tests.support.jobs worker --server … --pool spark      a worker process that has it

The task's input says what happens: `seconds` to run, `confirm` seconds to confirm a cancel, `fail` the code of a
failure, `file` a file that gets the process id when the job has begun."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from noetl.cli.main import main
from noetl.core.errors import Failure
from noetl.ports.data.compute import JobIntent, JobProgress
from noetl.ports.tool import ToolCall, ToolResult, ToolSettings
from noetl.tools.spark import tool as real

STAGES = 3
TASKS = 40
LOOK_SECONDS = 0.05
UI = "http://127.0.0.1:4040/jobs"


class StandIn:
    kind = "spark"
    opens_tables = False

    def __init__(self, _settings: ToolSettings | None = None) -> None:
        self.confirmed: list[str] = []
        self.most = 0
        self._running = 0

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def run(self, call: ToolCall) -> ToolResult:
        self._running += 1
        self.most = max(self.most, self._running)
        try:
            return await self._run(call)
        except asyncio.CancelledError:
            await asyncio.sleep(_seconds(call, "confirm"))
            self.confirmed.append(call.step)
            raise
        finally:
            self._running -= 1

    async def _run(self, call: ToolCall) -> ToolResult:
        assert call.jobs is not None
        conf: Any = call.fields.get("conf") or {}
        intent = JobIntent(
            job_group=f"{call.execution_id}-{call.step}-{call.attempt}",
            application_id="local-1",
            ui=UI,
            event_log=None,
            conf={"spark.app.name": call.step, **conf},
        )
        await call.jobs.intended(intent)
        if call.input.get("file"):
            Path(str(call.input["file"])).write_text(str(os.getpid()))
        if call.log is not None:
            call.log(f"job of {call.step} runs\n")
        loop = asyncio.get_running_loop()
        begun, seconds = loop.time(), _seconds(call, "seconds")
        while (passed := loop.time() - begun) < seconds:
            await call.jobs.progressed(_progress(passed / seconds))
            await asyncio.sleep(min(LOOK_SECONDS, seconds))
        code = call.input.get("fail")
        failure = None if code is None else Failure(kind="connection", code=str(code), message="it is lost")
        return ToolResult(value={"attempt": call.attempt}, failure=failure, job=_facts(call))


def _progress(share: float) -> JobProgress:
    return JobProgress(
        jobs=(0, 1),
        stages=STAGES,
        stages_done=int(STAGES * share),
        tasks=TASKS,
        tasks_done=int(TASKS * share),
        stage="count at main.py:3",
    )


def _facts(call: ToolCall) -> dict[str, object]:
    return {
        "application": "local-1",
        "ui": UI,
        "stages": STAGES,
        "tasks": TASKS,
        "rows_read": 1_000_000,
        "bytes_read": 12_345_678,
        "rows_written": 10,
        "bytes_written": 512,
        "shuffle_write_bytes": 2_000_000,
        "wall_ms": 1_500,
        "expect": [{"name": "id is not null", "met": True, "broken": 0}, {"name": "few", "met": False, "broken": 3}],
        "spark.password": "no job says this",
        "auth": None if call.auth is None else repr(call.auth),
    }


def _seconds(call: ToolCall, name: str) -> float:
    return float(str(call.input.get(name, 0)))


def job_step(name: str = "start", **given: object) -> str:
    """The workflow of one step that runs a job."""
    inputs = ", ".join(f"{key}: {value!r}" for key, value in given.items())
    return f"workflow:\n  - step: {name}\n    tool: {{kind: spark, sql: SELECT 1 AS n, inputs: {{{inputs}}}}}\n"


if __name__ == "__main__":
    real.SparkTool = StandIn  # type: ignore[assignment, misc]
    sys.argv = ["noetl", *sys.argv[1:]]
    sys.exit(main())
