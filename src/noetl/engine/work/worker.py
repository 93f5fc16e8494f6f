"""A worker: takes commands from its session, runs them, reports facts.  It knows nothing of routing."""

from __future__ import annotations

import asyncio
import logging
from copy import deepcopy
from typing import Any

from noetl.core import kinds
from noetl.core.codec import canonical_bytes
from noetl.core.errors import (
    EnvelopeInvalid,
    Failure,
    NoetlError,
    TemplateFailed,
    Transient,
)
from noetl.core.execution.values import event_view
from noetl.core.expression import OutputView, plain, render
from noetl.core.limits import ATOM_BYTES_MAX, CONTEXT_ENTRY_BYTES_MAX, TEMPLATE_SECONDS_MAX
from noetl.core.playbook.compile import CompiledPlaybook, CompiledStep
from noetl.core.reference import MEDIA_JSON, MEDIA_PIPELINE, MEDIA_TEXT, Payload, Result
from noetl.engine.work.names import NameBuilder, pipeline_result
from noetl.engine.work.outcome import TaskOutcome, atom_document, recorded_error
from noetl.engine.work.parts import WorkerParts
from noetl.engine.work.pipeline import Ended, Pipeline, Run
from noetl.ports.session import ClaimWithdrawn, CommandMessage, Fact

log = logging.getLogger("noetl.worker")
LOAD_AGAIN_SECONDS = 0.5


