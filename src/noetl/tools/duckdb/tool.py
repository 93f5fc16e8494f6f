"""`duckdb`: statements over tables of the execution and over results of earlier steps (dsl §9.5).

DuckDB runs in a process of its own for each task, so nothing of it can block, crash or fill the worker.  Tasks that use
the same file wait for each other."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import DUCKDB_CHILDREN_MAX, DUCKDB_RUN_SECONDS_MAX
from noetl.ports.data.tables import LandedTable
from noetl.ports.tool import KeptRun, ToolCall, ToolResult, ToolSettings
from noetl.tools.duckdb.children import Children
from noetl.tools.duckdb.failures import crash_failure, failed, statement_failure, timeout_failure
from noetl.tools.duckdb.inputs import opened_sources
from noetl.tools.duckdb.places import LOCK, Owner, Places, TaskPlace
from noetl.tools.duckdb.request import MEMORY, Request, read_request
from noetl.tools.duckdb.sources import attachments_of
from noetl.tools.patience import patiently
from noetl.tools.sql.results import StatementResult, value_of

_ELSEWHERE = (
    "there was no such database on this node before this task: steps that share tables must run on one node, or hand "
    "the rows over in `input`"
)
_TABLE_TRIES = 3


@dataclass(slots=True)
class _Progress:
    """How far a task has come."""

    results: list[StatementResult] = field(default_factory=list)
    is_waiting: bool = True
    """For its turn: nothing of it was carried out yet."""
    failure: Failure | None = None
    is_done: bool = False
    gone: str | None = None
    """A table that was no more where it had been found."""


class DuckdbTool:
    kind = "duckdb"
    opens_tables = True

    def __init__(self, settings: ToolSettings) -> None:
        self._settings = settings
        self._places = None if settings.duckdb_folder is None else Places(Path(settings.duckdb_folder))
        self._children = Children()
        self._slots = asyncio.Semaphore(DUCKDB_CHILDREN_MAX)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def start(self) -> None:
        """What executions left behind that nobody ended here goes after a while."""
        if self._places is not None:
            await asyncio.to_thread(self._places.remove_unused, DUCKDB_RUN_SECONDS_MAX)

    async def close(self) -> None:
        await self._children.close()

    def kept_runs(self) -> list[KeptRun]:
        return [] if self._places is None else self._places.runs()

    def forget_runs(self, runs: Collection[KeptRun]) -> int:
        return 0 if self._places is None else self._places.remove(runs)

    async def run(self, call: ToolCall) -> ToolResult:
        progress = _Progress()
        try:
            async with asyncio.timeout(call.timeout_seconds) as timer:
                await self._run(call, progress)
        except ToolFailed as error:
            progress.failure = error.failure
        except TimeoutError:
            if not timer.expired():
                raise
            number = len(progress.results)
            progress.failure = timeout_failure(call.timeout_seconds, number=number, is_waiting=progress.is_waiting)
        value, parts = value_of(progress.results, is_failed=progress.failure is not None)
        return ToolResult(value=value, parts=parts, failure=progress.failure)

    async def _run(self, call: ToolCall, progress: _Progress) -> None:
        request = read_request(call.fields, None if call.script is None else call.script.text)
        if self._places is None or call.tables is None:
            raise failed("unsupported", "this worker has no place for databases and tables")
        owner = Owner(call.tenant_id, call.organization_id)
        attachments = self._attachments(call, owner)
        place = await asyncio.to_thread(self._places.make, request.database, owner, call.execution_id)
        try:
            for _ in range(_TABLE_TRIES):
                progress.gone = None
                await self._attempt(call, _described(request, place, attachments), progress, is_first=place.is_first)
                if progress.gone is None:
                    return
        finally:
            await asyncio.to_thread(shutil.rmtree, place.scratch, ignore_errors=True)
        message = f"the rows of input {progress.gone!r} went away {_TABLE_TRIES} times before they could be read"
        raise failed("missing_reference", message, "TABLE_GONE")

    async def _attempt(self, call: ToolCall, message: dict[str, Any], progress: _Progress, *, is_first: bool) -> None:
        """Once, unless a table went away before the process could take hold of it: nothing has happened then."""
        async with AsyncExitStack() as stack:
            message["sources"] = await opened_sources(call, stack)
            message["memory_bytes"] = self._settings.duckdb_memory_bytes
            message["threads"] = self._settings.duckdb_threads
            await stack.enter_async_context(self._turn(message["locks"]))
            await self._talk(call, message, progress, is_first=is_first)

    def _attachments(self, call: ToolCall, owner: Owner) -> list[dict[str, Any]]:
        assert self._places is not None
        found = []
        for one in attachments_of(call.auth):
            path = self._places.named(one.database, owner)
            if path is None or not path.is_file():
                message = f"auth: the database of alias {one.alias!r} is not on this node"
                raise failed("not_found", message, "DUCKDB_DATABASE_MISSING")
            found.append({"alias": one.alias, "path": str(path), "is_read_only": one.is_read_only})
        return found

    @asynccontextmanager
    async def _turn(self, locks: Collection[str]) -> AsyncIterator[None]:
        """Wait in this process first: a process that only waits for a file would take another task's place."""
        async with AsyncExitStack() as stack:
            for path in sorted(locks):
                await stack.enter_async_context(self._turns.setdefault(path, asyncio.Lock()))
            await stack.enter_async_context(self._slots)
            yield

    async def _talk(self, call: ToolCall, message: Mapping[str, Any], progress: _Progress, *, is_first: bool) -> None:
        child = await self._children.take()
        try:
            async with aclosing(child.answers(message)) as answers:
                async for answer in answers:
                    await self._hear(call, answer, progress, is_first=is_first)
        finally:
            await child.stop()
        if progress.failure is None and progress.gone is None and not progress.is_done:
            number, memory = len(progress.results), self._settings.duckdb_memory_bytes
            progress.failure = crash_failure(child.status, number=number, memory_bytes=memory)

    async def _hear(self, call: ToolCall, answer: Mapping[str, Any], progress: _Progress, *, is_first: bool) -> None:
        """One thing that the process says.  Rows are made durable while it works on the next statement."""
        if "result" in answer:
            progress.results.append(await _kept(call, answer["result"]))
        elif "error" in answer:
            is_absent = is_first and answer["error"] == "CatalogException"
            progress.failure = _failure(answer, hint=_ELSEWHERE if is_absent else None)
        elif "done" in answer:
            progress.is_done = True
            if answer["is_open"]:
                message = (
                    "the SQL leaves a transaction open, which was rolled back: end it with COMMIT, or leave BEGIN out"
                )
                progress.failure = failed("config", message).failure
        elif "gone" in answer:
            progress.gone = answer["gone"]
        else:
            progress.is_waiting = False


def _described(request: Request, place: TaskPlace, attachments: list[dict[str, Any]]) -> dict[str, Any]:
    files = {one["path"] for one in attachments} | ({str(place.database)} if place.database is not None else set())
    return {
        "database": MEMORY if place.database is None else str(place.database),
        "run_lock": str(place.run / LOCK),
        "locks": [f"{path}{LOCK}" for path in files],
        "attachments": attachments,
        "files": str(place.files),
        "scratch": str(place.scratch),
        "statements": [[one.text, list(one.values)] for one in request.statements],
    }


async def _kept(call: ToolCall, result: Mapping[str, Any]) -> StatementResult:
    if "path" not in result:
        return StatementResult(row_count=result["row_count"])
    tables = call.tables
    assert tables is not None
    reference = await patiently(lambda: tables.keep(LandedTable(path=Path(result["path"]))))
    return StatementResult(row_count=result["row_count"], columns=tuple(result["columns"]), reference=reference)


def _failure(answer: Mapping[str, Any], *, hint: str | None) -> Failure:
    if answer["error"] == "Removed":
        return failed("cancelled", "the execution has ended and its folder was removed").failure
    return statement_failure(answer["error"], answer["message"], number=answer["number"], hint=hint)
