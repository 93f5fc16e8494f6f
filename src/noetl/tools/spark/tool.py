"""The tool itself: lays inputs out, has the job run by a driver, keeps what it left.

Nothing of Spark is in this process: a driver that dies takes a job with it and nothing else."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from noetl.core.errors import Failure, ToolFailed
from noetl.ports.data.compute import JobOutcome, SparkCompute, SparkJob
from noetl.ports.tool import ToolCall, ToolResult, ToolSettings
from noetl.tools.spark.failures import failed, timeout_failure
from noetl.tools.spark.folders import Folders, JobFolder
from noetl.tools.spark.inputs import Inputs
from noetl.tools.spark.listener import Listener
from noetl.tools.spark.request import Request, read_request
from noetl.tools.spark.results import Results, job_facts, kept_results
from noetl.tools.spark.sources import found_below


@dataclass(slots=True)
class _Try:
    """How far one call has come."""

    listener: Listener
    folder: JobFolder | None = None
    outcome: JobOutcome | None = None
    results: Results = field(default_factory=Results)

    def result(self, failure: Failure | None = None) -> ToolResult:
        outcome = self.outcome
        if outcome is None or self.folder is None:
            return ToolResult(failure=failure)
        # What failed after its job has no results, however many of them are stored already.
        results = self.results if failure is None else Results()
        return ToolResult(
            value=results.value,
            parts=results.parts,
            failure=failure or outcome.failure,
            traceback=outcome.traceback,
            job=job_facts(self.folder.path.name, self.listener.intent, outcome, results),
        )


class SparkTool:
    kind = "spark"
    opens_tables = True

    def __init__(self, settings: ToolSettings) -> None:
        self._settings = settings
        self._folders = None if settings.spark_folder is None else Folders(settings.spark_folder)

    async def start(self) -> None:
        if self._folders is not None:
            await asyncio.to_thread(self._folders.remove_left)

    async def close(self) -> None:
        """Drivers belong to whoever gave them."""

    async def run(self, call: ToolCall) -> ToolResult:
        one = _Try(Listener(call))
        try:
            async with asyncio.timeout(call.timeout_seconds) as timer:
                await self._run(call, one)
        except ToolFailed as error:
            return one.result(error.failure)
        except TimeoutError:
            if not timer.expired():
                raise
            return one.result(timeout_failure(call.timeout_seconds, _how_far(one)))
        finally:
            # Not in the time of the task: whatever this takes, its results are there.
            if one.folder is not None:
                await asyncio.to_thread(one.folder.remove)
        return one.result()

    async def _run(self, call: ToolCall, one: _Try) -> None:
        request = read_request(call.fields, call.script)
        compute, folders, datasets = self._settings.spark, self._folders, call.datasets
        if compute is None or folders is None or datasets is None:
            message = "this worker runs no Spark jobs: start one that does with `noetl worker --pool spark`"
            raise failed("unsupported", message, "SPARK_NOWHERE")
        one.folder = folders.new(call)
        folder = one.folder.path
        one.outcome = await self._performed(call, request, folder, compute, one.listener)
        one.results = await kept_results(
            one.outcome, request.outputs, datasets, expectations=request.expectations, folder=folder
        )

    async def _performed(
        self, call: ToolCall, request: Request, folder: Path, compute: SparkCompute, listener: Listener
    ) -> JobOutcome:
        async with AsyncExitStack() as stack:
            inputs = Inputs(call, self._settings, folder, stack)
            job = SparkJob(
                job_id=folder.name,
                title=_title(call),
                mode=request.mode,
                text=self._text(request),
                arguments=request.arguments,
                inputs=await inputs.laid_out(),
                outputs=request.outputs,
                expectations=request.expectations,
                conf=request.conf,
                folder=folder,
                credentials=inputs.credentials,
                http_allow=self._settings.http_allow,
                private_hosts=self._settings.postgres_private_hosts,
                tenant_id=call.tenant_id,
                organization_id=call.organization_id,
                sources=self._settings.spark_sources,
            )
            return await compute.run(job, listener)

    def _text(self, request: Request) -> str:
        is_file = request.mode == "application"
        return found_below(request.text.strip(), self._settings.artifact_roots) if is_file else request.text


def _how_far(one: _Try) -> str:
    """Where the time limit met a task."""
    progress = one.listener.progress
    if one.outcome is not None:
        return "the job had ended, and what it wrote was being stored; nothing of it is published"
    if one.listener.intent is None:
        return "the job had not begun: its driver was starting, or busy with other jobs"
    if progress is None or not progress.tasks:
        return "the job was cancelled before its first Spark task"
    return f"the job was cancelled after {progress.tasks_done:,} of {progress.tasks:,} Spark tasks"


def _title(call: ToolCall) -> str:
    task = "" if call.label == f"{call.step}_task" else f" · {call.label}"
    return f"{call.step}{task} (execution {call.execution_id})"
