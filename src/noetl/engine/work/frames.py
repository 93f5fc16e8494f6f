"""A frame in a worker: its rows run through the step's pipeline, outcomes are persisted on the way, one fact ends
it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from noetl.core import kinds
from noetl.core.errors import Failure, NoetlError
from noetl.core.execution.writes import compacted, nested
from noetl.core.expression import Scope, plain
from noetl.core.limits import FRAME_PERSIST_SECONDS, PYTHON_OUTPUT_CHARS_MAX, WARNINGS_MAX
from noetl.core.playbook.compiled import CompiledPlaybook, CompiledStep
from noetl.core.reference import MEDIA_FRAME, Payload, Result
from noetl.engine.results import Record
from noetl.engine.work.calling.caller import Caller
from noetl.engine.work.collections import rows_between
from noetl.engine.work.facts import Facts
from noetl.engine.work.parts import WorkerParts
from noetl.engine.work.pipeline.interpreter import Pipeline
from noetl.engine.work.pipeline.outcome import error_document, recorded_error
from noetl.engine.work.pipeline.run import Ended, RowScope, Run
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
        # Where the first row goes on; a frame whose row waits for another execution has only that one.
        self._resume = run
        self._stopped: Ended | None = None
        self._stage = stage
        self._first: int = stage["first"]
        self._total: int = stage["total"]
        self._iterator = step.loop.loop.iterator
        self._caller = Caller(parts, message)
        self._tool_names = _names_in_code(step, (self._iterator, "_index", "_total"))
        self._items: list[object] = []
        self._records: dict[int, Record] = {}
        self._unpersisted: list[int] = []
        self._waiting: deque[int] = deque()
        self._is_draining = False
        self._is_over = asyncio.Event()
        self._persisted_writes = 0
        self._writes: list[dict[str, Any]] = []
        self._variables: dict[str, object] = {}
        self._warnings: list[str] = []
        self._stdout: list[str] = []
        self._stdout_chars = 0

    def drain(self) -> None:
        self._is_draining = True
        self._waiting.clear()

    async def perform(self) -> Fact:
        """Raises LeaseLost when somebody else has taken the frame over meanwhile."""
        await self._load()
        # Nothing has an effect before the claim is in the ledger; everything before was preparation.
        await self._parts.session.confirmed(self._message)
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
            return await self._facts.child_started(self._message, self._stopped)
        wall_ms = round((clock.monotonic() - started) * 1000, 3)
        return await self._fact({"rows": len(self._records) - known, "wall_ms": wall_ms})

    async def _load(self) -> None:
        """The frame's own slice of the collection, and what is already known of it."""
        stage, owner = self._stage, self._owner
        count = stage["rows"]
        self._items = await rows_between(
            self._parts.payloads, stage["collection"], self._first, self._first + count, **owner
        )
        self._variables = _mapping(plain(self._names["ctx"]))
        for part in stage["parts"]:
            document = await self._parts.payloads.read_json(part["ref"], **owner)
            self._records.update(dict(document["rows"]))
            self._writes.extend(document["writes"])
            self._apply(document["writes"])
        self._persisted_writes = len(self._writes)
        self._waiting.extend(i for i in range(self._first, self._first + count) if i not in self._records)
        if not stage["best_effort"] and _failed(self._records.values()):
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
        while self._waiting and not self._is_draining:
            await self._run_row(self._waiting.popleft())

    async def _run_row(self, index: int) -> None:
        run, self._resume = self._resume, Run()
        pipeline = Pipeline(
            self._parts,
            message=self._message,
            playbook=self._playbook,
            step=self._step,
            names=self._row_names(index),
            run=run,
            row=self._row_scope(index),
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

    def _row_names(self, index: int) -> dict[str, object]:
        item, total = self._items[index - self._first], self._total
        is_first, is_last = index == 0, index == total - 1
        iteration = {
            self._iterator: item,
            "index": index,
            "_index": index,
            "_first": is_first,
            "_last": is_last,
            "_total": total,
            "_frame_index": self._stage["number"] - 1,
            "_frame_row_index": index - self._first,
        }
        loop = {
            "index": index,
            "first": is_first,
            "last": is_last,
            "length": total,
            "done": self._stage["done"] + len(self._records),
        }
        own = {"iter": iteration, "loop": loop, "_index": index, "loop_index": index, "_total": total}
        return {**self._names, **own, self._iterator: item}

    def _row_scope(self, index: int) -> RowScope:
        values = {self._iterator: self._items[index - self._first], "_index": index, "_total": self._total}
        return RowScope({name: values[name] for name in self._tool_names}, self._variables, self._caller)

    def _note(self, index: int, ended: Ended) -> None:
        """Remember how a row ended."""
        run, failure = ended.run, ended.failure
        if self._step.is_pipeline:
            record: dict[str, Any] = {"p": {"order": run.order, "results": run.results}}
        else:
            record = {"v": ended.last.value if ended.last is not None else None}
        if failure is not None:
            record["e"] = error_document(failure)
            if not self._stage["best_effort"]:
                self.drain()
        self._records[index] = record
        self._unpersisted.append(index)
        if run.writes:
            self._writes.extend(run.writes)
            self._apply(run.writes)
        if ended.warnings and len(self._warnings) < WARNINGS_MAX:
            self._warnings.extend(f"item {index}: {warning}" for warning in ended.warnings)
        if ended.stdout and self._stdout_chars < PYTHON_OUTPUT_CHARS_MAX:
            self._stdout.append(ended.stdout)
            self._stdout_chars += len(ended.stdout)

    def _apply(self, writes: Iterable[Mapping[str, Any]]) -> None:
        """Rows of a sequential loop see what earlier rows wrote; of parallel rows the last one counts."""
        for item in writes:
            self._variables = nested(self._variables, item["path"], item["v"])
            if self._stage["sequential"]:
                name = item["path"][0]
                self._names[name] = self._variables[name]
        if self._stage["sequential"]:
            names = self._names
            names["ctx"] = Scope(self._variables, _mapping(names["workload"]), _mapping(names["steps"]))

    # --- outcomes ------------------------------------------------------------------------------------------

    async def _persist(self) -> None:
        """While the frame runs, what is finished is made durable from time to time: whoever takes the frame over goes
        on behind it."""
        while not await self._is_over_within(FRAME_PERSIST_SECONDS):
            if not self._unpersisted:
                continue
            done, self._unpersisted = sorted(self._unpersisted), []
            writes, self._persisted_writes = self._writes[self._persisted_writes :], len(self._writes)
            records = [self._records[index] for index in done]
            document = {"rows": [list(row) for row in zip(done, records, strict=True)], "writes": compacted(writes)}
            payload = await self._facts.keep(self._message, document, MEDIA_FRAME)
            fact = Fact(
                execution_id=self._message.execution_id,
                command_id=self._message.command_id,
                attempt=self._message.attempt,
                event_type=kinds.FRAME_HEARTBEAT,
                meta={"ranges": _ranges(done), "failed": _failed(records)},
                payload_ref=payload.reference.to_json(),
                payloads=[payload],
            )
            await self._parts.session.report(fact)

    async def _is_over_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._is_over.wait()
        except TimeoutError:
            return False
        return True

    async def _fact(self, profile: Mapping[str, object]) -> Fact:
        """Everything about the frame, its rows' outcomes by reference."""
        first, count = self._first, self._stage["rows"]
        records = [self._records.get(index) for index in range(first, first + count)]
        failed = _failed(records)
        skipped = sum(record is None for record in records)
        outcomes = {"success": count - failed - skipped, "failed": failed, "skipped": skipped}
        payload = await self._facts.keep(self._message, {"first": first, "records": records}, MEDIA_FRAME)
        payloads: list[Payload] = [payload]
        writes, moved = await self._facts.writes(self._message, compacted(self._writes), self._variables)
        payloads.extend(moved)
        meta: dict[str, object] = {"outcomes": outcomes, "profile": profile}
        if self._warnings:
            meta["warnings"] = self._warnings[:WARNINGS_MAX]
        if self._stdout:
            note = await self._facts.keep_text(self._message, "".join(self._stdout)[:PYTHON_OUTPUT_CHARS_MAX])
            payloads.append(note)
            meta["stdout"] = note.reference.to_json()
        error = self._error(records, skipped)
        context = {} if error is None else {"error": error}
        status = "ok" if error is None else "error"
        return Fact(
            execution_id=self._message.execution_id,
            command_id=self._message.command_id,
            attempt=self._message.attempt,
            event_type=kinds.FRAME_COMMITTED if error is None else kinds.FRAME_FAILED,
            result=Result(status=status, reference=payload.reference, context=context).to_json(),
            writes=writes or None,
            meta=meta,
            payloads=payloads,
        )

    def _error(self, records: list[Record], skipped: int) -> dict[str, object] | None:
        """Why the frame failed, if it did: the first row that failed says it."""
        if not self._stage["best_effort"]:
            for number, record in enumerate(records):
                if record is not None and "e" in record:
                    return _row_error(self._first + number, record["e"])
        if skipped:
            return {
                "kind": "cancelled",
                "code": "drained",
                "retryable": False,
                "message": f"{skipped} rows did not run",
            }
        return None


def _row_error(index: int, error: Mapping[str, Any]) -> dict[str, object]:
    failure = Failure(
        kind=error["kind"],
        code=error["code"],
        status=error["status"],
        retryable=error["retryable"],
        message=f"item {index}: {error['message']}",
        exception_type=error["exception_type"],
    )
    return recorded_error(failure)


def _failed(records: Iterable[Record]) -> int:
    return sum(record is not None and "e" in record for record in records)


def _ranges(indexes: list[int]) -> list[list[int]]:
    """Sorted indexes as half-open ranges."""
    ranges: list[list[int]] = []
    for index in indexes:
        if ranges and ranges[-1][1] == index:
            ranges[-1][1] = index + 1
        else:
            ranges.append([index, index + 1])
    return ranges


def _names_in_code(step: CompiledStep, names: tuple[str, ...]) -> tuple[str, ...]:
    """Names that user code may read without being given them as input; what it does not mention is not sent."""
    code = " ".join(str(task.fields["code"].source) for task in step.tasks if "code" in task.fields)
    return tuple(name for name in names if name in code)


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}
