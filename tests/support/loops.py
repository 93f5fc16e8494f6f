"""A simulated execution with loops: whoever uses it plays the worker for frames, collections and results.

Claims and facts become events by the code of the control plane, and the records of rows are decoded by the code that
reads results, so that a test says only which rows ended how."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.core import kinds
from noetl.core.codec import canonical_bytes
from noetl.core.errors import Failure, TemplateFailed
from noetl.core.event import Event
from noetl.core.execution.context import command_body
from noetl.core.execution.looping.loops import rows_of
from noetl.core.execution.looping.policy import CannotLoop
from noetl.core.execution.state import Command, CommandStatus, Frame, Stage
from noetl.core.expression import plain, render_value
from noetl.core.reference import MEDIA_LOOP, Result
from noetl.engine.control.facts import abandoned, claim_draft, exhausted, fact_draft
from noetl.engine.payloads import Payloads
from noetl.engine.results import loop_records, loop_result
from noetl.engine.stored.outcome import completing_names
from noetl.engine.work.pipeline.outcome import atom_document, error_document, recorded_error
from noetl.ports.session import Fact
from tests.support.playbooks import JsonObject, Simulated, address_of, graph, result_view, step

# What a row gives: a value, or the failure of the row.
Outcome = object
OWNER = {"tenant_id": "acme", "organization_id": "sales"}


def loop_step(
    name: str,
    rows: object,
    *targets: str | JsonObject,
    spec: JsonObject | None = None,
    best_effort: bool = False,
    **keys: Any,
) -> JsonObject:
    """One step that is a loop over `rows`; its iterator is `item`."""
    loop: JsonObject = {"in": rows, "iterator": "item"}
    if spec is not None:
        loop["spec"] = spec
    if best_effort:
        keys["spec"] = {"policy": {"failure": {"mode": "best_effort"}}}
    return step(name, *targets, loop=loop, **keys)


def parallel(in_flight: object = 4, **frame: object) -> JsonObject:
    spec: JsonObject = {"mode": "parallel", "max_in_flight": in_flight}
    return {**spec, "frame": frame} if frame else spec


def looping(rows: object, *targets: str | JsonObject, **keys: Any) -> Looping:
    """An execution that begins with a loop, over a workload of some size."""
    return Looping(graph(loop_step("each", rows, *targets, **keys), *(step(name) for name in _names(targets))))


def _names(targets: Sequence[str | JsonObject]) -> list[str]:
    return list(dict.fromkeys(str(target if isinstance(target, str) else target["step"]) for target in targets))


@dataclass(slots=True)
class Looping(Simulated):
    """`commit` and its companions answer frames; `run` answers whatever is open."""

    # --- what a test looks at ----------------------------------------------------------------------------

    @property
    def frames(self) -> list[str]:
        """Ids of the open frames, oldest first."""
        return [name for name, command in self.state.commands.items() if command.frame is not None]

    def frame(self, frame_id: str) -> Frame:
        frame = self.state.commands[frame_id].frame
        assert frame is not None
        return frame

    def stage(self, name: str = "each") -> Stage:
        return self.state.loop_state[name]

    def body(self, command_id: str) -> Any:
        """What a worker gets, as JSON."""
        command = self.state.commands[command_id]
        return json.loads(canonical_bytes(command_body(self.state, self.playbook, command)))

    def result(self, name: str = "each") -> Any:
        """The result of a loop as templates see it."""
        reference = self.state.step_results[name].reference
        assert reference is not None
        document: Any = self.payloads[str(reference["sha256"])]
        if reference["media_type"] != MEDIA_LOOP:
            return document
        return loop_result(document, document["frames"][0]["records"])

    # --- frames ------------------------------------------------------------------------------------------

    def take(self, frame_id: str, session_id: int = 9) -> Command:
        """A session claims a frame, or takes it over from a session that is gone."""
        command = self.state.commands[frame_id]
        if command.status is CommandStatus.CLAIMED:
            for draft in tuple(abandoned(self.state, command)):
                self.append(draft)
        self.append(claim_draft(command, command.attempt + 1, session_id))
        return self.state.commands[frame_id]

    def _held(self, frame_id: str) -> Command:
        command = self.state.commands[frame_id]
        return command if command.status is CommandStatus.CLAIMED else self.take(frame_id)

    def beat(self, frame_id: str, rows: Mapping[int, Outcome], *, writes: Sequence[JsonObject] = ()) -> Event:
        """The outcomes of some rows are persisted while the frame runs."""
        command = self._held(frame_id)
        records = {index: record(outcome) for index, outcome in rows.items()}
        document = {"rows": [[index, kept] for index, kept in records.items()], "writes": list(writes)}
        meta = {
            "ranges": [[index, index + 1] for index in sorted(rows)],
            "failed": sum("e" in kept for kept in records.values()),
        }
        return tell(self, command, kinds.FRAME_HEARTBEAT, meta=meta, payload_ref=self._keep(document))

    def commit(
        self,
        frame_id: str,
        rows: Mapping[int, Outcome] | None = None,
        *,
        ms: float = 1.0,
        writes: Sequence[JsonObject] | None = None,
    ) -> Event:
        """A frame ends: a row gives its index unless `rows` says otherwise, and took `ms` milliseconds.  A failure ends
        a frame that is not best effort, as a worker does it: rows behind it did not run."""
        command = self._held(frame_id)
        frame, stage = self.frame(frame_id), self.stage(command.step)
        records: list[JsonObject | None] = []
        error: JsonObject | None = None
        for index in range(frame.first, frame.first + frame.rows):
            outcome = (rows or {}).get(index, index)
            records.append(record(outcome) if error is None else None)
            if isinstance(outcome, Failure) and error is None and not stage.policy.is_best_effort:
                error = recorded_error(outcome) | {"message": f"item {index}: {outcome.message}"}
        ran = len([kept for kept in records if kept is not None])
        failed = len([kept for kept in records if kept is not None and "e" in kept])
        result = Result(
            status="ok" if error is None else "error",
            reference=address_of({"first": frame.first, "records": records}).reference,
            context={} if error is None else {"error": error},
        )
        self._keep({"first": frame.first, "records": records})
        meta = {
            "outcomes": {"success": ran - failed, "failed": failed, "skipped": frame.rows - ran},
            "profile": {"rows": ran, "wall_ms": ms * ran / frame.concurrency},
        }
        event_type = kinds.FRAME_COMMITTED if error is None else kinds.FRAME_FAILED
        return tell(self, command, event_type, meta=meta, result=result.to_json(), writes=writes)

    # --- collections and results -------------------------------------------------------------------------

    def collect(self, command_id: str) -> None:
        """Evaluate a collection as a worker does: from the body of the command, from nothing else."""
        command = self.state.commands[command_id]
        loop = self.playbook.steps[command.step].loop
        assert loop is not None
        try:
            given = render_value(loop.collection, self._names(command), now="", allow_loops=True)
            rows = rows_of(command.step, plain(given))
            document = {"total": len(rows), "rows": rows}
            self._keep(document)
            result = Result(status="ok", reference=address_of(document).reference, context={"total": len(rows)})
        except CannotLoop as refusal:
            result = Result(status="error", context={"error": refusal.error})
        except TemplateFailed as error:
            failure = Failure(kind="template", code=error.code, message=str(error))
            result = Result(status="error", context={"error": recorded_error(failure)})
        self._fact(command, kinds.COMMAND_COMPLETED, result.to_json(), None)

    def seal(self, command_id: str) -> None:
        """Write the result of a loop."""
        command, stage = self.state.commands[command_id], self.body(command_id)["stage"]
        for reference in stage.get("gathered", ()):
            lists: Any = self.payloads[reference["sha256"]]
            stage["outputs"] += lists["frames"]
        failure = stage["failure"]
        document = {
            "total": stage["total"],
            "success": stage["done"] - stage["failed"],
            "failed": stage["failed"],
            "status": "ok" if failure is None else "error",
            "frames": stage["outputs"],
        }
        records = asyncio.run(loop_records(self._readable(), document, **OWNER))
        document["frames"] = [{"first": 0, "rows": stage["total"], "ref": None, "records": records}]
        reference = address_of(document, MEDIA_LOOP).reference
        envelope = {"status": document["status"], "ref": reference.to_json(), "error": failure}
        names = completing_names(command.step, envelope, result_view(document, failure, MEDIA_LOOP))
        context: JsonObject = {"atoms": atom_document(self.playbook.steps[command.step].atoms, names)}
        if failure is not None:
            context["error"] = failure
        self._keep(document)
        result = Result(status=document["status"], reference=reference, context=context)
        event_type = kinds.COMMAND_COMPLETED if failure is None else kinds.COMMAND_FAILED
        self._fact(command, event_type, result.to_json(), None)

    def _readable(self) -> Payloads:
        tenant, organization = OWNER.values()
        contents = {(tenant, organization, digest): canonical_bytes(value) for digest, value in self.payloads.items()}
        return Payloads(small=MemoryPayloads(contents), large=MemoryPayloads({}))

    def answer(self, command_id: str, values: Mapping[str, object]) -> None:
        """A loop step's value is what its rows give: a mapping by index, or a function of the index."""
        command = self.state.commands[command_id]
        if command.kind == "collect":
            self.collect(command_id)
        elif command.kind == "gather":
            gather(self, command_id)
        elif command.kind == "seal":
            self.seal(command_id)
        elif command.frame is not None:
            given: Any = values.get(command.step, {})
            window = range(command.frame.first, command.frame.first + command.frame.rows)
            self.commit(command_id, {index: given(index) for index in window} if callable(given) else given)
        else:
            Simulated.answer(self, command_id, values)

    def finish(self, values: Mapping[str, object] | None = None, **keys: Any) -> Looping:
        self.run(values, **keys)
        return self


