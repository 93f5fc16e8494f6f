"""A frame in a worker: its rows run through the step's pipeline, outcomes are persisted on the way, one fact ends
it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from noetl.core import kinds
from noetl.core.errors import Failure, NoetlError, ToolFailed
from noetl.core.execution.jobs.reports import recordable
from noetl.core.execution.writes import compacted
from noetl.core.expression import Scope
from noetl.core.limits import FRAME_PERSIST_SECONDS, JOBS_RECORDED_MAX, WARNINGS_MAX
from noetl.core.playbook.compiled import CompiledPlaybook, CompiledStep
from noetl.core.reference import MEDIA_FRAME, Payload, is_parted
from noetl.core.results.parts import rooted, written
from noetl.engine.results import Record
from noetl.engine.work.calling.caller import Caller
from noetl.engine.work.collections import rows_between
from noetl.engine.work.facts import Facts
from noetl.engine.work.frames.claiming import Claiming
from noetl.engine.work.frames.names import FrameNames
from noetl.engine.work.frames.outcomes import (
    counted,
    empty_fact,
    ended_fact,
    error_of,
    exceeded,
    failed_in,
    ranges_of,
    unclaimed_fact,
)
from noetl.engine.work.frames.profile import FrameProfile
from noetl.engine.work.keeping import kept_document
from noetl.engine.work.names import LOOP_NAMES, bound_names, partly_written, variables_of, with_open
from noetl.engine.work.parting import read_parted
from noetl.engine.work.parts import WorkerParts
from noetl.engine.work.pipeline.interpreter import Pipeline
from noetl.engine.work.pipeline.outcome import error_document
from noetl.engine.work.pipeline.run import Ended, RowScope, Run
from noetl.points import point
from noetl.ports.session import CommandMessage, Fact

log = logging.getLogger("noetl.worker")


class FrameRun:
    """One attempt at a frame.  `drain` may be called at any time: no further row begins then."""

    def __init__(
        self,
        parts: WorkerParts,
        facts: Facts,
        *,
        message: CommandMessage,
        playbook: CompiledPlaybook,
        step: CompiledStep,
        names: dict[str, object],
        run: Run,
    ) -> None:
        assert step.loop is not None
        stage: Any = message.body["stage"]
        self._parts = parts
        self._facts = facts
        self._message = message
        self._playbook = playbook
        self._step = step
        self._names = names
        # Where the first row that has no outcome goes on: rows that wait for other executions run one after the other.
        self._resume = run
        self._stopped: Ended | None = None
        self._stage = stage
        self._first: int = stage["first"]
        self._is_framewise = stage.get("process") == "frame"
        self._caller = Caller(parts, message, playbook=playbook, names=names)
        self._reserved = bound_names(message.body, playbook) | LOOP_NAMES
        self._above_tasks = self._reserved | {step.loop.loop.iterator}
        self._row_names = FrameNames(step, stage, reserved=self._reserved)
        self._items: list[object] = []
        self._records: dict[int, Record] = {}
        self._unpersisted: list[int] = []
        self._has_parts = False
        self._waiting: deque[int] = deque()
        self._is_draining = False
        self._is_over = asyncio.Event()
        self._profile = FrameProfile()
        self._persisted_writes = 0
        self._writes: list[dict[str, Any]] = []
        self._variables: dict[str, object] = {}
        self._warnings: list[str] = []
        self._jobs: list[dict[str, Any]] = []

    def drain(self) -> None:
        self._is_draining = True
        self._waiting.clear()

    async def perform(self) -> Fact:
        """Raises LeaseLost when somebody else has taken the frame over meanwhile."""
        stage, is_cursor = self._stage, "cursor" in self._stage
        if not is_cursor:
            items = await rows_between(
                self._parts.payloads, stage["collection"], self._first, self._first + stage["rows"], **self._owner
            )
            await self._begin(items, stage["parts"])
        # Nothing has an effect before the claim is in the ledger; everything before was preparation.
        await self._parts.session.confirmed(self._message)
        if is_cursor:
            fact = await self._claim()
            if fact is not None:
                return fact
        clock, known = self._parts.clock, len(self._records)
        started = clock.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._persist())
                await self._run_rows()
                # A heartbeat on its way is awaited: it must stand before the end of the frame.
                self._is_over.set()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        if self._stopped is not None:
            self._stopped.run.used = self._parts.payloads.used.to_json()
            await self._persist_some()
            self._stopped.payloads = self._caller.tables.take()
            return await self._facts.child_started(self._message, self._stopped)
        wall_ms = round((clock.monotonic() - started) * 1000, 3)
        ran = len(self._items) if self._is_framewise else len(self._records) - known
        return await self._fact({"rows": ran, "wall_ms": wall_ms, "tasks": self._profile.to_json()}, wall_ms)

    async def _claim(self) -> Fact | None:
        """Take the rows of a cursor.  The end of the frame when there are none, or none can be had."""
        if self._is_draining and self._stage["claim"] is None:
            return empty_fact(self._message, ())
        claiming = Claiming(
            self._parts,
            self._caller,
            message=self._message,
            playbook=self._playbook,
            step=self._step,
            names=self._names,
        )
        try:
            items = await claiming.rows()
        except ToolFailed as error:
            failure = self._caller.scrubbed_failure(error.failure)
            return unclaimed_fact(self._message, failure, is_recorded=claiming.is_recorded)
        self._warnings.extend(claiming.warnings)
        if not items:
            return empty_fact(self._message, self._warnings)
        await self._begin(items, self._stage["parts"] if claiming.is_taken_over else ())
        return None

    async def _begin(self, items: Sequence[object], parts: Sequence[Mapping[str, Any]]) -> None:
        """The frame's rows, and what is already known of them."""
        self._items = list(items)
        self._variables = await with_open(variables_of(self._names), partly_written(self._step))
        for part in parts:
            document = await read_parted(self._parts.payloads, part["ref"], **self._owner)
            self._has_parts = self._has_parts or is_parted(part["ref"]["media_type"])
            self._records.update(dict(document["rows"]))
            writes = [{**item, "v": rooted(item["v"])} for item in document["writes"]]
            self._writes.extend(writes)
            self._apply(writes)
        self._persisted_writes = len(self._writes)
        last = self._first + (1 if self._is_framewise else len(self._items))
        self._waiting.extend(i for i in range(self._first, last) if i not in self._records)
        if self._is_draining or (not self._stage["best_effort"] and failed_in(self._records.values())):
            self.drain()

    @property
    def _owner(self) -> dict[str, str]:
        return {"tenant_id": self._message.tenant_id, "organization_id": self._message.organization_id}

    # --- rows ----------------------------------------------------------------------------------------------

    async def _run_rows(self) -> None:
        runners = min(self._stage["concurrency"], len(self._waiting))
        async with asyncio.TaskGroup() as group:
            for _ in range(runners):
                group.create_task(self._run_some())

    async def _run_some(self) -> None:
        while self._waiting and not self._is_draining and self._stopped is None:
            await self._run_row(self._waiting.popleft())

    async def _run_row(self, index: int) -> None:
        run, self._resume = self._resume, Run()
        pipeline = Pipeline(
            self._parts,
            message=self._message,
            playbook=self._playbook,
            step=self._step,
            names=self._names_of(index),
            run=run,
            row=self._scope_of(index),
        )
        try:
            ended = await pipeline.perform()
        except NoetlError as error:
            ended = Ended(Run(), failure=Failure(kind="unknown", code=error.code, message=str(error)))
        except Exception as error:  # task supervision: a defect of ours fails this row and nothing else
            log.exception("a row failed unexpectedly", extra={"event": "row.defect"})
            ended = Ended(Run(), failure=Failure(kind="unknown", code="internal", message=f"internal error: {error!r}"))
        if ended.child is not None:
            self._stopped = ended
        else:
            self._note(index, ended)

    def _names_of(self, index: int) -> dict[str, object]:
        if self._is_framewise:
            return self._row_names.whole(self._names, self._items)
        return self._row_names.row(self._names, index, self._items, done=len(self._records))

    def _scope_of(self, index: int) -> RowScope:
        item = self._items if self._is_framewise else self._items[index - self._first]
        names = self._row_names.injected(index, item)
        row = None if self._is_framewise else index
        return RowScope(names, self._variables, self._caller, self._above_tasks, row, self._profile)

    def _note(self, index: int, ended: Ended) -> None:
        """Remember how a row ended."""
        run, failure = ended.run, ended.failure
        self._has_parts = self._has_parts or run.has_parts
        record: dict[str, Any] = {"p" if self._step.is_pipeline else "v": kept_document(self._step, ended)}
        if run.stored and not self._step.is_pipeline:
            record["x"] = next(iter(run.stored.values()))
        if failure is not None:
            record["e"] = error_document(failure)
            if not self._stage["best_effort"]:
                self.drain()
        if ended.is_broken and "cursor" in self._stage:
            record["b"] = True
        self._records[index] = record
        if not self._is_framewise:
            self._unpersisted.append(index)
        if run.writes:
            self._writes.extend(run.writes)
            self._apply(run.writes)
        if run.jobs:
            self._jobs = [*self._jobs, *run.jobs][-JOBS_RECORDED_MAX:]
        if ended.warnings and len(self._warnings) < WARNINGS_MAX:
            where = "" if self._is_framewise else f"item {index}: "
            self._warnings.extend(f"{where}{warning}" for warning in ended.warnings)

    def _apply(self, writes: Iterable[Mapping[str, Any]]) -> None:
        """Rows of a sequential loop see what earlier rows wrote; of parallel rows the last one counts."""
        for item in writes:
            self._variables = written(self._variables, item["path"], item["v"])
            if self._stage["sequential"]:
                name = item["path"][0]
                if name not in self._reserved:
                    self._names[name] = self._variables[name]
        if self._stage["sequential"]:
            names = self._names
            names["ctx"] = Scope(self._variables, _mapping(names["workload"]), _mapping(names["steps"]))

    # --- outcomes ------------------------------------------------------------------------------------------

    async def _persist(self) -> None:
        """While the frame runs, what is finished is made durable from time to time: whoever takes the frame over goes
        on behind it."""
        while not await self._is_over_within(FRAME_PERSIST_SECONDS):
            await self._persist_some()

    async def _persist_some(self) -> None:
        if not self._unpersisted:
            return
        done, self._unpersisted = sorted(self._unpersisted), []
        writes, self._persisted_writes = self._writes[self._persisted_writes :], len(self._writes)
        records = [self._records[index] for index in done]
        document = {"rows": [list(row) for row in zip(done, records, strict=True)], "writes": compacted(writes)}
        kept = await self._facts.keep_parted(self._message, document, MEDIA_FRAME, has_parts=self._has_parts)
        fact = Fact(
            execution_id=self._message.execution_id,
            command_id=self._message.command_id,
            attempt=self._message.attempt,
            event_type=kinds.FRAME_HEARTBEAT,
            meta={"ranges": ranges_of(done), "failed": failed_in(records)},
            payload_ref=kept.reference.to_json(),
            payloads=[*kept.payloads, *self._caller.tables.take()],
        )
        await self._parts.session.report(fact)
        point("worker.persisted")

    async def _is_over_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._is_over.wait()
        except TimeoutError:
            return False
        return True

    async def _fact(self, profile: Mapping[str, object], wall_ms: float) -> Fact:
        """Everything about the frame, its rows' outcomes by reference."""
        first, stage = self._first, self._stage
        count = 1 if self._is_framewise else len(self._items)
        records = [self._records.get(index) for index in range(first, first + count)]
        outcomes = counted(records, len(self._items), is_framewise=self._is_framewise)
        document = {"first": first, "records": records}
        kept = await self._facts.keep_parted(self._message, document, MEDIA_FRAME, has_parts=self._has_parts)
        payloads: list[Payload] = [*kept.payloads, *self._caller.tables.take()]
        writes, moved = await self._facts.writes(self._message, self._writes)
        payloads.extend(moved)
        meta: dict[str, object] = {"outcomes": outcomes, "profile": profile}
        breaks = sum(record is not None and "b" in record for record in records)
        if breaks:
            meta["breaks"] = breaks
        warnings = exceeded(stage, wall_ms=wall_ms, size=kept.size)
        if warnings or self._warnings:
            meta["warnings"] = [*warnings, *self._warnings][:WARNINGS_MAX]
        if self._jobs:
            meta["jobs"] = recordable(self._jobs)
        if self._caller.scripts.fetched:
            meta["scripts"] = self._caller.fetched_scripts()
        return ended_fact(
            self._message,
            error=error_of(records, stage, outcomes),
            reference=kept.reference,
            meta=meta,
            writes=writes,
            payloads=payloads,
        )


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}
