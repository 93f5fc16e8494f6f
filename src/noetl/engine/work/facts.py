"""How a step ended: its result persisted, its atoms evaluated against it, its writes, as one fact."""

from __future__ import annotations

from typing import Any

from noetl.core import kinds, limits
from noetl.core.codec import canonical_bytes
from noetl.core.credential_keys import credential_at
from noetl.core.errors import Failure
from noetl.core.execution.jobs.reports import recordable
from noetl.core.execution.writes import compacted
from noetl.core.expression import View
from noetl.core.playbook.compiled import CompiledStep
from noetl.core.reference import MEDIA_JSON, MEDIA_PIPELINE, MEDIA_TEXT, Payload, Result
from noetl.engine.payloads import Payloads
from noetl.engine.stored.outcome import completing_names
from noetl.engine.stored.sources import settled
from noetl.engine.work.keeping import kept_document, seen_result
from noetl.engine.work.parting import Kept, keep_value
from noetl.engine.work.pipeline.outcome import atom_document, recorded_error
from noetl.engine.work.pipeline.pointers import with_pointers
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
        resume = await self.keep_parted(message, ended.run.to_json(), MEDIA_JSON, has_parts=ended.run.has_parts)
        writes, moved = await self.writes(message, ended.run.writes)
        return Fact(
            execution_id=message.execution_id,
            command_id=message.command_id,
            attempt=message.attempt,
            event_type=kinds.TASK_WAITING,
            writes=writes or None,
            meta={"delay_seconds": ended.wait.delay_seconds, "task": ended.wait.task},
            payload_ref=resume.reference.to_json(),
            payloads=[*resume.payloads, *moved, *ended.payloads],
        )

    async def child_started(self, message: CommandMessage, ended: Ended) -> Fact:
        """A pipeline stopped where another execution is to run: what to start, and where to go on."""
        request = ended.child
        assert request is not None
        resume = await self.keep_parted(message, ended.run.to_json(), MEDIA_JSON, has_parts=ended.run.has_parts)
        given = await self.keep(message, request.payload, MEDIA_JSON)
        writes, moved = await self.writes(message, ended.run.writes)
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
                "catalog_id": request.catalog_id,
                "payload": given.reference.to_json(),
                "return_step": request.return_step,
                "waits": request.waits,
                "timeout_seconds": request.timeout_seconds,
                **({} if request.iteration is None else {"iter": request.iteration}),
            },
            payload_ref=resume.reference.to_json(),
            payloads=[*resume.payloads, given, *moved, *ended.payloads],
        )

    async def writes(
        self, message: CommandMessage, items: list[dict[str, Any]]
    ) -> tuple[list[dict[str, object]], list[Payload]]:
        """The pipeline's context writes.  A value that is large, that looks like a credential, or for which the event
        has no room, is written by reference."""
        writes: list[dict[str, object]] = []
        payloads: list[Payload] = []
        room = limits.CONTEXT_INLINE_BYTES_MAX
        for item in compacted(items):
            path, value = item["path"], item["v"]
            if isinstance(value, View):
                kept = await self.keep_parted(message, value, MEDIA_JSON, has_parts=True)
                payloads.extend(kept.payloads)
                writes.append({"path": path, "ref": kept.reference.to_json(), "at": []})
                continue
            size = len(canonical_bytes(value))
            if size <= min(limits.CONTEXT_ENTRY_BYTES_MAX, room) and credential_at(value, path) is None:
                room -= size
                writes.append(item)
                continue
            payload = await self.keep(message, value, MEDIA_JSON)
            payloads.append(payload)
            writes.append({"path": path, "ref": payload.reference.to_json(), "at": []})
        return writes, payloads

    async def finished(self, message: CommandMessage, step: CompiledStep, ended: Ended, started: float) -> Fact:
        """Persist the result, evaluate the atoms against it, and say how the step ended."""
        run, failure = ended.run, ended.failure
        document = kept_document(step, ended)
        kept: Kept | None = None
        payloads: list[Payload] = [*ended.payloads]
        if failure is None or document is not None:
            media_type = MEDIA_PIPELINE if step.is_pipeline else MEDIA_JSON
            kept = await self.keep_parted(message, document, media_type, has_parts=run.has_parts)
            payloads.extend(kept.payloads)
        error = None if failure is None else recorded_error(failure)
        seen = await settled(lambda: seen_result(step, ended, kept, error))
        if step.reports_meta and ended.last is not None:
            seen.envelope["meta"] = ended.last.meta()
        writes, moved = await self.writes(message, ended.run.writes)
        payloads.extend(moved)
        context = seen.context()
        if step.atoms:
            traceback = ended.last.traceback if ended.last is not None else None
            names = completing_names(step.name, seen.envelope, seen.view, traceback)
            context["atoms"] = await settled(lambda: atom_document(step.atoms, names))
        meta: dict[str, object] = {
            "duration_ms": round((self._clock.monotonic() - started) * 1000, 3),
            "tasks": with_pointers(ended.tasks, run),
        }
        if ended.warnings:
            meta["warnings"] = ended.warnings
        if run.scripts:
            meta["scripts"] = run.scripts
        if run.jobs:
            meta["jobs"] = recordable(run.jobs)
        if ended.last is not None and ended.last.traceback:
            note = await self.keep_text(message, ended.last.traceback)
            payloads.append(note)
            meta["traceback"] = note.reference.to_json()
        return Fact(
            execution_id=message.execution_id,
            command_id=message.command_id,
            attempt=message.attempt,
            event_type=kinds.COMMAND_FAILED if failure is not None else kinds.COMMAND_COMPLETED,
            result=Result(
                status="error" if failure is not None else "ok",
                reference=None if kept is None else kept.reference,
                context=context,
            ).to_json(),
            writes=writes or None,
            meta=meta,
            payloads=payloads,
        )

    async def keep_parted(self, message: CommandMessage, value: object, media_type: str, *, has_parts: bool) -> Kept:
        """Address a value of which something may be stored already."""
        owner = {"tenant_id": message.tenant_id, "organization_id": message.organization_id}
        return await keep_value(self._payloads, value, media_type=media_type, has_parts=has_parts, **owner)

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