def windows(run: Looping) -> list[tuple[int, int, int]]:
    """First row, rows and concurrency of the open frames."""
    return [run.frame(name)[1:4] for name in run.frames]


def gather(run: Looping, command_id: str) -> None:
    """Write down where some frames of a loop left their rows."""
    command, stage = run.state.commands[command_id], run.body(command_id)["stage"]
    document = {"frames": stage["outputs"]}
    run._keep(document)
    result = Result(status="ok", reference=address_of(document).reference)
    run._fact(command, kinds.COMMAND_COMPLETED, result.to_json(), None)


def drain(run: Looping, frame_id: str) -> Event:
    """A frame that somebody holds was told to begin nothing more, and had not begun."""
    command, rows = run.state.commands[frame_id], run.frame(frame_id).rows
    error = {"kind": "cancelled", "code": "drained", "retryable": False, "message": f"{rows} rows did not run"}
    outcomes = {"success": 0, "failed": 0, "skipped": rows}
    result = Result(status="error", context={"error": error}).to_json()
    return tell(run, command, kinds.FRAME_FAILED, meta={"outcomes": outcomes}, result=result)


def give_up(run: Looping, frame_id: str) -> Event:
    """The frame was claimed too often."""
    event = run.append(exhausted(run.state.commands[frame_id]))
    run._follow(event)
    return event


def tell(run: Looping, command: Command, event_type: str, **fields: Any) -> Event:
    """A fact about what somebody holds, as the control plane records it."""
    fact = Fact(77, command.command_id, command.attempt, event_type, **fields)
    event = run.append(fact_draft(command, fact, run.events[-1].event_time))
    run._follow(event)
    return event


def record(outcome: Outcome) -> JsonObject:
    """How a worker keeps the outcome of a row of a single tool."""
    return {"v": None, "e": error_document(outcome)} if isinstance(outcome, Failure) else {"v": outcome}
