"""How a step ended: its result persisted, its atoms evaluated against it, its writes, as one fact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core import kinds
from noetl.core.codec import canonical_bytes
from noetl.core.errors import Failure
from noetl.core.expression import plain
from noetl.core.limits import CONTEXT_ENTRY_BYTES_MAX
from noetl.core.playbook.compiled import CompiledStep
from noetl.core.reference import MEDIA_JSON, MEDIA_PIPELINE, MEDIA_TEXT, Payload, Result
from noetl.engine.payloads import Payloads
from noetl.engine.results import pipeline_result
from noetl.engine.work.pipeline.outcome import TaskOutcome, atom_document, recorded_error
from noetl.engine.work.pipeline.run import Ended
from noetl.ports.clock import Clock
from noetl.ports.session import CommandMessage, Fact


class Facts:
    """Persists before it reports: a fact names only payloads that are durable or travel with it."""

    def __init__(self, payloads: Payloads, clock: Clock) -> None:
        self._payloads = payloads
        self._clock = clock

    async def waiting(self, message: CommandMessage, ended: Ended) -> Fact:
        assert ended.wait is not None
        payload = await self.keep(message, ended.run.to_json(), MEDIA_JSON)
        writes, moved = await self.writes(message, ended.run.writes, ended.variables)
        return Fact(
            execution_id=message.execution_id,
            command_id=message.command_id,
            attempt=message.attempt,
            event_type=kinds.TASK_WAITING,
            writes=writes or None,
            meta={"delay_seconds": ended.wait.delay_seconds, "task": ended.wait.task},
            payload_ref=payload.reference.to_json(),
            payloads=[payload, *moved],
        )

    async def child_started(self, message: CommandMessage, ended: Ended) -> Fact:
        """A pipeline stopped where another execution is to run: what to start, and where to go on."""
        request = ended.child
        assert request is not None
        resume = await self.keep(message, ended.run.to_json(), MEDIA_JSON)
        given = await self.keep(message, request.payload, MEDIA_JSON)
        writes, moved = await self.writes(message, ended.run.writes, ended.variables)
        return Fact(
            execution_id=message.execution_id,
            command_id=message.command_id,
            attempt=message.attempt,
            event_type=kinds.CHILD_STARTED,
            writes=writes or None,
            meta={
                "task": request.task,
                "path": request.path,
                "version": request.version,
                "payload": given.reference.to_json(),
                "return_step": request.return_step,
                "waits": request.waits,
                "timeout_seconds": request.timeout_seconds,
            },
            payload_ref=resume.reference.to_json(),
            payloads=[resume, given, *moved],
        )

    async def writes(
        self, message: CommandMessage, items: list[dict[str, Any]], variables: Mapping[str, object]
    ) -> tuple[list[dict[str, object]], list[Payload]]:
        """The pipeline's context writes.  A key whose value is large, or was held by reference, is written whole and
        by reference."""
        context: Any = message.body["ctx"]
        whole = {
            str(path[0])
            for path, value in ((item["path"], item["v"]) for item in items)
            if len(canonical_bytes(value)) > CONTEXT_ENTRY_BYTES_MAX
            or (len(path) > 1 and "ref" in context.get(path[0], ()))
        }
        writes = [item for item in items if item["path"][0] not in whole]
        payloads = []
        for name in sorted(whole):
            payload = await self.keep(message, variables[name], MEDIA_JSON)
            payloads.append(payload)
            writes.append({"path": [name], "ref": payload.reference.to_json(), "at": []})
        return writes, payloads

    async def finished(self, message: CommandMessage, step: CompiledStep, ended: Ended, started: float) -> Fact:
        """Persist the result, evaluate the atoms against it, and say how the step ended."""
        run, failure = ended.run, ended.failure
        if step.is_pipeline:
            value: object = pipeline_result(run.order, run.results)
            kept: object = {"order": run.order, "results": run.results}
            media_type = MEDIA_PIPELINE
        else:
            value = kept = ended.last.value if ended.last is not None else None
            media_type = MEDIA_JSON
        payloads: list[Payload] = []
        reference = None
        if failure is None or kept is not None:
            payload = await self.keep(message, kept, media_type)
            payloads.append(payload)
            reference = payload.reference
        writes, moved = await self.writes(message, ended.run.writes, ended.variables)
        payloads.extend(moved)
        context: dict[str, object] = {}
        if step.atoms:
            context["atoms"] = atom_document(step.atoms, _atom_names(step.name, value, ended))
        if failure is not None:
            context["error"] = recorded_error(failure)
        meta: dict[str, object] = {
            "duration_ms": round((self._clock.monotonic() - started) * 1000, 3),
            "tasks": ended.tasks,
        }
        if ended.warnings:
            meta["warnings"] = ended.warnings
        for name, text in (
            ("stdout", ended.stdout),
            ("traceback", ended.last.traceback if ended.last else None),
        ):
            if text:
                note = await self.keep_text(message, text)
                payloads.append(note)
                meta[name] = note.reference.to_json()
        return Fact(
            execution_id=message.execution_id,
            command_id=message.command_id,
            attempt=message.attempt,
            event_type=kinds.COMMAND_FAILED if failure is not None else kinds.COMMAND_COMPLETED,
            result=Result(
                status="error" if failure is not None else "ok", reference=reference, context=context
            ).to_json(),
            writes=writes or None,
            meta=meta,
            payloads=payloads,
        )

    async def keep(self, message: CommandMessage, value: object, media_type: str = MEDIA_JSON) -> Payload:
        return await self._payloads.keep_json(
            value,
            tenant_id=message.tenant_id,
            organization_id=message.organization_id,
            media_type=media_type,
        )

    async def keep_text(self, message: CommandMessage, text: str) -> Payload:
        return await self._payloads.keep(
            text.encode("utf-8", "replace"),
            tenant_id=message.tenant_id,
            organization_id=message.organization_id,
            media_type=MEDIA_TEXT,
        )


def failed(message: CommandMessage, failure: Failure) -> Fact:
    """The failure of a command, or of a whole frame before any of its rows ran."""
    frame: Any = message.body.get("stage") if message.body.get("kind") == "frame" else None
    meta = {"outcomes": {"success": 0, "failed": frame["rows"], "skipped": 0}} if frame is not None else {}
    return Fact(
        execution_id=message.execution_id,
        command_id=message.command_id,
        attempt=message.attempt,
        event_type=kinds.COMMAND_FAILED if frame is None else kinds.FRAME_FAILED,
        result=Result(status="error", context={"error": recorded_error(failure)}).to_json(),
        meta=meta,
    )


def stopped(message: CommandMessage) -> Fact:
    """The end of what was told to stop.  The rows of a frame count as never run."""
    failure = Failure(kind="cancelled", code="cancelled", message="stopped on request")
    fact = failed(message, failure)
    if "outcomes" not in fact.meta:
        return fact
    stage: Any = message.body["stage"]
    return fact._replace(meta={"outcomes": {"success": 0, "failed": 0, "skipped": stage["rows"]}})


def _atom_names(step: str, value: object, ended: Ended) -> dict[str, object]:
    """The completing step under its own name and as `output`."""
    failure = ended.failure
    last = ended.last
    outcome = TaskOutcome(
        value=value,
        failure=failure,
        attempt=last.attempt if last else 1,
        duration_ms=last.duration_ms if last else 0.0,
        started_at=last.started_at if last else "",
        traceback=last.traceback if last else None,
        facts=last.facts if last else None,
    )
    output = outcome.output()
    view = outcome.view()
    error = plain(output["error"]) if failure is not None else None
    return {
        step: view,
        "steps": {step: view},
        "output": output,
        "outcome": output,
        "result": view,
        "response": view,
        "error": error,
    }