class Worker:
    """`run` belongs to the caller's task group and lives as long as the session."""

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts
        self._session = parts.session
        self._playbooks = parts.playbooks
        self._payloads = parts.payloads
        self._renderer = parts.renderer
        self._clock = parts.clock
        self._names = NameBuilder(parts.payloads)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                message = await self._session.next_command()
                group.create_task(self._perform(message))

    async def _perform(self, message: CommandMessage) -> None:
        try:
            fact = await self._guarded(message)
            await self._session.confirmed(message)
        except ClaimWithdrawn:
            return
        try:
            await self._report(message, fact)
        except NoetlError as error:
            # Late, or about an execution that cannot be read: it concerns this command and nobody else.
            log.warning("fact refused", extra={"event": "fact.refused", "reason": f"{error.code}: {error}"})

    async def _report(self, message: CommandMessage, fact: Fact) -> None:
        try:
            await self._session.report(fact)
        except EnvelopeInvalid as error:
            failure = Failure(kind="config", code=error.code, message=str(error))
            await self._session.report(_failed(message, failure))

    async def _guarded(self, message: CommandMessage) -> Fact:
        """The fact about a command, whatever happens while it is performed."""
        try:
            return await self._fact(message, self._clock.monotonic())
        except NoetlError as error:
            return _failed(message, Failure(kind="unknown", code=error.code, message=str(error)))
        except ClaimWithdrawn:
            raise
        except Exception as error:  # task supervision: a defect of ours fails this command and nothing else
            log.exception("command failed unexpectedly", extra={"event": "command.defect"})
            return _failed(message, Failure(kind="unknown", code="internal", message=f"internal error: {error!r}"))

    async def _fact(self, message: CommandMessage, started: float) -> Fact:
        body: Any = message.body
        while True:
            try:
                playbook, names, run = await self._load(message)
                break
            except Transient as error:
                # Nothing has happened yet: a store that is away for a while is no failure of the command.
                log.warning("waiting for a payload", extra={"event": "payload.unavailable", "reason": str(error)})
                await asyncio.sleep(LOAD_AGAIN_SECONDS)
        step = playbook.steps[body["step"]]
        if body["kind"] == "evaluate":
            return await self._evaluate(message, playbook, names, str(body["expression"]))
        pipeline = Pipeline(self._parts, message=message, playbook=playbook, step=step, names=names, run=run)
        ended = await pipeline.perform()
        if ended.wait is not None:
            return await self._waiting(message, ended)
        return await self._finished(message, step, ended, started)

    async def _load(self, message: CommandMessage) -> tuple[CompiledPlaybook, dict[str, object], Run]:
        """Everything that must be read before the command can begin."""
        body: Any = message.body
        owner = {"tenant_id": message.tenant_id, "organization_id": message.organization_id}
        playbook = await self._playbooks.pinned(body["playbook"], **owner)
        names = await self._names.build(message, spec=playbook.playbook.spec)
        if body.get("resume") is None:
            return playbook, names, Run()
        saved = await self._payloads.read_json(body["resume"], **owner)
        # A copy: the run changes its memory, and the payload cache keeps what it read.
        return playbook, names, Run(**deepcopy(saved))

    async def _waiting(self, message: CommandMessage, ended: Ended) -> Fact:
        assert ended.wait is not None
        payload = await self._keep(message, ended.run.to_json(), MEDIA_JSON)
        writes, moved = await self._writes(message, ended)
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

    async def _writes(self, message: CommandMessage, ended: Ended) -> tuple[list[dict[str, object]], list[Payload]]:
        """The pipeline's context writes.  A key whose value is large, or was held by reference, is written whole and
        by reference."""
        context: Any = message.body["ctx"]
        whole = {
            str(path[0])
            for path, value in ((item["path"], item["v"]) for item in ended.run.writes)
            if len(canonical_bytes(value)) > CONTEXT_ENTRY_BYTES_MAX
            or (len(path) > 1 and "ref" in context.get(path[0], ()))
        }
        writes = [item for item in ended.run.writes if item["path"][0] not in whole]
        payloads = []
        for name in sorted(whole):
            payload = await self._keep(message, ended.variables[name], MEDIA_JSON)
            payloads.append(payload)
            writes.append({"path": [name], "ref": payload.reference.to_json(), "at": []})
        return writes, payloads

    async def _finished(self, message: CommandMessage, step: CompiledStep, ended: Ended, started: float) -> Fact:
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
            payload = await self._keep(message, kept, media_type)
            payloads.append(payload)
            reference = payload.reference
        writes, moved = await self._writes(message, ended)
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
                note = await self._keep_text(message, text)
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

    async def _evaluate(
        self, message: CommandMessage, playbook: CompiledPlaybook, names: dict[str, object], key: str
    ) -> Fact:
        """Compute one expression of the router where the data is."""
        template = playbook.expressions[key].template
        names.update(_completing_names(message, names, self._clock.now()))
        strict = playbook.playbook.strict_templates
        payloads: list[Payload] = []
        result = Result(status="ok")
        try:
            if template.needs_child:
                value = await self._renderer.render(
                    template.source,
                    {root: names[root] for root in template.roots if root in names},
                    now=self._clock.now(),
                    timeout_seconds=TEMPLATE_SECONDS_MAX,
                    tenant=message.tenant_id,
                    organization=message.organization_id,
                    strict=strict,
                )
            else:
                value = render(template, names, now=self._clock.now(), strict=strict)
            if len(canonical_bytes(value)) <= ATOM_BYTES_MAX:
                result = Result(status="ok", context={"value": value})
            else:
                payload = await self._keep(message, value, MEDIA_JSON)
                payloads.append(payload)
                result = Result(status="ok", reference=payload.reference)
        except TemplateFailed as error:
            failure = Failure(kind="template", code=error.code, message=str(error))
            result = Result(status="error", context={"error": recorded_error(failure)})
        return Fact(
            execution_id=message.execution_id,
            command_id=message.command_id,
            attempt=message.attempt,
            event_type=kinds.COMMAND_COMPLETED,
            result=result.to_json(),
            payloads=payloads,
        )

    async def _keep(self, message: CommandMessage, value: object, media_type: str) -> Payload:
        return await self._payloads.keep_json(
            value,
            tenant_id=message.tenant_id,
            organization_id=message.organization_id,
            media_type=media_type,
        )

    async def _keep_text(self, message: CommandMessage, text: str) -> Payload:
        return await self._payloads.keep(
            text.encode("utf-8", "replace"),
            tenant_id=message.tenant_id,
            organization_id=message.organization_id,
            media_type=MEDIA_TEXT,
        )


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


def _completing_names(message: CommandMessage, names: dict[str, Any], now: str) -> dict[str, object]:
    """`output` and its companions, for an expression about a step that has already ended."""
    step = str(message.body["step"])
    envelopes: Any = message.body["steps"]
    envelope, view = envelopes.get(step), names["steps"].get(step)
    if envelope is None:
        return {}
    error = envelope.get("error")
    output = OutputView(status=envelope["status"], data=plain(view), ref=envelope["ref"], error=error)
    event = event_view(step, has_failed=envelope["status"] == "error", now=now)
    return {"output": output, "outcome": output, "result": view, "response": view, "error": error, "event": event}


def _failed(message: CommandMessage, failure: Failure) -> Fact:
    return Fact(
        execution_id=message.execution_id,
        command_id=message.command_id,
        attempt=message.attempt,
        event_type=kinds.COMMAND_FAILED,
        result=Result(status="error", context={"error": recorded_error(failure)}).to_json(),
    )
